/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pmi.c - PMI 1 carries the record: under mpiexec of MPICH, Intel MPI and MVAPICH (Hydra), which leaves each process a
 * socket, PMI_FD. A command is a line, and so is its answer. Rank 0 publishes the record as a name's value in pieces,
 * the first one last; the others ask for the first until it is there. Names need no PMI_Init, and no fence, in which
 * all processes of the job must take part.
 *
 * If MPI is in the process, it owns the socket, and this method does not apply. Such a program uses weft/bootstrap.h.
 *
 * Commands: "PMI: A Scalable Parallel Process-Management Interface for Extreme-Scale Systems" (Balaji et al., EuroMPI
 * 2010), and the wire protocol as MPICH 4.2 speaks it.
 */
#include "job/bootstrap/record.h"

#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "base/launchers.h"
#include "base/socket.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 1024
#define PIECE_BYTES 300 /* of the record; a third more in base64. Values of 1024 bytes are allowed. */
#define PIECES_MAX ((WEFT_BOOTSTRAP_BYTES + PIECE_BYTES - 1) / PIECE_BYTES)
#define PATIENCE_MS 1000
#define PAUSE_FIRST_NS 2000000l
#define PAUSE_LAST_NS 100000000l
#define BASE64 sodium_base64_VARIANT_URLSAFE_NO_PADDING

/* One command at a time. After a time limit the next line may be the late answer, so no other command is sent. */
static pthread_mutex_t in_turn = PTHREAD_MUTEX_INITIALIZER;
static bool is_late;
static pid_t user; /* the process that sends commands; not its children of fork() */

static int socket_of_launcher(void)
{
    const char *text = wfi_env_string("PMI_FD");
    char *end = NULL;
    long fd = text ? strtol(text, &end, 10) : -1;
    struct stat is;
    return fd >= 0 && fd <= 65535 && !*end && fstat((int)fd, &is) == 0 && S_ISSOCK(is.st_mode) ? (int)fd : -1;
}

/* Slurm's plugin pmi2 leaves a PMI_FD too, and ends the step at a command without PMI_Init. Hydra alone sets the other
 * variable. */
static bool is_there(const wfi_bootstrap_ask *ask)
{
    (void)ask;
    return wfi_env_string("MPI_LOCALNRANKS") && socket_of_launcher() >= 0 && !dlsym(RTLD_DEFAULT, "PMPI_Init");
}

static weft_status fail(const char *why, weft_error **error)
{
    return wfi_error_fail(error, WEFT_ERR_RENDEZVOUS,
                          "the launcher's connection (PMI_FD) cannot be used: %s. Set MASTER_ADDR and MASTER_PORT, or "
                          "start the workers with weft-run",
                          why);
}

