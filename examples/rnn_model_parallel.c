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
 * With --device cuda:N or auto both compute on GPUs. Activations and gradients travel between the GPUs, and no thread
 * waits for a GPU except to read losses, of many iterations at once.
 *
 * After the RNN of PyTorch's tutorial "Getting started with Distributed RPC Framework": a small model, on random words.
 * The batches are the same in each epoch, so that there is something to learn. --help lists the options.
 */
#include <weft/weft.h>

#include "common/random_stream.h" /* words */
#include "common/report.h"        /* progress, the final table */
#include "common/temporary.h"     /* tensors of a tape */
#include "common/worker.h"        /* the job, messages */

enum { BATCHES = 5, BATCH = 5, LENGTH = 6 }; /* of an epoch; sequences of a batch; words of a sequence */
enum { LOSSES = 4 * BATCHES };               /* read at once on a GPU */
#define SPREAD 0.1                           /* initial weights of embedding and decoder are in -SPREAD..SPREAD */

typedef struct settings {
    int64_t words, embedding, hidden, layers, epochs, seed;
    double dropout, lr;
    const char *device_text;
    weft_device device;
    bool quiet;
} settings;

/* ---- The server ------------------------------------------------------------------------------------------------- */

/* Moves the module to the device, and draws its weights as in the tutorial. */
static weft_status spread(weft_module *module, weft_device device, uint64_t seed)
{
    weft_status status = weft_module_to_device(module, device);
    weft_tensors parameters = weft_module_parameters(module);
    for (size_t i = 0; i < parameters.count && !status; i++)
        status = weft_tensor_fill_uniform(parameters.items[i], random_key(seed, i), -SPREAD, SPREAD);
    return status;
}

/* (words, width, dropout, seed) -> the embedding, a remote module. */
static weft_status make_embedding(weft_call *call, void *arg)
{
    const settings *s = arg;
    const weft_embedding_layer layer = {.rows = weft_call_i64(call, 0), .width = weft_call_i64(call, 1)};
    weft_module *layers[2] = {NULL}, *both = NULL;
    weft_status status = weft_embedding_create(&layer, &layers[0], NULL);
    if (!status)
        status = spread(layers[0], s->device, (uint64_t)weft_call_i64(call, 3));
    if (!status)
        status = weft_dropout_create(weft_call_f64(call, 2), &layers[1], NULL);
    weft_status made =
        weft_sequential_create(layers, 2, &both, NULL); /* fails if one is NULL, and releases the other */
    if (!made)
        weft_call_give_object(call, &weft_module_object, both);
    return status ? status : made;
}

/* (hidden, words, seed) -> the decoder, a remote module. */
static weft_status make_decoder(weft_call *call, void *arg)
{
    const settings *s = arg;
    uint64_t seed = (uint64_t)weft_call_i64(call, 2);
    weft_module *decoder = NULL;
    weft_status status =
        weft_linear_create(weft_call_i64(call, 0), weft_call_i64(call, 1), false, seed, &decoder, NULL);
    if (!status)
        status = spread(decoder, s->device, seed);
    if (status) {
        weft_module_unref(decoder);
        return status;
    }
    weft_tensor_fill(weft_module_find(decoder, "bias"), 0);
    weft_call_give_object(call, &weft_module_object, decoder);
    return WEFT_OK;
}

static int serve(settings *s)
{
    const weft_function functions[] = {
        {.name = "embedding",
         .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_F64, WEFT_TYPE_I64},
         .run = make_embedding,
         .user = s},
        {.name = "decoder", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64}, .run = make_decoder, .user = s},
    };
    weft_agent *agent = NULL;
    weft_status status = worker_open((weft_agent_options){.functions = functions, .function_count = 2}, &agent);
    if (!status)
        status = weft_agent_serve(agent, WEFT_FOREVER); /* until the trainer closes */
    return worker_end(agent, status, NULL);
}

/* ---- The trainer ------------------------------------------------------------------------------------------------ */

typedef struct trainer {
    const settings *set;
    weft_agent *agent;
    weft_rref *embedding, *decoder;
    weft_module *lstm;
    weft_dist_optimizer *sgd;
    weft_tensor *h, *c;          /* state of the LSTM, carried from batch to batch; NULL before the first */
    int64_t parameters[2];       /* number of learned values: here, on the server */
    weft_tensor *losses[LOSSES]; /* that are not read */
    size_t unread;
    progress progress;
    weft_error *error;
} trainer;

