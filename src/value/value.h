/* SPDX-License-Identifier: Apache-2.0 */
/*
 * value.h - what calls carry: lists of tagged values. This folder knows neither the network nor the agent.
 *
 * value.h      single owned values, and lists of them (weft/value.h has what users do with these)
 * fault.h      what is wrong with a value, as text
 * walk.h       all values of a list and of the lists in it, one after the other
 * encode.h     values become a block of metadata, and a list of tensors that do not ride in it
 * decode.h     a block of metadata becomes owned values, each tensor in its place; or it is only measured
 * wire.h       the messages of calls, as bytes
 * reference.h  what values know of a remote reference: a count, and two functions of its maker's
 *
 * LOCK. None. One thread at a time may change a list; once it is shared nobody does.
 *
 * LIFETIME. An owned value holds copies of strings and bytes, and counts on tensors and references. Lists are counted.
 */
#ifndef WFI_VALUE_H
#define WFI_VALUE_H

#include <weft/rref.h>
#include <weft/value.h>

/* Whether `values` can be read at all: no list has a count above 0 and items at NULL. Asked of all values of the
 * user's. */
bool wfi_args_are_readable(weft_args values);
/* Like weft_values_create, but logs nothing. `out` is not NULL, and wfi_args_are_readable must hold. */
weft_status wfi_values_create(weft_args from, weft_values **out);
/* Reads value `index` if it is of that type: the first `size` bytes of its member of the union. Logs nothing.
 * WEFT_ERR_INVALID (`values` or `out` is NULL), WEFT_ERR_NOT_FOUND, WEFT_ERR_TYPE. */
weft_status wfi_values_get(const weft_values *values, size_t index, weft_type type, void *out, size_t size);
/* An owned copy; on failure *to is a null value. */
weft_status wfi_value_own(const weft_value *from, weft_value *to);
/* Releases what an owned value holds; it becomes a null value. */
void wfi_value_release(weft_value *value);
/* A list of `count` null values; NULL if memory is out. The creator may store owned values in it until it shares it. */
weft_values *wfi_values_make(size_t count);
/* About the memory of such a list, without tensors and references. */
size_t wfi_values_bytes(weft_args values);
/* All tensors through all lists, in order: the first `room` into out; returns how many there are. */
size_t wfi_values_tensors(weft_args values, weft_tensor **out, size_t room);
/* Whether a tensor among them, or in lists, is in the memory of a device. */
bool wfi_values_on_device(weft_args values);
/* Puts `with`, one for each and in the same order, in their place. Before the list is shared only. */
void wfi_values_replace_tensors(weft_values *values, weft_tensor *const *with);
/* weft_values as a future's payload: its drop, by which it is recognised. */
void wfi_values_drop(void *values);

#endif
