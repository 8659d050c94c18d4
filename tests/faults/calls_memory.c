/* SPDX-License-Identifier: Apache-2.0 */
/* calls_memory.c - contents that follow from an id; memory between canaries, overwritten when nobody may touch it
 * any more. */
#include "rpc/must.h"
#include "faults/calls.h"
#include "tensors.h"

#include <pthread.h>

#define CANARY_WORDS 64
#define CANARY 0xA5C3F00DU
#define SCRIBBLE 0xDEADDEADU
#define KEPT_ROOMS 64 /* that nobody may write to: so many at once */
#define KEPT_WORDS (8U << 20)

/* Cheap to make and to check, and no two ids or places have the same. */
static uint32_t first_word(int64_t id, unsigned salt)
{
    uint64_t x = ((uint64_t)id * 64 + salt) * UINT64_C(0x9E3779B97F4A7C15) + board->seed;
    return (uint32_t)(x ^ (x >> 32));
}

void words_fill(uint32_t *out, size_t count, int64_t id, unsigned salt)
{
    uint32_t first = first_word(id, salt);
    for (size_t i = 0; i < count; i++)
        out[i] = first + (uint32_t)i * 2654435761U;
}

size_t words_wrong_at(const uint32_t *words, size_t count, int64_t id, unsigned salt)
{
    uint32_t first = first_word(id, salt);
    for (size_t i = 0; i < count; i++)
        if (words[i] != first + (uint32_t)i * 2654435761U)
            return i;
    return count;
}

void check_tensor(const weft_tensor *tensor, int64_t id, unsigned salt, const char *what)
{
    if (!tensor || weft_tensor_dtype(tensor) != WEFT_DTYPE_INT32 || !weft_tensor_is_contiguous(tensor)) {
        violation(id, "%s is no tensor that was ever sent", what);
        return;
    }
    size_t count = (size_t)weft_tensor_numel(tensor);
    const uint32_t *words = weft_tensor_data(tensor);
    size_t wrong = words_wrong_at(words, count, id, salt);
    if (wrong < count)
        violation(id, "%s is wrong from word %zu of %zu on: %#x", what, wrong, count, words[wrong]);
}

weft_tensor *make_tensor(size_t count, int64_t id, unsigned salt)
{
    weft_tensor *tensor = tensor_empty(WEFT_SHAPE((int64_t)count), WEFT_DTYPE_INT32);
    MUST(tensor);
    words_fill(weft_tensor_data(tensor), count, id, salt);
    return tensor;
}

/* ---- Rooms ---------------------------------------------------------------------------------------------------- */

struct calls_room {
    calls_room *next;
    size_t count;
    int64_t id;
    uint32_t words[]; /* canaries, the content, canaries */
};

static struct {
    pthread_mutex_t lock;
    calls_room *first, **end;
    size_t count, words;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER, .end = &kept.first};

calls_room *room_make(size_t count, int64_t id)
{
    calls_room *room = malloc(sizeof(*room) + (count + 2 * (size_t)CANARY_WORDS) * sizeof(*room->words));
    MUST(room);
    *room = (calls_room){.count = count, .id = id};
    for (size_t i = 0; i < CANARY_WORDS; i++)
        room->words[i] = room->words[CANARY_WORDS + count + i] = CANARY;
    return room;
}

uint32_t *room_words(calls_room *room)
{
    return room->words + CANARY_WORDS;
}

weft_tensor *room_tensor(calls_room *room)
{
    weft_tensor *tensor =
        tensor_wrap(WEFT_SHAPE((int64_t)room->count), WEFT_DTYPE_INT32, room_words(room), NULL, NULL, NULL);
    MUST(tensor);
    return tensor;
}

static void check_canaries(const calls_room *room)
{
    for (size_t i = 0; i < CANARY_WORDS; i++)
        if (room->words[i] != CANARY || room->words[CANARY_WORDS + room->count + i] != CANARY) {
            violation(room->id, "memory beside its tensor of %zu words was written", room->count);
            return;
        }
}

static void scribble(calls_room *room)
{
    for (size_t i = 0; i < room->count; i++)
        room_words(room)[i] = SCRIBBLE;
}

void room_end_unread(calls_room *room)
{
    if (!room)
        return;
    check_canaries(room);
    scribble(room);
    __asm__ volatile("" ::: "memory"); /* it is freed, but the overwriting is meant */
    free(room);
}

static void end_kept(calls_room *room)
{
    check_canaries(room);
    for (size_t i = 0; i < room->count; i++)
        if (room_words(room)[i] != SCRIBBLE) {
            violation(room->id, "its landing memory was written after the end: word %zu of %zu is %#x", i, room->count,
                      room_words(room)[i]);
            break;
        }
    free(room);
}

static calls_room *take_oldest(bool all)
{
    calls_room *room = NULL;
    pthread_mutex_lock(&kept.lock);
    if (kept.first && (all || kept.count > KEPT_ROOMS || kept.words > KEPT_WORDS)) {
        room = kept.first;
        kept.first = room->next;
        kept.end = kept.first ? kept.end : &kept.first;
        kept.count--;
        kept.words -= room->count;
    }
    pthread_mutex_unlock(&kept.lock);
    return room;
}

void room_end_unwritten(calls_room *room)
{
    if (!room)
        return;
    check_canaries(room);
    scribble(room);
    room->next = NULL;
    pthread_mutex_lock(&kept.lock);
    *kept.end = room;
    kept.end = &room->next;
    kept.count++;
    kept.words += room->count;
    pthread_mutex_unlock(&kept.lock);
    for (calls_room *old = take_oldest(false); old; old = take_oldest(false))
        end_kept(old);
}

void rooms_end(void)
{
    for (calls_room *old = take_oldest(true); old; old = take_oldest(true))
        end_kept(old);
}
