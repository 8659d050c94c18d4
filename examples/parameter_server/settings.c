/* SPDX-License-Identifier: Apache-2.0 */
/* settings.c - the command lines of the parameter servers, with defaults that depend on program and model. */
#include "settings.h"

#include "common/cli.h"
#include "common/dataset.h"

#include <stdlib.h>
#include <string.h>

#define ROOM 32 /* options at most */

static const char *const models[] = {"convnet", "resnet50", NULL};
static const char *const schedules[] = {"linear", "constant", NULL};

static const settings unset = {
    .job.rank = -1, .seed = 1, .digits = 6000, .held_out = 2000, .schedule = -1, .momentum = -1};

/* ---- The table -------------------------------------------------------------------------------------------------- */

/* Lists the options of the workers in `out`, and returns their number. */
static size_t list_workers(settings *s, cli_option *out)
{
    const cli_option options[] = {
        {"trainers", CLI_INT, &s->trainers, 1, 65535, NULL, "N", "start N trainers as processes of this machine",
         s->program == SETTINGS_BATCH ? "2" : "3"},
        {"world-size", CLI_INT, &s->job.world_size, 2, 65536, NULL, "N",
         "with --rank: number of workers: the server (rank 0) and the trainers", "WORLD_SIZE"},
    };
    memcpy(out, options, sizeof options);
    return sizeof options / sizeof *options + worker_list_options(&s->job, out + sizeof options / sizeof *options);
}

static size_t list_batch_training(settings *s, cli_option *out)
{
    const cli_option options[] = {
        {"model", CLI_CHOICE, &s->model, 0, 0, models, NULL, "the model to train", "convnet"},
        {"data", CLI_TEXT, &s->data, 0, 0, NULL, "DIR",
         "folder of IDX files in MNIST's format, plain or .gz; convnet only", "generated digits"},
        {"digits", CLI_INT, &s->digits, 1, 10000000, NULL, "N", "number of generated digits for training", "6000"},
        {"held-out", CLI_INT, &s->held_out, 1, 10000000, NULL, "N", "number of generated digits for the final test",
         "2000"},
        {"batch-size", CLI_INT, &s->batch_size, 1, 65536, NULL, "N", "images per batch of a trainer",
         "32; resnet50: 20"},
        {"batch-update-size", CLI_INT, &s->batch_update_size, 1, 65535, NULL, "N", "gradients per update of the model",
         "one from each trainer"},
        {"image-size", CLI_INT, &s->image_size, 28, 1024, NULL, "N",
         "height and width of an image; the convnet needs 28", "28; resnet50: 64"},
        {"classes", CLI_INT, &s->classes, 2, 100000, NULL, "N", "number of classes; the convnet needs 10",
         "10; resnet50: 30"},
        {"epochs", CLI_INT, &s->epochs, 1, 1000000, NULL, "N", "passes over the data; convnet only", "8"},
        {"iterations", CLI_INT, &s->iterations, 1, 1000000000, NULL, "N", "batches per trainer, instead of --epochs",
         "by --epochs; resnet50: 6"},
        {"device", CLI_TEXT, &s->device_text, 0, 0, NULL, "DEVICE",
         "where trainers compute gradients: cpu, cuda:N, or auto, the nearest GPU", "cpu"},
        {"lr", CLI_NUMBER, &s->lr, 1e-9, 1e3, NULL, "X", "learning rate", "0.03; resnet50: 0.001"},
        {"momentum", CLI_NUMBER, &s->momentum, 0, 0.9999, NULL, "X", "momentum of SGD", "0.9"},
        {"schedule", CLI_CHOICE, &s->schedule, 0, 0, schedules, NULL, "linear: the learning rate decreases to 0",
         "linear; resnet50: constant"},
        {"seed", CLI_INT, &s->seed, 0, 9007199254740992.0, NULL, "N",
         "seed of weights, generated digits, order and dropout", "1"},
        {"deterministic", CLI_FLAG, &s->deterministic, 0, 0, NULL, NULL,
         "add gradients in the order of ranks, with WEFT_PRODUCT=blas: the same seed gives the same bits", NULL},
        {"save", CLI_TEXT, &s->save, 0, 0, NULL, "FILE", "write the trained model to FILE", NULL},
        {"report", CLI_TEXT, &s->report, 0, 0, NULL, "FILE", "write the final table to FILE as JSON", NULL},
        {"quiet", CLI_FLAG, &s->quiet, 0, 0, NULL, NULL, "print no progress and no table", NULL},
    };
    memcpy(out, options, sizeof options);
    return sizeof options / sizeof *options;
}

