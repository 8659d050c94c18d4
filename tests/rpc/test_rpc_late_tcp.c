/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_late_tcp.c - a job on one host calls libfabric only when a worker needs tcp. The linker puts the functions
 * below in the place of libfabric's and of the C library's.
 */
#include "children.h"
#include "rpc/world.h"

#include <errno.h>
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <stdatomic.h>
#include <sys/uio.h>
#include <unistd.h>

#define LARGE 3000000

static atomic_int searches;

int __real_fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                      const struct fi_info *hints, struct fi_info **info);
int __wrap_fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                      const struct fi_info *hints, struct fi_info **info);
int __wrap_fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                      const struct fi_info *hints, struct fi_info **info)
{
    int before = atomic_fetch_add(&searches, 1);
    if (before < 2 && getenv("FAIL_TWICE") && strcmp(getenv("RANK"), "0") == 0)
        return -FI_ENODATA;
    return __real_fi_getinfo(version, node, service, flags, hints, info);
}

ssize_t __real_process_vm_readv(pid_t pid, const struct iovec *to, unsigned long to_count, const struct iovec *from,
                                unsigned long from_count, unsigned long flags);
ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *to, unsigned long to_count, const struct iovec *from,
                                unsigned long from_count, unsigned long flags);
ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *to, unsigned long to_count, const struct iovec *from,
                                unsigned long from_count, unsigned long flags)
{
    if (pid == getpid() || !getenv("DENY_READS"))
        return __real_process_vm_readv(pid, to, to_count, from, from_count, flags);
    errno = EPERM;
    return -1;
}

/* ---- A worker ------------------------------------------------------------------------------------------------------ */

static void call_with(weft_agent *agent, int rank, int64_t size)
{
    weft_tensor *tensor = weft_tensor_empty(WEFT_SHAPE(size), WEFT_DTYPE_UINT8);
    uint8_t *data = weft_tensor_data(tensor);
    for (int64_t i = 0; i < size; i++)
        data[i] = (uint8_t)(i * 31 + rank);
    weft_values *results = NULL;
    weft_tensor *back = NULL;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), "echo", WEFT_VALUES(weft_of_tensor(tensor)), NULL, &results));
    MUST_OK(weft_values_get_tensor(results, 0, &back));
    MUST(weft_tensor_numel(back) == size && memcmp(weft_tensor_data(back), data, (size_t)size) == 0);
    weft_values_unref(results);
    weft_tensor_unref(tensor);
}

/* CALLS: the ranks that call, as text, and L if the large tensor goes first. LIBFABRIC: "none" or "some". */
static int work(void)
{
    weft_agent *agent = NULL;
    weft_function functions[] = {
        {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo}};
    MUST_OK(weft_agent_open(&(weft_agent_options){.functions = functions, .function_count = 1}, &agent, NULL));
    int rank = weft_agent_rank(agent);
    if (strchr(getenv("CALLS"), '0' + rank)) {
        bool is_large_first = strchr(getenv("CALLS"), 'L') != NULL; /* memory is exposed before a lane is opened */
        call_with(agent, 1 - rank, is_large_first ? LARGE : 8);
        call_with(agent, 1 - rank, is_large_first ? 8 : LARGE);
    }
    MUST_OK(weft_agent_close(agent));
    bool wants_some = strcmp(getenv("LIBFABRIC"), "some") == 0;
    if ((atomic_load(&searches) > 0) != wants_some)
        fprintf(stderr, "rank %d called fi_getinfo %d times\n", rank, atomic_load(&searches));
    return (atomic_load(&searches) > 0) == wants_some ? 0 : 1;
}

/* ---- Jobs ---------------------------------------------------------------------------------------------------------- */

static void put(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

static void run_with(const char *callers, const char *fabric0, const char *fabric1, const char *libfabric)
{
    child workers[2];
    int port = world_free_port();
    put("CALLS", callers);
    put("LIBFABRIC", libfabric);
    for (int rank = 0; rank < 2; rank++) {
        put("WEFT_FABRIC", rank ? fabric1 : fabric0);
        workers[rank] = child_start(rank, 2, port, "work");
    }
    child_must_end_well(workers, 2);
}

static void run(const char *fabric0, const char *fabric1, const char *libfabric)
{
    static const char *const callers[] = {"0L", "1L", "01"};
    for (size_t i = 0; i < sizeof callers / sizeof *callers; i++)
        run_with(callers[i], fabric0, fabric1, libfabric);
}

static void a_job_on_one_host_does_not_call_libfabric(void **state)
{
    put("LOCAL_WORLD_SIZE", "2");
    run("auto", "auto", "none");
    run("host,tcp", "auto", "none");
    put("LOCAL_WORLD_SIZE", NULL); /* but MASTER_ADDR is 127.0.0.1 */
    run("auto", "auto", "none");
}

static void a_worker_without_host_is_reached_over_tcp(void **state)
{
    put("LOCAL_WORLD_SIZE", "2");
    run("auto", "tcp", "some");
    run("tcp", "host,tcp", "some");
}

static void tcp_replaces_reads_that_the_system_forbids(void **state)
{
    put("LOCAL_WORLD_SIZE", "2");
    put("DENY_READS", "1");
    run("auto", "auto", "some");
    put("DENY_READS", NULL);
}

static void a_worker_that_may_have_peers_elsewhere_opens_tcp_at_once(void **state)
{
    put("LOCAL_WORLD_SIZE", NULL);
    put("MASTER_ADDR", "0x7f000001"); /* only its resolving shows that it is 127.0.0.1 */
    run("auto", "auto", "some");
    put("MASTER_ADDR", NULL);
}

static void libfabric_that_does_not_open_is_tried_again(void **state)
{
    put("LOCAL_WORLD_SIZE", "2");
    put("FAIL_TWICE", "1");
    run_with("0", "auto", "tcp", "some");
    run_with("1", "auto", "tcp", "some");
    put("FAIL_TWICE", NULL);
}

static void ports_are_of_the_range(void **state)
{
    char ports[32];
    int port = world_free_port();
    snprintf(ports, sizeof ports, "%d-%d", port, port + 15);
    put("WEFT_PORTS", ports);
    put("LOCAL_WORLD_SIZE", "2");
    run("auto", "tcp", "some");
    put("WEFT_PORTS", NULL);
}

int main(int argc, char **argv)
{
    static const child_role roles[] = {{"work", work}};
    int code = child_play(argc, argv, roles, 1);
    if (code >= 0)
        return code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_on_one_host_does_not_call_libfabric),
        cmocka_unit_test(a_worker_without_host_is_reached_over_tcp),
        cmocka_unit_test(tcp_replaces_reads_that_the_system_forbids),
        cmocka_unit_test(a_worker_that_may_have_peers_elsewhere_opens_tcp_at_once),
        cmocka_unit_test(libfabric_that_does_not_open_is_tried_again),
        cmocka_unit_test(ports_are_of_the_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
