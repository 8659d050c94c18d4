/* SPDX-License-Identifier: Apache-2.0 */
/* host_strangers_test.c - callers on the unix socket that are no peers, and listeners that answer with nonsense. */
#include "children.h"
#include "host/host.h"
#include "lanes.h"
#include "net/net_measure.h"
#include "ofi/ofi_node.h"
#include "prng.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static int call(const ofi_node *node)
{
    struct sockaddr_un name;
    socklen_t size = wfi_host_socket_name(node->address + 8, &name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    return connect(fd, (struct sockaddr *)&name, size) == 0 ? fd : -errno;
}

static bool is_hung_up(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT) == 0 || (errno != EAGAIN && errno != EINTR);
}

/* ---- HELLO ----------------------------------------------------------------------------------------------------- */

static int make_memory(size_t size, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static int make_file(void)
{
    char path[] = "/tmp/weft-host-test.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path);
    assert_int_equal(ftruncate(fd, sizeof(wfi_host_segment)), 0);
    return fd;
}

static uint64_t names; /* random: the state of the generator */

static int make_bell(uint8_t bell[WFI_HOST_NAME_BYTES])
{
    struct sockaddr_un name;
    for (int i = 0; i < WFI_HOST_NAME_BYTES; i++)
        bell[i] = (uint8_t)prng_next(&names);
    socklen_t size = wfi_host_socket_name(bell, &name);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&name, size), 0);
    return fd;
}

typedef enum fault {
    NONE,
    UNSEALED_SEGMENT,
    SHRINKABLE_SEGMENT,
    UNSEALED_DOOR,
    SMALL_SEGMENT,
    LARGE_SEGMENT,
    SMALL_DOOR,
    FILE_AS_SEGMENT,
    UNWRITABLE_SEGMENT,
    NO_BELL,          /* nobody has the name */
    LISTENER_AS_BELL, /* the name is another kind of socket's */
    DATA_TOO_LONG,
    SLOT_TOO_LARGE,
    ANSWER_AS_FIRST,
    ONE_DESCRIPTOR,
    NO_DESCRIPTORS,
    FAULTS
} fault;

/* Makes a bell with this fault, to be closed by the caller. Its name goes into the greeting. */
static int faulty_bell(const ofi_node *node, fault kind, wfi_host_greeting *greeting)
{
    int bell = make_bell(greeting->bell);
    if (kind == NO_BELL)
        greeting->bell[0] ^= 1;
    if (kind == LISTENER_AS_BELL)
        memcpy(greeting->bell, node->address + 8, sizeof(greeting->bell));
    return bell;
}

/* Says HELLO with this fault. The caller closes *bell when the node has read it. Returns 0 or an errno value. */
static int hello(const ofi_node *node, int fd, fault kind, int *bell)
{
    size_t page = sizeof(wfi_host_doorbell_page), size = sizeof(wfi_host_segment);
    int doorbell = make_memory(kind == SMALL_DOOR ? page / 2 : page, kind == UNSEALED_DOOR ? F_SEAL_SEAL : SEALS);
    int seals = kind == UNSEALED_SEGMENT     ? F_SEAL_SEAL
                : kind == SHRINKABLE_SEGMENT ? F_SEAL_GROW | F_SEAL_SEAL
                : kind == UNWRITABLE_SEGMENT ? SEALS | F_SEAL_WRITE
                                             : SEALS;
    size += kind == LARGE_SEGMENT ? page : 0;
    int segment = kind == FILE_AS_SEGMENT ? make_file() : make_memory(kind == SMALL_SEGMENT ? page : size, seals);
    const int fds[2] = {doorbell, segment};
    wfi_host_greeting greeting = {.kind = kind == ANSWER_AS_FIRST ? WFI_HOST_ANSWER : WFI_HOST_HELLO,
                                  .data_size = kind == DATA_TOO_LONG ? WFI_CONNECT_DATA_MAX + 1 : 4,
                                  .slot = kind == SLOT_TOO_LARGE ? WFI_HOST_LANES_MAX : 0};
    size_t count = kind == NO_DESCRIPTORS ? 0 : kind == ONE_DESCRIPTOR ? 1 : 2;
    *bell = faulty_bell(node, kind, &greeting);
    int failed = wfi_host_greeting_send(fd, &greeting, fds, count);
    close(doorbell);
    close(segment);
    return failed;
}

