/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slab.c - recycled mappings: a new mapping for each large message would cost more than copying the message.
 *
 * How much is kept: slabs in use and idle slabs together are as much as the program recently had in use at once
 * (`peak`), because the next iteration will need that again. A little more is kept for sizes that change.
 *
 * A loop comes back to its peak once in each iteration. The pool measures how many requests, and bytes, are between two
 * such moments (`step`). If twice as many pass and the peak does not come back, the program does something else. The
 * peak is then forgotten, and the most that was in use meanwhile takes its place. If a forgotten peak comes back soon,
 * the step is at least doubled. Slabs above the bound are unmapped when a slab is freed or a new one is mapped: a
 * program that does neither keeps its idle slabs.
 *
 * If a size must be mapped again soon after it was returned to the system, too little was kept. Its bytes are then
 * added to the bound, up to a quarter of the peak (`remapped`). If such a size is requested when the bound is reached,
 * an idle slab of up to four times the size serves the request: a new mapping would replace slabs that are needed soon.
 *
 * Each kind of memory and each device has an account of its own, so that traffic in one does not empty another.
 * WEFT_SLAB_KEEP_MB sets a fixed bound for each.
 *
 * Idle host memory is at most a quarter of this process's share of the machine and its control group (topo/quota.h),
 * and so is idle page-locked memory, which has an account of its own. In each account, slabs in use and idle slabs
 * together are at most the share, as long as an idle one is left to unmap. If a group exceeds its limit, the kernel
 * kills one of its processes: idle memory must not be the reason.
 *
 * With WEFT_SLAB_KEEP_MB=0 no slab is used twice, and device memory has the exact size: tools that check accesses then
 * see each allocation of the program.
 */
#include "mem/slab.h"

#include "base/alloc.h"
#include "base/env.h"
#include "base/error.h"
#include "base/text/log.h"
#include "base/mutex.h"
#include "mem/backend.h"
#include "mem/cuda.h"
#include "topo/quota.h"

#include <stdio.h>
#include <stdlib.h>

#define STEP_BITS 4
#define STEPS (1u << STEP_BITS) /* classes for each doubling */
#define CLASS_COUNT ((size_t)(56 - 12) * STEPS)
#define WINDOW_REQUESTS 2048 /* what is this long ago is not recent */
#define REQUESTS_MAX ((uint64_t)2 * WINDOW_REQUESTS)
#define STEP_MAX (UINT64_C(1) << 60)
#define KEEP_BYTES_MIN ((size_t)16 << 20)
#define CLASSES_LARGER (2 * STEPS) /* a slab that serves a smaller request has at most four times the size */

/*
 * LOCK. `lock` guards everything in the pool and the links of idle slabs. A slab in use belongs to its user. Mapping
 * and unmapping, which are slow, are done without the lock, on slabs that are in no list.
 */
typedef struct moment {
    uint64_t requests, bytes; /* number of requests until then, and their bytes */
} moment;

typedef struct account {
    wfi_list ages; /* idle slabs, oldest first */
    wfi_slab_stats stats;
    size_t bytes_mapped;
    moment now;
    size_t asked;                      /* the bytes asked for that are in use; of larger slabs a part */
    size_t peak, later_peak;           /* the most `asked` recently; since it was last near the peak */
    moment near;                       /* when `asked` was last near the peak */
    size_t forgotten;                  /* the peak that was forgotten last, if not come back to; 0: none */
    moment near_forgotten;             /* `near` of the first peak that was forgotten since */
    moment step;                       /* from one moment near the peak to the next; decays. 0: not known yet */
    unsigned window;                   /* the number of this window of requests, from 1; 0: not used yet */
    unsigned unmapped_in[CLASS_COUNT]; /* the window in which a slab of this class was last unmapped; 0: none */
    size_t remapped;                   /* bytes mapped again soon after they were unmapped; decays */
} account;

static struct slab_pool {
    wfi_mutex lock;
    wfi_list classes[CLASS_COUNT];              /* most recently used first: their pages are warm */
    account accounts[2 + WFI_CUDA_DEVICES_MAX]; /* of host memory, of page-locked memory, and of each device */
    int64_t keep_mb;                            /* -1: the rules above apply */
    size_t share;                               /* of host memory, for this process; SIZE_MAX: not known */
} pool;