static size_t list_rpc_training(settings *s, cli_option *out)
{
    const cli_option options[] = {
        {"data", CLI_TEXT, &s->data, 0, 0, NULL, "DIR", "folder of IDX files in MNIST's format, plain or .gz",
         "generated digits"},
        {"digits", CLI_INT, &s->digits, 1, 10000000, NULL, "N", "number of generated digits for training", "6000"},
        {"held-out", CLI_INT, &s->held_out, 1, 10000000, NULL, "N", "number of generated digits for the final test",
         "2000"},
        {"batch-size", CLI_INT, &s->batch_size, 1, 65536, NULL, "N", "images per batch of a trainer", "32"},
        {"epochs", CLI_INT, &s->epochs, 1, 1000000, NULL, "N", "passes of each trainer over all the data", "5"},
        {"iterations", CLI_INT, &s->iterations, 1, 1000000000, NULL, "N", "batches per trainer, instead of --epochs",
         "by --epochs"},
        {"device", CLI_TEXT, &s->device_text, 0, 0, NULL, "DEVICE",
         "where the server runs the model: cpu, cuda:N, or auto, the nearest GPU", "cpu"},
        {"lr", CLI_NUMBER, &s->lr, 1e-9, 1e3, NULL, "X", "learning rate", "0.03"},
        {"momentum", CLI_NUMBER, &s->momentum, 0, 0.9999, NULL, "X", "momentum of each trainer's SGD", "0"},
        {"seed", CLI_INT, &s->seed, 0, 9007199254740992.0, NULL, "N",
         "seed of weights, generated digits, order and dropout", "1"},
        {"save", CLI_TEXT, &s->save, 0, 0, NULL, "FILE", "write the trained model to FILE", NULL},
        {"report", CLI_TEXT, &s->report, 0, 0, NULL, "FILE", "write the final table to FILE as JSON", NULL},
        {"quiet", CLI_FLAG, &s->quiet, 0, 0, NULL, NULL, "print no progress and no table", NULL},
    };
    memcpy(out, options, sizeof options);
    return sizeof options / sizeof *options;
}

/* ---- What follows from what ------------------------------------------------------------------------------------- */

static int check_workers(const cli *program, settings *s)
{
    worker_options *job = &s->job;
    if ((job->rank >= 0) != (job->world_size > 0))
        return cli_error(program, "--rank and --world-size go together");
    int code = worker_find(program, job, s->trainers > 0);
    if (code < 0)
        code = worker_settle(program, job, 1 + (s->trainers ? s->trainers : s->program == SETTINGS_BATCH ? 2 : 3));
    if (code >= 0)
        return code;
    if (s->trainers && s->trainers != job->world_size - 1)
        return cli_error(program, "--trainers is '%d': a world of %d has %d", (int)s->trainers, (int)job->world_size,
                         (int)job->world_size - 1);
    s->trainers = job->world_size - 1;
    return -1;
}

/* Asks for a GPU only in a process that computes the model, or, when this process starts the trainers, on their
 * machine. */
static int check_device(const cli *program, settings *s)
{
    bool serves = s->job.rank == 0, is_server = s->program == SETTINGS_RPC;
    weft_device chosen = {0};
    if (serves != is_server && !s->job.spawn)
        return -1;
    int code = worker_choose_device(program, s->device_text, &chosen);
    if (serves == is_server)
        s->device = chosen;
    return code;
}

static int check_convnet(const cli *program, settings *s)
{
    if (s->image_size && s->image_size != DATASET_SIDE)
        return cli_error(program, "--image-size is '%d': the convnet takes %d", (int)s->image_size, DATASET_SIDE);
    if (s->classes && s->classes != DATASET_CLASSES)
        return cli_error(program, "--classes is '%d': the convnet has %d", (int)s->classes, DATASET_CLASSES);
    s->image_size = DATASET_SIDE;
    s->classes = DATASET_CLASSES;
    s->batch_size = s->batch_size ? s->batch_size : 32;
    s->epochs = s->epochs ? s->epochs : s->program == SETTINGS_BATCH ? 8 : 5;
    s->lr = s->lr > 0 ? s->lr : 0.03;
    s->schedule = s->schedule >= 0 ? s->schedule : SCHEDULE_LINEAR;
    return -1;
}

