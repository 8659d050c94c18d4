/* SPDX-License-Identifier: Apache-2.0 */
/* cart_settings.c - the command line of the CartPole programs. */
#include "cart_settings.h"

#include "cartpole.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define ROOM 40 /* options at most */
#define SWEEP_TO 11

/* Options whose presence matters, not only their effect on cart_settings. */
typedef struct given {
    bool no_batch, batch;
} given;

static const cart_settings unset = {.job.rank = -1,
                                    .episodes = -1,
                                    .gamma = -1,
                                    .share = -1,
                                    .seed = 543,
                                    .steps = CARTPOLE_LONGEST,
                                    .hidden = 128,
                                    .dropout = 0.6,
                                    .lr = 1e-2};

static size_t list_job(cart_settings *s, cli_option *out)
{
    const cli_option options[] = {
        {"world-size", CLI_INT, &s->job.world_size, 2, 65536, NULL, "N",
         "the agent (rank 0) and N - 1 observers, as processes on this machine; --sweep: the largest N",
         "2; --solve: 3; --sweep: 11"},
    };
    memcpy(out, options, sizeof options);
    return 1 + worker_list_options(&s->job, out + 1);
}

static size_t list_modes(cart_settings *s, given *g, cli_option *out)
{
    const cli_option options[] = {
        {"batch", CLI_FLAG, &g->batch, 0, 0, NULL, NULL,
         "evaluate the policy once per step, for all observers (default)", NULL},
        {"no-batch", CLI_FLAG, &g->no_batch, 0, 0, NULL, NULL, "evaluate the policy once per step and observer", NULL},
        {"sweep", CLI_FLAG, &s->sweep, 0, 0, NULL, NULL, "run world sizes 2, 3, ... in both modes, and plot the times",
         NULL},
        {"out", CLI_TEXT, &s->out, 0, 0, NULL, "PATH",
         "with --sweep: write PATH.csv and, if gnuplot is installed, PATH.svg and PATH.png", "cartpole_sweep"},
        {"peer", CLI_TEXT, &s->peer, 0, 0, NULL, "COMMAND",
         "with --sweep: another program with the same options to compare with; 'none': no other",
         "perf/peers/torch_cartpole.py if PyTorch is installed"},
    };
    memcpy(out, options, sizeof options);
    return sizeof options / sizeof *options;
}

static size_t list_learning(cart_settings *s, cli_option *out)
{
    const cli_option options[] = {
        {"num-episode", CLI_INT, &s->episodes, 0, 1000000, NULL, "N", "number of episodes; --solve: the largest number",
         "10; --solve: 1000"},
        {"steps", CLI_INT, &s->steps, 1, CART_MOST_STEPS, NULL, "N", "steps per episode; a pole that fell is reset",
         "500"},
        {"envs", CLI_INT, &s->envs, 1, CART_MOST_ENVS, NULL, "N", "poles per observer", "1; --solve: 8"},
        {"hidden", CLI_INT, &s->hidden, 1, 65536, NULL, "N", "units of the policy's hidden layer", "128"},
        {"dropout", CLI_NUMBER, &s->dropout, 0, 0.99, NULL, "X", "dropout rate of the policy", "0.6"},
        {"device", CLI_TEXT, &s->device_text, 0, 0, NULL, "DEVICE",
         "where the agent evaluates and trains the policy: cpu, cuda:N, or auto, the nearest GPU", "cpu"},
        {"lr", CLI_NUMBER, &s->lr, 1e-9, 10, NULL, "X", "learning rate of Adam", "0.01"},
        {"gamma", CLI_NUMBER, &s->gamma, 0, 1, NULL, "X", "discount of future rewards", "1; --solve: 0.99"},
        {"normalise", CLI_FLAG, &s->normalise, 0, 0, NULL, NULL,
         "normalise the returns of an episode to mean 0 and deviation 1; --solve does too", NULL},
        {"running", CLI_NUMBER, &s->share, 0.001, 1, NULL, "X", "weight of the last episode in the running reward",
         "0.5; --solve: 0.05"},
        {"seed", CLI_INT, &s->seed, 0, 9007199254740992.0, NULL, "N",
         "seed of weights, dropout, actions and initial states", "543"},
        {"solve", CLI_FLAG, &s->solve, 0, 0, NULL, NULL,
         "train until the running reward exceeds 475, with two observers of eight poles, discount 0.99 and normalised "
         "returns; poles that stand at the end add nothing",
         NULL},
        {"render", CLI_FLAG, &s->render, 0, 0, NULL, NULL, "at the end show the policy in the terminal", NULL},
        {"load", CLI_TEXT, &s->load, 0, 0, NULL, "FILE", "start with the policy in FILE", NULL},
        {"save", CLI_TEXT, &s->save, 0, 0, NULL, "FILE", "write the trained policy to FILE", NULL},
        {"report", CLI_TEXT, &s->report, 0, 0, NULL, "FILE", "write rewards and times to FILE as JSON", NULL},
        {"quiet", CLI_FLAG, &s->quiet, 0, 0, NULL, NULL, "print no episodes", NULL},
    };
    memcpy(out, options, sizeof options);
    return sizeof options / sizeof *options;
}

