/* SPDX-License-Identifier: Apache-2.0 */
/* test_net_starved.c - out of file descriptors: errors in bounded time, what is connected goes on, and all heals. */
#include "net/inside.h"
#include "net/net_host.h"
#include "ofi/objects.h"

#include <weft/log.h>

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define NONE_FREE 4 /* those below are in use; what is open above stays so */
#define KNOCKERS 3
#define FLOOD 300
#define TAKERS 30
#define GAPS_MAX 256

static rlim_t limit_descriptors(rlim_t to)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = to;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return before;
}

static atomic_int lines; /* of the log, about descriptors */

static void count_lines(weft_log_level level, const char *line, void *arg)
{
    if (strstr(line, "Too many open files") || strstr(line, "file descriptors"))
        atomic_fetch_add(&lines, 1);
}

static void no_descriptors(net_host *host)
{
    if (host->rank == 0) {
        rlim_t before = limit_descriptors(NONE_FREE);
        uint64_t began = wfi_now(&wfi_clock_real);
        assert_int_equal(host_send_free(host, 1, 0, 8), WEFT_OK);
        host_until(host, &host->done_failed, 1);
        uint64_t took = wfi_now(&wfi_clock_real) - began;
        for (uint64_t i = 1; i < 10; i++) { /* each of them tries several times */
            assert_int_equal(host_send_free(host, 1, 0, 8), WEFT_OK);
            host_until(host, &host->done_failed, i + 1);
        }
        (void)limit_descriptors(before);
        assert_int_equal(host->why, WEFT_ERR_SYSTEM);
        assert_true(took < UINT64_C(2000000000));
        assert_int_equal(host_send_free(host, 1, 0, 8), WEFT_OK);
        host_until(host, &host->done_ok, 1);
        assert_int_equal(host->gone, 0);
    }
    host_meet(host, &host->world->finished);
}

static void without_descriptors_a_message_fails_soon(void **state)
{
    net_world world = {.on_message = host_check_order, .death_timeout_ms = 20000};
    weft_logging_set_sink(count_lines, NULL);
    world_tcp(&world, 2, no_descriptors);
    weft_logging_set_sink(NULL, NULL);
    assert_in_range(atomic_load(&lines), 1, 2); /* the process has two fabrics */
}

static int knock_with(int fd, const wfi_member *member)
{
    wfofi_sockaddr to;
    size_t size_there;
    const uint8_t *there = inside_address(member, &size_there);
    assert_int_equal(wfofi_address_decode(there, size_there, &to), WEFT_OK);
    return connect(fd, (struct sockaddr *)&to.storage, to.size);
}

static int inet_socket(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    return fd;
}

/* Some knock, and cannot be let in; those who are connected do not notice. */
static void nobody_can_come_in(net_host *host)
{
    if (host->rank == 0) {
        int fds[KNOCKERS];
        uint64_t sent = 0;
        assert_int_equal(host_send_free(host, 1, sent++, 8), WEFT_OK);
        host_until(host, &host->done_ok, 1);
        for (int i = 0; i < KNOCKERS; i++)
            fds[i] = inet_socket();
        rlim_t before = limit_descriptors(NONE_FREE);
        const wfi_member there = host_member(host, 1);
        for (int i = 0; i < KNOCKERS; i++)
            assert_int_equal(knock_with(fds[i], &there), 0);
        struct timespec used, used_before;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used_before);
        host_pause(host, 500000000);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
        for (int i = 0; i < 20; i++)
            assert_int_equal(host_send_free(host, 1, sent++, 8), WEFT_OK);
        host_until(host, &host->done_ok, 21);
        (void)limit_descriptors(before);
        double busy = (double)(used.tv_sec - used_before.tv_sec) + (double)(used.tv_nsec - used_before.tv_nsec) / 1e9;
        if (busy > 0.2)
            fail_msg("%.2f s of processor time while nothing can be done", busy);
        for (int i = 0; i < KNOCKERS; i++)
            close(fds[i]);
    }
    host_meet(host, &host->world->finished);
}

