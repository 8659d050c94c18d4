/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor.c - see supervisor.h. */
#include "run/supervisor.h"

#include "base/nosignal.h"
#include "base/sealed.h"
#include "base/thread.h"
#include "run/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LINGER_MS 1000 /* for processes that the worker started, after its end */
#define LATE_MS 3000   /* for these to end when they are killed */

typedef struct supervisor {
    pid_t worker;          /* 0: it has ended */
    int status;            /* of waitpid, when it has ended */
    long long grace_ms;    /* from SIGTERM to SIGKILL */
    int64_t kill_at_ms;    /* when SIGKILL is due; 0: the worker is not told to end */
    int64_t lingers_to_ms; /* when what the worker left is killed; 0: the worker runs */
    bool is_cut;           /* nobody is at the other end of standard input */
    int secret_fd;         /* the only descriptor that the worker inherits beside the standard ones */
    char *texts;           /* the secret and the texts of the setup, which `environ` keeps */
    char **argv;           /* of the worker */
} supervisor;

/* ---- The setup -------------------------------------------------------------------------------------------------- */

/*
 * Reserves a port without listening on it. SO_REUSEADDR is set after bind: then the store, which has it too, may listen
 * on the port, while no other program gets it as "any free port". The socket *fd stays open. Returns 0 if there is no
 * free port.
 */
static int reserve_port(int *fd)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t size = sizeof(address);
    int one = 1;
    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0 || bind(*fd, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        getsockname(*fd, (struct sockaddr *)&address, &size) != 0 ||
        setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0)
        return 0;
    return ntohs(address.sin_port);
}

/* False: the input has ended before. */
static bool read_all(char *out, size_t size)
{
    ssize_t got = 1;
    for (size_t done = 0; done < size && got > 0; done += got > 0 ? (size_t)got : 0)
        do
            got = read(STDIN_FILENO, out + done, size - done);
        while (got < 0 && errno == EINTR);
    return got > 0;
}

/* Variables that a launcher sets, or that name a secret, belong to another job. Those of the setup replace others. */
static void set_environment(char *at, size_t variables, int secret_fd)
{
    static const char *const others[] = {
        "RANK",        "LOCAL_RANK",  "WORLD_SIZE",   "LOCAL_WORLD_SIZE", "MASTER_ADDR",
        "MASTER_PORT", "WEFT_SECRET", "WEFT_SPAWNED", "WEFT_SECRET_FILE"};
    char number[16];
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
        (void)unsetenv(others[i]);
    (void)setenv("IPATH_NO_BACKTRACE", "1", 0); /* else libinfinipath turns a worker's signals into exit code 1 */
    for (size_t i = 0; i < variables; i++, at += strlen(at) + 1)
        (void)putenv(at);
    snprintf(number, sizeof(number), "%d", secret_fd);
    (void)setenv("WEFT_SECRET_FD", number, 1);
}

/* Reads the setup, and sets folder and environment for the worker. Returns -1 to continue, or the exit code. */
static int read_setup(supervisor *s)
{
    char line[128] = "";
    size_t secret_size, variables, size, used = 0, words = 0;
    do {
        if (!read_all(line + used, 1))
            return 1; /* weft-run needs the worker no more */
    } while (line[used++] != '\n' && used < sizeof(line) - 1);
    if (sscanf(line, SUPERVISOR_SETUP, &s->grace_ms, &secret_size, &variables, &size) != 4 ||
        size > SUPERVISOR_SETUP_MOST || secret_size >= size) {
        fprintf(stderr, "weft-run: --worker: what comes on standard input is not from weft-run\n");
        return 2;
    }
    char *texts = s->texts = malloc(size + 1), *folder = texts + secret_size, *end = texts + size;
    s->argv = calloc(size, sizeof(*s->argv));
    if (!texts || !s->argv || !read_all(texts, size))
        return 1;
    *end = '\0';
    s->secret_fd = wfi_sealed_file("weft-secret", texts, secret_size);
    if (s->secret_fd < 0) {
        fprintf(stderr, "weft-run: a file in memory for the job's secret, %zu bytes: %s\n", secret_size,
                wfi_nosignal_strerror(errno));
        return 1;
    }
    explicit_bzero(texts, secret_size);
    if (*folder && chdir(folder) != 0) {
        fprintf(stderr, "weft-run: %s: %s: the present folder must be on each host\n", folder, strerror(errno));
        return 126;
    }
    char *given = folder + strlen(folder) + 1, *at = given;
    for (size_t i = 0; i < variables && at < end; i++)
        at += strlen(at) + 1;
    for (; at < end; at += strlen(at) + 1)
        s->argv[words++] = at;
    if (words == 0)
        return 2;
    set_environment(given, variables, s->secret_fd);
    return -1;
}

