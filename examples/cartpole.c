/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cartpole.c - an agent chooses actions for observers that balance poles, in one batch a step, and learns.
 *
 *   cartpole --world-size 5                        starts four observers as processes of this machine
 *   RANK=... WORLD_SIZE=... MASTER_ADDR=... MASTER_PORT=... cartpole            is one worker; rank 0 is the agent
 *
 * In each step every observer calls the agent's function select_action. It is registered with a batched handler, which
 * sees the states of all observers as one tensor. With --no-batch it has a plain handler; nothing else differs. If an
 * observer dies, the others go on. --solve learns until the poles stand.
 *
 * With --device cuda:N or auto the policy is on a GPU. States arrive there, actions are drawn there, and the agent
 * never waits for it. For observers that a launcher starts, set WEFT_DEVICE_MAPS="worker0/cpu=cuda:N".
 */
#include <weft/weft.h>

#include "cartpole/learner.h"  /* the policy: decides, remembers, learns */
#include "cartpole/observer.h" /* poles */
#include "cartpole/pole.h"
#include "common/report.h"    /* the final table */
#include "common/temporary.h" /* tensors of a tape */
#include "common/worker.h"    /* the job, messages */

#include <stdlib.h>

typedef struct settings {
    cart_settings learning;
    int64_t episodes;
    double share; /* weight of the last episode in the running reward */
    const char *device_text;
    bool batch, no_batch, solve, quiet; /* solve: end when the running reward exceeds 475 */
} settings;

typedef struct cart_agent {
    const settings *set;
    cart_learner *learner;
    weft_agent *agent;
    bool *gone;             /* by rank: this observer has died */
    weft_future **episodes; /* by rank */
    weft_tensor **returns;  /* by rank, of this episode, borrowed from its future; NULL: none */
    weft_future **pending;  /* the episodes that have not ended */
    double *lengths;        /* by rank: the reward of its episode; set where `returns` is */
    int64_t left;           /* observers that take part */
    int64_t done;           /* episodes */
    double running;         /* reward */
    double seconds;
    weft_error *error;
} cart_agent;

/* ---- The function of the agent ---------------------------------------------------------------------------------- */

static weft_status select_actions(weft_batch *batch, void *user)
{
    cart_learner *learner = user;
    weft_tape *t = weft_batch_tape(batch);
    int64_t count = (int64_t)weft_batch_count(batch), admitted = 0;
    weft_tensor *ranks = temporary_empty(t, WEFT_SHAPE(count), WEFT_DTYPE_INT32);
    if (!ranks)
        return weft_tape_status(t);
    int *rank = weft_tensor_data(ranks);
    for (int64_t i = 0; i < count; i++) {
        weft_call *call = weft_batch_call(batch, (size_t)i);
        bool good = !cart_learner_admit(learner, call); /* a call that is not admitted fails alone */
        rank[i] = good ? weft_call_from(call) : 0;
        admitted += good;
    }
    if (admitted)
        weft_batch_give(batch, 0, cart_learner_decide(learner, t, rank, count, weft_batch_tensor(batch, 1)));
    return WEFT_OK;
}

static weft_status select_action(weft_call *call, void *user)
{
    weft_tape *t = weft_call_tape(call);
    const int rank = weft_call_from(call);
    weft_status status = cart_learner_admit(user, call);
    if (status)
        return status;
    weft_tensor *actions = cart_learner_decide(user, t, &rank, 1, weft_call_tensor(call, 1)), *row = NULL;
    if (!weft_tape_status(t))
        status = weft_tensor_select(actions, 0, 0, &row, NULL);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_tape_take(t, row))));
    return status ? status : weft_tape_status(t);
}

/* ---- An episode -------------------------------------------------------------------------------------------------- */

