/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.c - the driver of a program of faults: jobs of real workers, one after the other, and the result of each.
 *
 * A job is elastic: a worker that is killed or declared dead is replaced. Some jobs end with the death of rank 0, which
 * ends the whole job. The others are drained: every operation ends, every object is dropped, every agent closes well.
 */
#include "faults/faults.h"

#include "rpc/must.h"
#include "rpc/world.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROGRESS_MS 5000
#define TURN_MS 2
#define BEATS_LEAST 3 /* of a process in a tick, if it ran */
#define RESTART_MOST_MS 400
#define LOG_TAIL 6000
#define LEAK_EXIT 23             /* of LeakSanitizer */
#define RSS_MOST (256UL << 10)   /* KiB by which rank 0 may grow in a job */
#define IN_USE_MOST (64UL << 20) /* bytes of malloc that a worker may hold when nothing is under way */

static const char usage[] =
    "usage: %s [--seconds N] [--seed S] [--workers N] [--kills N] [--stops N]\n"
    "             [--bound MS] [--jobs N] [--hosts TAG] [--scene NAME]\n"
    "%s\n"
    "  --seconds N  how long faults last in all its jobs together (900); their ends come on top\n"
    "  --seed S     of all that is drawn (1); the order of events depends on the machine, too\n"
    "  --workers N  in a job, at most 8 (%d)\n"
    "  --kills N    workers that are killed (200 in 900 s)\n"
    "  --stops N    stops of 0.2 to 3 bounds, and rows of short ones (300 in 900 s)\n"
    "  --bound MS   silence after which a worker is declared dead (1000)\n"
    "  --scene NAME plays only this one; a wrong name lists them\n"
    "  --jobs N     (one a minute, at least 2)\n"
    "  --hosts TAG  workers are in the network namespaces TAG1, TAG2 ..., rank 0 first, at 10.89.0.1 ...; their\n"
    "               links are ports p1, p2 ... of a bridge in TAG0 (tools/long.d/faults_calls makes them): links are "
    "cut, "
    "too\n";

typedef struct schedule { /* of one sort of event in a job */
    unsigned left;
    uint64_t next_ms;
} schedule;

static const faults_program *program;

typedef struct driver {
    faults_weather weather;
    unsigned seconds, kills, stops, jobs;
    uint32_t lives;
    char logs[64]; /* the folder */
    bool ending;   /* nobody is replaced any more */
    uint64_t began_ms, ends_ms, tick_ms, progress_ms;
    unsigned long beats[SEATS_MOST];
    unsigned shown;              /* faults */
    unsigned declared, unforced; /* deaths; of workers that nothing was done to */
    unsigned store_deaths;
    unsigned long rss_early; /* KiB of rank 0 after the first third of a job, the most of all jobs; 0: not known yet */
    unsigned long rss_grown; /* the most by which it was larger at the end of the faults */
    pid_t pids[LIVES_MAX];
} driver;

/* ---- Processes --------------------------------------------------------------------------------------------------- */

static void log_name(const driver *d, uint32_t life, char out[96])
{
    snprintf(out, 96, "%s/life-%u.log", d->logs, life);
}