static weft_status make_model(trainer *me)
{
    const settings *s = me->set;
    uint64_t seed = (uint64_t)s->seed;
    const weft_lstm_layer layer = {.in_features = s->embedding,
                                   .hidden_features = s->hidden,
                                   .layers = s->layers,
                                   .dropout = s->layers > 1 ? s->dropout : 0,
                                   .seed = random_key(seed, 2)};
    weft_status status = weft_lstm_create(&layer, &me->lstm, &me->error);
    if (!status)
        status = weft_module_to_device(me->lstm, s->device);
    weft_tensors own = weft_module_parameters(me->lstm);
    me->parameters[0] = weft_module_numel(me->lstm);
    me->parameters[1] = s->words * s->embedding + (s->hidden + 1) * s->words;
    if (!status)
        status = weft_rpc_remote(me->agent, weft_to_rank(1), "embedding",
                                 WEFT_VALUES(weft_of_i64(s->words), weft_of_i64(s->embedding), weft_of_f64(s->dropout),
                                             weft_of_i64((int64_t)(random_key(seed, 1) >> 1))),
                                 NULL, &me->embedding);
    if (!status)
        status = weft_rpc_remote(me->agent, weft_to_rank(1), "decoder",
                                 WEFT_VALUES(weft_of_i64(s->hidden), weft_of_i64(s->words),
                                             weft_of_i64((int64_t)(random_key(seed, 3) >> 1))),
                                 NULL, &me->decoder);
    const weft_args all = WEFT_VALUES(weft_of_rref(me->embedding), weft_of_tensors(own), weft_of_rref(me->decoder));
    const weft_optimizer_spec spec = {.type = &weft_sgd_type, .lr = s->lr};
    return status ? status : weft_dist_optimizer_create(me->agent, all, &spec, &me->sgd, &me->error);
}

/* Draws [rows, columns] integers below `end`, on the device, owned by the tape. */
static weft_tensor *draw(weft_tape *t, uint64_t seed, int64_t rows, int64_t columns, int64_t end, weft_device device)
{
    weft_tensor *drawn = temporary_empty(t, WEFT_SHAPE(rows, columns), WEFT_DTYPE_INT64);
    random_stream random = {seed};
    for (int64_t i = 0; drawn && i < rows * columns; i++)
        ((int64_t *)weft_tensor_data(drawn))[i] = random_below(&random, (uint32_t)end);
    return temporary_move(t, drawn, device);
}

/*
 * The loss of the tutorial. The scores are [batch, length, words]. Positions in the sequence are the classes: for each
 * word, the target is one position.
 */
static weft_tensor *loss_of(trainer *me, weft_tape *t, int64_t number)
{
    const settings *s = me->set;
    uint64_t seed = random_key(random_key((uint64_t)s->seed, 4), (uint64_t)(number % BATCHES));
    weft_tensor *words = draw(t, random_key(seed, 0), BATCH, LENGTH, s->words, s->device);
    weft_tensor *target = draw(t, random_key(seed, 1), BATCH, s->words, LENGTH, s->device);
    weft_forward_options how = {.has_seed = true, .seed = random_key((uint64_t)s->seed, (uint64_t)number + 5)};
    weft_tensor *x = weft_remote_forward(t, me->embedding, words, &how);
    weft_tape_set_seed(t, how.seed + 1);
    weft_args out =
        weft_module_call(t, me->lstm,
                         me->h ? WEFT_VALUES(weft_of_tensor(x), weft_of_tensor(me->h), weft_of_tensor(me->c))
                               : WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor *y = weft_dropout(t, weft_args_tensor(out, 0), s->dropout, true);
    weft_tensor *scores = weft_remote_forward(t, me->decoder, y, &how);
    weft_tensor_unref(me->h);
    weft_tensor_unref(me->c);
    me->h = weft_tensor_ref(weft_detach(t, weft_args_tensor(out, 1)));
    me->c = weft_tensor_ref(weft_detach(t, weft_args_tensor(out, 2)));
    return weft_cross_entropy(t, scores, target);
}

/* The losses that are not read, on the CPU. */
static weft_status read_losses(trainer *me)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = me->set->device});
    weft_tensor *all = weft_stack(t, (weft_tensors){me->losses, me->unread}, 0);
    all = temporary_move(t, all, (weft_device){0});
    weft_status status = weft_tape_status(t);
    for (size_t i = 0; i < me->unread; i++) {
        weft_tensor_unref(me->losses[i]);
        progress_add(&me->progress, 1, weft_tensor_get_f64(all, (int64_t)i), BATCH);
        progress_update(&me->progress, 1);
    }
    me->unread = 0;
    weft_tape_close(t);
    return status;
}