#define ACCOUNTS (sizeof(pool.accounts) / sizeof(pool.accounts[0]))

static account *account_of(wfi_memory_kind kind, int device)
{
    return &pool.accounts[kind == WFI_MEMORY_CUDA ? 2 + device : (int)kind];
}

static pthread_once_t pool_once = PTHREAD_ONCE_INIT;

weft_status wfi_slab_setting(int64_t *keep_mb, weft_error **error)
{
    *keep_mb = -1;
    return wfi_env_i64("WEFT_SLAB_KEEP_MB", 0, INT64_MAX >> 20, keep_mb, error);
}

/* The lock is held during every fork, so that the lists are consistent in the child, which may use tensors. */
static void before_fork(void)
{
    wfi_mutex_lock(&pool.lock);
}

static void after_fork(void)
{
    wfi_mutex_unlock(&pool.lock);
}

static void pool_init(void)
{
    wfi_mutex_init(&pool.lock);
    (void)pthread_atfork(before_fork, after_fork, after_fork);
    for (size_t i = 0; i < CLASS_COUNT; i++)
        wfi_list_init(&pool.classes[i]);
    weft_error *error = NULL;
    if (wfi_slab_setting(&pool.keep_mb, &error) != WEFT_OK) {
        wfi_log(WEFT_LOG_ERROR, "%s", weft_error_message(error)); /* there is no caller to return it to */
        weft_error_unref(error);
    }
}

unsigned wfi_slab_class(size_t size)
{
    if (size <= WFI_PAGE_BYTES)
        return 0;
    size_t pages = (size - 1) / WFI_PAGE_BYTES; /* the class is the same for (pages, pages + 1] */
    unsigned top = 63 - (unsigned)__builtin_clzll(pages);
    if (top < STEP_BITS)
        return (unsigned)pages;
    return ((top - STEP_BITS + 1) << STEP_BITS) + (unsigned)(pages >> (top - STEP_BITS) & (STEPS - 1));
}

size_t wfi_slab_class_bytes(unsigned size_class)
{
    if (size_class < STEPS)
        return (size_t)(size_class + 1) * WFI_PAGE_BYTES;
    unsigned doubling = (size_class >> STEP_BITS) - 1;
    size_t steps = STEPS + (size_class & (STEPS - 1)) + 1;
    return (steps << doubling) * WFI_PAGE_BYTES;
}

/* Called without the lock, because the share may be computed now. */
static size_t read_share(void)
{
    uint64_t share = wfi_quota_memory();
    return share ? (size_t)share : SIZE_MAX;
}

/* How many of `keep` bytes may stay idle within the share, after `more` bytes have been allocated. */
static size_t within_share(const account *a, size_t more, size_t keep)
{
    const account *host = &pool.accounts[WFI_MEMORY_HOST], *pinned = &pool.accounts[WFI_MEMORY_PINNED];
    if (a != host && a != pinned)
        return keep;
    const account *other = a == host ? pinned : host;
    size_t used = host->stats.bytes_live + pinned->stats.bytes_live + other->stats.bytes_idle + more;
    size_t room = pool.share > used ? pool.share - used : 0;
    size_t most = pool.share / 4 < room ? pool.share / 4 : room;
    return keep < most ? keep : most;
}

/* How many bytes may stay idle after `more` bytes have been allocated. */
static size_t keep_bound(const account *a, size_t more)
{
    wfi_assert_held(&pool.lock);
    if (pool.keep_mb >= 0)
        return (size_t)pool.keep_mb << 20;
    size_t spare = a->peak / 16 > KEEP_BYTES_MIN ? a->peak / 16 : KEEP_BYTES_MIN, live = a->stats.bytes_live + more;
    size_t remapped = a->remapped < a->peak / 4 ? a->remapped : a->peak / 4;
    return within_share(a, more, (a->peak > live ? a->peak - live : 0) + spare + remapped);
}

static void idle_remove(wfi_slab *slab)
{
    wfi_assert_held(&pool.lock);
    wfi_list_remove(&slab->by_class);
    wfi_list_remove(&slab->by_age);
    account_of(slab->kind, slab->device)->stats.bytes_idle -= slab->size;
}