static void enter_host(const char *tag, int rank)
{
    char path[96];
    snprintf(path, sizeof(path), "/run/netns/%s%d", tag, rank + 1);
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
    snprintf(rank_text, sizeof(rank_text), "%d", rank);
    snprintf(life_text, sizeof(life_text), "%u", life);
    atomic_store(&board->seats[rank].stage, STAGE_NONE);
    child worker = child_fork("worker");
    if (worker.pid) {
        d->pids[life] = worker.pid;
        weather_adopt(&d->weather, rank, worker, life);
        return;
    }
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0)
        dup2(fd, 2);
    if (d->weather.hosts)
        enter_host(d->weather.hosts, rank);
    child_become((const char *const[]){program->name, "--worker", rank_text, life_text, NULL});
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
static void judge_end(driver *d, const faults_process *p, int rank, int status)
{
    bool exited = WIFEXITED(status), closing = atomic_load(&board->phase) == PHASE_CLOSE;
    int code = exited ? WEXITSTATUS(status) : -1;
    if (p->killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return;
    if (code == EXIT_OUT && rank > 0) {
        d->declared++;
        d->unforced += !p->disturbed && !d->ending && !d->weather.seats[0].disturbed;
        return;
    }
    if (code == 0 && (closing || p->killed || p->leaving)) {
        if (atomic_load(&board->lives[p->life].said_dead) && !p->killed)
            fault(FAULT_WRONG, "life %u in seat %d closed well, and an error had said that it is dead", p->life, rank);
        return;
    }
    atomic_store(&board->lives[p->life].killed, true); /* what it had under way needs no answer */
    fault(code == LEAK_EXIT ? FAULT_LEAK : FAULT_WRONG, "life %u in seat %d ended by itself: %s %d", p->life, rank,
          exited ? "exit" : "signal", exited ? code : WTERMSIG(status));
    print_tail(d, p->life);
}

static void reap(driver *d)
{
    int status;
    for (int rank = 0; rank < board->size; rank++) {
        faults_process *p = &d->weather.seats[rank];
        if (!p->worker.pid || !child_has_ended(&p->worker, &status))
            continue;
        judge_end(d, p, rank, status);
        atomic_store(&board->lives[p->life].over, true);
        p->restart_at = now_ms() + chance_below(RESTART_MOST_MS);
    }
}

static void replace(driver *d)
{
    for (int rank = 1; rank < board->size && !d->ending; rank++)
        if (!d->weather.seats[rank].worker.pid && now_ms() >= d->weather.seats[rank].restart_at)
            start_worker(d, rank);
}

/* ---- Turns ------------------------------------------------------------------------------------------------------- */

static bool is_at(const driver *d, int rank, faults_stage stage)
{
    const faults_seat *seat = &board->seats[rank];
    return atomic_load(&seat->life) == d->weather.seats[rank].life && atomic_load(&seat->stage) >= (int)stage;
}

/* Publishes the lives that are in the job now, if they are others than before. */
static void publish_group(driver *d)
{
    uint32_t lives[SEATS_MOST];
    bool same = true;
    for (int rank = 0; rank < board->size; rank++) {
        const faults_process *p = &d->weather.seats[rank];
        lives[rank] = p->worker.pid && !p->killed && is_at(d, rank, STAGE_ON) ? p->life : 0;
        same = same && lives[rank] == atomic_load(&board->group_lives[rank]);
    }
    if (same)
        return;
    atomic_fetch_add(&board->group_epoch, 1);
    for (int rank = 0; rank < board->size; rank++)
        atomic_store(&board->group_lives[rank], lives[rank]);
    atomic_fetch_add(&board->group_epoch, 1);
}

/* One more tick of quiet, if it was. */
static void tick(driver *d)
{
    bool quiet = weather_is_calm(&d->weather);
    for (int rank = 0; rank < board->size; rank++) {
        unsigned long beats = atomic_load(&board->seats[rank].beats);
        quiet = quiet && (!d->weather.seats[rank].worker.pid || beats >= d->beats[rank] + BEATS_LEAST);
        d->beats[rank] = beats;
    }
    d->tick_ms = now_ms();
    if (quiet)
        atomic_fetch_add(&board->quiet, 1);
    for (int rank = 0; rank < board->size; rank++)
        if (d->weather.seats[rank].worker.pid)
            board_check_waits(rank);
}

static unsigned long sum_outcomes(int status)
{
    unsigned long sum = 0;
    for (int kind = 0; kind < program->kind_count; kind++)
        sum += atomic_load(&board->outcomes[kind][status]);
    return sum;
}

/* Operations that ended, and of these the successful ones. */
static unsigned long count(unsigned long *well)
{
    unsigned long sum = 0;
    for (int status = 0; status < STATUSES; status++)
        sum += sum_outcomes(status);
    *well = sum_outcomes(0);
    return sum;
}

static void show_progress(driver *d)
{
    const faults_weather *w = &d->weather;
    d->progress_ms = now_ms();
    unsigned long well, ended = count(&well);
    printf(
        "%4.0f s: job %d, %lu operations ended, %lu well; %u kills, %u leaves, %u stops (%u rows), %u quotas, %u cuts, "
        "%u losses, %u declared dead; %u faults\n",
        (double)(now_ms() - d->began_ms) / 1e3, board->job, ended, well, w->kills, w->leaves, w->stops, w->rows,
        w->quotas, w->cuts, w->losses, d->declared, board_faults());
    fflush(stdout);
    if (program->look)
        program->look();
}

static void show_faults(driver *d)
{
    while (d->shown < sizeof(board->texts) / sizeof(*board->texts) && atomic_load(&board->readable[d->shown]))
        printf("%s\n", board->texts[d->shown++]);
    fflush(stdout);
}

static void turn(driver *d)
{
    sleep_ms(TURN_MS);
    reap(d);
    weather_turn(&d->weather);
    replace(d);
    publish_group(d);
    show_faults(d);
    if (now_ms() >= d->tick_ms + TICK_MS)
        tick(d);
    if (now_ms() >= d->progress_ms + PROGRESS_MS)
        show_progress(d);
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

typedef bool (*condition)(const driver *d, int stage);

/* Nobody is there, or who is there has got so far. */
static bool all_at(const driver *d, int stage)
{
    for (int rank = 0; rank < board->size; rank++)
        if (d->weather.seats[rank].worker.pid && !is_at(d, rank, (faults_stage)stage))
            return false;
    return true;
}

static bool all_gone(const driver *d, int stage)
{
    for (int rank = 0; rank < board->size; rank++)
        if (d->weather.seats[rank].worker.pid)
            return false;
    return true;
}

static void show_late(driver *d, const char *what)
{
    fault(FAULT_HANG, "after %d s of quiet not all %s", PATIENCE_MS / 1000, what);
    atomic_fetch_add(&board->dump, 1);
    sleep_ms(2000);
    for (int rank = 0; rank < board->size; rank++) {
        const faults_process *p = &d->weather.seats[rank];
        if (!p->worker.pid)
            continue;
        printf("seat %d, life %u: stage %d, %d under way\n", rank, p->life, atomic_load(&board->seats[rank].stage),
               atomic_load(&board->seats[rank].under_way));
        print_tail(d, p->life);
    }
}

/* False, and a violation, and nobody is left, if it does not come about in the time of quiet that anything may take. */
static bool await(driver *d, condition holds, int stage, const char *what)
{
    unsigned from = atomic_load(&board->quiet);
    while (!holds(d, stage)) {
        turn(d);
        if ((atomic_load(&board->quiet) - from) * TICK_MS < PATIENCE_MS)
            continue;
        show_late(d, what);
        d->ending = true;
        for (int rank = 0; rank < board->size; rank++)
            weather_kill_seat(&d->weather, rank);
        while (!all_gone(d, 0))
            turn(d);
        return false;
    }
    return true;
}

/* ---- Jobs -------------------------------------------------------------------------------------------------------- */

/* The rest of a job's events, evenly and by chance over the rest of its time. */
static void plan_next(const driver *d, schedule *s)
{
    uint64_t now = now_ms(), left_ms = d->ends_ms > now ? d->ends_ms - now : 1;
    uint64_t most_ms = s->left > 2 ? 2 * left_ms / s->left : left_ms;
    s->next_ms = s->left ? now + chance_below(most_ms + 1) : UINT64_MAX;
}

static void raise_faults(driver *d, schedule *s, bool (*event)(faults_weather *w))
{
    if (!s->left || now_ms() < s->next_ms)
        return;
    if (event(&d->weather))
        s->left--;
    plan_next(d, s);
}

static unsigned share(unsigned all, unsigned jobs, unsigned job) /* of this job, where there are so many jobs */
{
    return all * (job + 1) / jobs - all * job / jobs;
}

static unsigned long rss_of(pid_t pid) /* KiB; 0: not known */
{
    char path[48];
    unsigned long pages = 0, resident = 0;
    snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    FILE *file = pid ? fopen(path, "re") : NULL;
    if (file && fscanf(file, "%lu %lu", &pages, &resident) != 2)
        resident = 0;
    if (file)
        fclose(file);
    return resident * (unsigned long)(sysconf(_SC_PAGESIZE) / 1024);
}

static void raise_all(driver *d, unsigned job)
{
    schedule kills = {.left = share(d->kills, d->jobs, job)}, stops = {.left = share(d->stops, d->jobs, job)};
    schedule quotas = {.left = stops.left / 5 + 1}, cuts = {.left = d->weather.hosts ? stops.left / 2 + 1 : 0};
    schedule leaves = {.left = program->leaves ? kills.left / 3 + 1 : 0};
    schedule *all[] = {&kills, &stops, &quotas, &cuts, &leaves};
    uint64_t began = now_ms();
    unsigned long early = 0;
    d->ends_ms = now_ms() + (uint64_t)d->seconds * 1000 / d->jobs;
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        plan_next(d, all[i]);
    while (now_ms() < d->ends_ms && d->weather.seats[0].worker.pid) {
        turn(d);
        raise_faults(d, &kills, weather_kill);
        raise_faults(d, &stops, weather_stop);
        raise_faults(d, &quotas, weather_quota);
        raise_faults(d, &cuts, weather_cut);
        raise_faults(d, &leaves, weather_leave);
        if (!early && now_ms() - began > (d->ends_ms - began) / 3)
            early = rss_of(d->weather.seats[0].worker.pid);
    }
    unsigned long late = rss_of(d->weather.seats[0].worker.pid);
    if (early && late > early + d->rss_grown)
        d->rss_grown = late - early;
    if (early > d->rss_early)
        d->rss_early = early;
}

/*
 * The store is gone: everybody notices, ends, and says so. A worker that is just joining would try for a minute more.
 */
static void end_with_the_store(driver *d)
{
    d->store_deaths++;
    weather_kill_seat(&d->weather, 0);
    for (int rank = 1; rank < board->size; rank++)
        if (!is_at(d, rank, STAGE_ON))
            weather_kill_seat(&d->weather, rank);
    await(d, all_gone, 0, "ended after the store's death");
}

static void enter(faults_phase phase)
{
    atomic_store(&board->phase, phase);
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
    board_new_job(world_free_port());
    if (program->job_begins)
        program->job_begins();
    d->ending = true;
    start_worker(d, 0);
    if (!await(d, all_at, STAGE_ON, "have joined"))
        return;
    d->ending = false;
    replace(d);
    if (!await(d, all_at, STAGE_ON, "have joined"))
        return;
    raise_all(d, job);
    weather_clear(&d->weather);
    d->ending = true;
    if (job % 3 == 0 || !d->weather.seats[0].worker.pid)
        end_with_the_store(d);
    else
        end_well(d);
    if (program->job_ended)
        program->job_ended();
    show_faults(d);
    if (!board_faults())
        remove_logs(d);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

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
    while (folder && (file = readdir(folder)))
        for (const char *at = file->d_name; *at;) {
            char *end = (char *)at + 1;
            if (*at >= '0' && *at <= '9' && is_ours(d, strtoul(at, &end, 10)))
                fault(FAULT_LEAK, "/dev/shm/%s is left behind", file->d_name);
            at = end;
        }
    if (folder)
        closedir(folder);
    if (waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD)
        fault(FAULT_LEAK, "a process is left behind");
}

static void show_outcomes(void)
{
    printf("\n%s, by how they ended:\n", program->operations);
    for (int status = 0; status < STATUSES; status++) {
        unsigned long sum = sum_outcomes(status);
        if (!sum)
            continue;
        printf("%-14s %10lu ", weft_status_name((weft_status)-status), sum);
        for (int kind = 0; kind < program->kind_count; kind++)
            if (atomic_load(&board->outcomes[kind][status]))
                printf(" %s %lu", program->kinds[kind], atomic_load(&board->outcomes[kind][status]));
        printf("\n");
    }
}

static void show_table(const driver *d)
{
    const faults_weather *w = &d->weather;
    show_outcomes();
    if (program->table)
        program->table();
    printf("%d jobs, %u ended by the store's death; %u lives, %u declared dead (%u of those undisturbed, on a busy "
           "machine)\n",
           board->job, d->store_deaths, d->lives, d->declared, d->unforced);
    printf("%u kills, %u leaves, %u stops (%u of them rows), %u quotas (%s), ", w->kills, w->leaves, w->stops, w->rows,
           w->quotas, w->groups[0] ? "control groups" : "by stops");
    if (w->hosts)
        printf("%u cuts, %u losses\n", w->cuts, w->losses);
    else
        printf("cuts and losses skipped: no network namespaces\n");
    printf("%lu members refused as unauthenticated; %lu KiB of malloc at most in a worker that closed; rank 0 of a job "
           "grew by %lu KiB at most from %lu KiB\n",
           atomic_load(&board->refused), atomic_load(&board->most_in_use) >> 10, d->rss_grown, d->rss_early);
}

static void check_memory(const driver *d)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    if (atomic_load(&board->most_in_use) > (program->most_in_use ? program->most_in_use : IN_USE_MOST))
        fault(FAULT_LEAK, "a worker held %lu bytes when nothing was under way", atomic_load(&board->most_in_use));
    if (d->rss_grown > RSS_MOST)
        fault(FAULT_LEAK, "rank 0 of a job grew by %lu KiB", d->rss_grown);
#else
    (void)d;
#endif
}

static int end(driver *d)
{
    unsigned long well, ended = count(&well);
    check_left_behind(d);
    weather_end(&d->weather);
    check_memory(d);
    if (!well)
        fault(FAULT_WRONG, "no operation succeeded");
    show_faults(d);
    show_table(d);
    if (board_faults())
        printf(
            "%s: FAILED; the logs of the workers are in %s; repeat with --seed %llu --seconds %u --workers %d --kills "
            "%u --stops %u --bound %u --jobs %u\n",
            program->name, d->logs, (unsigned long long)board->seed, d->seconds, board->size, d->kills, d->stops,
            d->weather.bound_ms, d->jobs);
    printf("%s: %lu operations, %lu of them well: %u wrong, %u hangs, %u leaks\n", program->name, ended, well,
           atomic_load(&board->faults[FAULT_WRONG]), atomic_load(&board->faults[FAULT_HANG]),
           atomic_load(&board->faults[FAULT_LEAK]));
    if (board_faults())
        return 1;
    remove_logs(d);
    rmdir(d->logs);
    return 0;
}

/* ---- The beginning ----------------------------------------------------------------------------------------------- */

static bool read_scene(const char *name)
{
    for (int i = 0; i < program->scene_count; i++)
        if (strcmp(program->scenes[i], name) == 0) {
            board->scene = i;
            return true;
        }
    for (int i = 0; i < program->scene_count; i++)
        fprintf(stderr, "%s\"%s\"", i ? ", " : "scenes: ", program->scenes[i]);
    fputs("\n", stderr);
    return false;
}

static bool read_option(driver *d, const char *option, const char *value)
{
    unsigned number = (unsigned)strtoul(value, NULL, 10);
    if (strcmp(option, "--seconds") == 0)
        d->seconds = number;
    else if (strcmp(option, "--seed") == 0)
        board->seed = strtoull(value, NULL, 10);
    else if (strcmp(option, "--workers") == 0 && !program->fixed_workers && number >= 3 && number <= SEATS_MOST)
        board->size = (int)number;
    else if (strcmp(option, "--workers") == 0 && number == (unsigned)program->workers)
        board->size = program->workers;
    else if (strcmp(option, "--kills") == 0)
        d->kills = number;
    else if (strcmp(option, "--stops") == 0)
        d->stops = number;
    else if (strcmp(option, "--bound") == 0)
        d->weather.bound_ms = number;
    else if (strcmp(option, "--jobs") == 0)
        d->jobs = number;
    else if (strcmp(option, "--scene") == 0)
        return read_scene(value);
    else if (strcmp(option, "--hosts") == 0)
        d->weather.hosts = value;
    else
        return false;
    return true;
}

static bool read_options(driver *d, int argc, char **argv)
{
    board->size = program->workers;
    board->seed = 1;
    board->scene = -1;
    d->kills = d->stops = UINT_MAX;
    d->weather.bound_ms = 1000;
    for (int i = 1; i < argc; i += 2)
        if (i + 1 >= argc || !read_option(d, argv[i], argv[i + 1]))
            return false;
    if (!d->seconds || d->weather.bound_ms < 100)
        return false;
    d->kills = d->kills != UINT_MAX ? d->kills : d->seconds * 200 / 900 + 1;
    d->stops = d->stops != UINT_MAX ? d->stops : d->seconds * 300 / 900 + 1;
    d->jobs = d->jobs ? d->jobs : d->seconds / 60 > 2 ? d->seconds / 60 : 2;
    board->bound_ms = (int)d->weather.bound_ms;
    snprintf(board->master, sizeof(board->master), "%s", d->weather.hosts ? "10.89.0.1" : "127.0.0.1");
    return true;
}

int faults_main(const faults_program *p, int argc, char **argv)
{
    static driver d = {.seconds = 900};
    program = p;
    MUST(p->kind_count <= KINDS_MOST);
    if (argc == 4 && strcmp(argv[1], "--worker") == 0)
        return work_in_seat(p, atoi(argv[2]), (uint32_t)strtoul(argv[3], NULL, 10));
    board_begin(p->book_bytes);
    if (!read_options(&d, argc, argv)) {
        bool help = argc == 2 && strcmp(argv[1], "--help") == 0;
        fprintf(help ? stdout : stderr, usage, p->name, p->about, p->workers);
        return help ? 0 : 2;
    }
    snprintf(d.logs, sizeof(d.logs), "%s/%s-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", p->name);
    MUST(mkdtemp(d.logs));
    printf("%s: %u s, seed %llu, %d workers, %u kills, %u stops, bound %u ms, %u jobs\n", p->name, d.seconds,
           (unsigned long long)board->seed, board->size, d.kills, d.stops, d.weather.bound_ms, d.jobs);
    d.began_ms = d.progress_ms = now_ms();
    weather_begin(&d.weather);
    for (unsigned job = 0; job < d.jobs; job++)
        run_job(&d, job);
    return end(&d);
}
