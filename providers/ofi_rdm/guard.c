/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard.c - releases locks of libfabric's shm 1.17 that a killed process held.
 *
 * In 1.17 each endpoint has a spin lock in its shared memory. A process takes the lock of the receiver while it writes
 * a message, and its own while it reads messages. A process that is killed meanwhile leaves the lock taken. Every other
 * process that needs the lock then spins on it forever. libfabric 1.18 has no such lock.
 *
 * So each fabric has a guard thread that sleeps until a peer's process ends. For LOOK_FOR looks, 10 s, the guard thread
 * then checks two locks. The guard releases the lock of the dead process if the lock is taken while a thread of this
 * process spins. A thread spins if it has used STUCK_CPU_NS of CPU time in one call of libfabric. The guard releases
 * the lock of this process if it was taken in LOOKS looks in a row. A look counts only if no thread of this process is
 * in a call (except one that spins), and no known peer is stopped.
 *
 * A living process holds a lock for about a microsecond at a time, so it is practically never seen taken LOOKS times in
 * a row.
 *
 * The unfinished message of a killed sender is lost. The queue may have lost an entry with it, so the guard decrements
 * the number of free entries; otherwise senders could use an entry that does not exist.
 *
 * region_head has the layout of 1.17.0 and 1.17.1, the only versions with this lock that weft supports. `map` checks
 * the version and the process id in it.
 */
#include "base/alloc.h"
#include "ofi_rdm/rdm.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS 5000000
#define LOOKS 40      /* 200 ms */
#define LOOK_FOR 2000 /* looks after a death: 10 s */
#define STUCK_CPU_NS 50000000
#define REGION_VERSION 4

/* The beginning of an endpoint's memory. */
typedef struct region_head {
    uint8_t version, unused;
    uint16_t flags;
    int pid;
    uint8_t reads[2];
    uint32_t buffers;
    void *base;
    pthread_spinlock_t lock;
    int signal;
    void *map;
    size_t bytes;
    size_t free_entries;
} region_head;

typedef struct guarded { /* a peer's process */
    wfi_list link;       /* in guard->living or guard->dead */
    pid_t pid;
    int pid_fd;
    region_head *region; /* of a dead one */
    char name[WFRDM_NAME_BYTES];
} guarded;

struct wfrdm_guard {
    wfrdm *rdm;
    pthread_t thread;
    int epoll_fd, stop_fd;
    region_head *own;
    pthread_mutex_t lock;
    wfi_list living, dead;
    _Atomic bool stops;
    unsigned looks_left, taken; /* `taken`: looks in a row in which the own lock was taken */
    uint64_t call, call_cpu_ns; /* the call that was seen last, and the thread's processor time then */
};

/* NULL: it is not the memory of an endpoint of 1.17. */
static region_head *map(const char *name, pid_t pid)
{
    struct stat info;
    int fd = shm_open(name, O_RDWR | O_CLOEXEC, 0);
    void *memory = MAP_FAILED;
    if (fd >= 0 && fstat(fd, &info) == 0 && info.st_size >= 4096)
        memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    region_head *region = memory == MAP_FAILED ? NULL : memory;
    if (region && (region->version != REGION_VERSION || region->pid != pid)) {
        munmap(memory, 4096);
        region = NULL;
    }
    return region;
}

static void unmap(region_head *region)
{
    if (region)
        munmap(region, 4096);
}

/* ---- Looking ----------------------------------------------------------------------------------------------------- */

static bool is_taken(region_head *region)
{
    if (pthread_spin_trylock(&region->lock) != 0)
        return true;
    pthread_spin_unlock(&region->lock);
    return false;
}

/* The processor time that a thread has spent in its present call of libfabric since the first look at that call. 0: no
 * thread is inside. Call it once a look. */
static uint64_t time_inside(wfrdm_guard *guard)
{
    struct timespec now;
    uint64_t call = atomic_load(&guard->rdm->calls);
    if (!(call & 1))
        return 0;
    clockid_t clock = (clockid_t)atomic_load_explicit(&guard->rdm->call_clock, memory_order_relaxed);
    if (clock_gettime(clock, &now) != 0 || atomic_load(&guard->rdm->calls) != call)
        return 1;
    uint64_t cpu_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    if (guard->call != call) {
        guard->call = call;
        guard->call_cpu_ns = cpu_ns;
    }
    return cpu_ns > guard->call_cpu_ns ? cpu_ns - guard->call_cpu_ns : 1;
}

static bool is_stopped(pid_t pid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    const char *at = size > 0 ? strrchr(text, ')') : NULL;
    return at && (at[2] == 'T' || at[2] == 't');
}

static bool one_is_stopped(const wfrdm_guard *guard)
{
    WFI_FOR_LIST (guarded, one, &guard->living, link) {
        if (is_stopped(one->pid))
            return true;
    }
    return false;
}

static void look_at_own(wfrdm_guard *guard, uint64_t inside)
{
    bool is_lost = guard->own && is_taken(guard->own) && (!inside || inside >= STUCK_CPU_NS);
    guard->taken = is_lost && !one_is_stopped(guard) ? guard->taken + 1 : 0;
    if (guard->taken < LOOKS)
        return;
    guard->taken = 0;
    if (guard->own->free_entries)
        guard->own->free_entries--;
    pthread_spin_unlock(&guard->own->lock);
    wfrdm_log(guard->rdm, WEFT_LOG_INFO, "shm: a killed worker had this worker's lock: it was released");
}