static void a_hello_with_a_fault_is_refused(void **state)
{
    ofi_node node;
    ofi_node_open(&node);
    for (int kind = NONE; kind < FAULTS; kind++) {
        size_t before = measure_descriptors();
        int bell, fd = call(&node);
        assert_int_equal(hello(&node, fd, (fault)kind, &bell), 0);
        if (kind == NONE) { /* the only one that becomes a request */
            node.refuse = true;
            ofi_until(&node, NULL, node.requests == 1);
        }
        uint64_t limit = ofi_now_ms() + 5000;
        while (!is_hung_up(fd)) {
            ofi_step(&node, NULL);
            if (ofi_now_ms() > limit)
                fail_msg("fault %d is not refused", kind);
        }
        assert_int_equal(node.requests, 1);
        close(fd);
        close(bell);
        assert_int_equal(measure_descriptors(), before);
    }
    ofi_until(&node, NULL, node.silent == FAULTS - 1);
    ofi_node_close(&node);
}

static void garbage_is_refused(void **state)
{
    static const uint8_t garbage[4096] = {1, 2, 3};
    static const size_t sizes[] = {1, 8, sizeof(wfi_host_greeting) - 1, sizeof(wfi_host_greeting), 4096};
    ofi_node node;
    ofi_node_open(&node);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        int fd = call(&node);
        assert_int_equal(send(fd, garbage, sizes[i], 0), (ssize_t)sizes[i]);
        ofi_until(&node, NULL, is_hung_up(fd));
        close(fd);
    }
    assert_int_equal(node.requests, 0);
    ofi_node_close(&node);
}

/* They are closed after a second. Of a crowd, only some are kept, and a peer comes through. */
static void silent_callers_are_closed(void **state)
{
    enum { CROWD = 200 };
    ofi_node a, b;
    ofi_link link;
    int fds[CROWD], hung_up = 0;
    ofi_node_open(&a);
    ofi_node_open(&b);
    size_t before = measure_descriptors();
    for (int i = 0; i < CROWD; i++)
        fds[i] = call(&b);
    for (int i = 0; i < 20; i++)
        ofi_step(&b, NULL);
    assert_true(measure_descriptors() <= before + CROWD + WFI_HOST_HALF_OPEN_MAX);
    uint64_t start = ofi_now_ms();
    ofi_join(&a, &b, &link);
    assert_true(ofi_now_ms() - start < 900 * ofi_slow());
    ofi_until(&a, &b, b.silent == CROWD);
    assert_true(ofi_now_ms() - start < 5000 * ofi_slow());
    for (int i = 0; i < CROWD; i++) {
        hung_up += is_hung_up(fds[i]);
        close(fds[i]);
    }
    assert_int_equal(hung_up, CROWD);
    ofi_hang_up(&link);
    ofi_node_close(&a);
    ofi_node_close(&b);
}

static void another_user_is_refused(void **state)
{
    ofi_node node;
    if (geteuid() != 0)
        skip(); /* only root can become another user */
    ofi_node_open(&node);
    child other = child_fork("another user");
    if (!other.pid) {
        if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
            _exit(77);
        int bell, fd = call(&node);
        (void)hello(&node, fd, NONE, &bell); /* it may have been closed before */
        for (int i = 0; i < 5000 && !is_hung_up(fd); i++)
            usleep(1000);
        _exit(is_hung_up(fd) ? 0 : 2);
    }
    int status = 0;
    while (!child_has_ended(&other, &status))
        ofi_step(&node, NULL);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        ofi_node_close(&node);
        skip(); /* not even root can here */
    }
    assert_int_equal(status, 0);
    assert_int_equal(node.requests, 0);
    assert_int_equal(node.silent, 1);
    ofi_node_close(&node);
}