static void take_defaults(cart_settings *s)
{
    if (s->episodes < 0)
        s->episodes = s->solve ? 1000 : 10;
    if (s->gamma < 0)
        s->gamma = s->solve ? 0.99 : 1;
    if (s->share < 0)
        s->share = s->solve ? 0.05 : 0.5;
    if (!s->envs)
        s->envs = s->solve ? 8 : 1;
    s->normalise = s->normalise || s->solve;
    s->out = s->out ? s->out : "cartpole_sweep";
}

static int check_job(const cli *program, cart_settings *s)
{
    int64_t asked = s->job.world_size;
    if (s->job.rank >= 0 && !asked)
        return cli_error(program, "--rank needs a --world-size");
    int code = worker_find(program, &s->job, asked > 0);
    if (code < 0 && asked && s->job.world_size != asked)
        return cli_error(program, "--world-size is '%d': the launcher started %d workers", (int)asked,
                         (int)s->job.world_size);
    return code < 0 ? worker_settle(program, &s->job, asked ? asked : s->sweep ? SWEEP_TO : s->solve ? 3 : 2) : code;
}

static int check_outputs(const cli *program, const cart_settings *s)
{
    int code = worker_check_output(program, "--report", s->report);
    if (code < 0)
        code = worker_check_output(program, "--save", s->save);
    const char *const of_sweep[] = {".csv", ".svg", ".png", ".report.json"};
    for (size_t i = 0; i < sizeof of_sweep / sizeof *of_sweep && code < 0 && s->sweep; i++) {
        char path[PATH_MAX + 16];
        snprintf(path, sizeof path, "%.*s%s", PATH_MAX, s->out, of_sweep[i]);
        code = worker_check_output(program, "--out", path);
    }
    return code;
}

/* Rejects options that --sweep sets itself, or that have no effect there. */
static int check_sweep(const cli *program, const cart_settings *s, const given *g)
{
    if (g->batch || g->no_batch || s->solve || s->render || s->report || s->save || s->load)
        return cli_error(program, "--sweep runs both modes itself: it goes without --batch, --no-batch, --solve, "
                                  "--render, --report, --save and --load");
    if (s->share >= 0)
        return cli_error(program, "--sweep shows no running reward: it goes without --running");
    if (s->job.on_death != ON_DEATH_STOP)
        return cli_error(program, "--sweep times whole jobs: it goes without --on-death continue");
    if (s->episodes == 0)
        return cli_error(program, "--sweep needs an episode to time: --num-episode is '0'");
    return -1;
}

static int check(const cli *program, cart_settings *s, const given *g)
{
    if (g->batch && g->no_batch)
        return cli_error(program, "--batch or --no-batch, not both");
    if (!s->sweep && (s->out || s->peer))
        return cli_error(program, "--out and --peer belong to --sweep");
    int code = s->sweep ? check_sweep(program, s, g) : -1;
    if (code < 0)
        code = check_job(program, s);
    if (code < 0 && s->sweep && !s->job.spawn)
        return cli_error(program, "--sweep starts its jobs itself: it is no worker of another one");
    if (code >= 0)
        return code;
    s->batch = !g->no_batch;
    take_defaults(s);
    code = s->job.rank == 0 && !s->sweep ? worker_choose_device(program, s->device_text, &s->device) : -1;
    if (code >= 0)
        return code;
    if (s->envs * s->steps > CART_MOST_MOVES)
        return cli_error(program, "--envs times --steps is %lld: expected at most %d", (long long)(s->envs * s->steps),
                         CART_MOST_MOVES);
    return check_outputs(program, s);
}

int cart_settings_parse(int argc, char **argv, const char *name, bool both, cart_settings *out)
{
    char example[128];
    cart_settings s = unset;
    given g = {0};
    cli_option options[ROOM];
    size_t count = list_job(&s, options);
    count += both ? list_modes(&s, &g, options + count) : 0;
    count += list_learning(&s, options + count);
    snprintf(example, sizeof example, "%s --world-size 5 --num-episode 20", name);
    const cli program = {
        .program = name,
        .purpose = "learns to balance poles: observers simulate them, one agent decides and learns",
        .example = example,
        .options = options,
        .count = count,
    };
    int code = cli_parse(&program, argc, argv);
    if (code < 0)
        code = check(&program, &s, &g);
    if (code >= 0)
        return code;
    s.manual = !both;
    if (!s.sweep) /* each run of the sweep shares the cores itself */
        worker_share_cores(&s.job);
    *out = s;
    return -1;
}
