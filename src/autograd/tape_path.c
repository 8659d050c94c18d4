/* SPDX-License-Identifier: Apache-2.0 */
/* tape_path.c - the positions of tapes in the order of the program. */
#include "autograd/tape_path.h"

#include "base/alloc.h"
#include "base/map.h"

#include <stdlib.h>
#include <string.h>

#define NUMBER_MAX 5   /* bytes of one number */
#define ONE_BYTE 247   /* numbers up to this take one byte */
#define NODE_MARK 0xff /* no number begins with it */
#define HASH_BYTES 8

/* An encoding such that memcmp orders numbers, and none is a prefix of another. */
static size_t write_number(uint8_t out[NUMBER_MAX], uint32_t number)
{
    size_t size = 1;
    if (number <= ONE_BYTE) {
        out[0] = (uint8_t)number;
        return 1;
    }
    while (size < 4 && number >> (8 * size) != 0)
        size++;
    out[0] = (uint8_t)(ONE_BYTE + size);
    for (size_t i = 0; i < size; i++)
        out[1 + i] = (uint8_t)(number >> (8 * (size - 1 - i)));
    return 1 + size;
}

static wfi_tape_path *create(const void *bytes, size_t size)
{
    wfi_tape_path *path = wfi_calloc(1, sizeof(*path) + size);
    if (!path)
        return NULL;
    atomic_init(&path->refs, 1);
    atomic_init(&path->begun, 0);
    path->size = (uint8_t)size;
    memcpy(path->bytes, bytes, size);
    return path;
}

wfi_tape_path *wfi_tape_path_root(uint32_t rank, uint32_t incarnation, uint32_t number)
{
    uint8_t bytes[3 * NUMBER_MAX];
    size_t size = write_number(bytes, rank);
    size += write_number(bytes + size, incarnation);
    size += write_number(bytes + size, number);
    return create(bytes, size);
}

wfi_tape_path *wfi_tape_path_read(const void *bytes, size_t size)
{
    return create(bytes, size);
}

wfi_tape_path *wfi_tape_path_begin(wfi_tape_path *tape)
{
    uint8_t bytes[WFI_TAPE_PATH_MAX + NUMBER_MAX];
    uint32_t number = atomic_fetch_add_explicit(&tape->begun, 1, memory_order_relaxed) + 1;
    memcpy(bytes, tape->bytes, tape->size);
    size_t size = tape->size + write_number(bytes + tape->size, number);
    if (size > WFI_TAPE_PATH_MAX) {
        uint8_t *end = bytes + WFI_TAPE_PATH_MAX - HASH_BYTES;
        uint64_t hash = wfi_hash_bytes(end, size - (WFI_TAPE_PATH_MAX - HASH_BYTES));
        for (size_t i = 0; i < HASH_BYTES; i++)
            end[i] = (uint8_t)(hash >> (8 * (HASH_BYTES - 1 - i)));
        size = WFI_TAPE_PATH_MAX;
    }
    return create(bytes, size);
}

wfi_tape_path *wfi_tape_path_ref(wfi_tape_path *path)
{
    if (path)
        atomic_fetch_add_explicit(&path->refs, 1, memory_order_relaxed);
    return path;
}

void wfi_tape_path_unref(wfi_tape_path *path)
{
    if (path && atomic_fetch_sub_explicit(&path->refs, 1, memory_order_acq_rel) == 1)
        free(path);
}

/*
 * Writes the path of a node: its tape's path, the number of calls and child tapes that had begun before the node, and
 * a mark that orders the node after these.
 */
static size_t write_node(uint8_t out[WFI_TAPE_PATH_MAX + NUMBER_MAX + 1], const wfi_tape_path *path, uint32_t after)
{
    size_t size = !path ? 0 : path->size;
    if (path)
        memcpy(out, path->bytes, size);
    size += write_number(out + size, after);
    out[size++] = NODE_MARK;
    return size;
}

int wfi_tape_path_compare(const wfi_tape_path *a, uint32_t a_after, const wfi_tape_path *b, uint32_t b_after)
{
    uint8_t of_a[WFI_TAPE_PATH_MAX + NUMBER_MAX + 1], of_b[sizeof(of_a)];
    if (a == b)
        return (a_after > b_after) - (a_after < b_after);
    size_t common = !a || !b ? 0 : a->size < b->size ? a->size : b->size;
    int order = common == 0 ? 0 : memcmp(a->bytes, b->bytes, common);
    if (order != 0)
        return order;
    size_t a_size = write_node(of_a, a, a_after), b_size = write_node(of_b, b, b_after);
    order = memcmp(of_a, of_b, a_size < b_size ? a_size : b_size);
    return order != 0 ? order : (a_size > b_size) - (a_size < b_size);
}
