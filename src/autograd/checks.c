/* SPDX-License-Identifier: Apache-2.0 */
/* checks.c - see checks.h. */
#include "autograd/checks.h"

#include "autograd/tape.h"
#include "base/alloc.h"
#include "base/error.h"
#include "base/text/log.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ORPHANS_MAX 1024 /* checks without a tape; then a new tape waits for its stream */
#define PAGE_REPORTS 64
#define ROUND_BITS 32 /* of the number of a check: above them is the round */

/* Page-locked memory of several reports: a loop that never waits, with a tape for each step, must not allocate. */
typedef struct wfi_page {
    struct wfi_page *next;
    wfi_storage *memory;
    uint64_t used; /* a bit for each report */
} wfi_page;

/* Checks whose tape or optimizer has ended. LOCK. `lock` guards all fields, the pages, and `page` of all checks. */
static struct orphans {
    pthread_mutex_t lock;
    wfi_checks *first; /* the newest first */
    size_t count;
    wfi_page *pages;
} orphans = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Frees the checks and their report; no kernel uses the report any longer. [lock] */
static void drop(wfi_checks *checks)
{
    wfi_page *p = checks->page, **at = &orphans.pages;
    int number = (int)(checks->report - (wfi_report *)wfi_storage_data(p->memory)); /* of the report, in its page */
    p->used &= ~(UINT64_C(1) << number);
    if (p->used == 0) {
        while (*at != p)
            at = &(*at)->next;
        *at = p->next;
        wfi_storage_unref(p->memory);
        free(p);
    }
    free(checks->items);
    free(checks);
}

/* A page with a free report, a new one if necessary; NULL: no memory. [lock] */
static wfi_page *find_page(int device)
{
    wfi_page *p = orphans.pages;
    while (p && p->used == UINT64_MAX)
        p = p->next;
    if (p)
        return p;
    p = wfi_calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    if (wfi_storage_create(WFI_MEMORY_PINNED, device, PAGE_REPORTS * sizeof(wfi_report), &p->memory) != WEFT_OK) {
        free(p);
        return NULL;
    }
    p->next = orphans.pages;
    orphans.pages = p;
    return p;
}

/* Gives the checks a zeroed report. False: no memory. [lock] */
static bool reserve_report(wfi_checks *checks, int device)
{
    checks->page = find_page(device);
    if (!checks->page)
        return false;
    int number = __builtin_ctzll(~checks->page->used);
    checks->page->used |= UINT64_C(1) << number;
    checks->report = (wfi_report *)wfi_storage_data(checks->page->memory) + number;
    memset(checks->report, 0, sizeof(*checks->report));
    return true;
}

/* ---- The words of a fault ---- */

void wfi_fault_text(wfi_check_kind kind, int64_t size, const wfi_report_slot *found, char text[WFI_FAULT_TEXT])
{
    long long place = found->place, value = found->value, before = found->before, end = size;
    if (kind == WFI_CHECK_INDEX)
        snprintf(text, WFI_FAULT_TEXT, "element %lld of the index is %lld, not in [0, %lld)", place, value, end);
    else if (kind == WFI_CHECK_TARGET)
        snprintf(text, WFI_FAULT_TEXT, "element %lld of the target is %lld: a target is not in [0, %lld)", place, value,
                 end);
    else if (kind == WFI_CHECK_OFFSETS && place == 0)
        snprintf(text, WFI_FAULT_TEXT, "offset 0 is %lld, not 0", value);
    else if (kind == WFI_CHECK_OFFSETS)
        snprintf(text, WFI_FAULT_TEXT, "offset %lld is %lld, not in [%lld, %lld]", place, value, before, end);
    else if (kind == WFI_CHECK_ROWS)
        snprintf(text, WFI_FAULT_TEXT,
                 "row %lld is no distribution: wants weights that are finite, not negative, and not all 0", place);
    else
        snprintf(text, WFI_FAULT_TEXT, "an element of the divisor is 0: integers cannot be divided by 0");
}