/* ---- ANSWER ---------------------------------------------------------------------------------------------------- */

/* A listener of this process at an address that `node` can dial. */
static int listen_falsely(const ofi_node *node, uint8_t address[WFI_HOST_ADDRESS_BYTES])
{
    struct sockaddr_un name;
    memcpy(address, node->address, 8);
    for (int i = 8; i < WFI_HOST_ADDRESS_BYTES; i++)
        address[i] = (uint8_t)prng_next(&names);
    socklen_t size = wfi_host_socket_name(address + 8, &name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&name, size), 0);
    assert_int_equal(listen(fd, 4), 0);
    return fd;
}

static void an_answer_with_a_fault_closes_the_lane(void **state)
{
    static const fault kinds[] = {UNSEALED_DOOR, SMALL_DOOR,     NO_BELL,        LISTENER_AS_BELL,
                                  DATA_TOO_LONG, SLOT_TOO_LARGE, NO_DESCRIPTORS, NONE /* a HELLO */};
    ofi_node node;
    uint8_t address[WFI_HOST_ADDRESS_BYTES];
    ofi_node_open(&node);
    int listener = listen_falsely(&node, address);
    size_t before = measure_descriptors();
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
        ofi_link link = {0};
        assert_int_equal(lanes_connect(node.fabric, address, sizeof(address), "hello", 5, &link, &link.lane), WEFT_OK);
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        assert_true(fd >= 0);
        wfi_host_greeting greeting = {.kind = kinds[i] == NONE ? WFI_HOST_HELLO : WFI_HOST_ANSWER,
                                      .data_size = kinds[i] == DATA_TOO_LONG ? WFI_CONNECT_DATA_MAX + 1 : 0,
                                      .slot = kinds[i] == SLOT_TOO_LARGE ? WFI_HOST_LANES_MAX : 0};
        size_t page = sizeof(wfi_host_doorbell_page);
        int doorbell =
            make_memory(kinds[i] == SMALL_DOOR ? page / 2 : page, kinds[i] == UNSEALED_DOOR ? F_SEAL_SEAL : SEALS);
        int bell = faulty_bell(&node, kinds[i], &greeting);
        assert_int_equal(wfi_host_greeting_send(fd, &greeting, &doorbell, kinds[i] == NO_DESCRIPTORS ? 0 : 1), 0);
        close(doorbell);
        ofi_until(&node, NULL, link.closed);
        assert_int_equal(link.why, WEFT_ERR_UNREACHABLE);
        assert_int_equal(link.connected, 0);
        close(fd);
        close(bell);
        ofi_hang_up(&link);
        assert_int_equal(measure_descriptors(), before);
    }
    close(listener);
    ofi_node_close(&node);
}

/* ---- Addresses ------------------------------------------------------------------------------------------------- */

static void an_address_of_another_machine_is_invalid(void **state)
{
    ofi_node a, b;
    wfi_lane *lane;
    ofi_node_open(&a);
    ofi_node_open(&b);
    assert_int_equal(b.address_size, WFI_HOST_ADDRESS_BYTES);
    assert_true(ofi_ops()->reaches(a.fabric, b.address, b.address_size));
    assert_false(ofi_ops()->reaches(a.fabric, b.address, b.address_size - 1));
    b.address[3] ^= 1;
    assert_false(ofi_ops()->reaches(a.fabric, b.address, b.address_size));
    assert_int_equal(ofi_ops()->lane_open(a.fabric, b.address, b.address_size, NULL, &lane), WEFT_ERR_INVALID);
    ofi_node_close(&a);
    ofi_node_close(&b);
}

UNIT_MAIN(a_hello_with_a_fault_is_refused, garbage_is_refused, silent_callers_are_closed, another_user_is_refused,
          an_answer_with_a_fault_closes_the_lane, an_address_of_another_machine_is_invalid)