/* Moves the oldest idle slabs into `evicted` until at most `keep` bytes are idle. */
static void evict_idle(account *a, size_t keep, wfi_list *evicted)
{
    wfi_assert_held(&pool.lock);
    while (a->stats.bytes_idle > keep) {
        wfi_slab *oldest = wfi_container_of(a->ages.next, wfi_slab, by_age);
        idle_remove(oldest);
        a->bytes_mapped -= oldest->size;
        wfi_list_push_back(evicted, &oldest->by_age);
    }
}

/* The same with the bound of keep_bound. Records the classes, for note_remapped. */
static void evict_excess(account *a, size_t more, wfi_list *evicted)
{
    wfi_list *last = evicted->prev;
    evict_idle(a, keep_bound(a, more), evicted);
    for (wfi_list *link = last->next; link != evicted; link = link->next)
        a->unmapped_in[wfi_container_of(link, wfi_slab, by_age)->size_class] = a->window;
}

static bool was_unmapped_recently(const account *a, unsigned size_class)
{
    unsigned window = a->unmapped_in[size_class];
    return window > 0 && a->window - window <= 1;
}

/* The slab is mapped. If its class was unmapped recently, too little was kept: raises the bound of idle bytes. */
static void note_remapped(account *a, const wfi_slab *slab)
{
    wfi_assert_held(&pool.lock);
    if (!was_unmapped_recently(a, slab->size_class))
        return;
    a->remapped += slab->size;
    a->unmapped_in[slab->size_class] = 0;
}

static void unmap_all(wfi_list *evicted)
{
    for (wfi_list *link = wfi_list_pop_front(evicted); link; link = wfi_list_pop_front(evicted)) {
        wfi_slab *slab = wfi_container_of(link, wfi_slab, by_age);
        wfi_reg_anchor_fini(&slab->anchor);
        wfi_backend_unmap(slab->kind, slab->device, slab->data, slab->size);
        free(slab);
    }
}

static bool is_near(size_t asked, size_t peak)
{
    return asked >= peak - peak / 16;
}

/* A shorter interval makes the step shorter by a quarter of the interval, so short ones within a step change little. */
static uint64_t adapted(uint64_t step, uint64_t found)
{
    return found >= step ? found : step - found / 4;
}

/* The step was too short: `found` is how long the peak stayed away. */
static uint64_t grown(uint64_t step, uint64_t found)
{
    uint64_t twice = step < STEP_MAX ? 2 * step : step;
    return found > twice ? found : twice;
}

static moment since(const account *a, moment then)
{
    return (moment){a->now.requests - then.requests, a->now.bytes - then.bytes};
}

/* `asked` is near the peak. Moments that follow each other closely are one. */
static void reach_peak(account *a)
{
    moment found = since(a, a->near);
    if (a->forgotten > 0 && is_near(a->asked, a->forgotten)) { /* it was forgotten too early, unless long ago */
        found = since(a, a->near_forgotten);
        if (found.requests <= REQUESTS_MAX)
            a->step = (moment){grown(a->step.requests, found.requests), grown(a->step.bytes, found.bytes)};
        a->forgotten = 0;
    } else if (found.requests > 1 && found.bytes > a->peak / 4) {
        a->step = (moment){adapted(a->step.requests, found.requests), adapted(a->step.bytes, found.bytes)};
    }
    a->near = a->now;
    a->later_peak = 0;
}

/* Whether the program has not come back to the peak for two steps. Before one is known: for four times its bytes. */
static bool is_long_ago(const account *a)
{
    moment found = since(a, a->near), step = a->step;
    bool is_known = step.requests > 0;
    uint64_t bytes = !is_known ? 2 * (uint64_t)a->peak : step.bytes > a->peak ? step.bytes : a->peak;
    uint64_t requests = is_known && step.requests < REQUESTS_MAX / 2 ? step.requests : REQUESTS_MAX / 2;
    return found.bytes > 2 * bytes || found.requests > 2 * requests;
}

static void forget_peak(account *a)
{
    if (a->forgotten == 0)
        a->near_forgotten = a->near;
    a->forgotten = a->peak;
    a->peak = a->later_peak;
    a->near = a->now;
    a->later_peak = 0;
}