static void look_at_dead(wfrdm_guard *guard, uint64_t inside)
{
    if (inside < STUCK_CPU_NS)
        return;
    WFI_FOR_LIST (guarded, one, &guard->dead, link) {
        if (!one->region || !is_taken(one->region))
            continue;
        pthread_spin_unlock(&one->region->lock);
        wfrdm_log(guard->rdm, WEFT_LOG_INFO, "shm: a killed worker held its own lock: it was released");
    }
}

static void bury(wfrdm_guard *guard, guarded *one)
{
    wfi_list_remove(&one->link);
    wfi_list_push_back(&guard->dead, &one->link);
    (void)epoll_ctl(guard->epoll_fd, EPOLL_CTL_DEL, one->pid_fd, NULL);
    one->region = map(one->name, one->pid);
    guard->looks_left = LOOK_FOR;
}

static void free_all(wfi_list *list)
{
    for (wfi_list *node; (node = wfi_list_pop_front(list));) {
        guarded *one = wfi_container_of(node, guarded, link);
        unmap(one->region);
        close(one->pid_fd);
        free(one);
    }
}

static void *watch(void *arg)
{
    wfrdm_guard *guard = arg;
    struct epoll_event events[16];
    while (!atomic_load(&guard->stops)) {
        int count = epoll_wait(guard->epoll_fd, events, 16, guard->looks_left ? LOOK_NS / 1000000 : -1);
        pthread_mutex_lock(&guard->lock);
        for (int i = 0; i < count; i++)
            if (events[i].data.ptr)
                bury(guard, events[i].data.ptr);
        if (guard->looks_left) {
            uint64_t inside = time_inside(guard);
            look_at_own(guard, inside);
            look_at_dead(guard, inside);
            if (--guard->looks_left == 0)
                free_all(&guard->dead);
        }
        pthread_mutex_unlock(&guard->lock);
    }
    return NULL;
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

bool wfrdm_guard_open(wfrdm *rdm, const char *name)
{
    wfrdm_guard *guard = wfi_calloc(1, sizeof *guard);
    if (!guard)
        return false;
    guard->rdm = rdm;
    pthread_mutex_init(&guard->lock, NULL);
    wfi_list_init(&guard->living);
    wfi_list_init(&guard->dead);
    guard->own = map(name, getpid());
    guard->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    guard->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    if (guard->own && guard->stop_fd >= 0 && guard->epoll_fd >= 0 &&
        epoll_ctl(guard->epoll_fd, EPOLL_CTL_ADD, guard->stop_fd, &event) == 0 &&
        pthread_create(&guard->thread, NULL, watch, guard) == 0) {
        rdm->guard = guard;
        return true;
    }
    unmap(guard->own);
    if (guard->stop_fd >= 0)
        close(guard->stop_fd);
    if (guard->epoll_fd >= 0)
        close(guard->epoll_fd);
    pthread_mutex_destroy(&guard->lock);
    free(guard);
    return false;
}

void wfrdm_guard_add(wfrdm *rdm, const char *name, pid_t pid, int pid_fd)
{
    wfrdm_guard *guard = rdm->guard;
    guarded *one = guard && pid_fd >= 0 ? wfi_calloc(1, sizeof *one) : NULL;
    if (!one)
        return;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = one};
    snprintf(one->name, sizeof one->name, "%s", name);
    one->pid = pid;
    one->pid_fd = fcntl(pid_fd, F_DUPFD_CLOEXEC, 0);
    pthread_mutex_lock(&guard->lock);
    wfi_list_push_back(&guard->living, &one->link);
    if (one->pid_fd < 0 || epoll_ctl(guard->epoll_fd, EPOLL_CTL_ADD, one->pid_fd, &event) != 0) {
        wfi_list_remove(&one->link);
        if (one->pid_fd >= 0)
            close(one->pid_fd);
        free(one);
    }
    pthread_mutex_unlock(&guard->lock);
}

void wfrdm_guard_close(wfrdm *rdm)
{
    wfrdm_guard *guard = rdm->guard;
    if (!guard)
        return;
    rdm->guard = NULL;
    atomic_store(&guard->stops, true);
    (void)eventfd_write(guard->stop_fd, 1);
    pthread_join(guard->thread, NULL);
    free_all(&guard->living);
    free_all(&guard->dead);
    unmap(guard->own);
    close(guard->epoll_fd);
    close(guard->stop_fd);
    pthread_mutex_destroy(&guard->lock);
    free(guard);
}

/* ---- Calls of libfabric ------------------------------------------------------------------------------------------ */

/* The clock of a thread never changes, so it is asked for once. */
void wfrdm_guard_enter(wfrdm *rdm)
{
    static _Thread_local clockid_t own_clock;
    static _Thread_local bool has_clock;
    if (!rdm->guard)
        return;
    if (!has_clock)
        has_clock = pthread_getcpuclockid(pthread_self(), &own_clock) == 0;
    atomic_store_explicit(&rdm->call_clock, own_clock, memory_order_relaxed);
    atomic_fetch_add(&rdm->calls, 1);
}

void wfrdm_guard_leave(wfrdm *rdm)
{
    if (rdm->guard)
        atomic_fetch_add(&rdm->calls, 1);
}