/* The others continue without an observer that has died. A failure of an observer that lives ends the job. */
static weft_status lose(cart_agent *a, int rank, weft_status why, const weft_error *error)
{
    bool is_gone = why == WEFT_ERR_PEER_DEAD || why == WEFT_ERR_PEER_LEFT;
    const char *detail = error ? weft_error_message(error) : weft_status_text(why);
    a->gone[rank] = true;
    a->left--;
    if (is_gone)
        worker_note("going on with %d observers", (int)a->left);
    if (!is_gone)
        a->error = weft_error_create(why, "observer %d fails: %s", rank, detail);
    else if (a->left == 0)
        a->error = weft_error_create(why, "no observer is left");
    return a->error ? why : WEFT_OK;
}

static weft_status start(cart_agent *a)
{
    const cart_settings *set = &a->set->learning;
    const weft_rpc_options how = {.timeout_ms = WEFT_FOREVER};
    weft_args about = WEFT_VALUES(weft_of_i64(a->done), weft_of_i64(set->envs), weft_of_i64(set->steps),
                                  weft_of_f64(set->gamma), weft_of_i64(set->seed));
    weft_status status = WEFT_OK;
    cart_learner_begin(a->learner, a->done);
    for (int rank = 1; rank < set->world_size && !status; rank++) {
        if (a->gone[rank])
            continue;
        status = weft_rpc_async(a->agent, weft_to_rank(rank), cart_run_episode.name, about, &how, &a->episodes[rank]);
        if (status)
            status = lose(a, rank, status, NULL);
    }
    return status;
}

/* Takes the results of an observer's episode, and checks their shape. */
static weft_status take(cart_agent *a, int rank)
{
    const cart_settings *set = &a->set->learning;
    const weft_values *values = weft_future_values(a->episodes[rank]);
    weft_tensor *returns;
    weft_status status = weft_values_get_tensor(values, 0, &returns);
    if (!status)
        status = weft_values_get_f64(values, 1, &a->lengths[rank]);
    if (!status && (weft_tensor_dtype(returns) != WEFT_DTYPE_FLOAT64 || weft_tensor_ndim(returns) != 2 ||
                    weft_tensor_size(returns, 0) != set->steps || weft_tensor_size(returns, 1) != set->envs ||
                    !weft_tensor_is_contiguous(returns)))
        status = WEFT_ERR_SHAPE;
    a->returns[rank] = status ? NULL : returns;
    return status;
}

/* Takes episodes in the order in which they end. If one observer has failed, the others may be waiting for it. */
static weft_status await_all(cart_agent *a)
{
    size_t count = 0, next;
    weft_status status = WEFT_OK;
    for (int rank = 1; rank < a->set->learning.world_size; rank++) {
        a->returns[rank] = NULL;
        if (a->episodes[rank])
            a->pending[count++] = a->episodes[rank];
    }
    while (!status && count && !weft_future_wait_any(a->pending, count, WEFT_FOREVER, &next)) {
        const weft_error *error = weft_future_error(a->pending[next]);
        int rank = 1;
        while (a->episodes[rank] != a->pending[next])
            rank++;
        status = error ? weft_error_code(error) : take(a, rank);
        if (status)
            status = lose(a, rank, status, error);
        a->pending[next] = a->pending[--count];
    }
    return status;
}

/* The mean reward. The sum is in the order of ranks, so it does not depend on which episode ended first. */
static weft_status collect(cart_agent *a, double *mean)
{
    double sum = 0;
    weft_status status = await_all(a);
    for (int rank = 1; rank < a->set->learning.world_size; rank++)
        sum += a->returns[rank] ? a->lengths[rank] : 0;
    *mean = sum / (double)a->left;
    return status;
}

static weft_status run_episode(cart_agent *a)
{
    double reward = 0, share = a->set->share;
    weft_status status = start(a);
    if (!status)
        status = collect(a, &reward);
    if (!status)
        status = cart_learner_learn(a->learner, a->returns, &a->error);
    for (int rank = 1; rank < a->set->learning.world_size; rank++) {
        weft_future_unref(a->episodes[rank]);
        a->episodes[rank] = NULL;
    }
    if (status)
        return status;
    a->running = share * reward + (1 - share) * a->running;
    if (!a->set->quiet)
        printf("Episode %lld\tLast reward: %.2f\tAverage reward: %.2f\n", (long long)a->done, reward, a->running);
    fflush(stdout);
    a->done++;
    return WEFT_OK;
}