NET_TEST(those_who_cannot_come_in_disturb_nobody, nobody_can_come_in, 2, 0, true, .on_message = host_check_order,
         .death_timeout_ms = 20000)

static int count_descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 4096; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* More silent callers than are looked at together: all are hung up on, while a peer is served. */
static void flood(net_host *host)
{
    if (host->rank == 0) {
        int fds[FLOOD], before = count_descriptors();
        const wfi_member there = host_member(host, 1);
        for (int i = 0; i < FLOOD; i++) {
            fds[i] = inet_socket();
            assert_int_equal(knock_with(fds[i], &there), 0);
        }
        assert_int_equal(host_send_free(host, 1, 0, 8), WEFT_OK);
        host_until(host, &host->done_ok, 1);
        for (int i = 0; i < 200 && count_descriptors() > before + FLOOD + 4; i++)
            host_pause(host, 50000000);
        assert_true(count_descriptors() <= before + FLOOD + 4); /* ours, and the lane's two ends */
        for (int i = 0; i < FLOOD; i++)
            close(fds[i]);
    }
    host_meet(host, &host->world->finished);
}

NET_TEST(a_flood_of_silent_callers_ebbs_away, flood, 2, 0, true, .on_message = host_check_order,
         .death_timeout_ms = 20000)

/* Leaves `room` descriptors, with no gap below them; what fills the gaps is in fds. Returns the limit before. */
static rlim_t leave_room(int room, int *fds, int *count)
{
    int highest = 0, fd = 0;
    for (int i = 0; i < 4096; i++)
        if (fcntl(i, F_GETFD) >= 0)
            highest = i;
    for (*count = 0; fd < highest; fds[(*count)++] = fd) {
        assert_true(*count < GAPS_MAX);
        fd = fcntl(0, F_DUPFD_CLOEXEC, 0);
        assert_true(fd >= 0);
    }
    return limit_descriptors((rlim_t)(fd + 1 + room));
}

static bool is_hung_up(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT) == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

static bool none_is_free(void)
{
    int fd = fcntl(0, F_DUPFD_CLOEXEC, 0);
    if (fd >= 0)
        close(fd);
    return fd < 0;
}

/* The silent ones have taken the very last descriptor, so that none is left to list descriptors with: they are found
 * all the same. */
static void strangers_take_all(net_host *host)
{
    if (host->rank == 0) {
        int fds[TAKERS], gaps[GAPS_MAX], gap_count, left = TAKERS;
        assert_int_equal(host_send_free(host, 1, 0, 8), WEFT_OK);
        host_until(host, &host->done_ok, 1);
        const wfi_member there = host_member(host, 1);
        for (int i = 0; i < TAKERS; i++)
            fds[i] = inet_socket();
        rlim_t before = leave_room(TAKERS / 3, gaps, &gap_count);
        for (int i = 0; i < TAKERS; i++)
            assert_int_equal(knock_with(fds[i], &there), 0);
        for (int i = 0; i < 2000 && !none_is_free(); i++)
            host_pause(host, 1000000);
        assert_true(none_is_free());
        for (int i = 0; i < 3000 && left; i++) {
            host_pause(host, 10000000);
            left = 0;
            for (int k = 0; k < TAKERS; k++)
                left += !is_hung_up(fds[k]);
        }
        assert_int_equal(left, 0);
        (void)limit_descriptors(before);
        assert_int_equal(host_send_free(host, 1, 1, 8), WEFT_OK);
        host_until(host, &host->done_ok, 2);
        for (int i = 0; i < TAKERS; i++)
            close(fds[i]);
        for (int i = 0; i < gap_count; i++)
            close(gaps[i]);
    }
    host_meet(host, &host->world->finished);
}

NET_TEST(strangers_who_took_all_descriptors_are_hung_up_on, strangers_take_all, 2, 0, true,
         .on_message = host_check_order, .death_timeout_ms = 60000)

UNIT_MAIN(without_descriptors_a_message_fails_soon, those_who_cannot_come_in_disturb_nobody,
          a_flood_of_silent_callers_ebbs_away, strangers_who_took_all_descriptors_are_hung_up_on)
