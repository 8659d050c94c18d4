/* SPDX-License-Identifier: Apache-2.0 */
/*
 * storm.c - the driver: jobs of real workers, one after the other, in a storm, and what came of it.
 *
 * A job is elastic: whoever is killed, or declared dead, is replaced. Some jobs end with the death of rank 0, which is the end of
 * all; the others are drained: every call ends, every reference goes, every agent closes well.
 *
 * TIME. Nothing here has a limit on the wall clock, as any process may be stopped, and the machine be busy. What has to end is given
 * a minute of quiet: of ticks in which every process ran, and nothing was done to any.
 */
#include "rpc/must.h"
#include "rpc/world.h"
#include "storm/storm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define JOB_MS 60000
#define PROGRESS_MS 5000
#define TURN_MS 2
#define BEATS_LEAST 3 /* of a process in a tick, if it ran */
#define RESTART_MOST_MS 400
#define LOG_TAIL 6000
#define IN_USE_MOST (64UL << 20) /* bytes of malloc that a worker may hold when nothing is under way */

static const char usage[] =
    "usage: storm [--seconds N] [--seed S] [--kills N] [--stops N] [--bound MS] [--jobs N]\n"
    "             [--hosts TAG]\n"
    "  --seconds N  how long the storm lasts in all its jobs together (900); their ends come on top\n"
    "  --seed S     of all that is drawn (1); what happens depends on the machine besides\n"
    "  --kills N    workers that are killed (200 in 900 s)\n"
    "  --stops N    stops of 0.2 to 3 bounds, and rows of short ones (300 in 900 s)\n"
    "  --bound MS   silence after which a worker is declared dead (1000)\n"
    "  --jobs N     (one a minute, at least 2)\n"
    "  --hosts TAG  workers are in the network namespaces TAG1, TAG2 ..., rank 0 first, at 10.89.0.1 ...; their\n"
    "               links are ports p1, p2 ... of a bridge in TAG0 (tools/long.d/storm makes them): links are cut, "
    "too\n";

typedef struct schedule { /* of one sort of event in a job */
    unsigned left;
    uint64_t next_ms;
} schedule;

typedef struct driver {
    storm_weather weather;
    unsigned seconds, kills, stops, jobs;
    uint32_t lives;
    char logs[64]; /* the folder */
    bool ending;   /* nobody is replaced any more */
    uint64_t began_ms, ends_ms, tick_ms, progress_ms;
    unsigned long beats[SEATS];
    unsigned shown;              /* violations */
    unsigned declared, unforced; /* deaths; of workers that nothing was done to */
    unsigned store_deaths;
    pid_t pids[LIVES_MAX];
} driver;

/* ---- Processes ------------------------------------------------------------------------------------------------------- */

static void log_name(const driver *d, uint32_t life, char out[96])
{
    snprintf(out, 96, "%s/life-%u.log", d->logs, life);
}

static void enter_host(const char *tag, int rank)
{
    char path[96];
    snprintf(path, sizeof path, "/run/netns/%s%d", tag, rank + 1);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) {
        perror(path);
        _exit(126);
    }
    close(fd);
}

static void start_worker(driver *d, int rank)
{
    char log[96], rank_text[16], life_text[16];
    uint32_t life = ++d->lives;
    MUST(life < LIVES_MAX);
    log_name(d, life, log);
    snprintf(rank_text, sizeof rank_text, "%d", rank);
    snprintf(life_text, sizeof life_text, "%u", life);
    atomic_store(&book->seats[rank].stage, STAGE_NONE);
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid > 0) {
        d->pids[life] = pid;
        weather_adopt(&d->weather, rank, pid, life);
        return;
    }
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0)
        dup2(fd, 2);
    if (d->weather.hosts)
        enter_host(d->weather.hosts, rank);
    execl("/proc/self/exe", "storm", "--worker", rank_text, life_text, (char *)NULL);
    _exit(127);
}