/* ---- The job ---------------------------------------------------------------------------------------------------- */

static bool is_solved(const cart_agent *a)
{
    return a->set->solve && a->running > CARTPOLE_SOLVED;
}

static weft_status run_episodes(cart_agent *a)
{
    weft_status status = WEFT_OK;
    double began = clock_seconds();
    while (a->done < a->set->episodes && !status && !is_solved(a))
        status = run_episode(a);
    a->seconds = clock_seconds() - began;
    if (!status && a->set->solve && !is_solved(a)) {
        a->error = weft_error_create(WEFT_ERR_STATE, "not solved in %d episodes", (int)a->done);
        status = WEFT_ERR_STATE;
    }
    return status;
}

static void deliver(const cart_agent *a)
{
    const cart_settings *set = &a->set->learning;
    int64_t steps = a->done * set->steps;
    weft_batch_stats stats;
    putchar('\n');
    report_line("select_action", "%s", a->set->batch ? "batched" : "not batched");
    report_line("observers", "%lld", (long long)(set->world_size - 1));
    report_line("at the end", "%lld", (long long)a->left);
    report_line("poles of each", "%lld", (long long)set->envs);
    report_line(is_solved(a) ? "solved in episodes" : "episodes", "%lld", (long long)a->done);
    report_line("steps of each", "%lld", (long long)set->steps);
    report_line("seconds", "%.3f", a->seconds);
    report_line("us a step", "%.1f", steps ? a->seconds * 1e6 / (double)steps : 0);
    report_line("policy evaluations", "%lld", (long long)cart_learner_evaluations(a->learner));
    if (a->set->batch && !weft_batch_stats_read(a->agent, CART_SELECT_ACTION, &stats)) {
        report_line("batches", "%llu", (unsigned long long)stats.batches);
        report_line("calls of a batch", "%.3g", stats.mean_size);
    }
    report_line("running reward", "%.2f", a->running);
}

static int lead(const settings *s)
{
    size_t size = (size_t)s->learning.world_size, observers = size - 1;
    cart_agent a = {.set = s,
                    .left = (int64_t)observers,
                    .learner = cart_learner_create(&s->learning),
                    .gone = calloc(size, sizeof(bool)),
                    .episodes = calloc(size, sizeof(weft_future *)),
                    .pending = calloc(size, sizeof(weft_future *)),
                    .lengths = calloc(size, sizeof(double)),
                    .returns = calloc(size, sizeof(weft_tensor *))};
    int *ranks = calloc(observers, sizeof(*ranks));
    weft_function function = {.name = CART_SELECT_ACTION,
                              .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
                              .gives = {WEFT_TYPE_TENSOR},
                              .flags = WEFT_FUNCTION_INLINE, /* cheaper than handing the call to another thread */
                              .user = a.learner};
    for (size_t i = 0; i < observers && ranks; i++)
        ranks[i] = (int)i + 1;
    if (s->batch) {
        function.run_batch = select_actions;
        function.batch = (weft_batch_options){.size = (int)observers,
                                              .wait_us = WEFT_FOREVER,
                                              .callers = ranks,
                                              .caller_count = observers,
                                              .one_per_caller = true};
    } else {
        function.run = select_action;
    }
    worker_serve_on(s->learning.device);
    bool whole = a.learner && a.gone && a.episodes && a.pending && a.lengths && a.returns && ranks;
    weft_status status = whole ? WEFT_OK : WEFT_ERR_MEMORY;
    if (!status) /* without threads: the main thread serves calls while it waits for episodes */
        status = worker_open((weft_agent_options){.functions = &function, .function_count = 1, .no_threads = true},
                             &a.agent);
    if (!status)
        status = run_episodes(&a);
    if (!status)
        deliver(&a); /* meanwhile the observers wait in weft_agent_close */
    int code = worker_end(a.agent, status, a.error);
    cart_learner_free(a.learner);
    free(ranks);
    free(a.returns);
    free(a.lengths);
    free(a.pending);
    free(a.episodes);
    free(a.gone);
    return code;
}