static void count_live(account *a, wfi_slab *slab, size_t asked)
{
    wfi_assert_held(&pool.lock);
    slab->asked = asked;
    a->stats.bytes_live += slab->size;
    a->asked += asked;
    a->now.bytes += asked;
    if (++a->now.requests % WINDOW_REQUESTS == 0) {
        a->window++;
        a->remapped -= a->remapped / 8;
    }
    if (a->asked > a->peak)
        a->peak = a->asked;
    if (a->asked > a->later_peak)
        a->later_peak = a->asked;
    if (is_near(a->asked, a->peak))
        reach_peak(a);
    else if (is_long_ago(a))
        forget_peak(a);
}

/* The most recently used slab of the class; of device memory, if possible one that no other stream uses. */
static wfi_slab *find_idle(wfi_memory_kind kind, int device, unsigned size_class, int stream)
{
    wfi_slab *found = NULL;
    bool ready = false; /* `found` needs no wait */
    const wfi_list *head = &pool.classes[size_class];
    for (wfi_list *link = head->next; link != head && !ready; link = link->next) {
        wfi_slab *slab = wfi_container_of(link, wfi_slab, by_class);
        bool fits = slab->kind == kind && slab->device == device;
        ready = fits && (slab->uses & ~(UINT64_C(1) << stream)) == 0;
        if (ready || (fits && !found))
            found = slab;
    }
    return found;
}

/* Whether a slab of this class was unmapped recently, and a new one would only take the place of others. */
static bool is_crowded(account *a, unsigned size_class)
{
    return was_unmapped_recently(a, size_class) &&
           a->stats.bytes_idle > keep_bound(a, wfi_slab_class_bytes(size_class));
}

static wfi_slab *reuse_idle(wfi_memory_kind kind, int device, unsigned size_class, int stream)
{
    account *a = account_of(kind, device);
    wfi_mutex_lock(&pool.lock);
    if (a->window == 0) { /* now and not with the pool: most accounts are never used, and their pages stay untouched */
        wfi_list_init(&a->ages);
        a->window = 1;
    }
    wfi_slab *found = find_idle(kind, device, size_class, stream);
    if (!found && is_crowded(a, size_class)) {
        a->unmapped_in[size_class] = a->window;
        for (unsigned i = 1; i <= CLASSES_LARGER && size_class + i < CLASS_COUNT && !found; i++)
            found = find_idle(kind, device, size_class + i, stream);
    }
    if (found) {
        idle_remove(found);
        a->stats.reused++;
        count_live(a, found, wfi_slab_class_bytes(size_class));
    }
    wfi_mutex_unlock(&pool.lock);
    return found;
}

/* The mapping failed although no memory is idle. Its caller returns only a status, so the words are left for the error.
 */
static void explain_shortage(const wfi_slab *slab)
{
    char text[WFI_ERROR_NOTE_MAX], place[32] = "host memory", driver[96] = "";
    size_t room_free, total;
    if (slab->kind == WFI_MEMORY_CUDA) {
        snprintf(place, sizeof(place), "cuda:%d", slab->device);
        if (wfi_cuda_memory_info(slab->device, &room_free, &total))
            snprintf(driver, sizeof(driver), " and the driver has %zu of %zu bytes free", room_free, total);
    } else if (slab->kind == WFI_MEMORY_PINNED) {
        snprintf(place, sizeof(place), "page-locked memory");
    }
    wfi_mutex_lock(&pool.lock);
    size_t live = account_of(slab->kind, slab->device)->stats.bytes_live;
    wfi_mutex_unlock(&pool.lock);
    snprintf(text, sizeof(text), "%s has no room for %zu bytes: weft's tensors use %zu bytes there%s%s: %s", place,
             slab->size, live, driver[0] != '\0' ? "," : "", driver,
             slab->kind == WFI_MEMORY_CUDA ? "use smaller batches, release tensors, or end other programs on this GPU"
                                           : "use smaller batches, release tensors, or end other programs");
    if (slab->kind != WFI_MEMORY_HOST)
        wfi_log(WEFT_LOG_ERROR, "%s", text);
    wfi_error_note_memory(text);
}

