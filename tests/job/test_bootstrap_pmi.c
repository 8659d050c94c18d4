/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bootstrap_pmi.c - the record through PMI 1. A thread answers as mpiexec of MPICH does, or as none should. That
 * launcher itself starts jobs in tools/long.d/launchers.
 */
#include "unit.h"

#include "job/bootstrap/bootstrap.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NAMES 16
#define TEXT 1024

typedef struct launcher {
    pthread_t thread;
    int fds[2];           /* the launcher's end, and the workers' */
    const char *answer;   /* to everything; NULL: as mpiexec does */
    bool is_silent, cuts; /* after the first command: no answer; closes the connection */
    int count;
    char names[NAMES][TEXT], values[NAMES][TEXT];
} launcher;

static void reply(launcher *l, char *line)
{
    char answer[TEXT + 64] = "cmd=lookup_result rc=1\n", name[TEXT], value[TEXT];
    if (l->answer) {
        snprintf(answer, sizeof(answer), "%s", l->answer);
    } else if (sscanf(line, "cmd=publish_name service=%1023s port=%1023s", name, value) == 2) {
        assert_true(l->count < NAMES);
        memcpy(l->names[l->count], name, TEXT);
        memcpy(l->values[l->count++], value, TEXT);
        snprintf(answer, sizeof(answer), "cmd=publish_result rc=0\n");
    } else {
        assert_int_equal(sscanf(line, "cmd=lookup_name service=%1023s", name), 1);
        for (int i = 0; i < l->count; i++)
            if (strcmp(l->names[i], name) == 0)
                snprintf(answer, sizeof(answer), "cmd=lookup_result rc=0 port=%s\n", l->values[i]);
    }
    size_t half = strlen(answer) / 2; /* a line may come in parts */
    (void)!write(l->fds[0], answer, half);
    (void)!write(l->fds[0], answer + half, strlen(answer) - half);
}

static void *serve(void *arg)
{
    launcher *l = arg;
    char line[TEXT];
    ssize_t got;
    while ((got = read(l->fds[0], line, sizeof(line) - 1)) > 0) {
        line[got] = '\0';
        if (l->cuts)
            break;
        if (!l->is_silent)
            reply(l, line);
    }
    close(l->fds[0]);
    return NULL;
}

static void start(launcher *l)
{
    char number[16];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, l->fds), 0);
    snprintf(number, sizeof(number), "%d", l->fds[1]);
    setenv("PMI_FD", number, 1);
    setenv("PMI_SIZE", "2", 1);
    setenv("MPI_LOCALNRANKS", "2", 1);
    assert_int_equal(pthread_create(&l->thread, NULL, serve, l), 0);
}

static void end(launcher *l)
{
    close(l->fds[1]);
    pthread_join(l->thread, NULL);
}

static weft_status find(int rank, int64_t timeout_ms, wfi_secret *secret, wfi_bootstrap_answer *answer,
                        weft_error **error)
{
    const wfi_bootstrap_ask ask = {.rank = rank, .timeout_ms = timeout_ms};
    *answer = (wfi_bootstrap_answer){.secret = secret, .store_fd = -1};
    assert_ptr_equal(wfi_bootstrap_choose(&ask), &wfi_bootstrap_pmi);
    return wfi_bootstrap_pmi.find(&ask, answer, error);
}

/* Rank 0's agent and rank 1's have the same number in their processes: so this is two turns in one. */
static void the_record_arrives(void **state)
{
    static launcher l;
    wfi_secret secrets[2] = {{0}};
    wfi_bootstrap_answer mine, theirs;
    weft_error *error = NULL;
    start(&l);
    assert_int_equal(find(0, 5000, &secrets[0], &mine, NULL), WEFT_OK);
    assert_true(l.count > 0 && strcmp(l.names[l.count - 1], "weft/0/0") == 0);
    for (int i = 0; i < l.count; i++) /* as rank 1 will ask, whose agent is the second of this process */
        l.names[i][5] = '1';
    weft_status status = find(1, 5000, &secrets[1], &theirs, &error);
    weft_error_print(error, stderr);
    assert_int_equal(status, WEFT_OK);
    assert_string_equal(theirs.address, "127.0.0.1");
    assert_int_equal(theirs.port, mine.port);
    assert_true(secrets[0].size > 0 && secrets[0].size == secrets[1].size);
    assert_memory_equal(secrets[0].bytes, secrets[1].bytes, secrets[0].size);
    close(mine.store_fd);
    end(&l);
}

static void refused(launcher *l, int rank, weft_status expected, const char *text)
{
    wfi_secret secret = {0};
    wfi_bootstrap_answer answer;
    weft_error *error = NULL;
    start(l);
    assert_int_equal(find(rank, l->is_silent ? 50 : 200, &secret, &answer, &error), expected);
    if (!strstr(weft_error_message(error), text))
        fail_msg("\"%s\" is not in: %s", text, weft_error_message(error));
    weft_error_unref(error);
    if (answer.store_fd >= 0)
        close(answer.store_fd);
    end(l);
}

static void a_wrong_launcher_is_named(void **state)
{
    static char endless[TEXT + 1];
    memset(endless, 'x', TEXT);
    refused(&(launcher){0}, 1, WEFT_ERR_RENDEZVOUS, "within 200 ms");
    refused(&(launcher){.cuts = true}, 1, WEFT_ERR_RENDEZVOUS, "the launcher has closed it");
    refused(&(launcher){.cuts = true}, 0, WEFT_ERR_RENDEZVOUS, "PMI_FD");
    refused(&(launcher){.answer = endless}, 1, WEFT_ERR_RENDEZVOUS, "too long");
    refused(&(launcher){.answer = "cmd=publish_result rc=1\n"}, 0, WEFT_ERR_SYSTEM, "does not publish");
    refused(&(launcher){.answer = "\n"}, 0, WEFT_ERR_SYSTEM, "does not publish");
    refused(&(launcher){.answer = "cmd=lookup_result rc=0 port=1:!!!\n"}, 1, WEFT_ERR_PROTOCOL, "another version");
    refused(&(launcher){.answer = "cmd=lookup_result rc=0 port=99:aaaa\n"}, 1, WEFT_ERR_PROTOCOL, "another version");
    refused(&(launcher){.answer = "cmd=lookup_result rc=0 port=1:aaaa\n"}, 1, WEFT_ERR_PROTOCOL, "");
}

static void without_the_socket_it_is_not_there(void **state)
{
    const wfi_bootstrap_ask ask = {.rank = 1};
    setenv("PMI_FD", "x", 1);
    assert_ptr_not_equal(wfi_bootstrap_choose(&ask), &wfi_bootstrap_pmi);
    setenv("PMI_FD", "999", 1);
    assert_ptr_not_equal(wfi_bootstrap_choose(&ask), &wfi_bootstrap_pmi);
    setenv("PMI_FD", "0", 1); /* standard input, whatever it is, is none */
    close(0);
    assert_ptr_not_equal(wfi_bootstrap_choose(&ask), &wfi_bootstrap_pmi);
}

/* Last: nothing is read from the connection afterwards. */
static void a_launcher_that_is_late_is_not_asked_again(void **state)
{
    refused(&(launcher){.is_silent = true}, 1, WEFT_ERR_RENDEZVOUS, "does not answer in time");
    refused(&(launcher){0}, 1, WEFT_ERR_RENDEZVOUS, "an earlier command");
}

UNIT_MAIN(the_record_arrives, a_wrong_launcher_is_named, without_the_socket_it_is_not_there,
          a_launcher_that_is_late_is_not_asked_again)