static weft_status send_line(int fd, const char *line, uint64_t deadline_ns, weft_error **error)
{
    size_t size = strlen(line), sent = 0;
    while (sent < size) {
        struct pollfd wait = {.fd = fd, .events = POLLOUT};
        uint64_t now_ns = wfi_now(&wfi_clock_real);
        if (now_ns >= deadline_ns) {
            is_late = true;
            return fail("it takes no commands", error);
        }
        if (poll(&wait, 1, wfi_poll_timeout(now_ns, deadline_ns)) <= 0)
            continue;
        ssize_t some = send(fd, line + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (some < 0 && errno == EPIPE)
            return fail("the launcher has closed it, as it does after the first program of a slot that used it", error);
        if (some < 0 && errno != EINTR && errno != EAGAIN)
            return fail(strerrordesc_np(errno), error);
        sent += some > 0 ? (size_t)some : 0;
    }
    return WEFT_OK;
}

/* The line without its end. */
static weft_status receive_line(int fd, char line[LINE_BYTES], uint64_t deadline_ns, weft_error **error)
{
    size_t size = 0;
    while (size == 0 || line[size - 1] != '\n') {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        uint64_t now_ns = wfi_now(&wfi_clock_real);
        if (size == LINE_BYTES - 1)
            return fail("an answer is too long", error);
        if (now_ns >= deadline_ns) {
            is_late = true;
            return fail("it does not answer in time", error);
        }
        if (poll(&wait, 1, wfi_poll_timeout(now_ns, deadline_ns)) <= 0)
            continue;
        ssize_t some = recv(fd, line + size, LINE_BYTES - 1 - size, MSG_DONTWAIT);
        if (some < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (some <= 0)
            return fail(some < 0 ? strerrordesc_np(errno) : "the launcher has closed it", error);
        size += (size_t)some;
    }
    line[size - 1] = '\0';
    return WEFT_OK;
}

/* Sends a command, and puts the answer in its place. Even if the deadline is near, the launcher has PATIENCE_MS. */
static weft_status command(char line[LINE_BYTES], uint64_t deadline_ns, weft_error **error)
{
    int fd = socket_of_launcher();
    uint64_t soon_ns = wfi_deadline(&wfi_clock_real, PATIENCE_MS);
    deadline_ns = deadline_ns > soon_ns ? deadline_ns : soon_ns;
    pthread_mutex_lock(&in_turn);
    weft_status status = is_late ? fail("an earlier command was not answered in time", error) : WEFT_OK;
    if (!status)
        status = send_line(fd, line, deadline_ns, error);
    if (!status)
        status = receive_line(fd, line, deadline_ns, error);
    pthread_mutex_unlock(&in_turn);
    return status;
}

/* The value of a word "key=value" of an answer; NULL: it has none. */
static char *value_in(char *line, const char *key)
{
    size_t size = strlen(key);
    char *rest = NULL;
    for (char *word = strtok_r(line, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        if (strncmp(word, key, size) == 0 && word[size] == '=')
            return word + size + 1;
    return NULL;
}

/* A launcher reports a process that has sent a command and ends without this one as failed. */
static void finalize(void)
{
    char line[LINE_BYTES] = "cmd=finalize\n";
    if (getpid() == user && socket_of_launcher() >= 0)
        (void)!command(line, 0, NULL);
}

static void take(void)
{
    user = getpid();
    (void)atexit(finalize);
}

/* ---- The record, in pieces --------------------------------------------------------------------------------------- */

static weft_status publish(const char *key, const char *record, uint64_t deadline_ns, weft_error **error)
{
    size_t size = strlen(record);
    int pieces = (int)((size + PIECE_BYTES - 1) / PIECE_BYTES);
    char line[LINE_BYTES], text[sodium_base64_ENCODED_LEN(PIECE_BYTES, BASE64)];
    weft_status status = WEFT_OK;
    for (int i = pieces - 1; i >= 0 && !status; i--) {
        size_t from = (size_t)i * PIECE_BYTES, part = size - from < PIECE_BYTES ? size - from : PIECE_BYTES;
        sodium_bin2base64(text, sizeof(text), (const unsigned char *)record + from, part, BASE64);
        snprintf(line, sizeof(line), "cmd=publish_name service=%s/%d port=%d:%s\n", key, i, pieces, text);
        status = command(line, deadline_ns, error);
        const char *code = status ? NULL : value_in(line, "rc");
        if (!status && (!code || strcmp(code, "0") != 0))
            status = wfi_error_fail(error, WEFT_ERR_SYSTEM, "the launcher (PMI) does not publish rank 0's address");
    }
    sodium_memzero(line, sizeof(line));
    sodium_memzero(text, sizeof(text));
    return status;
}

/* One piece, behind those before it. *pieces: their number; 0 if rank 0 has not published them. */
static weft_status lookup_piece(const char *key, int i, char *record, int *pieces, uint64_t deadline_ns,
                                weft_error **error)
{
    char line[LINE_BYTES], *end = NULL;
    size_t got = 0;
    snprintf(line, sizeof(line), "cmd=lookup_name service=%s/%d\n", key, i);
    weft_status status = command(line, deadline_ns, error);
    char *value = status ? NULL : value_in(line, "port");
    *pieces = value ? (int)strtol(value, &end, 10) : 0;
    if (status || *pieces == 0)
        return status;
    if (*pieces < 0 || *pieces > PIECES_MAX || *end != ':' ||
        sodium_base642bin((unsigned char *)record + (size_t)i * PIECE_BYTES, PIECE_BYTES, end + 1, strlen(end + 1),
                          NULL, &got, NULL, BASE64) != 0)
        status = wfi_error_fail(error, WEFT_ERR_PROTOCOL, "rank 0 published a record of another version of weft");
    sodium_memzero(line, sizeof(line));
    return status;
}

static weft_status lookup(const char *key, char *record, int64_t timeout_ms, weft_error **error)
{
    uint64_t deadline_ns = wfi_deadline(&wfi_clock_real, timeout_ms);
    long pause_ns = PAUSE_FIRST_NS;
    int pieces = 0, same;
    weft_status status = lookup_piece(key, 0, record, &pieces, deadline_ns, error);
    while (!status && pieces == 0) {
        if (wfi_now(&wfi_clock_real) >= deadline_ns)
            return wfi_error_fail(error, WEFT_ERR_RENDEZVOUS,
                                  "rank 0 did not publish its address through the launcher (PMI) within %lld ms",
                                  (long long)timeout_ms);
        nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
        pause_ns = pause_ns * 2 > PAUSE_LAST_NS ? PAUSE_LAST_NS : pause_ns * 2;
        status = lookup_piece(key, 0, record, &pieces, deadline_ns, error);
    }
    for (int i = 1; i < pieces && !status; i++)
        status = lookup_piece(key, i, record, &same, deadline_ns, error);
    return status;
}

static weft_status find(const wfi_bootstrap_ask *ask, wfi_bootstrap_answer *answer, weft_error **error)
{
    static _Atomic unsigned agents;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *launcher;
    char record[WEFT_BOOTSTRAP_BYTES + PIECE_BYTES] = "", key[WFI_RECORD_KEY];
    wfi_bootstrap_record_key(&agents, key);
    pthread_once(&once, take);
    weft_status status;
    if (ask->rank == 0) {
        status = wfi_bootstrap_record_make(ask, wfi_launcher_nodes(&launcher) == 1, answer, record, error);
        weft_status published = publish(key, record, wfi_deadline(&wfi_clock_real, ask->timeout_ms),
                                        status ? NULL : error); /* of a failure, too */
        status = status ? status : published;
    } else {
        status = lookup(key, record, ask->timeout_ms, error);
        if (!status)
            status = wfi_bootstrap_record_use(ask, record, answer, error);
    }
    sodium_memzero(record, sizeof(record));
    return status;
}

const wfi_bootstrap wfi_bootstrap_pmi = {.name = "PMI", .is_there = is_there, .find = find};
