/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rnn_model_parallel.c - a language model on two workers. Embedding and decoder, whose size grows with the vocabulary,
 * are on a server; the trainer has the LSTM between them.
 *
 *   rnn_model_parallel                                   starts the server as a process of this machine
 *   RANK=0|1 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... rnn_model_parallel
 *                                                        is one of the two; rank 0 trains, rank 1 serves
 *
 * In each iteration the trainer embeds its batch with one call, runs the LSTM, and decodes with another call, under one
 * context. One backward pass goes through all three, and steps an optimizer over the parameters of both workers.
 *
 * After the RNN of PyTorch's tutorial "Getting started with Distributed RPC Framework": a small model, on random words.
 * The batches are the same in each epoch, so that there is something to learn. --help lists the options.
 */
#include <weft/weft.h>

#include "common/cli.h"
#include "common/worker.h"        /* messages, exit codes, signals */
#include "common/report.h"        /* the report */
#include "common/random_stream.h" /* words */

#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define DISMISS_MS 300 /* timeout of the call that tells the other workers that the job ends early */
#define SPREAD 0.1     /* initial weights of embedding and decoder are in -SPREAD..SPREAD */

typedef struct settings {
    worker_options job;
    int64_t words, embedding, hidden, layers, length, batch, epochs, batches, seed;
    double dropout, lr;
    const char *report;
    bool quiet;
} settings;

/* ---- The command line ------------------------------------------------------------------------------------------- */

static size_t list_options(settings *s, cli_option *out)
{
    const cli_option options[] = {
        {"world-size", CLI_INT, &s->job.world_size, 2, 2, NULL, "2", "with --rank: number of workers", "WORLD_SIZE"},
        {"words", CLI_INT, &s->words, 1, 100000000, NULL, "N", "size of the vocabulary", "7"},
        {"embedding", CLI_INT, &s->embedding, 1, 65536, NULL, "N", "width of the embedding", "2"},
        {"hidden", CLI_INT, &s->hidden, 1, 65536, NULL, "N", "width of the LSTM's hidden state", "3"},
        {"layers", CLI_INT, &s->layers, 1, 64, NULL, "N", "layers of the LSTM", "4"},
        {"length", CLI_INT, &s->length, 1, 65536, NULL, "N", "words per sequence", "6"},
        {"batch-size", CLI_INT, &s->batch, 1, 65536, NULL, "N", "sequences per batch", "5"},
        {"batches", CLI_INT, &s->batches, 1, 1000000, NULL, "N", "batches per epoch", "5"},
        {"epochs", CLI_INT, &s->epochs, 1, 1000000, NULL, "N", "passes over the batches", "10"},
        {"dropout", CLI_NUMBER, &s->dropout, 0, 0.99, NULL, "X",
         "dropout rate after the embedding, between LSTM layers, and after the LSTM", "0.5"},
        {"lr", CLI_NUMBER, &s->lr, 1e-9, 1e3, NULL, "X", "learning rate of SGD", "0.05"},
        {"seed", CLI_INT, &s->seed, 0, 9007199254740992.0, NULL, "N", "seed of weights, words and dropout", "1"},
        {"report", CLI_TEXT, &s->report, 0, 0, NULL, "FILE", "write the final table to FILE as JSON", NULL},
        {"quiet", CLI_FLAG, &s->quiet, 0, 0, NULL, NULL, "print no progress and no table", NULL},
    };
    memcpy(out, options, sizeof options);
    (void)worker_list_options(&s->job, out + sizeof options / sizeof *options);
    return sizeof options / sizeof *options + WORKER_OPTIONS_TOGETHER;
}

/* Returns -1 to continue, or the exit code to end with. */
static int parse(int argc, char **argv, settings *s)
{
    *s = (settings){.job.rank = -1,
                    .words = 7,
                    .embedding = 2,
                    .hidden = 3,
                    .layers = 4,
                    .length = 6,
                    .batch = 5,
                    .batches = 5,
                    .epochs = 10,
                    .dropout = 0.5,
                    .lr = 0.05,
                    .seed = 1};
    cli_option options[32];
    const cli program = {.program = "rnn_model_parallel",
                         .purpose = "trains a language model whose embedding and decoder are on another worker",
                         .example = "rnn_model_parallel --words 1000 --embedding 64 --hidden 64 --layers 2 --epochs 5",
                         .options = options,
                         .count = list_options(s, options)};
    int code = cli_parse(&program, argc, argv);
    if (code >= 0)
        return code;
    if ((s->job.rank >= 0) != (s->job.world_size > 0))
        return cli_error(&program, "--rank and --world-size go together");
    code = worker_find(&program, &s->job, false);
    if (code < 0 && s->job.world_size > 2)
        return cli_error(&program, "WORLD_SIZE is '%d': one worker trains, one serves", (int)s->job.world_size);
    if (code < 0)
        code = worker_settle(&program, &s->job, 2);
    if (code < 0)
        code = worker_check_output(&program, "--report", s->report);
    if (code < 0)
        worker_share_cores(&s->job);
    return code;
}

