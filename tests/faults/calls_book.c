/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls_book.c - the book, and what must hold of each call: it runs at most once (at most once an attempt, where it
 * is tried again), exactly once if it succeeded, and not at all, now and later, if its failure said so; and every
 * call ends.
 */
#include "faults/calls.h"

#include <stdarg.h>
#include <stdio.h>

const char *const calls_kind_names[KINDS] = {
    [NO_CALL] = "none",      [PLAIN] = "plain",
    [INLINE] = "inline",     [URGENT] = "urgent",
    [LAZY] = "lazy",         [ECHO] = "echo",
    [HAUL] = "haul",         [PLACE] = "place",
    [SUM] = "sum",           [SEVERAL] = "several",
    [GATHER] = "gather",     [GATHER_LATER] = "gather later",
    [STREAM] = "stream",     [HOP] = "hop",
    [HOLD] = "hold",         [LINGER] = "linger",
    [FAIL] = "fail",         [RETAIN] = "retain",
    [ALL] = "all",           [MAKE] = "make",
    [FETCH] = "(fetch)",     [USE] = "use",
    [KEEP] = "keep",         [READ] = "read",
    [BARRIER] = "(barrier)", [ALL_GATHER] = "(all-gather)",
};

/* Ids begin anew: nobody is left who could run those of the job before. */
void book_new_job(void)
{
    memset(book->calls, 0, (size_t)atomic_load(&book->next_call) * sizeof(*book->calls));
    atomic_store(&book->next_call, 0);
    memset(book->came, 0, sizeof(book->came));
}

static int describe(char *out, size_t room, int64_t id)
{
    const calls_call *c = &book->calls[id];
    return snprintf(
        out, room,
        "call %lld (%s, from %d to %d incarnation %u, of life %u, limit %d ms, %d attempts) %s %s (%s), began %u "
        "times, finished %u: ",
        (long long)id, calls_kind_names[c->kind], c->from, c->to, c->incarnation, c->life, c->limit_ms, c->attempts,
        atomic_load(&c->told) ? "ended with" : "is under way", weft_status_name((weft_status)c->status),
        weft_status_name((weft_status)c->inner), atomic_load(&c->begun), atomic_load(&c->finished));
}

void violation(int64_t id, const char *format, ...)
{
    char text[sizeof(*board->texts)];
    int length = 0;
    if (id >= 0 && id < atomic_load(&book->next_call)) {
        atomic_store(&book->calls[id].shown, true);
        length = describe(text, sizeof(text), id);
    }
    va_list arguments;
    va_start(arguments, format);
    if ((size_t)length < sizeof(text))
        vsnprintf(text + length, sizeof(text) - (size_t)length, format, arguments);
    va_end(arguments);
    fault(FAULT_WRONG, "%s", text);
}

int64_t book_begin(calls_kind kind, const calls_plan *plan, int count)
{
    int64_t id = atomic_fetch_add(&book->next_call, count);
    if (id + count > CALLS_MAX) {
        atomic_fetch_sub(&book->next_call, count);
        return -1;
    }
    for (int i = 0; i < count; i++) {
        calls_call *c = &book->calls[id + i];
        c->attempts = (uint8_t)(plan->retry.attempts ? plan->retry.attempts : 1);
        c->from = (int8_t)self.rank;
        c->to = (int8_t)(count > 1 ? i : plan->to);
        c->incarnation = plan->target.incarnation;
        c->life = self.life;
        c->begun_at = atomic_load(&board->quiet);
        c->limit_ms = (int32_t)plan->limit_ms;
        c->kind = (uint8_t)kind;
    }
    return id;
}

static bool is_served(const calls_call *c) /* by a handler of ours */
{
    return c->kind != FETCH && c->kind != BARRIER && c->kind != ALL_GATHER;
}