/* The fault of a check that is done; NULL: there is none. */
static const wfi_report_slot *first_fault(const wfi_checks *checks)
{
    const wfi_report_slot *first = NULL;
    for (int i = 0; i < WFI_REPORT_SLOTS; i++) {
        const wfi_report_slot *slot = &checks->report->slots[i];
        if (slot->check == 0)
            continue;
        if (!first || slot->check < first->check || (slot->check == first->check && slot->place < first->place))
            first = slot;
    }
    return first;
}

/* The operands of a message are those of an operator that has failed at once. */
static weft_error *error_of(const wfi_checks *checks, const wfi_report_slot *found)
{
    const wfi_check *c = &checks->items[(found->check & UINT32_MAX) - 1];
    if (c->error)
        return c->error(c->gradient, c->size, found);
    char fault[WFI_FAULT_TEXT], operands[WFI_TENSORS_TEXT];
    weft_tensor like[WFI_OP_INPUTS], *given[WFI_OP_INPUTS];
    for (int i = 0; i < c->operands; i++) {
        like[i].dtype = c->given[i].dtype;
        like[i].shape = c->given[i].shape;
        given[i] = c->given[i].is_there ? &like[i] : NULL;
    }
    wfi_fault_text(c->kind, c->size, found, fault);
    wfi_tensors_text((weft_tensors){given, (size_t)c->operands}, operands);
    wfi_error_detail detail = {.code = WEFT_ERR_INVALID, .function = c->name, .worker = -1};
    return wfi_error_create(&detail, "%s(%s): %s", c->name, operands, fault);
}

/* ---- Queueing a check ---- */

/* Logs the faults of orphans that are done, and frees these. [lock] */
static void log_done_orphans(void)
{
    for (wfi_checks **at = &orphans.first; *at;) {
        wfi_checks *checks = *at;
        if (!wfi_stream_passed(&checks->mark)) {
            at = &checks->next;
            continue;
        }
        const wfi_report_slot *found = first_fault(checks);
        weft_error *error = !found ? NULL : error_of(checks, found);
        if (found)
            wfi_log(WEFT_LOG_ERROR, "on a tape or in an optimizer that ended before anything waited for it: %s",
                    !error ? "out of memory" : weft_error_message(error));
        weft_error_unref(error);
        *at = checks->next;
        orphans.count--;
        drop(checks);
    }
}

static wfi_checks *new_checks(weft_stream *stream)
{
    wfi_checks *checks = wfi_calloc(1, sizeof(*checks));
    if (!checks)
        return NULL;
    pthread_mutex_lock(&orphans.lock);
    log_done_orphans();
    bool many = orphans.count >= ORPHANS_MAX, reserved = reserve_report(checks, stream->device);
    pthread_mutex_unlock(&orphans.lock);
    if (!reserved) {
        free(checks);
        return NULL;
    }
    if (many)
        (void)wfi_stream_wait(stream); /* so that the next tape finds them done */
    checks->mark = wfi_stream_mark_now(stream);
    return checks;
}

/* The checks of the list on this stream, new ones if there are none. NULL: out of memory. */
static wfi_checks *checks_of(wfi_checks **list, weft_stream *stream)
{
    wfi_checks *checks = *list;
    while (checks && (checks->mark.id != stream->id || checks->mark.device != stream->device))
        checks = checks->next;
    if (checks)
        return checks;
    checks = new_checks(stream);
    if (!checks)
        return NULL;
    checks->next = *list;
    *list = checks;
    return checks;
}

wfi_checks *wfi_checks_add(wfi_checks **list, weft_stream *stream, const wfi_check *check)
{
    wfi_checks *checks = checks_of(list, stream);
    if (!checks)
        return NULL;
    if (checks->count == checks->room) {
        size_t room = checks->room == 0 ? 8 : 2 * checks->room;
        wfi_check *grown = realloc(checks->items, room * sizeof(*grown));
        if (!grown)
            return NULL;
        checks->items = grown;
        checks->room = room;
    }
    checks->items[checks->count++] = *check;
    return checks;
}