/* Waits for both workers. Then the server has registered its modules. */
static weft_status meet(weft_agent *agent)
{
    weft_group *both;
    weft_status st = weft_group_open(agent, "both", NULL, 0, &both, NULL);
    if (st)
        return st;
    st = weft_group_barrier(both, WEFT_FOREVER);
    weft_group_close(both);
    return st;
}

/* ---- The server ------------------------------------------------------------------------------------------------- */

/* Draws the weights as in the tutorial. */
static weft_module *spread(weft_module *module, uint64_t seed)
{
    for (size_t i = 0; module && i < weft_module_parameters(module).count; i++) {
        weft_tensor *parameter = weft_module_parameters(module).items[i];
        if (weft_tensor_fill_uniform(parameter, random_key(seed, i), -SPREAD, SPREAD)) {
            weft_module_unref(module);
            return NULL;
        }
    }
    return module;
}

/* Arguments: (words, width, dropout, seed). */
static weft_module *make_embedding(weft_args args, void *user)
{
    (void)user;
    const weft_value *v = args.items;
    uint64_t seed = (uint64_t)v[3].as.i64;
    const weft_embedding_layer layer = {.rows = v[0].as.i64, .width = v[1].as.i64};
    weft_module *table = spread(weft_embedding_create(&layer, NULL), seed);
    return table ? weft_sequential_create((weft_module *[]){table, weft_dropout_create(v[2].as.f64, NULL)}, 2, NULL)
                 : NULL;
}

/* Arguments: (hidden, words, seed). */
static weft_module *make_decoder(weft_args args, void *user)
{
    (void)user;
    const weft_value *v = args.items;
    uint64_t seed = (uint64_t)v[2].as.i64;
    weft_module *decoder = spread(weft_linear_create(v[0].as.i64, v[1].as.i64, false, seed, NULL), seed);
    if (decoder)
        weft_tensor_fill(weft_module_find(decoder, "bias"), 0);
    return decoder;
}

static weft_status leave(weft_call *call, void *arg)
{
    (void)call;
    sem_post(arg);
    return WEFT_OK;
}

/* The trainer calls this when it ends the job early. */
static weft_status dismissed(weft_call *call, void *arg)
{
    (void)arg;
    worker_exit("the trainer ended the job: %s", weft_call_string(call, 0));
}

static void on_event(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    (void)agent, (void)rank, (void)arg;
    if (event == WEFT_MEMBER_SELF_EVICTED)
        worker_exit("this server was declared dead, and is out of the job: %s", why);
    if (event == WEFT_MEMBER_STORE_LOST)
        worker_exit("the trainer is gone: %s", why);
}

static int serve(const settings *set)
{
    sem_t over;
    weft_error *error = NULL;
    weft_agent *agent;
    const weft_function functions[] = {{.name = "dismiss", .takes = {WEFT_TYPE_STRING}, .run = dismissed},
                                       {.name = "leave", .run = leave, .user = &over}};
    weft_agent_options options = worker_agent_options(&set->job);
    sem_init(&over, 0, 0);
    options.functions = functions;
    options.function_count = 2;
    options.on_membership = on_event;
    weft_status st = weft_agent_open(&options, &agent, &error);
    if (st)
        return worker_error(st, error);
    worker_outlive_parent();
    st = weft_agent_register_module(agent, "embedding", make_embedding, NULL);
    if (!st)
        st = weft_agent_register_module(agent, "decoder", make_decoder, NULL);
    if (!st)
        st = meet(agent);
    while (!st && sem_wait(&over))
        ; /* interrupted by a signal */
    if (!st)
        st = weft_agent_close(agent);
    else
        weft_agent_stop(agent);
    sem_destroy(&over);
    return st ? worker_error(st, NULL) : 0;
}

/* ---- The trainer ------------------------------------------------------------------------------------------------ */

typedef struct trainer {
    const settings *set;
    weft_agent *agent;
    weft_remote_module *embedding, *decoder;
    weft_module *lstm;
    weft_dist_optimizer *sgd;
    weft_tensor *h, *c;    /* state of the LSTM, carried from batch to batch; NULL before the first */
    int64_t parameters[2]; /* number of learned values: here, on the server */
    tally tally;
    weft_error *error;
} trainer;

