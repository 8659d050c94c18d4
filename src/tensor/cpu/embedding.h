/* SPDX-License-Identifier: Apache-2.0 */
/*
 * embedding.h - picks rows of a table by their numbers, singly or reduced in bags. The conventions are those of
 * cpu.h; all functions give the same bits for any number of threads.
 *
 * Letters: V rows of the table, D columns, B bags, n indices.
 */
#ifndef WFI_EMBEDDING_H
#define WFI_EMBEDDING_H

#include "tensor/tensor.h"

/* `index`, of any shape, is int64 with elements in [0, V), else WEFT_ERR_INVALID (wfi_index_outside says which). */
weft_status wfi_embedding(const weft_tensor *weight, const weft_tensor *index, weft_tensor *y); /* [V, D] -> [..., D] */
/*
 * dweight[r] = the sum of the gradients of row r's copies, in the order of the index; 0 for row `padding` (-1: none).
 */
weft_status wfi_embedding_backward(const weft_tensor *dy, const weft_tensor *index, int64_t padding,
                                   weft_tensor *dweight);
/* The same by rows, without those of `padding`: values[i] belongs to row rows[i]. rows int64 [n'], values [n', D]. On a
 * GPU n' is n, because counting would need a wait: the values of padding are 0. */
weft_status wfi_embedding_backward_rows(const weft_tensor *dy, const weft_tensor *index, int64_t padding,
                                        weft_tensor *rows, weft_tensor *values);
/* to[rows[i]] += values[i], in order: values [n, ..], rows int64 [n], `to` [V, ..], the further dimensions alike. */
weft_status wfi_rows_add(const weft_tensor *values, const weft_tensor *rows, weft_tensor *to);
/* n': elements that are not `padding`; on a GPU all. */
int64_t wfi_index_rows(const weft_tensor *index, int64_t padding);

typedef enum wfi_bag_mode { WFI_BAG_MEAN, WFI_BAG_SUM, WFI_BAG_MAX } wfi_bag_mode;

typedef struct wfi_bags {
    const weft_tensor *index; /* int64 [n]; without offsets [B, L] */
    const weft_tensor
        *offsets; /* int64 [B]: bag b has the indices from offsets[b] to offsets[b + 1], the last those to the end */
    const weft_tensor *scale; /* of the index's shape: a factor for each row; NULL: 1. Only for SUM */
    wfi_bag_mode mode;
    int64_t padding; /* indices of this value are skipped; -1: none */
} wfi_bags;

int64_t wfi_bags_count(const wfi_bags *bags); /* B */
/* Whether the offsets begin with 0, do not fall, and are at most n; on a GPU true, because operators have checked
 * them. */
bool wfi_bags_offsets_fit(const wfi_bags *bags);
/*
 * y [B, D]; 0 for an empty bag. picked int64 [B, D], only for MAX: the row of each element, -1 for none; may be NULL.
 * WEFT_ERR_INVALID: an index or offset is wrong.
 */
weft_status wfi_bag(const weft_tensor *weight, const wfi_bags *bags, weft_tensor *y, weft_tensor *picked);
weft_status wfi_bag_backward(const weft_tensor *dy, const wfi_bags *bags, const weft_tensor *picked,
                             weft_tensor *dweight);
/* The same by rows, as above; not for MAX (WEFT_ERR_UNSUPPORTED). */
weft_status wfi_bag_backward_rows(const weft_tensor *dy, const wfi_bags *bags, weft_tensor *rows, weft_tensor *values);
weft_status wfi_bag_backward_scale(const weft_tensor *dy, const wfi_bags *bags, const weft_tensor *weight,
                                   weft_tensor *dscale);

#endif
