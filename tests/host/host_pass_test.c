/* SPDX-License-Identifier: Apache-2.0 */
/* host_pass_test.c - descriptors that workers pass to each other over a lane, and the wake-up of a peer. */
#include "children.h"
#include "host/host.h"
#include "ofi/ofi_node.h"

#include "base/nosignal.h"
#include "base/sealed.h"
#include "mem/shared.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { BYTES = 8192 };

typedef struct pair {
    ofi_node a, b;
    ofi_link at_a;
    ofi_link *at_b;
} pair;

static pair *open_pair(void)
{
    static pair p;
    memset(&p, 0, sizeof(p));
    ofi_node_open(&p.a);
    ofi_node_open(&p.b);
    p.a.passed_fd = p.b.passed_fd = -1;
    p.at_b = ofi_join(&p.a, &p.b, &p.at_a);
    return &p;
}

static void close_pair(pair *p)
{
    ofi_hang_up(&p->at_a);
    ofi_node_close(&p->a);
    ofi_node_close(&p->b);
}

/* Passes memory from one end; the other maps it, and sees what was written. */
static void pass(pair *p, wfi_lane *from, ofi_node *to)
{
    void *written, *seen;
    int fd;
    assert_int_equal(wfi_shm_make("weft-test", BYTES, &fd, &written), 0);
    memset(written, 7, BYTES);
    assert_int_equal(ofi_ops()->pass(from, fd, "a key", 6), WEFT_OK);
    ofi_until(&p->a, &p->b, to->passed_fd >= 0);
    close(fd);
    assert_int_equal(to->passed_size, 6);
    assert_string_equal((char *)to->passed, "a key");
    assert_int_equal(wfi_shm_map(to->passed_fd, BYTES + 1, &seen), EPROTO);
    assert_int_equal(wfi_shm_map(to->passed_fd, BYTES, &seen), 0);
    close(to->passed_fd);
    to->passed_fd = -1;
    assert_int_equal(((uint8_t *)seen)[BYTES - 1], 7);
    munmap(seen, BYTES);
    munmap(written, BYTES);
}

static void both_ends_pass_memory(void **state)
{
    pair *p = open_pair();
    pass(p, p->at_a.lane, &p->b);
    pass(p, p->at_b->lane, &p->a);
    close_pair(p);
}

static void memory_that_can_shrink_is_refused(void **state)
{
    void *seen;
    int fd = memfd_create("weft-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, BYTES), 0);
    assert_int_equal(wfi_shm_map(fd, BYTES, &seen), EPROTO);
    close(fd);
}

static bool is_readable(int fd)
{
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    return poll(&polled, 1, 0) == 1;
}

static void wakes_who_sleeps(void **state)
{
    pair *p = open_pair();
    wfi_completion none;
    int doorbell = ofi_ops()->wait_fd(p->b.fabric);
    while (!ofi_ops()->may_sleep(p->b.fabric)) /* what came with the connection */
        assert_int_equal(ofi_ops()->poll(p->b.fabric, &none, 1), 0);
    assert_false(is_readable(doorbell));
    ofi_ops()->wake(p->at_a.lane);
    assert_true(is_readable(doorbell));
    assert_true(ofi_ops()->may_sleep(p->b.fabric)); /* nothing came, and it is armed again */
    assert_false(is_readable(doorbell));
    ofi_ops()->wake(p->at_a.lane);
    ofi_ops()->wake(p->at_a.lane); /* it is awake */
    assert_true(is_readable(doorbell));
    close_pair(p);
}

static int count_descriptors(void)
{
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    assert_non_null(all);
    while (readdir(all))
        count++;
    closedir(all);
    return count;
}

/* More than a peer may have on their way are closed; what was not reported is closed with the lane. */
static void too_many_are_closed(void **state)
{
    int fd, before = count_descriptors();
    pair *p = open_pair();
    void *memory;
    assert_int_equal(wfi_shm_make("weft-test", BYTES, &fd, &memory), 0);
    for (int i = 0; i < 100; i++) {
        weft_status status = ofi_ops()->pass(p->at_a.lane, fd, "key", 4);
        assert_true(status == WEFT_OK || status == WEFT_ERR_AGAIN);
        uint64_t due = UINT64_MAX;
        (void)ofi_ops()->events_arm(p->b.fabric, &due);
    }
    munmap(memory, BYTES);
    close(fd);
    ofi_hang_up(p->at_b); /* without looking at its events */
    ofi_hang_up(&p->at_a);
    ofi_node_close(&p->a);
    ofi_node_close(&p->b);
    assert_int_equal(count_descriptors(), before);
}

/* In a child, because the limit is the process's. A signal would end the child. */
static void memory_over_the_limit_of_file_sizes_is_an_error(void **state)
{
    child one = child_fork("limited");
    if (!one.pid) {
        struct rlimit limit = {.rlim_cur = 1024, .rlim_max = 1024};
        void *memory;
        char bytes[2048] = "";
        int fd;
        bool ok = setrlimit(RLIMIT_FSIZE, &limit) == 0 && wfi_shm_make("weft-test", BYTES, &fd, &memory) == EFBIG;
        ok = ok && wfi_sealed_file("weft-test", bytes, sizeof(bytes)) < 0 && errno == EFBIG;
        ok = ok && strstr(wfi_nosignal_strerror(EFBIG), "ulimit -f");
        weft_error *error = NULL;
        wfi_fabric *fabric = NULL;
        ok = ok && wfi_fabric_shm.open(&(wfi_fabric_options){0}, &fabric, &error) == WEFT_ERR_FABRIC;
        _exit(ok && strstr(weft_error_message(error), "ulimit -f") ? 0 : 1);
    }
    child_must_end_well(&one, 1);
}

UNIT_MAIN(memory_over_the_limit_of_file_sizes_is_an_error, both_ends_pass_memory, memory_that_can_shrink_is_refused,
          wakes_who_sleeps, too_many_are_closed)
