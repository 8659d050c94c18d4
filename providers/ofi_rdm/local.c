/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local.c - libfabric's shm: processes of one machine that share memory in /dev/shm.
 *
 * An endpoint's memory is a file there, whose name identifies the process. libfabric removes it when the endpoint is
 * closed, or by a handler of SIGTERM, SIGINT, SIGSEGV and SIGBUS. After a SIGKILL the file stays (docs/fabrics.md).
 *
 * libfabric does not report that a peer has died. So each peer's process is watched with a descriptor (pidfd_open), and
 * nothing is sent to a process that has ended.
 *
 * Two fabrics of one process use each other's memory directly. So a fabric that closes tells the others, which then
 * send nothing to it.
 */
#include "base/clock.h"
#include "base/error.h"
#include "base/nosignal.h"
#include "ofi_rdm/rdm.h"
#include "topo/machine.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FOLDER "/dev/shm"
#define PREFIX "weft-"
#define STAT_START 22 /* the field of /proc/PID/stat with the time of the start; the state is field 3 */
#define GONE "its endpoint is closed, or its process has ended"

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static wfi_list registry = {&registry, &registry}; /* the open local fabrics of this process */

/* ---- Names ------------------------------------------------------------------------------------------------------- */

typedef struct identity { /* of the process that has an endpoint */
    unsigned long namespace;
    pid_t pid;
    unsigned long long start; /* clock ticks since the machine started */
} identity;

/* 0: there is no such process, or it has ended. */
static unsigned long long start_of(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    if (size <= 0)
        return 0;
    text[size] = '\0';
    char *at = strrchr(text, ')'); /* the name of the program may contain anything */
    if (!at || at[1] != ' ' || at[2] == 'Z' || at[2] == 'X')
        return 0;
    for (int field = 2; at && field < STAT_START; field++) /* the name is field 2 */
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

static unsigned long own_namespace(void)
{
    struct stat info;
    return stat("/proc/self/ns/pid", &info) == 0 ? (unsigned long)info.st_ino : 0;
}

void wfrdm_local_name(char out[WFRDM_NAME_BYTES])
{
    pid_t pid = getpid();
    snprintf(out, WFRDM_NAME_BYTES, PREFIX "%lx-%x-%llx-%08" PRIx32, own_namespace(), (unsigned)pid, start_of(pid),
             randombytes_random());
}

/* Reads a hexadecimal number before `end`, and passes both. */
static bool read_hex(const char **text, char end, unsigned long long *out)
{
    char *behind;
    if (!isxdigit((unsigned char)**text))
        return false;
    *out = strtoull(*text, &behind, 16);
    *text = behind + 1;
    return *behind == end;
}

/* False: it is not a name that wfrdm_local_name made. */
static bool read_name(const char *name, identity *out)
{
    unsigned long long namespace, pid, unique;
    const char *at = name + strlen(PREFIX);
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0 || !read_hex(&at, '-', &namespace) || !read_hex(&at, '-', &pid) ||
        !read_hex(&at, '-', &out->start) || !read_hex(&at, '\0', &unique) || pid == 0 || pid > INT32_MAX ||
        unique > UINT32_MAX)
        return false;
    out->namespace = (unsigned long)namespace;
    out->pid = (pid_t)pid;
    return true;
}

uint64_t wfrdm_local_scope(void)
{
    struct stat folder;
    uint64_t parts[] = {wfi_machine(), own_namespace(), 0, geteuid()};
    if (!parts[0] || !parts[1] || !start_of(getpid()) || stat(FOLDER, &folder) != 0)
        return 0;
    parts[2] = folder.st_dev;
    uint64_t hash = wfi_hash_bytes(parts, sizeof(parts));
    return hash ? hash : 1;
}

/* ---- The file of an endpoint ------------------------------------------------------------------------------------- */

/* libfabric has set the size of the file, but memory is allocated when it is first used. If other programs have filled
 * the folder by then, that is a SIGBUS. */