static void print_tail(const driver *d, uint32_t life)
{
    char name[96], text[LOG_TAIL + 1];
    log_name(d, life, name);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    off_t size = lseek(fd, 0, SEEK_END);
    ssize_t got = pread(fd, text, LOG_TAIL, size > LOG_TAIL ? size - LOG_TAIL : 0);
    close(fd);
    printf("---- the end of %s:\n%.*s\n----\n", name, (int)(got > 0 ? got : 0), text);
}

/* A worker ended. Only the driver may kill, and only who is out of the job, or closed with all the others, may exit. */
static void judge_end(driver *d, const storm_process *p, int rank, int status)
{
    bool exited = WIFEXITED(status), closing = atomic_load(&book->phase) == PHASE_CLOSE;
    int code = exited ? WEXITSTATUS(status) : -1;
    if (p->killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return;
    if (code == EXIT_OUT && rank > 0) {
        d->declared++;
        d->unforced += !p->disturbed && !d->ending && !d->weather.seats[0].disturbed;
        return;
    }
    if (code == 0 && (closing || p->killed))
        return;
    atomic_store(&book->lives[p->life].killed, true); /* what it had under way needs no answer */
    violation(-1, "life %u in seat %d ended by itself: %s %d", p->life, rank, exited ? "exit" : "signal",
              exited ? code : WTERMSIG(status));
    print_tail(d, p->life);
}

static void reap(driver *d)
{
    int status;
    for (int rank = 0; rank < SEATS; rank++) {
        storm_process *p = &d->weather.seats[rank];
        if (!p->pid || waitpid(p->pid, &status, WNOHANG) != p->pid)
            continue;
        judge_end(d, p, rank, status);
        p->pid = 0;
        p->restart_at = now_ms() + chance_below(RESTART_MOST_MS);
    }
}

static void replace(driver *d)
{
    for (int rank = 1; rank < SEATS && !d->ending; rank++)
        if (!d->weather.seats[rank].pid && now_ms() >= d->weather.seats[rank].restart_at)
            start_worker(d, rank);
}

/* ---- Turns ----------------------------------------------------------------------------------------------------------- */

static bool is_at(const driver *d, int rank, storm_stage stage)
{
    const storm_seat *seat = &book->seats[rank];
    return atomic_load(&seat->life) == d->weather.seats[rank].life && atomic_load(&seat->stage) >= (int)stage;
}

/* Who is in the group now; nothing if that is as it was. */
static void publish_group(driver *d)
{
    uint32_t lives[SEATS];
    bool same = true;
    for (int rank = 0; rank < SEATS; rank++) {
        const storm_process *p = &d->weather.seats[rank];
        lives[rank] = p->pid && !p->killed && is_at(d, rank, STAGE_ON) ? p->life : 0;
        same = same && lives[rank] == atomic_load(&book->group_lives[rank]);
    }
    if (same)
        return;
    atomic_fetch_add(&book->group_epoch, 1);
    for (int rank = 0; rank < SEATS; rank++)
        atomic_store(&book->group_lives[rank], lives[rank]);
    atomic_fetch_add(&book->group_epoch, 1);
}

/* One more tick of quiet, if it was. */
static void tick(driver *d)
{
    bool quiet = weather_is_calm(&d->weather);
    for (int rank = 0; rank < SEATS; rank++) {
        unsigned long beats = atomic_load(&book->seats[rank].beats);
        quiet = quiet && (!d->weather.seats[rank].pid || beats >= d->beats[rank] + BEATS_LEAST);
        d->beats[rank] = beats;
    }
    d->tick_ms = now_ms();
    if (quiet)
        atomic_fetch_add(&book->quiet, 1);
}

static unsigned long sum_outcomes(int status)
{
    unsigned long sum = 0;
    for (int kind = 1; kind < KINDS; kind++)
        sum += atomic_load(&book->outcomes[kind][status]);
    return sum;
}

static unsigned long sum_ended(void)
{
    unsigned long sum = 0;
    for (int status = 0; status < STATUSES; status++)
        sum += sum_outcomes(status);
    return sum;
}

static void show_progress(driver *d)
{
    const storm_weather *w = &d->weather;
    d->progress_ms = now_ms();
    printf(
        "%4.0f s: job %d, %lu calls ended, %lu well; %u kills, %u stops (%u rows), %u quotas, %u cuts, %u losses, %u "
        "declared dead; %u violations\n",
        (double)(now_ms() - d->began_ms) / 1e3, book->job, sum_ended(), sum_outcomes(0), w->kills, w->stops, w->rows,
        w->quotas, w->cuts, w->losses, d->declared, atomic_load(&book->violations));
    fflush(stdout);
    book_check_answers();
}

static void show_violations(driver *d)
{
    while (d->shown < sizeof book->texts / sizeof *book->texts && book->texts[d->shown][0])
        printf("VIOLATION: %s\n", book->texts[d->shown++]);
    fflush(stdout);
}

static void turn(driver *d)
{
    sleep_ms(TURN_MS);
    reap(d);
    weather_turn(&d->weather);
    replace(d);
    publish_group(d);
    show_violations(d);
    if (now_ms() >= d->tick_ms + TICK_MS)
        tick(d);
    if (now_ms() >= d->progress_ms + PROGRESS_MS)
        show_progress(d);
}

/* ---- Waiting --------------------------------------------------------------------------------------------------------- */

typedef bool (*condition)(const driver *d, int stage);

/* Nobody is there, or who is there has got so far. */
static bool all_at(const driver *d, int stage)
{
    for (int rank = 0; rank < SEATS; rank++)
        if (d->weather.seats[rank].pid && !is_at(d, rank, (storm_stage)stage))
            return false;
    return true;
}

static bool all_gone(const driver *d, int stage)
{
    for (int rank = 0; rank < SEATS; rank++)
        if (d->weather.seats[rank].pid)
            return false;
    return true;
}

static void show_late(driver *d, const char *what)
{
    violation(-1, "after %d s of quiet not all %s", PATIENCE_MS / 1000, what);
    atomic_fetch_add(&book->dump, 1);
    sleep_ms(2000);
    for (int rank = 0; rank < SEATS; rank++) {
        const storm_process *p = &d->weather.seats[rank];
        if (!p->pid)
            continue;
        printf("seat %d, life %u: stage %d, %d under way\n", rank, p->life, atomic_load(&book->seats[rank].stage),
               atomic_load(&book->seats[rank].under_way));
        print_tail(d, p->life);
    }
}

/* False, and a violation, and nobody is left, if it does not come about in the time of quiet that anything may take. */
static bool await(driver *d, condition holds, int stage, const char *what)
{
    unsigned from = atomic_load(&book->quiet);
    while (!holds(d, stage)) {
        turn(d);
        if ((atomic_load(&book->quiet) - from) * TICK_MS < PATIENCE_MS)
            continue;
        show_late(d, what);
        d->ending = true;
        for (int rank = 0; rank < SEATS; rank++)
            weather_kill_seat(&d->weather, rank);
        while (!all_gone(d, 0))
            turn(d);
        return false;
    }
    return true;
}

/* ---- Jobs ------------------------------------------------------------------------------------------------------------ */

/* The rest of a job's events, evenly and by chance over the rest of its time. */
static void plan_next(const driver *d, schedule *s)
{
    uint64_t now = now_ms(), left_ms = d->ends_ms > now ? d->ends_ms - now : 1;
    uint64_t most_ms = s->left > 2 ? 2 * left_ms / s->left : left_ms;
    s->next_ms = s->left ? now + chance_below(most_ms + 1) : UINT64_MAX;
}

static void raise_storm(driver *d, schedule *s, bool (*event)(storm_weather *w))
{
    if (!s->left || now_ms() < s->next_ms)
        return;
    if (event(&d->weather))
        s->left--;
    plan_next(d, s);
}

static unsigned share(unsigned all, unsigned jobs, unsigned job) /* of the job, of so many */
{
    return all * (job + 1) / jobs - all * job / jobs;
}

static void storm(driver *d, unsigned job)
{
    schedule kills = {.left = share(d->kills, d->jobs, job)}, stops = {.left = share(d->stops, d->jobs, job)};
    schedule quotas = {.left = stops.left / 5 + 1}, cuts = {.left = d->weather.hosts ? stops.left / 2 + 1 : 0};
    schedule *all[] = {&kills, &stops, &quotas, &cuts};
    d->ends_ms = now_ms() + (uint64_t)d->seconds * 1000 / d->jobs;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        plan_next(d, all[i]);
    while (now_ms() < d->ends_ms && d->weather.seats[0].pid) {
        turn(d);
        raise_storm(d, &kills, weather_kill);
        raise_storm(d, &stops, weather_stop);
        raise_storm(d, &quotas, weather_quota);
        raise_storm(d, &cuts, weather_cut);
    }
}

/* The store is gone: everybody notices, ends, and says so. Who is just joining would go on trying for a minute. */
static void end_with_the_store(driver *d)
{
    d->store_deaths++;
    weather_kill_seat(&d->weather, 0);
    for (int rank = 1; rank < SEATS; rank++)
        if (!is_at(d, rank, STAGE_ON))
            weather_kill_seat(&d->weather, rank);
    await(d, all_gone, 0, "ended after the store's death");
}

static void enter(storm_phase phase)
{
    atomic_store(&book->phase, phase);
}

static void end_well(driver *d)
{
    enter(PHASE_DRAIN);
    if (!await(d, all_at, STAGE_DRAINED, "calls have ended"))
        return;
    enter(PHASE_DROP);
    if (!await(d, all_at, STAGE_DROPPED, "objects have been dropped"))
        return;
    enter(PHASE_CLOSE);
    await(d, all_gone, 0, "agents have closed");
}

static void remove_logs(const driver *d)
{
    char name[96];
    for (uint32_t life = 1; life <= d->lives; life++) {
        log_name(d, life, name);
        unlink(name);
    }
}

static void run_job(driver *d, unsigned job)
{
    book_new_job(world_free_port());
    d->ending = true;
    start_worker(d, 0);
    if (!await(d, all_at, STAGE_ON, "have joined"))
        return;
    d->ending = false;
    replace(d);
    if (!await(d, all_at, STAGE_ON, "have joined"))
        return;
    storm(d, job);
    weather_clear(&d->weather);
    d->ending = true;
    if (job % 3 == 0 || !d->weather.seats[0].pid)
        end_with_the_store(d);
    else
        end_well(d);
    book_check();
    show_violations(d);
    if (!atomic_load(&book->violations))
        remove_logs(d);
}

/* ---- The end --------------------------------------------------------------------------------------------------------- */

static bool is_ours(const driver *d, unsigned long number)
{
    for (uint32_t life = 1; life <= d->lives; life++)
        if ((unsigned long)d->pids[life] == number)
            return true;
    return false;
}

/* Shared memory that is named after a process of ours. */
static void check_left_behind(const driver *d)
{
    DIR *folder = opendir("/dev/shm");
    const struct dirent *file;
    while (folder && (file = readdir(folder)) != NULL)
        for (const char *at = file->d_name; *at;) {
            char *end = (char *)at + 1;
            if (*at >= '0' && *at <= '9' && is_ours(d, strtoul(at, &end, 10)))
                violation(-1, "/dev/shm/%s is left behind", file->d_name);
            at = end;
        }
    if (folder)
        closedir(folder);
    if (waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD)
        violation(-1, "a process is left behind");
}

static void show_table(const driver *d)
{
    const storm_weather *w = &d->weather;
    printf("\n%-14s %10s   most of them\n", "calls", "ended");
    for (int status = 0; status < STATUSES; status++) {
        unsigned long sum = sum_outcomes(status);
        if (!sum)
            continue;
        printf("%-14s %10lu  ", weft_status_name((weft_status)-status), sum);
        for (int kind = 1; kind < KINDS; kind++)
            if (atomic_load(&book->outcomes[kind][status]) > sum / 8)
                printf(" %s %lu", storm_kind_names[kind], atomic_load(&book->outcomes[kind][status]));
        printf("\n");
    }
    printf("%d jobs, %u ended by the store's death; %u lives, %u declared dead (%u of those undisturbed, on a busy "
           "machine)\n",
           book->job, d->store_deaths, d->lives, d->declared, d->unforced);
    printf("%u kills, %u stops (%u of them rows), %u quotas (%s), ", w->kills, w->stops, w->rows, w->quotas,
           w->groups[0] ? "control groups" : "by stops");
    if (w->hosts)
        printf("%u cuts, %u losses\n", w->cuts, w->losses);
    else
        printf("cuts and losses skipped: no network namespaces\n");
    printf("%lu members refused as unauthenticated; %lu KiB of malloc at most in a worker that closed\n",
           atomic_load(&book->refused), atomic_load(&book->most_in_use) >> 10);
    printf("%lu calls, %u violations\n", sum_ended(), atomic_load(&book->violations));
}

static int end(driver *d)
{
    check_left_behind(d);
    weather_end(&d->weather);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    if (atomic_load(&book->most_in_use) > IN_USE_MOST)
        violation(-1, "a worker held %lu bytes when nothing was under way", atomic_load(&book->most_in_use));
#endif
    if (!sum_outcomes(0))
        violation(-1, "no call succeeded");
    show_violations(d);
    show_table(d);
    if (atomic_load(&book->violations)) {
        printf("storm: FAILED; what the workers logged is in %s\n", d->logs);
        return 1;
    }
    remove_logs(d);
    rmdir(d->logs);
    return 0;
}

/* ---- The beginning --------------------------------------------------------------------------------------------------- */

static bool read_options(driver *d, int argc, char **argv)
{
    unsigned bound = 1000, seed = 1;
    int kills = -1, stops = -1;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!value)
            return false;
        if (strcmp(argv[i], "--seconds") == 0)
            d->seconds = (unsigned)atoi(value);
        else if (strcmp(argv[i], "--seed") == 0)
            seed = (unsigned)atoi(value);
        else if (strcmp(argv[i], "--kills") == 0)
            kills = atoi(value);
        else if (strcmp(argv[i], "--stops") == 0)
            stops = atoi(value);
        else if (strcmp(argv[i], "--bound") == 0)
            bound = (unsigned)atoi(value);
        else if (strcmp(argv[i], "--jobs") == 0)
            d->jobs = (unsigned)atoi(value);
        else if (strcmp(argv[i], "--hosts") == 0)
            d->weather.hosts = value;
        else
            return false;
    }
    if (!d->seconds || bound < 100)
        return false;
    d->kills = kills >= 0 ? (unsigned)kills : d->seconds * 200 / 900 + 1;
    d->stops = stops >= 0 ? (unsigned)stops : d->seconds * 300 / 900 + 1;
    d->jobs = d->jobs ? d->jobs : d->seconds / 60 > 2 ? d->seconds / 60 : 2;
    d->weather.bound_ms = bound;
    book->bound_ms = (int)bound;
    book->seed = seed;
    snprintf(book->master, sizeof book->master, "%s", d->weather.hosts ? "10.89.0.1" : "127.0.0.1");
    return true;
}

int main(int argc, char **argv)
{
    static driver d = {.seconds = 900};
    int fd;
    if (argc == 4 && strcmp(argv[1], "--worker") == 0)
        return work_in_seat(atoi(argv[2]), (uint32_t)strtoul(argv[3], NULL, 10));
    book = book_make(&fd);
    if (!read_options(&d, argc, argv)) {
        bool help = argc == 2 && strcmp(argv[1], "--help") == 0;
        fputs(usage, help ? stdout : stderr);
        return help ? 0 : 2;
    }
    snprintf(d.logs, sizeof d.logs, "%s/storm-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    MUST(mkdtemp(d.logs));
    printf("storm: %u s, seed %llu, %u kills, %u stops, bound %u ms, %u jobs\n", d.seconds,
           (unsigned long long)book->seed, d.kills, d.stops, d.weather.bound_ms, d.jobs);
    d.began_ms = d.progress_ms = now_ms();
    weather_begin(&d.weather);
    for (unsigned job = 0; job < d.jobs; job++)
        run_job(&d, job);
    return end(&d);
}