/* The numbers are those of PyTorch's tutorial on batch-updating parameter servers. */
static int check_resnet50(const cli *program, settings *s)
{
    if (s->data)
        return cli_error(program, "--data is '%s': resnet50 is trained on random images", s->data);
    if (s->epochs)
        return cli_error(program, "--epochs is '%d': resnet50 has no data set to go through, give --iterations",
                         (int)s->epochs);
    if (s->image_size && s->image_size < 32)
        return cli_error(program, "--image-size is '%d': resnet50 takes at least 32", (int)s->image_size);
    s->image_size = s->image_size ? s->image_size : 64;
    s->classes = s->classes ? s->classes : 30;
    s->batch_size = s->batch_size ? s->batch_size : 20;
    s->iterations = s->iterations ? s->iterations : 6;
    s->lr = s->lr > 0 ? s->lr : 0.001;
    s->schedule = s->schedule >= 0 ? s->schedule : SCHEDULE_CONSTANT;
    return -1;
}

static int check(const cli *program, settings *s)
{
    int code = check_workers(program, s);
    if (code < 0)
        code = worker_check_output(program, "--save", s->save);
    if (code < 0)
        code = worker_check_output(program, "--report", s->report);
    if (code >= 0)
        return code;
    if (s->epochs && s->iterations)
        return cli_error(program, "--epochs or --iterations, not both");
    if (s->deterministic && s->batch_update_size && s->batch_update_size != s->trainers)
        return cli_error(program,
                         "--deterministic needs a gradient of each trainer in an update: --batch-update-size "
                         "%d",
                         (int)s->trainers);
    if (s->batch_update_size > s->trainers)
        return cli_error(program, "--batch-update-size is '%d': %d trainers have no more gradients at a time",
                         (int)s->batch_update_size, (int)s->trainers);
    if (!s->batch_update_size)
        s->batch_update_size = s->trainers;
    if (s->deterministic) /* "auto" measures two libraries, so the chosen one can differ from run to run */
        setenv("WEFT_PRODUCT", "blas", false);
    code = check_device(program, s);
    if (code >= 0)
        return code;
    if (s->momentum < 0)
        s->momentum = s->program == SETTINGS_BATCH ? 0.9 : 0;
    return s->model == MODEL_CONVNET ? check_convnet(program, s) : check_resnet50(program, s);
}

int settings_parse(settings_program which, int argc, char **argv, settings *out)
{
    static const char *const about[][3] = {
        [SETTINGS_BATCH] = {"batch_parameter_server", "trains a model with one parameter server and several trainers",
                            "batch_parameter_server --trainers 2 --epochs 4 --report report.json"},
        [SETTINGS_RPC] = {"rpc_parameter_server", "trains a model on a server, with remote forward, backward and step",
                          "rpc_parameter_server --trainers 3 --epochs 2 --report report.json"},
    };
    settings s = unset;
    cli_option options[ROOM];
    s.program = which;
    size_t count = list_workers(&s, options);
    count +=
        which == SETTINGS_BATCH ? list_batch_training(&s, options + count) : list_rpc_training(&s, options + count);
    const cli program = {
        .program = about[which][0],
        .purpose = about[which][1],
        .example = about[which][2],
        .options = options,
        .count = count,
    };
    int code = cli_parse(&program, argc, argv);
    if (code < 0)
        code = check(&program, &s);
    if (code >= 0)
        return code;
    worker_share_cores(&s.job);
    *out = s;
    return -1;
}

const char *settings_model_name(const settings *s)
{
    return models[s->model];
}

double settings_lr(const settings *s, int64_t update, int64_t updates)
{
    bool falls = s->schedule == SCHEDULE_LINEAR && update < updates;
    return falls ? s->lr * (1 - (double)update / (double)updates) : s->lr;
}