weft_status wfrdm_local_reserve(const wfrdm *rdm, const char *name, weft_error **error)
{
    struct stat file = {.st_size = 0};
    struct statvfs folder = {.f_bavail = 0};
    char path[sizeof(FOLDER) + WFRDM_NAME_BYTES + 1];
    snprintf(path, sizeof(path), "%s/%s", FOLDER, name);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    int errnum = fd < 0 || fstat(fd, &file) != 0 ? errno : EINTR;
    wfi_nosignal saved;
    wfi_nosignal_begin(&saved);
    while (errnum == EINTR)
        errnum = posix_fallocate(fd, 0, file.st_size);
    wfi_nosignal_end(&saved);
    if (fd >= 0)
        close(fd);
    if (!errnum)
        return WEFT_OK;
    (void)statvfs(FOLDER, &folder);
    return wfi_error_fail(error, WEFT_ERR_FABRIC,
                          "fabric '%s': reserving the %.1f MiB of its endpoint in %s: %s (%.1f MiB are free): %s",
                          rdm->kind->ops->name, (double)file.st_size / (1 << 20), FOLDER, wfi_nosignal_strerror(errnum),
                          (double)folder.f_bavail * (double)folder.f_frsize / (1 << 20), rdm->kind->advice);
}

/* ---- Processes --------------------------------------------------------------------------------------------------- */

/* In another process the file of an open endpoint exists. In this one the registry says whether it is open. */
static bool is_open(const char *name, const identity *owner)
{
    char path[sizeof(FOLDER) + WFRDM_NAME_BYTES + 1];
    snprintf(path, sizeof(path), "%s/%s", FOLDER, name);
    return start_of(owner->pid) == owner->start && access(path, F_OK) == 0;
}

static void watch(wfrdm *rdm, wfrdm_peer *peer)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = peer};
    peer->pid_fd = (int)syscall(SYS_pidfd_open, peer->pid, 0);
    if (peer->pid_fd >= 0 && epoll_ctl(rdm->events_fd, EPOLL_CTL_ADD, peer->pid_fd, &event) == 0)
        return;
    wfrdm_log(rdm, WEFT_LOG_DEBUG, "%s: a peer's process cannot be watched: %s", rdm->base.ops->name,
              strerrordesc_np(errno));
    wfrdm_local_unwatch(rdm, peer);
}

bool wfrdm_local_watch(wfrdm *rdm, wfrdm_peer *peer)
{
    char name[WFRDM_NAME_BYTES] = "";
    identity owner;
    memcpy(name, peer->address + WFRDM_ADDRESS_HEAD, peer->address_size - WFRDM_ADDRESS_HEAD);
    if (!read_name(name, &owner))
        return false;
    peer->pid = owner.pid;
    if (owner.pid != getpid())
        watch(rdm, peer); /* before its start time is compared: then the descriptor is of that process */
    if (is_open(name, &owner))
        return true;
    wfrdm_local_unwatch(rdm, peer);
    return false;
}

void wfrdm_local_unwatch(wfrdm *rdm, wfrdm_peer *peer)
{
    if (peer->pid_fd < 0)
        return;
    (void)epoll_ctl(rdm->events_fd, EPOLL_CTL_DEL, peer->pid_fd, NULL);
    close(peer->pid_fd);
    peer->pid_fd = -1;
}

bool wfrdm_local_check(wfrdm *rdm)
{
    struct epoll_event events[16];
    bool has_ended = false;
    wfi_assert_held(&rdm->lock);
    int count = rdm->kind->is_local ? epoll_wait(rdm->events_fd, events, 16, 0) : 0;
    for (int i = 0; i < count; i++) {
        wfrdm_peer *peer = events[i].data.ptr;
        if (!peer) /* notice_fd */
            continue;
        wfrdm_local_unwatch(rdm, peer);
        wfrdm_peer_fail(rdm, peer, "its process has ended");
        has_ended = true;
    }
    return has_ended;
}

/* ---- Fabrics of this process ------------------------------------------------------------------------------------- */

void wfrdm_local_add(wfrdm *rdm)
{
    pthread_mutex_lock(&registry_lock);
    wfi_list_push_back(&registry, &rdm->local_link);
    pthread_mutex_unlock(&registry_lock);
}

static void forget(wfrdm *rdm, const wfrdm *closing)
{
    wfi_mutex_lock(&rdm->lock);
    WFI_FOR_LIST (wfrdm_peer, peer, &rdm->peers, link) {
        if (peer->address_size == closing->address_size &&
            memcmp(peer->address, closing->address, closing->address_size) == 0)
            wfrdm_peer_fail(rdm, peer, GONE);
    }
    wfi_mutex_unlock(&rdm->lock);
}

void wfrdm_local_remove(wfrdm *closing)
{
    pthread_mutex_lock(&registry_lock);
    wfi_list_remove(&closing->local_link);
    WFI_FOR_LIST (wfrdm, rdm, &registry, local_link)
        forget(rdm, closing);
    pthread_mutex_unlock(&registry_lock);
}