/* Appends the handles of a list to `all`, of which *count are in use. */
static weft_status add_handles(weft_values *list, weft_rref **all, size_t *count)
{
    weft_status st = WEFT_OK;
    for (size_t i = 0; i < weft_values_count(list) && !st; i++)
        st = weft_values_get_rref(list, i, &all[(*count)++]);
    return st;
}

/* Creates an optimizer over embedding, LSTM and decoder, in the order of the tutorial. */
static weft_status make_optimizer(trainer *me)
{
    weft_values *embedding = NULL, *decoder = NULL;
    weft_rref *own = NULL;
    size_t count = 0;
    weft_rref *all[8];
    weft_status st = weft_rref_create(me->agent, weft_of_tensors(weft_module_parameters(me->lstm)), &own);
    if (!st)
        st = weft_remote_parameters(me->embedding, &embedding);
    if (!st)
        st = weft_remote_parameters(me->decoder, &decoder);
    if (!st)
        st = add_handles(embedding, all, &count);
    if (!st) {
        all[count++] = own;
        st = add_handles(decoder, all, &count);
    }
    const weft_optimizer_spec spec = {.type = &weft_sgd_type, .lr = me->set->lr};
    if (!st)
        st = weft_dist_optimizer_create(me->agent, all, count, &spec, &me->sgd, &me->error);
    weft_values_unref(decoder);
    weft_values_unref(embedding);
    weft_rref_unref(own);
    return st;
}

static weft_status make_model(trainer *me)
{
    const settings *s = me->set;
    uint64_t seed = (uint64_t)s->seed;
    const weft_lstm_layer layer = {.in_features = s->embedding,
                                   .hidden_features = s->hidden,
                                   .layers = s->layers,
                                   .dropout = s->layers > 1 ? s->dropout : 0,
                                   .seed = random_key(seed, 2)};
    me->lstm = weft_lstm_create(&layer, NULL);
    weft_tensors own = weft_module_parameters(me->lstm);
    for (size_t i = 0; i < own.count; i++)
        me->parameters[0] += weft_tensor_numel(own.items[i]);
    me->parameters[1] = s->words * s->embedding + (s->hidden + 1) * s->words;
    weft_status st = me->lstm ? weft_module_status(me->lstm) : WEFT_ERR_MEMORY;
    if (!st)
        st = weft_remote_module_create(me->agent, weft_to_rank(1), "embedding",
                                       WEFT_VALUES(weft_of_i64(s->words), weft_of_i64(s->embedding),
                                                   weft_of_f64(s->dropout),
                                                   weft_of_i64((int64_t)(random_key(seed, 1) >> 1))),
                                       &me->embedding);
    if (!st)
        st = weft_remote_module_create(me->agent, weft_to_rank(1), "decoder",
                                       WEFT_VALUES(weft_of_i64(s->hidden), weft_of_i64(s->words),
                                                   weft_of_i64((int64_t)(random_key(seed, 3) >> 1))),
                                       &me->decoder);
    return st ? st : make_optimizer(me);
}

/* Draws [rows, columns] integers below `end`, owned by the tape. */
static weft_tensor *draw(weft_tape *t, uint64_t seed, int64_t rows, int64_t columns, int64_t end)
{
    weft_tensor *drawn = weft_tensor_empty(WEFT_SHAPE(rows, columns), WEFT_DTYPE_INT64);
    random_stream random = {seed};
    for (int64_t i = 0; drawn && i < rows * columns; i++)
        ((int64_t *)weft_tensor_data(drawn))[i] = random_below(&random, (uint32_t)end);
    return weft_tape_take(t, drawn);
}

/*
 * The loss of the tutorial. The scores are [batch, length, words]. Positions in the sequence are the classes: for each
 * word, the target is one position.
 */
