/* SPDX-License-Identifier: Apache-2.0 */
/* cart_sweep.c - the figure of the tutorial: times of runs with and without batching. */
#include "cart_sweep.h"

#include "common/worker.h"
#include "common/report.h" /* clock_seconds */

#include <cjson/cJSON.h>

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef CART_PEER
#define CART_PEER "" /* set by the build: the path of the program in PyTorch */
#endif

#define PATH_ROOM 4200
#define WORDS 32
#define REPORT_MOST 1048576

extern char **environ;

enum { BATCHED, PLAIN, MODES };

typedef struct timing {
    double seconds,
        us_per_step; /* of the complete run, from exec to exit; of one step of all observers. NaN: there was no run */
} timing;

typedef struct sweep {
    const cart_settings *set;
    const char *peer;      /* a shell command; NULL: none */
    const char *peer_name; /* in the figure */
    char report[PATH_ROOM];
} sweep;

/* ---- One run ---------------------------------------------------------------------------------------------------- */

static int interrupted(void)
{
    worker_fail("interrupted");
    return 130;
}

/*
 * Waits for the child. A signal that would end this process is passed on to the child first; this process ends after
 * it. `signals` are blocked.
 */
static bool await(pid_t child, const sigset_t *signals, int *status)
{
    bool stopped = false;
    pid_t ended;
    while ((ended = waitpid(child, status, WNOHANG)) == 0) {
        int number = sigwaitinfo(signals, NULL);
        if (number != SIGINT && number != SIGTERM)
            continue;
        stopped = true;
        kill(child, SIGTERM);
    }
    if (stopped)
        raise(SIGTERM); /* sets the flag of worker_interrupted once signals are unblocked */
    return ended == child;
}

/* Starts a program and waits for its end. Returns 0 or an errno value. */
static int start_and_await(char *const *words, int *status)
{
    sigset_t signals, before;
    posix_spawnattr_t how;
    pid_t child;
    int trouble = posix_spawnattr_init(&how);
    if (trouble)
        return trouble;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &signals, &before);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigmask(&how, &before);
    trouble = worker_interrupted() ? EINTR : posix_spawnp(&child, words[0], NULL, &how, words, environ);
    if (!trouble && !await(child, &signals, status))
        trouble = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    posix_spawnattr_destroy(&how);
    return worker_interrupted() ? EINTR : trouble;
}

/* Runs `who`, this program or the peer's command. Returns the exit code. */
static int run(const char *who, char *const *words)
{
    int status = 0, trouble = start_and_await(words, &status);
    if (worker_interrupted())
        return interrupted();
    if (trouble)
        return worker_fail("'%s' cannot be run: %s", who, strerror(trouble));
    if (WIFSIGNALED(status))
        return worker_fail("'%s': a run was ended by signal %d", who, WTERMSIG(status));
    return WEXITSTATUS(status) ? worker_fail("'%s': a run failed with exit code %d", who, WEXITSTATUS(status)) : 0;
}

/* Reads us_per_step from a report. NaN: there is none. */
static double reported_us(const char *path)
{
    double us = NAN;
    FILE *file = fopen(path, "re");
    char *text = file ? calloc(1, REPORT_MOST + 1) : NULL;
    size_t size = text ? fread(text, 1, REPORT_MOST, file) : 0;
    cJSON *json = size ? cJSON_Parse(text) : NULL;
    const cJSON *number = json ? cJSON_GetObjectItemCaseSensitive(json, "us_per_step") : NULL;
    if (cJSON_IsNumber(number))
        us = number->valuedouble;
    cJSON_Delete(json);
    free(text);
    if (file)
        fclose(file);
    return us;
}

/* Words of a command line, stored in `text`; NULL-terminated. */
typedef struct command {
    char *words[WORDS];
    size_t count;
    char text[PATH_ROOM + 1024];
    size_t used;
} command;

static void add_word(command *c, const char *format, ...) WEFT_PRINTF(2, 3);
static void add_word(command *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    c->words[c->count++] = c->text + c->used;
    c->used += (size_t)vsnprintf(c->text + c->used, sizeof c->text - c->used, format, args) + 1;
    va_end(args);
}

