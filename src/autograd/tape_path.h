/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tape_path.h - the place of a tape in the order of the program. A distributed pass adds the shares of a gradient in
 * this order, so that no bit of a sum depends on which message came first.
 *
 * A path is a list of numbers. A tape that weft_context_tape opens has the path (rank, incarnation, number of the
 * tape). A call or child tape has the path of its tape followed by one number: 1 for the first that began on that tape,
 * 2 for the second. The callee's tape has the path of its call. So a path depends only on what each tape did, in the
 * tape's own order.
 *
 * A node has the path of its tape, and `after`: how many calls and child tapes had begun on the tape before the node.
 * Nodes are ordered as one tape would have recorded them if each call had run where it began.
 *
 * On the wire and here a path is a string of at most WFI_TAPE_PATH_MAX bytes, which memcmp orders. A longer path ends
 * in a hash of the numbers that do not fit: then the order is still the same in every run, but differs from that of one
 * tape.
 *
 * THREADS. A path never changes, except for `begun`, which the thread that uses the tape counts up.
 * LIFETIME. Counted, by tapes, by nodes, and by the two sides of a call.
 */
#ifndef WFI_TAPE_PATH_H
#define WFI_TAPE_PATH_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define WFI_TAPE_PATH_MAX 88

typedef struct wfi_tape_path {
    _Atomic uint32_t refs;
    _Atomic uint32_t begun; /* how many calls and child tapes have begun on the tape */
    uint8_t size;
    uint8_t bytes[];
} wfi_tape_path;

/* Each returns one reference, or NULL: no memory. */
wfi_tape_path *wfi_tape_path_root(uint32_t rank, uint32_t incarnation, uint32_t number);
wfi_tape_path *wfi_tape_path_read(const void *bytes,
                                  size_t size); /* from another worker's path->bytes, WFI_TAPE_PATH_MAX at most */
wfi_tape_path *wfi_tape_path_begin(wfi_tape_path *tape); /* the path of the next call or child tape, which it counts */

wfi_tape_path *wfi_tape_path_ref(wfi_tape_path *path); /* NULL does nothing */
void wfi_tape_path_unref(wfi_tape_path *path);         /* NULL does nothing */

/* `after` for a node that is recorded now. 0 for NULL. */
static inline uint32_t wfi_tape_path_now(const wfi_tape_path *path)
{
    return !path ? 0 : atomic_load_explicit(&path->begun, memory_order_relaxed);
}

/* Compares two nodes by the paths of their tapes. Returns a negative number if a comes before b, and 0 if both are
 * of one tape and nothing began between them. NULL comes before all other paths. */
int wfi_tape_path_compare(const wfi_tape_path *a, uint32_t a_after, const wfi_tape_path *b, uint32_t b_after);

#endif
