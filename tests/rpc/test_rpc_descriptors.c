/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_descriptors.c - an agent that is opened with too few file descriptors says that, at whichever of its
 * steps they run out. */
#include "rpc/world.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#define SPARE_MAX 200 /* with so many an agent opens in any case */

static struct rlimit before;

/* With `spare` descriptors more than there are now. */
static void limit_to(int spare)
{
    int next = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    struct rlimit few = before;
    MUST(next >= 0);
    close(next);
    few.rlim_cur = (rlim_t)(next + spare);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
}

/* True: it opened. */
static bool opens_or_says_why(const char *master_addr, int spare)
{
    char limit[64];
    struct rlimit now;
    weft_agent *agent;
    weft_error *error = NULL;
    weft_agent_options options = {
        .has_rank = true, .world_size = 1, .threads = 1, .master_addr = master_addr, .master_port = world_free_port()};
    limit_to(spare);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &now), 0);
    snprintf(limit, sizeof(limit), "limit is %llu", (unsigned long long)now.rlim_cur);
    weft_status status = weft_agent_open(&options, &agent, &error);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    const char *message = weft_error_message(error);
    if (!status)
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    else if (status != WEFT_ERR_SYSTEM || !strstr(message, "out of file descriptors") || !strstr(message, limit))
        fail_msg("with %d descriptors to %s: %s, \"%s\"", spare, master_addr, weft_status_name(status), message);
    weft_error_unref(error);
    return status == WEFT_OK;
}

static void too_few_are_said_at_every_step(void **state)
{
    static const char *const addresses[] = {"127.0.0.1", "localhost"};
    for (size_t i = 0; i < sizeof(addresses) / sizeof(*addresses); i++) {
        int spare = 0;
        while (!opens_or_says_why(addresses[i], spare))
            assert_true(++spare < SPARE_MAX);
        assert_true(spare > 4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(too_few_are_said_at_every_step),
    };
    if (getrlimit(RLIMIT_NOFILE, &before) != 0)
        return 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