/* ---- The worker ------------------------------------------------------------------------------------------------- */

int supervisor_report_start_failure(const char *program, int errnum)
{
    char here[300], limit[WFI_THREAD_STRERROR];
    snprintf(here, sizeof(here), "./%s", program);
    bool is_searched = errnum == ENOENT && !strchr(program, '/');
    if (is_searched && strlen(program) < sizeof(here) - 2 && access(here, X_OK) == 0)
        fprintf(stderr, "weft-run: %.256s: not found on PATH: to start the program of this folder, write %s\n", program,
                here);
    else
        fprintf(stderr, "weft-run: %.256s: %s\n", program,
                is_searched        ? "not found on PATH"
                : errnum == EAGAIN ? wfi_thread_strerror(errnum, limit)
                                   : strerror(errnum));
    return errnum == ENOENT ? 127 : 126;
}

/* In the child. */
static _Noreturn void become_worker(const supervisor *s, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    (void)signal(SIGPIPE, SIG_DFL); /* the supervisor ignores it */
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    close(STDIN_FILENO); /* open returns this one */
    if (open("/dev/null", O_RDONLY) == STDIN_FILENO && fcntl(s->secret_fd, F_SETFD, 0) == 0)
        execvp(s->argv[0], s->argv);
    _exit(supervisor_report_start_failure(s->argv[0], errno));
}

/* The worker's process group, and the worker if it has left that. */
static void signal_worker(const supervisor *s, int number)
{
    if (s->worker <= 0)
        return;
    if (getpgid(s->worker) != s->worker)
        (void)kill(s->worker, number);
    (void)kill(-s->worker, number);
}

static bool ends_job(int number)
{
    return number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT;
}

static void end_worker(supervisor *s, int number, int64_t grace_ms)
{
    int64_t kill_at_ms = clock_ms() + grace_ms;
    if (s->kill_at_ms && s->kill_at_ms <= kill_at_ms)
        return;
    s->kill_at_ms = kill_at_ms;
    signal_worker(s, number);
    signal_worker(s, SIGCONT); /* a stopped one could not obey */
}

static void take_orders(supervisor *s)
{
    unsigned char numbers[64];
    ssize_t got = read(STDIN_FILENO, numbers, sizeof(numbers));
    for (ssize_t i = 0; i < got; i++) {
        int number = numbers[i];
        if (number == SIGKILL)
            end_worker(s, SIGKILL, 0);
        else if (ends_job(number))
            end_worker(s, number, s->grace_ms);
        else
            signal_worker(s, number);
    }
    s->is_cut = got == 0 || (got < 0 && errno != EINTR);
    if (s->is_cut)
        end_worker(s, SIGTERM, s->grace_ms);
}

/* Reaps the worker, and what it left: this process inherits that. Returns whether children are left. */
static bool reap(supervisor *s)
{
    int status;
    pid_t ended;
    while ((ended = waitpid(-1, &status, WNOHANG)) > 0) {
        if (ended != s->worker)
            continue;
        s->worker = 0;
        s->status = status;
        s->lingers_to_ms = clock_ms() + LINGER_MS;
    }
    return ended == 0;
}

/* Kills what the worker left. Children of a killed process become children of this one. One that cannot be killed, as
 * that of another user, is waited for until LATE_MS. If the worker ended by itself, a line says what happened. */
