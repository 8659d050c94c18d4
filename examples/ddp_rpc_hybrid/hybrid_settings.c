/* SPDX-License-Identifier: Apache-2.0 */
/* hybrid_settings.c - the command line of ddp_rpc_hybrid, and the ranks of its workers. */
#include "hybrid_settings.h"

#include <stdio.h>
#include <string.h>

static size_t list_options(hybrid_settings *s, cli_option *out)
{
    const cli_option options[] = {
        {"trainers", CLI_INT, &s->trainers, 1, HYBRID_MOST_TRAINERS, NULL, "N",
         "start N trainers and the server as processes on this machine, also under mpirun and srun", "2"},
        {"world-size", CLI_INT, &s->job.world_size, 3, HYBRID_MOST_TRAINERS + HYBRID_FIRST_TRAINER, NULL, "N",
         "with --rank: number of workers: the master, the server and the trainers", "WORLD_SIZE"},
        {"epochs", CLI_INT, &s->epochs, 1, 1000000, NULL, "N", "number of epochs; each has different batches", "100"},
        {"batches", CLI_INT, &s->batches, 1, 1000000, NULL, "N", "batches per epoch", "10"},
        {"lr", CLI_NUMBER, &s->lr, 1e-9, 1e30, NULL, "X", "learning rate of SGD", "0.05"},
        {"synchronous", CLI_FLAG, &s->synchronous, 0, 0, NULL, NULL, "trainers wait for each other after each step",
         NULL},
        {"check", CLI_FLAG, &s->check, 0, 0, NULL, NULL,
         "with --synchronous: train in one process too, and compare all losses", NULL},
        {"seed", CLI_INT, &s->seed, 0, 9007199254740992.0, NULL, "N", "seed of weights and batches", "1"},
        {"report", CLI_TEXT, &s->report, 0, 0, NULL, "FILE", "write the final table and all losses to FILE as JSON",
         NULL},
        {"quiet", CLI_FLAG, &s->quiet, 0, 0, NULL, NULL, "print no progress and no table", NULL},
    };
    memcpy(out, options, sizeof options);
    (void)worker_list_options(&s->job, out + sizeof options / sizeof *options);
    return sizeof options / sizeof *options + WORKER_OPTIONS_TOGETHER;
}

/* Returns -1 to continue, or the exit code to end with. */
static int settle(const cli *program, hybrid_settings *s)
{
    if ((s->job.rank >= 0) != (s->job.world_size > 0))
        return cli_error(program, "--rank and --world-size go together");
    if (s->check && !s->synchronous)
        return cli_error(program, "--check needs --synchronous: else no other run has the same losses");
    int code = worker_find(program, &s->job, s->trainers > 0);
    if (code < 0 && s->job.rank >= 0 && s->job.world_size < HYBRID_FIRST_TRAINER + 1)
        return cli_error(program, "WORLD_SIZE is '%d': a master, a server and a trainer are three",
                         (int)s->job.world_size);
    if (code < 0)
        code = worker_settle(program, &s->job, HYBRID_FIRST_TRAINER + (s->trainers ? s->trainers : 2));
    if (code < 0 && s->trainers && s->trainers != s->job.world_size - HYBRID_FIRST_TRAINER)
        return cli_error(program, "--trainers is '%d': a world of %d has %d", (int)s->trainers, (int)s->job.world_size,
                         (int)s->job.world_size - HYBRID_FIRST_TRAINER);
    s->trainers = s->job.world_size - HYBRID_FIRST_TRAINER;
    if (code < 0)
        code = worker_check_output(program, "--report", s->report);
    if (code < 0)
        worker_share_cores(&s->job);
    return code;
}

int hybrid_parse(int argc, char **argv, hybrid_settings *s)
{
    *s = (hybrid_settings){.job.rank = -1, .epochs = 100, .batches = 10, .lr = 0.05, .seed = 1};
    cli_option options[32];
    const cli program = {.program = "ddp_rpc_hybrid",
                         .purpose = "trains a model with its embedding on a server and its dense part on each trainer",
                         .example = "ddp_rpc_hybrid --trainers 2 --synchronous --check --report report.json",
                         .options = options,
                         .count = list_options(s, options)};
    int code = cli_parse(&program, argc, argv);
    return code >= 0 ? code : settle(&program, s);
}

hybrid_reason hybrid_reason_of(const weft_agent *agent, const char *why)
{
    hybrid_reason r;
    int rank = 1;
    while (rank < weft_agent_world_size(agent) && weft_agent_alive(agent, rank))
        rank++;
    if (rank < weft_agent_world_size(agent))
        snprintf(r.text, sizeof r.text, "%s %d is dead: %s", rank == HYBRID_SERVER ? "server" : "trainer", rank, why);
    else
        snprintf(r.text, sizeof r.text, "%s", why);
    return r;
}
