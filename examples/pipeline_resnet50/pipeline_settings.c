/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_settings.c - the command line of pipeline_resnet50. */
#include "pipeline_settings.h"

#include "pipeline.h" /* number of stages */

#include <stdlib.h>
#include <string.h>

static size_t list_options(pipeline_settings *s, cli_option *out)
{
    const cli_option options[] = {
        {"world-size", CLI_INT, &s->job.world_size, 1 + PIPELINE_STAGES, 1 + PIPELINE_STAGES, NULL, "3",
         "with --rank: number of workers: the master and two stages", "WORLD_SIZE"},
        {"micro-batches", CLI_TEXT, &s->micro_batches, 0, 0, NULL, "N,N,...",
         "sizes of micro-batches to measure, in images", "1,2,4,8, and the whole batch"},
        {"batch-size", CLI_INT, &s->batch, 1, 65536, NULL, "N", "images per batch", "120"},
        {"batches", CLI_INT, &s->batches, 1, 1000000, NULL, "N", "batches for each size", "3"},
        {"image-size", CLI_INT, &s->image_size, 64, 1024, NULL, "N", "height and width of an image, in pixels", "128"},
        {"lr", CLI_NUMBER, &s->lr, 1e-9, 1e30, NULL, "X", "learning rate of SGD", "0.05"},
        {"check", CLI_FLAG, &s->check, 0, 0, NULL, NULL,
         "compare the gradients of the first batch of each size with those of a single process", NULL},
        {"seed", CLI_INT, &s->seed, 0, 9007199254740992.0, NULL, "N", "seed of weights and images", "1"},
        {"report", CLI_TEXT, &s->report, 0, 0, NULL, "FILE", "write the final table to FILE as JSON", NULL},
        {"quiet", CLI_FLAG, &s->quiet, 0, 0, NULL, NULL, "print no progress and no table", NULL},
    };
    memcpy(out, options, sizeof options);
    (void)worker_list_options(&s->job, out + sizeof options / sizeof *options);
    return sizeof options / sizeof *options + WORKER_OPTIONS_TOGETHER;
}

/* The sizes of the tutorial that are smaller than the batch, and the size of the batch. */
static void usual_sizes(pipeline_settings *s)
{
    for (int64_t size = 1; size <= 8 && size < s->batch; size *= 2)
        s->sizes[s->size_count++] = size;
    s->sizes[s->size_count++] = s->batch;
}

/* Returns -1 to continue, or the exit code to end with. */
static int read_sizes(const cli *program, pipeline_settings *s)
{
    if (!s->micro_batches)
        usual_sizes(s);
    for (const char *at = s->micro_batches; at; at = *at ? at + 1 : NULL) {
        char *end;
        long long size = strtoll(at, &end, 10);
        if (end == at || (*end && *end != ',') || size < 1 || size > s->batch)
            return cli_error(
                program,
                "--micro-batches is '%s': expected numbers from 1 to %lld, the batch's size, with commas between",
                s->micro_batches, (long long)s->batch);
        if (s->size_count == PIPELINE_MOST_SIZES)
            return cli_error(program, "--micro-batches is '%s': expected at most %d", s->micro_batches,
                             PIPELINE_MOST_SIZES);
        s->sizes[s->size_count++] = size;
        at = end;
        if (*at && !at[1])
            return cli_error(program, "--micro-batches is '%s': expected a number behind each comma", s->micro_batches);
    }
    return -1;
}

int pipeline_parse(int argc, char **argv, pipeline_settings *s)
{
    *s = (pipeline_settings){.job.rank = -1, .batch = 120, .batches = 3, .image_size = 128, .lr = 0.05, .seed = 1};
    cli_option options[32];
    const cli program = {
        .program = "pipeline_resnet50",
        .purpose = "trains ResNet-50 in two stages on two workers, and compares sizes of micro-batches",
        .example = "pipeline_resnet50 --batch-size 24 --image-size 64 --micro-batches 1,2,4,8,24 --check",
        .options = options,
        .count = list_options(s, options)};
    int code = cli_parse(&program, argc, argv);
    if (code >= 0)
        return code;
    if ((s->job.rank >= 0) != (s->job.world_size > 0))
        return cli_error(&program, "--rank and --world-size go together");
    code = read_sizes(&program, s);
    if (code < 0)
        code = worker_find(&program, &s->job, false);
    if (code < 0 && s->job.rank >= 0 && s->job.world_size != 1 + PIPELINE_STAGES)
        return cli_error(&program, "WORLD_SIZE is '%d': a master and two stages are three", (int)s->job.world_size);
    if (code < 0)
        code = worker_settle(&program, &s->job, 1 + PIPELINE_STAGES);
    if (code < 0)
        code = worker_check_output(&program, "--report", s->report);
    if (code < 0)
        worker_share_cores(&s->job);
    return code;
}
