/* SPDX-License-Identifier: Apache-2.0 */
/* restarted_server.c - a server that may die at any time, and goes on with its saved state when it is started again.
 *
 *   weft-run --elastic 4:4 --restarts 100 restarted_server FILE
 *
 * Rank 0 keeps the job, rank 1 is the server, ranks 2 and 3 are clients. FILE has the state; remove it to begin again.
 * docs/serving.md explains the program. */
#include <weft/rpc.h>
#include <weft/job.h>

#include <semaphore.h>
#include <time.h>
#include <unistd.h>

enum { SERVER = 1, FIRST_CLIENT = 2, WORKERS = 4, UPDATES = 1000 };

/* ---- The server ------------------------------------------------------------------------------------------------- */

static const char *file;
static struct state {
    int64_t total;
    int64_t last[WORKERS]; /* by client: the number of its last update in `total` */
} state;

/* Replaces the file as a whole: after a crash it has the old state or the new one. */
static weft_status save(const struct state *s)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s.new", file);
    FILE *out = fopen(path, "wb");
    bool good = out && fwrite(s, sizeof(*s), 1, out) == 1 && !fflush(out) && !fsync(fileno(out));
    if (out)
        good = !fclose(out) && good;
    return good && !rename(path, file) ? WEFT_OK : WEFT_ERR_IO;
}

/* (number, amount) -> total. Saves once for all calls of a batch; one batch runs at a time. */
static weft_status add(weft_batch *batch, void *user)
{
    struct state next = state;
    (void)user;
    for (size_t i = 0; i < weft_batch_count(batch); i++) {
        weft_call *call = weft_batch_call(batch, i);
        int64_t *last = &next.last[weft_call_from(call)];
        if (weft_call_i64(call, 0) > *last) { /* otherwise an earlier attempt of the call has added it */
            *last = weft_call_i64(call, 0);
            next.total += weft_call_i64(call, 1);
        }
        weft_call_give(call, WEFT_VALUES(weft_of_i64(next.total)));
    }
    weft_status status = save(&next);
    if (status)
        weft_batch_fail(batch, status, "add: the state cannot be saved to %s", file);
    else
        state = next;
    return status; /* weft answers the calls now, after the state was saved */
}

/* ---- The clients, and rank 0 ------------------------------------------------------------------------------------ */

static weft_status call_add(weft_agent *agent, int64_t number, int64_t amount, int64_t *total)
{
    weft_error *error = NULL;
    weft_values *results = NULL;
    weft_rpc_options how = {.timeout_ms = 60000, .error = &error};
    how.retry = (weft_retry){.attempts = 1000, .pause_ms = 20, .pause_most_ms = 500};
    weft_status status = weft_rpc_sync(agent, weft_to_name("adder"), "add",
                                       WEFT_VALUES(weft_of_i64(number), weft_of_i64(amount)), &how, &results);
    if (!status)
        status = weft_values_get_i64(results, 0, total);
    weft_error_print(error, stderr); /* nothing if the call succeeded */
    weft_error_unref(error);
    weft_values_unref(results);
    return status;
}

static weft_status use_server(weft_agent *agent)
{
    int64_t total;
    weft_status status = WEFT_OK;
    for (int64_t number = 1; number <= UPDATES && !status; number++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); /* the client's own work */
        status = call_add(agent, number, number, &total);
    }
    return status ? status : weft_rpc_sync(agent, weft_to_rank(0), "leave", WEFT_NO_VALUES, NULL, NULL);
}

static sem_t left; /* rank 0: clients that are done */

static weft_status leave(weft_call *call, void *user)
{
    (void)call, (void)user;
    sem_post(&left);
    return WEFT_OK;
}

static weft_status keep_job(weft_agent *agent)
{
    int64_t total = 0;
    for (int client = FIRST_CLIENT; client < WORKERS; client++)
        sem_wait(&left);
    weft_status status = call_add(agent, 1, 0, &total);
    if (!status)
        printf("the total is %lld\n", (long long)total);
    weft_status ended = weft_agent_end_job(agent, "all clients are done"); /* weft_agent_serve returns */
    return status ? status : ended;
}

int main(int argc, char **argv)
{
    int rank, size;
    if (!weft_job_is_launched(&rank, &size) || size != WORKERS || argc != 2) {
        fprintf(stderr, "start it by: weft-run --elastic 4:4 --restarts 100 %s FILE\n", argv[0]);
        return 2;
    }
    static const weft_function added = {
        .name = "add", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run_batch = add};
    static const weft_function left_function = {.name = "leave", .run = leave};
    weft_agent_options options = {.elastic = true, .function_count = rank < FIRST_CLIENT};
    options.functions = rank == SERVER ? &added : &left_function;
    options.name = rank == SERVER ? "adder" : NULL;
    file = argv[1];
    sem_init(&left, 0, 0);
    FILE *in = rank == SERVER ? fopen(file, "rb") : NULL;
    if (in && fread(&state, sizeof(state), 1, in) != 1)
        return weft_report(WEFT_ERR_IO);
    if (in)
        fclose(in);
    if (rank == SERVER)
        printf("process %d serves from a total of %lld\n", (int)getpid(), (long long)state.total);
    fflush(stdout);
    weft_agent *agent = NULL;
    weft_status status = weft_agent_open(&options, &agent, NULL);
    if (!status)
        status = rank == 0        ? keep_job(agent)
                 : rank == SERVER ? weft_agent_serve(agent, WEFT_FOREVER)
                                  : use_server(agent);
    weft_status closed = weft_agent_close(agent, WEFT_FOREVER);
    return weft_report(status ? status : closed);
}