/* Options that the peer understands too. */
static void add_learning(command *c, const cart_settings *set)
{
    add_word(c, "--num-episode=%lld", (long long)set->episodes);
    add_word(c, "--steps=%lld", (long long)set->steps);
    add_word(c, "--envs=%lld", (long long)set->envs);
    add_word(c, "--hidden=%lld", (long long)set->hidden);
    add_word(c, "--seed=%lld", (long long)set->seed);
    add_word(c, "--gamma=%.17g", set->gamma);
    add_word(c, "--dropout=%.17g", set->dropout);
    add_word(c, "--lr=%.17g", set->lr);
    if (set->normalise)
        add_word(c, "--normalise");
}

/* Options of this program alone. */
static void add_ours(command *c, const worker_options *job)
{
    if (job->fabric)
        add_word(c, "--fabric=%s", job->fabric);
    if (job->death_timeout_ms)
        add_word(c, "--death-timeout=%lld", (long long)job->death_timeout_ms);
    if (job->threads)
        add_word(c, "--threads=%lld", (long long)job->threads);
}

static int measure(const sweep *s, bool peer, int64_t world_size, int mode, timing *out)
{
    command c = {0};
    const char *who = peer ? s->peer : "cartpole_batch";
    if (peer) {
        add_word(&c, "sh");
        add_word(&c, "-c");
        add_word(&c, "exec %s \"$@\"", s->peer);
        add_word(&c, "sh");
    } else {
        add_word(&c, "/proc/self/exe");
        add_ours(&c, &s->set->job);
    }
    add_word(&c, mode == BATCHED ? "--batch" : "--no-batch");
    add_word(&c, "--quiet");
    add_word(&c, "--report=%s", s->report);
    add_word(&c, "--world-size=%lld", (long long)world_size);
    add_learning(&c, s->set);
    unlink(s->report); /* an old report would be taken for the report of this run */
    double began = clock_seconds();
    int code = run(who, c.words);
    *out = (timing){clock_seconds() - began, code ? NAN : reported_us(s->report)};
    unlink(s->report);
    if (!code && isnan(out->us_per_step))
        return worker_fail("'%s' is no program for this figure: it left no report with a us_per_step at --report", who);
    return code;
}

/* ---- The table -------------------------------------------------------------------------------------------------- */

static int measure_row(const sweep *s, int64_t world_size, FILE *csv)
{
    timing all[2][MODES] = {{{NAN, NAN}, {NAN, NAN}}, {{NAN, NAN}, {NAN, NAN}}};
    for (int peer = 0; peer <= (s->peer != NULL); peer++)
        for (int mode = 0; mode < MODES; mode++) {
            int code = measure(s, peer, world_size, mode, &all[peer][mode]);
            if (code)
                return code;
        }
    fprintf(csv, "%lld,%lld", (long long)world_size, (long long)world_size - 1);
    for (int peer = 0; peer < 2; peer++)
        for (int mode = 0; mode < MODES; mode++)
            fprintf(csv, ",%.3f,%.1f", all[peer][mode].seconds, all[peer][mode].us_per_step);
    fputc('\n', csv);
    fflush(csv);
    if (s->set->quiet)
        return 0;
    printf("%lld, %.3f, %.3f", (long long)world_size, all[0][BATCHED].seconds, all[0][PLAIN].seconds);
    if (s->peer)
        printf("    %s: %.3f, %.3f", s->peer_name, all[1][BATCHED].seconds, all[1][PLAIN].seconds);
    putchar('\n');
    fflush(stdout);
    return 0;
}

static int measure_all(const sweep *s)
{
    char path[PATH_ROOM];
    snprintf(path, sizeof path, "%s.csv", s->set->out);
    FILE *csv = fopen(path, "we");
    if (!csv)
        return worker_fail("%s cannot be written: %s", path, strerror(errno));
    fprintf(csv, "world_size,observers,batch_s,batch_us_per_step,no_batch_s,no_batch_us_per_step,"
                 "peer_batch_s,peer_batch_us_per_step,peer_no_batch_s,peer_no_batch_us_per_step\n");
    if (!s->set->quiet)
        printf("world size, seconds batched, seconds not batched\n");
    int code = 0;
    for (int64_t world_size = 2; world_size <= s->set->job.world_size && !code; world_size++)
        code = measure_row(s, world_size, csv);
    bool bad = ferror(csv);
    if ((fclose(csv) || bad) && !code)
        code = worker_fail("%s cannot be written", path);
    return code;
}

/* ---- The figure ------------------------------------------------------------------------------------------------- */