wfi_checks *wfi_checks_repeat(wfi_checks **list, weft_stream *stream, const wfi_check *check, uint32_t round,
                              int64_t *number)
{
    wfi_checks *checks = checks_of(list, stream);
    size_t i = 0;
    while (checks && i < checks->count &&
           (checks->items[i].error != check->error || checks->items[i].gradient != check->gradient))
        i++;
    if (checks && i == checks->count)
        checks = wfi_checks_add(list, stream, check);
    *number = (int64_t)round << ROUND_BITS | (int64_t)(i + 1);
    return checks;
}

/* ---- After a wait ---- */

weft_error *wfi_checks_join(weft_error *first, weft_error *later)
{
    if (!first || !later)
        return first ? first : later;
    wfi_error_detail detail = {.code = weft_error_code(first),
                               .remote_code = wfi_error_remote_code(first),
                               .function = weft_error_function(first),
                               .worker = weft_error_worker(first)};
    weft_error *both = wfi_error_create(&detail, "%s; the GPU also reported: %s", weft_error_message(first),
                                        weft_error_message(later));
    weft_error_unref(first);
    weft_error_unref(later);
    return both;
}

weft_error *wfi_checks_collect(wfi_checks **list)
{
    weft_error *error = NULL;
    if (!*list)
        return NULL;
    pthread_mutex_lock(&orphans.lock);
    for (wfi_checks **at = list; *at;) {
        wfi_checks *checks = *at;
        if (!wfi_stream_passed(&checks->mark)) {
            at = &checks->next;
            continue;
        }
        const wfi_report_slot *found = first_fault(checks);
        if (found)
            error = wfi_checks_join(error, error_of(checks, found));
        *at = checks->next;
        drop(checks);
    }
    pthread_mutex_unlock(&orphans.lock);
    return error;
}

void wfi_tape_collect_checks(weft_tape *tape)
{
    weft_error *found = wfi_checks_collect(&tape->checks);
    if (!found)
        return;
    if (tape->error && !wfi_pointers_push(&tape->old_errors, tape->error)) {
        wfi_log(WEFT_LOG_ERROR, "on a tape that had failed before: %s", weft_error_message(found));
        weft_error_unref(found);
        return;
    }
    tape->error = wfi_checks_join(weft_error_ref(tape->error), found);
}

void wfi_tape_collect_last_checks(weft_tape *tape)
{
    const weft_error *before = tape->error;
    wfi_tape_collect_checks(tape);
    if (tape->error != before)
        wfi_log(WEFT_LOG_ERROR, "on a tape that was closed without asking for its status: %s",
                weft_error_message(tape->error));
}

void wfi_checks_log_done(void)
{
    pthread_mutex_lock(&orphans.lock);
    log_done_orphans();
    pthread_mutex_unlock(&orphans.lock);
}

void wfi_checks_orphan(wfi_checks **list)
{
    if (!*list)
        return;
    wfi_checks *last = *list;
    size_t count = 1;
    for (; last->next; last = last->next)
        count++;
    pthread_mutex_lock(&orphans.lock);
    last->next = orphans.first;
    orphans.first = *list;
    orphans.count += count;
    log_done_orphans();
    pthread_mutex_unlock(&orphans.lock);
    *list = NULL;
}

void wfi_tape_release_checks(weft_tape *tape)
{
    if (!tape->parent) {
        wfi_checks_orphan(&tape->checks);
        return;
    }
    wfi_checks **end = &tape->checks;
    while (*end)
        end = &(*end)->next;
    *end = tape->parent->checks;
    tape->parent->checks = tape->checks;
    tape->checks = NULL;
}