static void kill_orphans(const supervisor *s)
{
    int64_t until_ms = clock_ms() + LATE_MS;
    int pid;
    pid_t ended = 0;
    while (ended >= 0 && clock_left(until_ms) > 0) {
        FILE *list = fopen("/proc/thread-self/children", "re");
        while (list && fscanf(list, "%d", &pid) == 1)
            (void)kill(pid, SIGKILL);
        if (list)
            fclose(list);
        (void)poll(NULL, 0, 1);
        while ((ended = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
    }
    if (!s->kill_at_ms)
        fprintf(stderr, "weft-run: %s ended, and %s\n", s->argv[0],
                ended < 0 ? "what it had started was killed after 1 s" : "what it had started cannot be killed");
}

/* Waits until the worker and what it started have ended. False: what it started is to be killed. */
static bool watch(supervisor *s, int signals)
{
    struct signalfd_siginfo one;
    while (reap(s)) {
        bool is_late = s->kill_at_ms && clock_left(s->kill_at_ms) == 0;
        if (!s->worker && (is_late || s->is_cut || clock_left(s->lingers_to_ms) == 0))
            return false;
        if (is_late)
            signal_worker(s, SIGKILL);
        int64_t until_ms = is_late ? 0 : s->kill_at_ms;
        if (s->lingers_to_ms && (!until_ms || s->lingers_to_ms < until_ms))
            until_ms = s->lingers_to_ms;
        struct pollfd fds[2] = {{.fd = s->is_cut ? -1 : STDIN_FILENO, .events = POLLIN},
                                {.fd = signals, .events = POLLIN}};
        (void)poll(fds, 2, until_ms ? clock_left(until_ms) + 1 : -1);
        while (read(signals, &one, sizeof(one)) == (ssize_t)sizeof(one))
            if (ends_job((int)one.ssi_signo)) /* from Slurm, or by hand */
                end_worker(s, SIGTERM, s->grace_ms);
        if (fds[0].revents)
            take_orders(s);
    }
    return true;
}

/* ---- The whole -------------------------------------------------------------------------------------------------- */

static int start_and_watch(supervisor *s)
{
    /* Slurm signals each process of a step: the worker gets USR1 and the like itself, so they are dropped here. */
    static const int numbers[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGTSTP};
    sigset_t caught;
    sigemptyset(&caught);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        sigaddset(&caught, numbers[i]);
    (void)sigprocmask(SIG_BLOCK, &caught, NULL);
    int signals = signalfd(-1, &caught, SFD_CLOEXEC | SFD_NONBLOCK);
    pid_t parent = getpid(), worker = signals < 0 ? -1 : fork();
    if (worker == 0)
        become_worker(s, parent);
    if (worker < 0)
        return supervisor_report_start_failure(s->argv[0], errno);
    (void)setpgid(worker, worker); /* the child does it too: the group exists before either goes on */
    s->worker = worker;
    if (!watch(s, signals))
        kill_orphans(s);
    return WIFSIGNALED(s->status) ? 128 + WTERMSIG(s->status) : WEXITSTATUS(s->status);
}

int supervisor_run(void)
{
    static supervisor s;
    int port_fd;
    (void)syscall(SYS_close_range, STDERR_FILENO + 1u, ~0u, 0u);
    (void)signal(SIGCHLD, SIG_DFL); /* if it was ignored, the kernel would reap the worker */
    (void)signal(SIGPIPE, SIG_IGN);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    int port = reserve_port(&port_fd);
    dprintf(STDOUT_FILENO, SUPERVISOR_GREETING "%d %d\n", SUPERVISOR_VERSION, port);
    int code = read_setup(&s);
    const char *rank = getenv("RANK");
    if (!rank || strcmp(rank, "0") != 0)
        close(port_fd);
    if (code >= 0)
        return code;
    (void)!write(STDOUT_FILENO, SUPERVISOR_HAS_SETUP, 1);
    return start_and_watch(&s);
}
