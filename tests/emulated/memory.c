/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - device memory that the host cannot touch, and pinned memory. See gpu.h. */
#include "gpu.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if EMULATED_ASAN
#include <sanitizer/asan_interface.h>
#endif

#define PAGE ((size_t)4096)
#define ALIGNMENT ((size_t)256)        /* of cuMemAlloc */
#define SPACE ((size_t)64 << 30)       /* addresses of a device; none is used twice */
#define DEVICE_BYTES ((size_t)2 << 30) /* memory of a device */
#define PATTERN 0xff                   /* NaN as float32 and float64, -1 as integers */

static struct device_space {
    char *base;
    size_t used;  /* addresses */
    size_t bytes; /* memory that is allocated */
    int opened;
} spaces[EMULATED_DEVICES];

static gpu_piece *pieces;
static size_t piece_count, piece_room;

static struct device_space *space_of(int device)
{
    struct device_space *space = &spaces[device];
    if (!space->base) {
        void *base = mmap(NULL, SPACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        space->base = base == MAP_FAILED ? NULL : base;
    }
    return !space->base ? NULL : space;
}

static void protect(const gpu_piece *piece, int how)
{
    if (mprotect(piece->pages, piece->pages_size, how) != 0)
        gpu_fault("mprotect failed");
}

/* The slack before and after the bytes of a piece, within its pages. */
static void hide_slack(const gpu_piece *piece, bool hide)
{
#if EMULATED_ASAN
    char *end = piece->at + piece->size, *last = piece->pages + piece->pages_size;
    if (hide) {
        ASAN_POISON_MEMORY_REGION(piece->pages, (size_t)(piece->at - piece->pages));
        ASAN_POISON_MEMORY_REGION(end, (size_t)(last - end));
    } else {
        ASAN_UNPOISON_MEMORY_REGION(piece->pages, piece->pages_size);
    }
#else
    (void)piece;
    (void)hide;
#endif
}

static gpu_piece *new_piece(void)
{
    if (piece_count == piece_room) {
        size_t room = piece_room == 0 ? 256 : 2 * piece_room;
        gpu_piece *grown = realloc(pieces, room * sizeof(*pieces));
        if (!grown)
            return NULL;
        pieces = grown;
        piece_room = room;
    }
    return &pieces[piece_count];
}

/* The pages of a new piece, and a page after them that nobody may touch. */
static char *map_pages(int device, size_t size)
{
    if (device < 0) {
        char *at = mmap(NULL, size + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return at == MAP_FAILED ? NULL : at;
    }
    struct device_space *space = space_of(device);
    if (!space || size > DEVICE_BYTES - space->bytes || size + PAGE > SPACE - space->used)
        return NULL;
    char *at = space->base + space->used;
    space->used += size + PAGE;
    space->bytes += size;
    return at;
}

void *gpu_memory_take(int device, size_t size)
{
    if (size == 0 || size > DEVICE_BYTES)
        return NULL;
    size_t aligned = (size + ALIGNMENT - 1) & ~(ALIGNMENT - 1), pages_size = (aligned + PAGE - 1) & ~(PAGE - 1);
    gpu_piece *piece = new_piece();
    char *pages = !piece ? NULL : map_pages(device, pages_size);
    if (!pages)
        return NULL;
    *piece = (gpu_piece){pages + pages_size - aligned, size, pages, pages_size, device};
    protect(piece, PROT_READ | PROT_WRITE);
    memset(pages, PATTERN, pages_size);
    hide_slack(piece, true);
    if (device >= 0 && spaces[device].opened == 0)
        protect(piece, PROT_NONE);
    piece_count++;
    gpu_counts.live++;
    *(device < 0 ? &gpu_counts.pinned_bytes : &gpu_counts.device_bytes) += size;
    return piece->at;
}

void gpu_memory_info(int device, size_t *free_bytes, size_t *total)
{
    *total = DEVICE_BYTES;
    *free_bytes = DEVICE_BYTES - spaces[device].bytes;
}

/* At most a page: the bytes are compared with those that follow them. */
static bool is_pattern(const char *from, const char *end)
{
    return from == end ||
           (*(const unsigned char *)from == PATTERN && memcmp(from, from + 1, (size_t)(end - from) - 1) == 0);
}

/* The piece is open. */
static void check_piece(const gpu_piece *piece, const char *after)
{
    const char *end = piece->at + piece->size;
    hide_slack(piece, false);
    if (!is_pattern(piece->pages, piece->at))
        gpu_fault("%s: a write before the %zu bytes at %p", after, piece->size, (void *)piece->at);
    else if (!is_pattern(end, piece->pages + piece->pages_size))
        gpu_fault("%s: a write after the end of the %zu bytes at %p", after, piece->size, (void *)piece->at);
    hide_slack(piece, true);
}

void gpu_memory_check(const char *after)
{
    for (size_t i = 0; i < piece_count; i++)
        if (pieces[i].device < 0 || spaces[pieces[i].device].opened > 0)
            check_piece(&pieces[i], after);
}

bool gpu_memory_give(void *at, int device)
{
    size_t i = 0;
    while (i < piece_count && !(pieces[i].at == at && (pieces[i].device < 0) == (device < 0)))
        i++;
    if (i == piece_count)
        return false;
    gpu_piece *piece = &pieces[i];
    gpu_race_forget(piece->at);
    protect(piece, PROT_READ | PROT_WRITE);
    check_piece(piece, "freeing memory");
    hide_slack(piece, false);
    if (piece->device < 0) {
        munmap(piece->pages, piece->pages_size + PAGE);
    } else {
        /* Fresh pages in the same place, so that the memory goes back to the system. */
        mmap(piece->pages, piece->pages_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0);
        spaces[piece->device].bytes -= piece->pages_size;
    }
    gpu_counts.live--;
    *(piece->device < 0 ? &gpu_counts.pinned_bytes : &gpu_counts.device_bytes) -= piece->size;
    *piece = pieces[--piece_count];
    return true;
}

const gpu_piece *gpu_memory_find(const void *at, size_t size)
{
    for (size_t i = 0; i < piece_count; i++) {
        const gpu_piece *piece = &pieces[i];
        size_t offset = (size_t)((const char *)at - piece->at);
        if ((const char *)at >= piece->at && offset <= piece->size && size <= piece->size - offset)
            return piece;
    }
    return NULL;
}

bool gpu_memory_is_device(const void *at)
{
    for (int d = 0; d < EMULATED_DEVICES; d++)
        if (spaces[d].base && (const char *)at >= spaces[d].base && (const char *)at < spaces[d].base + SPACE)
            return true;
    return false;
}

static void protect_all(int device, int how)
{
    for (size_t i = 0; i < piece_count; i++)
        if (pieces[i].device == device)
            protect(&pieces[i], how);
}

void gpu_memory_open(int device)
{
    gpu_memory_catch(); /* cmocka has its own handler in each test, which would go on with the emulated GPU locked */
    if (spaces[device].opened++ == 0)
        protect_all(device, PROT_READ | PROT_WRITE);
}

void gpu_memory_close(int device)
{
    if (--spaces[device].opened == 0)
        protect_all(device, PROT_NONE);
}

/* ---- The handler of accesses outside ---- */

static struct sigaction former;

static const char *describe(const char *at)
{
    for (size_t i = 0; i < piece_count; i++) {
        if (at >= pieces[i].at && at < pieces[i].at + pieces[i].size)
            return "device memory: only kernels of that device and copies may use it";
        if (at >= pieces[i].pages && at < pieces[i].pages + pieces[i].pages_size + PAGE)
            return "memory beside an allocation";
    }
    return "memory that is freed or was never allocated";
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    char text[256];
    const char *where = gpu_launch_where();
    if (where || gpu_memory_is_device(info->si_addr)) {
        int length = snprintf(text, sizeof(text), "emulated GPU: %s uses %p: %s\n", where ? where : "the host",
                              info->si_addr, describe(info->si_addr));
        (void)!write(STDERR_FILENO, text, (size_t)length);
    }
    if (former.sa_flags & SA_SIGINFO && former.sa_sigaction)
        former.sa_sigaction(signal, info, context); /* of a sanitizer */
    bool is_ours = where || gpu_memory_is_device(info->si_addr);
    sigaction(signal, is_ours ? &(struct sigaction){.sa_handler = SIG_DFL} : &former,
              NULL); /* the instruction runs again, and ends the process */
}

void gpu_memory_catch(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER}, now;
    sigaction(SIGSEGV, NULL, &now);
    if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_fault)
        return;
    former = now;
    sigaction(SIGSEGV, &action, NULL);
}