static weft_tensor *loss_of(trainer *me, weft_tape *t, int64_t number)
{
    const settings *s = me->set;
    uint64_t seed = random_key(random_key((uint64_t)s->seed, 4), (uint64_t)(number % s->batches));
    weft_tensor *words = draw(t, random_key(seed, 0), s->batch, s->length, s->words);
    weft_tensor *target = draw(t, random_key(seed, 1), s->batch, s->words, s->length);
    weft_forward_options how = {.has_seed = true, .seed = random_key((uint64_t)s->seed, (uint64_t)number + 5)};
    double began = clock_seconds();
    weft_tensor *x = weft_remote_forward(t, me->embedding, WEFT_VALUES(weft_of_tensor(words)), &how);
    me->tally.in_calls += clock_seconds() - began;
    weft_tape_set_seed(t, how.seed + 1);
    weft_args out =
        weft_module_call(t, me->lstm,
                         me->h ? WEFT_VALUES(weft_of_tensor(x), weft_of_tensor(me->h), weft_of_tensor(me->c))
                               : WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor *y = weft_dropout(t, weft_args_tensor(out, 0), s->dropout, true);
    began = clock_seconds();
    weft_tensor *scores = weft_remote_forward(t, me->decoder, WEFT_VALUES(weft_of_tensor(y)), &how);
    me->tally.in_calls += clock_seconds() - began;
    weft_tensor_unref(me->h);
    weft_tensor_unref(me->c);
    me->h = weft_tensor_ref(weft_detach(t, weft_args_tensor(out, 1)));
    me->c = weft_tensor_ref(weft_detach(t, weft_args_tensor(out, 2)));
    return weft_cross_entropy(t, scores, target);
}

static weft_status train_step(trainer *me, int64_t number)
{
    weft_context *context;
    weft_status st = weft_context_open(me->agent, &context);
    if (st)
        return st;
    double began = clock_seconds(), in_calls = me->tally.in_calls;
    weft_tape *t = weft_context_tape(context, NULL);
    weft_tensor *loss = loss_of(me, t, number);
    double back = clock_seconds();
    weft_dist_backward(t, loss, &(weft_pass_options){.step = me->sgd});
    double over = clock_seconds();
    st = weft_tape_status(t);
    if (st)
        me->error = weft_error_ref(weft_tape_error(t));
    else
        tally_steps(&me->tally, 1, weft_tensor_get_f64(loss, 0), me->set->batch,
                    back - began - (me->tally.in_calls - in_calls), over - back);
    weft_tape_close(t);
    weft_context_close(context, NULL);
    return st;
}

static weft_status train_all(trainer *me)
{
    progress line;
    weft_stats stats;
    int64_t steps = me->set->epochs * me->set->batches;
    weft_status st = meet(me->agent);
    if (!st)
        st = make_model(me);
    progress_init(&line, me->set->quiet ? NULL : stdout, steps, "sequences");
    tally_begin(&me->tally);
    for (int64_t i = 0; i < steps && !st; i++) {
        if (worker_interrupted())
            return WEFT_ERR_CANCELLED;
        st = train_step(me, i);
        weft_agent_stats(me->agent, &stats);
        progress_show(&line, &me->tally, stats.bytes_sent + stats.bytes_received, st || i + 1 == steps);
    }
    return st;
}

static void drop_model(trainer *me)
{
    weft_tensor_unref(me->h);
    weft_tensor_unref(me->c);
    weft_dist_optimizer_unref(me->sgd);
    weft_remote_module_unref(me->decoder);
    weft_remote_module_unref(me->embedding);
    weft_module_unref(me->lstm);
}

/* ---- Results ---------------------------------------------------------------------------------------------------- */

static double iterations_per_s(const tally *t)
{
    return tally_seconds(t) > 0 ? (double)t->updates / tally_seconds(t) : 0;
}

static void print_table(const trainer *me, const weft_stats *stats)
{
    const settings *s = me->set;
    const tally *t = &me->tally;
    char sent[16], received[16];
    printf("\n  model                %lld words, embedding %lld, LSTM %lld x %lld, seed %lld\n", (long long)s->words,
           (long long)s->embedding, (long long)s->layers, (long long)s->hidden, (long long)s->seed);
    printf("  parameters           %lld here, %lld on the server\n", (long long)me->parameters[0],
           (long long)me->parameters[1]);
    printf("  iterations           %lld in %.2f s, %.0f a second\n", (long long)t->updates, tally_seconds(t),
           iterations_per_s(t));
    printf("  loss                 %.4f (at first %.4f)\n", t->loss, t->first_loss);
    printf("  in calls             %.1f %% of the time\n", 100 * tally_communication(t));
    printf("  sent, received       %s, %s\n", bytes_text(stats->bytes_sent, sent),
           bytes_text(stats->bytes_received, received));
}

/* NULL if memory is out. */
static cJSON *to_json(const trainer *me, const weft_stats *stats)
{
    const struct {
        const char *key;
        double value;
    } numbers[] = {{"seed", (double)me->set->seed},
                   {"trainers", 1},
                   {"iterations", (double)me->tally.updates},
                   {"seconds", tally_seconds(&me->tally)},
                   {"iterations_per_s", iterations_per_s(&me->tally)},
                   {"loss", me->tally.loss},
                   {"first_loss", me->tally.first_loss},
                   {"parameters_here", (double)me->parameters[0]},
                   {"parameters_on_server", (double)me->parameters[1]},
                   {"communication_share", tally_communication(&me->tally)},
                   {"bytes_sent", (double)stats->bytes_sent},
                   {"bytes_received", (double)stats->bytes_received},
                   {"bytes_copied_by_weft", (double)stats->bytes_copied}};
    cJSON *json = cJSON_CreateObject();
    bool whole = cJSON_AddStringToObject(json, "model", "rnn");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && whole; i++)
        whole = cJSON_AddNumberToObject(json, numbers[i].key, numbers[i].value);
    if (whole)
        return json;
    cJSON_Delete(json);
    return NULL;
}