/* First unmaps idle slabs of other sizes, so that the mapped memory never exceeds the bound. */
static weft_status map_fresh(wfi_slab *slab)
{
    wfi_list evicted;
    account *a = account_of(slab->kind, slab->device);
    size_t share = read_share();
    wfi_list_init(&evicted);
    wfi_mutex_lock(&pool.lock);
    pool.share = share;
    note_remapped(a, slab);
    evict_excess(a, slab->size, &evicted);
    wfi_mutex_unlock(&pool.lock);
    unmap_all(&evicted);
    weft_status status = wfi_backend_map(slab->kind, slab->device, slab->size, &slab->data);
    if (status == WEFT_ERR_MEMORY) {
        wfi_mutex_lock(&pool.lock);
        evict_idle(a, 0, &evicted); /* unmapping the idle slabs may free enough */
        wfi_mutex_unlock(&pool.lock);
        unmap_all(&evicted);
        status = wfi_backend_map(slab->kind, slab->device, slab->size, &slab->data);
    }
    if (status == WEFT_ERR_MEMORY)
        explain_shortage(slab);
    if (status != WEFT_OK)
        return status;
    wfi_reg_anchor_init(&slab->anchor, slab->data, slab->size);
    wfi_mutex_lock(&pool.lock);
    a->bytes_mapped += slab->size;
    if (a->bytes_mapped > a->stats.bytes_peak)
        a->stats.bytes_peak = a->bytes_mapped;
    a->stats.mapped++;
    count_live(a, slab, slab->size);
    wfi_mutex_unlock(&pool.lock);
    return WEFT_OK;
}

weft_status wfi_slab_alloc(wfi_memory_kind kind, int device, size_t size, int stream, wfi_slab **out)
{
    pthread_once(&pool_once, pool_init);
    if (size > (size_t)1 << 56)
        return WEFT_ERR_MEMORY;
    wfi_error_note_memory(NULL);
    unsigned size_class = wfi_slab_class(size);
    wfi_slab *slab = reuse_idle(kind, device, size_class, stream);
    if (slab) {
        *out = slab;
        return WEFT_OK;
    }
    slab = wfi_calloc(1, sizeof(*slab));
    if (!slab)
        return WEFT_ERR_MEMORY;
    wfi_list_init(&slab->by_class);
    wfi_list_init(&slab->by_age);
    slab->kind = kind;
    slab->device = device;
    slab->size_class = size_class;
    slab->size = kind == WFI_MEMORY_CUDA && pool.keep_mb == 0 && size > 0 ? size : wfi_slab_class_bytes(size_class);
    weft_status status = map_fresh(slab);
    if (status != WEFT_OK) {
        free(slab);
        return status;
    }
    *out = slab;
    return WEFT_OK;
}

void wfi_slab_free(wfi_slab *slab)
{
    wfi_list evicted;
    wfi_list_init(&evicted);
    account *a = account_of(slab->kind, slab->device);
    size_t share = read_share();
    wfi_mutex_lock(&pool.lock);
    pool.share = share;
    a->stats.bytes_live -= slab->size;
    a->asked -= slab->asked;
    a->stats.bytes_idle += slab->size;
    wfi_list_push_front(&pool.classes[slab->size_class], &slab->by_class);
    wfi_list_push_back(&a->ages, &slab->by_age);
    evict_excess(a, 0, &evicted);
    wfi_mutex_unlock(&pool.lock);
    unmap_all(&evicted);
}

void wfi_slab_trim(size_t keep_bytes)
{
    wfi_list evicted;
    wfi_list_init(&evicted);
    pthread_once(&pool_once, pool_init);
    wfi_mutex_lock(&pool.lock);
    for (size_t i = 0; i < ACCOUNTS; i++)
        if (pool.accounts[i].window > 0)
            evict_idle(&pool.accounts[i], keep_bytes, &evicted);
    wfi_mutex_unlock(&pool.lock);
    unmap_all(&evicted);
}

void wfi_slab_stats_read(wfi_slab_stats *out)
{
    pthread_once(&pool_once, pool_init);
    *out = (wfi_slab_stats){0};
    wfi_mutex_lock(&pool.lock);
    for (size_t i = 0; i < ACCOUNTS; i++) {
        const wfi_slab_stats *one = &pool.accounts[i].stats;
        out->bytes_live += one->bytes_live;
        out->bytes_idle += one->bytes_idle;
        out->bytes_peak += one->bytes_peak;
        out->reused += one->reused;
        out->mapped += one->mapped;
    }
    wfi_mutex_unlock(&pool.lock);
}