static int observe(void)
{
    weft_agent *agent = NULL;
    weft_agent_options options = {.functions = &cart_run_episode, .function_count = 1};
    options.no_threads = true; /* episodes run inside weft_agent_close: more threads would compete for few cores */
    weft_status status = worker_open(options, &agent);
    return worker_end(agent, status, NULL);
}

/* Returns -1 to continue, or the exit code to end with. */
static int parse(int argc, char **argv, settings *s, int *rank)
{
    cart_settings *l = &s->learning;
    *s = (settings){.learning = {.steps = CARTPOLE_LONGEST, .hidden = 128, .seed = 543, .dropout = 0.6, .lr = 1e-2}};
    const cli_option options[] = {
        {"world-size", CLI_INT, &l->world_size, 2, 65536, NULL, "N",
         "without a launcher: the agent and N - 1 observers, as processes of this machine", "2; --solve: 3"},
        {"batch", CLI_FLAG, &s->batch, 0, 0, NULL, NULL,
         "evaluate the policy once per step, for all observers (default)", NULL},
        {"no-batch", CLI_FLAG, &s->no_batch, 0, 0, NULL, NULL, "evaluate the policy once per step and observer", NULL},
        {"num-episode", CLI_INT, &s->episodes, 0, 1000000, NULL, "N", "number of episodes; --solve: the largest number",
         "10; --solve: 1000"},
        {"steps", CLI_INT, &l->steps, 1, CART_MOST_STEPS, NULL, "N", "steps per episode; a pole that fell is reset",
         "500"},
        {"envs", CLI_INT, &l->envs, 1, CART_MOST_ENVS, NULL, "N", "poles per observer", "1; --solve: 8"},
        {"hidden", CLI_INT, &l->hidden, 1, 65536, NULL, "N", "units of the policy's hidden layer", "128"},
        {"device", CLI_TEXT, &s->device_text, 0, 0, NULL, "DEVICE",
         "where the agent has the policy: cpu, cuda:N, or auto, the nearest GPU", "cpu"},
        {"seed", CLI_INT, &l->seed, 0, 9007199254740992.0, NULL, "N",
         "seed of weights, dropout, actions and initial states", "543"},
        {"solve", CLI_FLAG, &s->solve, 0, 0, NULL, NULL,
         "train until the running reward exceeds 475, with discount 0.99 and normalised returns", NULL},
        {"quiet", CLI_FLAG, &s->quiet, 0, 0, NULL, NULL, "print no episodes", NULL},
    };
    const cli program = {.program = "cartpole",
                         .purpose = "learns to balance poles: observers simulate them, one agent decides and learns",
                         .example = "cartpole --world-size 5 --num-episode 20",
                         .options = options,
                         .count = sizeof(options) / sizeof(*options)};
    s->episodes = -1;
    int code = cli_parse(&program, argc, argv);
    if (code >= 0)
        return code;
    if (s->batch && s->no_batch)
        return cli_error(&program, "--batch or --no-batch, not both");
    s->batch = !s->no_batch;
    s->episodes = s->episodes >= 0 ? s->episodes : s->solve ? 1000 : 10;
    s->share = s->solve ? 0.05 : 0.5;
    l->gamma = s->solve ? 0.99 : 1;
    l->normalise = s->solve;
    l->envs = l->envs ? l->envs : s->solve ? 8 : 1;
    l->world_size = l->world_size ? l->world_size : s->solve ? 3 : 2;
    if (l->envs * l->steps > CART_MOST_MOVES)
        return cli_error(&program, "--envs times --steps is %lld: expected at most %d", (long long)(l->envs * l->steps),
                         CART_MOST_MOVES);
    code = worker_begin(&program, "agent", "observer", 2, rank, &l->world_size);
    return code < 0 && *rank == 0 ? worker_choose_device(&program, s->device_text, &l->device) : code;
}

int main(int argc, char **argv)
{
    settings s;
    int rank, code = parse(argc, argv, &s, &rank);
    if (code >= 0)
        return code;
    return rank == 0 ? lead(&s) : observe();
}