static weft_status train_step(trainer *me, int64_t number)
{
    weft_tape *t = weft_dist_tape_open(me->agent, &(weft_tape_options){.device = me->set->device});
    weft_tensor *loss = loss_of(me, t, number);
    weft_dist_backward(t, loss, &(weft_pass_options){.step = me->sgd});
    weft_status status = weft_tape_status(t);
    if (status)
        me->error = weft_error_ref(weft_tape_error(t));
    else
        me->losses[me->unread++] = weft_tensor_ref(loss);
    weft_tape_close(t);
    bool is_due = me->set->device.kind == WEFT_DEVICE_CPU || me->unread == LOSSES || number + 1 == me->progress.total;
    return status || !is_due ? status : read_losses(me);
}

static void deliver(const trainer *me)
{
    const progress *p = &me->progress;
    weft_stats stats;
    weft_agent_stats(me->agent, &stats);
    putchar('\n');
    report_line("parameters here", "%lld", (long long)me->parameters[0]);
    report_line("on the server", "%lld", (long long)me->parameters[1]);
    report_line("iterations", "%lld", (long long)p->updates);
    report_line("seconds", "%.2f", progress_seconds(p));
    report_line("iterations/s", "%.0f", (double)p->updates / progress_seconds(p));
    report_line("loss", "%.4f", p->loss);
    report_line("loss at first", "%.4f", p->first_loss);
    report_line("sent", "%.3f MB", (double)stats.bytes_sent / 1e6);
    report_line("received", "%.3f MB", (double)stats.bytes_received / 1e6);
}

static int train(const settings *s)
{
    trainer me = {.set = s, .progress = {.total = s->epochs * BATCHES, .unit = "sequences", .quiet = s->quiet}};
    weft_status status = worker_open((weft_agent_options){0}, &me.agent);
    if (!status)
        status = make_model(&me);
    progress_begin(&me.progress);
    for (int64_t i = 0; i < s->epochs * BATCHES && !status; i++)
        status = train_step(&me, i);
    if (!status)
        deliver(&me);
    for (size_t i = 0; i < me.unread; i++)
        weft_tensor_unref(me.losses[i]);
    weft_tensor_unref(me.h);
    weft_tensor_unref(me.c);
    weft_dist_optimizer_unref(me.sgd);
    weft_rref_unref(me.decoder);
    weft_rref_unref(me.embedding);
    weft_module_unref(me.lstm);
    return worker_end(me.agent, status, me.error);
}

int main(int argc, char **argv)
{
    settings s = {
        .words = 7, .embedding = 2, .hidden = 3, .layers = 4, .epochs = 10, .dropout = 0.5, .lr = 0.05, .seed = 1};
    const cli_option options[] = {
        {"words", CLI_INT, &s.words, 1, 100000000, NULL, "N", "size of the vocabulary", "7"},
        {"embedding", CLI_INT, &s.embedding, 1, 65536, NULL, "N", "width of the embedding", "2"},
        {"hidden", CLI_INT, &s.hidden, 1, 65536, NULL, "N", "width of the LSTM's hidden state", "3"},
        {"layers", CLI_INT, &s.layers, 1, 64, NULL, "N", "layers of the LSTM", "4"},
        {"epochs", CLI_INT, &s.epochs, 1, 1000000, NULL, "N", "passes over the batches", "10"},
        {"dropout", CLI_NUMBER, &s.dropout, 0, 0.99, NULL, "X",
         "dropout rate after the embedding, between LSTM layers, and after the LSTM", "0.5"},
        {"lr", CLI_NUMBER, &s.lr, 1e-9, 1e3, NULL, "X", "learning rate of SGD", "0.05"},
        {"device", CLI_TEXT, &s.device_text, 0, 0, NULL, "DEVICE",
         "where this worker computes: cpu, cuda:N, or auto, the nearest GPU", "cpu"},
        {"seed", CLI_INT, &s.seed, 0, 9007199254740992.0, NULL, "N", "seed of weights, words and dropout", "1"},
        {"quiet", CLI_FLAG, &s.quiet, 0, 0, NULL, NULL, "print no progress", NULL},
    };
    const cli program = {.program = "rnn_model_parallel",
                         .purpose = "trains a language model whose embedding and decoder are on another worker",
                         .example = "rnn_model_parallel --words 1000 --embedding 64 --hidden 64 --layers 2 --epochs 5",
                         .options = options,
                         .count = sizeof(options) / sizeof(*options)};
    int rank, code = cli_parse(&program, argc, argv);
    int64_t size = 2;
    if (code < 0)
        code = worker_begin(&program, "trainer", "server", 2, &rank, &size);
    if (code < 0)
        code = worker_choose_device(&program, s.device_text, &s.device);
    if (code >= 0)
        return code;
    return rank == 0 ? train(&s) : serve(&s);
}