static bool shell_can(const char *test)
{
    char text[PATH_ROOM];
    int status = 0;
    snprintf(text, sizeof text, "%s", test);
    return start_and_await((char *[]){(char[]){"sh"}, (char[]){"-c"}, text, NULL}, &status) == 0 && status == 0;
}

/* Quotes a path for gnuplot: in single quotes, a quote is written twice. */
static void print_path(FILE *to, const char *path, const char *ending)
{
    fputc('\'', to);
    for (; *path; path++)
        fputs(*path == '\'' ? "''" : (const char[]){*path, 0}, to);
    fprintf(to, "%s'", ending);
}

/* Plots one panel: column `first` of the table and every second column after it. */
static void print_panel(const sweep *s, FILE *to, int first, const char *label)
{
    const struct {
        const char *who, *mode;
    } curves[] = {
        {"weft", "batched"}, {"weft", "not batched"}, {s->peer_name, "batched"}, {s->peer_name, "not batched"}};
    fprintf(to, "set ylabel '%s'\nplot ", label);
    for (int i = 0; i < (s->peer ? 4 : 2); i++) {
        fputs(i ? ", " : "", to);
        print_path(to, s->set->out, ".csv");
        fprintf(to, " using 2:%d with linespoints linewidth 2 title '%s, %s'", first + 2 * i, curves[i].who,
                curves[i].mode);
    }
    fputc('\n', to);
}

static void print_figure(const sweep *s, FILE *to, const char *terminal, const char *ending)
{
    fprintf(to, "set terminal %s\nset output ", terminal);
    print_path(to, s->set->out, ending);
    fprintf(to, "\nset multiplot layout 1,2 title 'CartPole: %lld episodes of %lld steps, %lld hidden units'\n",
            (long long)s->set->episodes, (long long)s->set->steps, (long long)s->set->hidden);
    print_panel(s, to, 3, "seconds, from start to end of the program");
    print_panel(s, to, 4, "microseconds a step, of all observers");
    fputs("unset multiplot\nset output\n", to);
}

static int draw(const sweep *s)
{
    FILE *to = shell_can("command -v gnuplot >/dev/null 2>&1") ? popen("gnuplot", "we") : NULL;
    if (!to) {
        worker_note("gnuplot is not installed: the figure is left out");
        return 0;
    }
    fputs("set datafile separator ','\nset key outside below\nset grid\nset xtics 1\nset xlabel 'observers'\n", to);
    fputs(s->peer ? "set logscale y\n" : "set yrange [0:*]\n", to);
    print_figure(s, to, "svg size 1200,480 background 'white'", ".svg");
    print_figure(s, to, "pngcairo size 1200,480", ".png");
    return pclose(to) ? worker_fail("gnuplot could not draw %s.csv", s->set->out) : 0;
}

/* ---- All of it -------------------------------------------------------------------------------------------------- */

static const char *find_torch(void)
{
    static const char *const pythons[] = {"/usr/bin/python3", "python3"};
    static char found[PATH_ROOM];
    char test[PATH_ROOM];
    for (size_t i = 0; i < sizeof pythons / sizeof *pythons && !access(CART_PEER, R_OK); i++) {
        snprintf(test, sizeof test, "%s -c 'import torch.distributed.rpc' >/dev/null 2>&1", pythons[i]);
        snprintf(found, sizeof found, "%s '%s'", pythons[i], CART_PEER);
        if (shell_can(test))
            return found;
    }
    return NULL;
}

/* Sets the number of threads, of the peer too. */
static void share_threads(int64_t threads)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)threads);
    if (threads)
        setenv("OMP_NUM_THREADS", text, 1);
}

int cart_sweep(const cart_settings *set)
{
    sweep s = {.set = set, .peer = set->peer, .peer_name = "the other"};
    worker_catch_signals();
    share_threads(set->job.threads);
    if (!set->peer) {
        s.peer = find_torch();
        s.peer_name = "PyTorch";
    } else if (strcmp(set->peer, "none") == 0) {
        s.peer = NULL;
    }
    if (snprintf(s.report, sizeof s.report, "%s.report.json", set->out) > 4096)
        return worker_fail("--out is too long");
    int code = measure_all(&s);
    if (!code)
        code = draw(&s);
    return worker_interrupted() ? interrupted() : worker_flush(code);
}