/* What ran must fit what was told. */
static void check_told(int64_t id)
{
    const calls_call *c = &book->calls[id];
    unsigned begun = atomic_load(&c->begun), finished = atomic_load(&c->finished);
    if (!is_served(c) || atomic_load(&c->shown))
        return;
    if (begun > c->attempts)
        violation(id, "it ran too often");
    else if (c->status == WEFT_OK && (begun == 0 || finished == 0))
        violation(id, "it is said to have succeeded, and did not run to its end");
    else if (c->status == WEFT_ERR_REMOTE && begun == 0 && !c->lenient)
        violation(id, "its handler is said to have failed, and did not run");
    else if (promises_not_run(c->status, c->inner) && !c->lenient && begun > 0)
        violation(id, "it ran, though the failure says that it surely did not");
}

void book_end(int64_t id, weft_status status, weft_status inner)
{
    calls_call *c = &book->calls[id];
    if (atomic_load(&c->told)) {
        violation(id, "it ended again, with %s", weft_status_name(status));
        return;
    }
    c->status = (int16_t)status;
    c->inner = (int16_t)inner;
    atomic_store(&c->told, 1);
    board_count(c->kind, status);
    check_told(id);
}

void book_runs(int64_t id, calls_kind kind, const weft_call *call)
{
    if (id < 0 || id >= atomic_load(&book->next_call)) {
        violation(-1, "%s runs with id %lld, which was never given", calls_kind_names[kind], (long long)id);
        return;
    }
    calls_call *c = &book->calls[id];
    int rank = weft_agent_rank(weft_call_agent(call));
    atomic_fetch_add(&c->begun, 1);
    if (c->kind != kind)
        violation(id, "it runs as %s", calls_kind_names[kind]);
    if (c->to != rank)
        violation(id, "it runs at rank %d", rank);
    if (c->from != weft_call_from(call))
        violation(id, "it runs as if it came from %d", weft_call_from(call));
    if (c->incarnation && c->incarnation != weft_agent_worker(weft_call_agent(call), rank).incarnation)
        violation(id, "it runs in another incarnation");
    if (atomic_load(&c->told))
        check_told(id);
    else if (atomic_load(&c->begun) > c->attempts)
        violation(id, "it runs too often");
}

void book_finishes(int64_t id)
{
    if (id >= 0 && id < CALLS_MAX)
        atomic_fetch_add(&book->calls[id].finished, 1);
}

void book_check(void)
{
    int64_t count = atomic_load(&book->next_call);
    for (int64_t id = 0; id < count; id++) {
        calls_call *c = &book->calls[id];
        if (c->kind == NO_CALL || atomic_load(&c->shown))
            continue;
        if (atomic_load(&c->told))
            check_told(id);
        else if (atomic_load(&c->begun) > c->attempts)
            violation(id, "it ran too often");
        else if (!atomic_load(&board->lives[c->life].killed))
            violation(id, "its caller ended well, and was never told");
    }
    for (int life = 1; life < LIVES_MAX; life++) {
        int made = atomic_load(&book->lives[life].made), dropped = atomic_load(&book->lives[life].dropped);
        if (dropped > made || (dropped < made && !atomic_load(&board->lives[life].killed)))
            violation(-1, "life %d made %d objects, of which %d were dropped", life, made, dropped);
        atomic_store(&book->lives[life].made, 0);
        atomic_store(&book->lives[life].dropped, 0);
    }
}

void book_check_answers(void)
{
    int64_t count = atomic_load(&book->next_call);
    unsigned now = atomic_load(&board->quiet);
    for (int64_t id = 0; id < count; id++) {
        calls_call *c = &book->calls[id];
        int64_t limit_ms = c->limit_ms < 0 ? DEFAULT_MS : c->limit_ms;
        int64_t age_ms = (int64_t)(now - c->begun_at) * TICK_MS;
        if (c->kind == NO_CALL || atomic_load(&c->told) || atomic_load(&c->shown) || age_ms <= limit_ms + PATIENCE_MS)
            continue;
        if (!atomic_load(&board->lives[c->life].killed))
            violation(id, "it has not ended after %lld ms in which all was quiet", (long long)age_ms);
    }
}