static weft_status deliver(trainer *me)
{
    weft_stats stats;
    weft_agent_stats(me->agent, &stats);
    weft_status st = me->set->report ? json_file_write(me->set->report, to_json(me, &stats), &me->error) : WEFT_OK;
    if (!st && !me->set->quiet)
        print_table(me, &stats);
    return st;
}

/* ---- The job ---------------------------------------------------------------------------------------------------- */

/*
 * Tells the other workers why the job ends early, including those that are computing, and leaves. A worker exits as
 * soon as it is told, without answering. A local worker that was declared dead may only be stopped (SIGSTOP), so it is
 * killed.
 */
static void dismiss(weft_agent *agent, const weft_job *job, const char *why)
{
    int size = weft_agent_world_size(agent);
    const weft_rpc_options how = {.timeout_ms = DISMISS_MS};
    weft_target *alive = calloc((size_t)size, sizeof *alive);
    weft_future *told = NULL;
    size_t count = 0;
    for (int rank = 1; rank < size && alive; rank++) {
        if (weft_agent_alive(agent, rank))
            alive[count++] = weft_to_rank(rank);
        else if (job && weft_job_pid(job, rank) > 0)
            kill(weft_job_pid(job, rank), SIGKILL);
    }
    if (count && !weft_rpc_multicast(agent, alive, count, "dismiss", WEFT_VALUES(weft_of_string(why)), &how, &told))
        (void)!weft_future_wait(told, WEFT_FOREVER);
    weft_future_unref(told);
    free(alive);
    weft_agent_stop(agent);
}

static int fail(trainer *me, const weft_job *job, weft_status st)
{
    const char *why = worker_interrupted() ? "interrupted"
                      : me->error          ? weft_error_message(me->error)
                                           : weft_status_text(st);
    bool alone = !weft_agent_alive(me->agent, 1);
    dismiss(me->agent, job, why);
    if (alone && !worker_interrupted())
        return worker_fail("the server is gone: %s", why);
    return worker_interrupted() ? worker_fail("interrupted") : worker_error(st, me->error);
}

static int run(trainer *me, weft_job *job)
{
    weft_agent_options options = worker_agent_options(&me->set->job);
    options.job = job;
    weft_status st = weft_agent_open(&options, &me->agent, &me->error);
    worker_watch_children(false, NULL);
    if (st)
        return worker_error(st, me->error);
    worker_catch_signals();
    st = train_all(me);
    drop_model(me);
    if (!st)
        st = weft_rpc_sync(me->agent, weft_to_rank(1), "leave", WEFT_NO_VALUES,
                           &(weft_rpc_options){.error = &me->error}, NULL);
    if (!st)
        st = deliver(me);
    if (st)
        return fail(me, job, st);
    st = weft_agent_close(me->agent);
    return st ? worker_error(st, NULL) : 0;
}

static int train(const settings *set)
{
    trainer me = {.set = set};
    weft_job *job = NULL;
    weft_status st = WEFT_OK;
    worker_watch_children(set->job.spawn, NULL);
    if (set->job.spawn)
        st = weft_job_open(&(weft_job_options){.count = 1}, &job, &me.error);
    worker_watch_children(set->job.spawn, job);
    int code = st ? worker_error(st, me.error) : run(&me, job);
    if (weft_job_close(job, code ? 500 : 5000, NULL) && code == 0)
        code = worker_fail("the server exited with an error");
    return worker_interrupted() ? 130 : code;
}

int main(int argc, char **argv)
{
    settings set;
    int code = parse(argc, argv, &set);
    if (code >= 0)
        return code;
    worker_begin("rnn_model_parallel", "trainer", "server", (int)set.job.rank);
    return worker_flush(set.job.rank == 0 ? train(&set) : serve(&set));
}
