/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_base_resolve.c - a name server that does not answer costs the time limit, once; numeric addresses and
 * localhost need no thread. The linker puts the getaddrinfo below in the place of the library's: it answers for
 * "unanswered.test" only at the end.
 */
#include "base/resolve.h"
#include "base/clock.h"
#include "unit.h"

#include <weft/rpc.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

int __real_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out);
int __wrap_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out);

static atomic_bool answers;
static atomic_int asked, elsewhere; /* lookups of the name; lookups in other threads than main's */
static pthread_t main_thread;

int __wrap_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
    elsewhere += !pthread_equal(pthread_self(), main_thread);
    if (!host || strcmp(host, "unanswered.test") != 0)
        return __real_getaddrinfo(host, service, hints, out);
    if (hints->ai_flags & AI_NUMERICHOST)
        return EAI_NONAME;
    asked++;
    for (int i = 0; i < 2000 && !answers; i++) /* the machine's resolver gives up after some time too */
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    return EAI_AGAIN;
}

static int begin(void **state)
{
    main_thread = pthread_self();
    return 0;
}

static int end(void **state)
{
    answers = true; /* the abandoned threads end, and free what they have */
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    return 0;
}

static int resolve(const char *host, int64_t limit_ms)
{
    struct addrinfo *found = NULL;
    int trouble = wfi_resolve(host, 80, 0, wfi_deadline(&wfi_clock_real, limit_ms), &found);
    assert_true((!found) == (trouble != 0));
    if (found)
        freeaddrinfo(found);
    return trouble;
}

static void no_answer_costs_the_limit(void **state)
{
    uint64_t from_ns = wfi_now(&wfi_clock_real);
    assert_int_equal(resolve("unanswered.test", 100), ETIMEDOUT);
    uint64_t took_ns = wfi_now(&wfi_clock_real) - from_ns;
    assert_true(took_ns >= 100000000 && took_ns < 10000000000);
}

static void numbers_and_localhost_need_no_thread(void **state)
{
    int before = elsewhere;
    assert_int_equal(resolve("127.0.0.1", 10000), 0);
    assert_int_equal(resolve("::1", 10000), 0);
    assert_int_equal(resolve("localhost", 10000), 0);
    assert_int_equal(elsewhere, before);
}

static void several_names_wait_together(void **state)
{
    wfi_lookup *lookups[8];
    struct addrinfo *found = NULL;
    for (int i = 0; i < 8; i++)
        lookups[i] = wfi_lookup_begin(i % 2 ? "unanswered.test" : "127.0.0.1", 0, 0);
    uint64_t deadline_ns = wfi_deadline(&wfi_clock_real, 100);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(wfi_lookup_end(lookups[i], deadline_ns, &found), i % 2 ? ETIMEDOUT : 0);
        if (i % 2 == 0)
            freeaddrinfo(found);
    }
    assert_true(wfi_now(&wfi_clock_real) < deadline_ns + 10000000000);
}

/* Without the limit each place that resolves the name would wait on its own. */
static void an_agent_waits_for_the_name_server_once(void **state)
{
    const weft_agent_options options = {.has_rank = true,
                                        .rank = 1,
                                        .world_size = 2,
                                        .master_addr = "unanswered.test",
                                        .master_port = 9,
                                        .rendezvous_timeout_ms = 300};
    weft_agent *agent;
    weft_error *error = NULL;
    int before = asked;
    uint64_t from_ns = wfi_now(&wfi_clock_real);
    assert_int_equal(weft_agent_open(&options, &agent, &error), WEFT_ERR_RENDEZVOUS);
    assert_true(wfi_now(&wfi_clock_real) - from_ns < 10000000000);
    assert_non_null(strstr(weft_error_message(error), "MASTER_ADDR \"unanswered.test\" was not resolved within 3"));
    assert_non_null(strstr(weft_error_message(error), "no name server answers"));
    assert_int_equal(asked, before + 1);
    weft_error_unref(error);
}

UNIT_MAIN_WITH(begin, end, no_answer_costs_the_limit, numbers_and_localhost_need_no_thread, several_names_wait_together,
               an_agent_waits_for_the_name_server_once)
