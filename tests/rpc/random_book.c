/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random_book.c - the book of lives and calls, and what must hold of each call: it ends once, in bounded time, with
 * a right result or a failure that fits what was done to those concerned; it runs at most once, exactly once if it
 * succeeded, and not at all if its failure said so.
 */
#include "rpc/random.h"

#define SLACK_MS 1000 /* past its limit, where something was disturbed */
#define CALM_SLACK_MS 5

job *now_playing;

void tell_where(void)
{
    fprintf(stderr, "seed %llu, %.6f s: ", (unsigned long long)now_playing->seed, (double)now_ns() / 1e9);
}

/* ---- Lives ---------------------------------------------------------------------------------------------------- */

life *life_begin(int actor, int rank)
{
    job *j = now_playing;
    life *l = calloc(1, sizeof(*l));
    MUST_IN_JOB(l && j->life_count < LIVES_MAX);
    l->actor = actor;
    l->rank = rank;
    l->number = j->life_count;
    l->tried_ns = now_ns();
    l->state = j->seed * 1000003 + (uint64_t)l->number * 101 + (uint64_t)actor;
    l->held_end = &l->held;
    l->suspect = j->cast[actor].ill || j->store_at_risk;
    j->lives[j->life_count++] = l;
    j->cast[actor].now = l;
    return l;
}

/* Its making may have failed: then its handles are good for nothing, and the owner lets go of what it may have. The
 * owner knows that earlier than the caller, also if what it was to be made from was not made. */
bool may_not_be(const thing *t)
{
    const entry *e = t->maker;
    if (t->owner && is_excused(t->owner))
        return true;
    if (!e || (e->ended && e->status == WEFT_OK))
        return false;
    if (e->from && may_not_be(e->from))
        return true;
    return (e->ended && !e->cancelled) || now_playing->budget || now_playing->queue_limit || is_excused(e->by) ||
           now_ns() - e->begun_ns >= (uint64_t)e->limit_ms * NS_PER_MS;
}

bool is_excused(const life *l)
{
    return l->suspect || l->killed || l->over || l->leaving || now_playing->store_at_risk;
}

/* ---- Entries -------------------------------------------------------------------------------------------------- */

entry *entry_begin(life *by, const char *function, whom to, int64_t limit_ms)
{
    job *j = now_playing;
    entry *e = calloc(1, sizeof(*e));
    if (j->entry_count == j->entry_room) {
        j->entry_room = j->entry_room * 2 + 64;
        j->entries = realloc(j->entries, (size_t)j->entry_room * sizeof(*j->entries));
    }
    MUST_IN_JOB(e && j->entries);
    *e = (entry){.id = j->entry_count,
                 .function = function,
                 .by = by,
                 .to = to,
                 .limit_ms = limit_ms,
                 .begun_ns = now_ns(),
                 .worked_ns = by->worked_ns,
                 .attempts = 1};
    j->entries[j->entry_count++] = e;
    e->next = by->entries;
    by->entries = e;
    return e;
}

entry *entry_of(const weft_call *call)
{
    job *j = now_playing;
    size_t at = weft_call_type(call, 0) == WEFT_TYPE_RREF ? 1 : 0; /* calls on references have them first */
    int64_t id = weft_call_i64(call, at);
    MUST_IN_JOB(id >= 0 && id < j->entry_count);
    entry *e = j->entries[id];
    for (int i = 0; i < e->many; i++) /* of a multicast: ours */
        if (j->entries[id + i]->to.rank == weft_agent_rank(weft_call_agent(call)))
            return j->entries[id + i];
    return e;
}

entry *entry_runs(const weft_call *call)
{
    entry *e = entry_of(call);
    weft_worker here = weft_agent_worker(weft_call_agent(call), weft_agent_rank(weft_call_agent(call)));
    e->runs++;
    e->inside++;
    e->at_home |= e->by->agent == weft_call_agent(call);
    if (e->runs > e->attempts)
        fprintf(stderr, "%s of life %d runs %d times\n", e->function, e->by->number, e->runs);
    MUST_IN_JOB(e->runs <= e->attempts);
    MUST_IN_JOB(!e->ended || e->status != WEFT_OK || e->attempts > 1); /* it ran before */
    MUST_IN_JOB(e->to.rank < 0 || e->to.rank == here.rank);
    MUST_IN_JOB(!e->to.incarnation || e->to.incarnation == here.incarnation);
    MUST_IN_JOB(weft_call_from(call) == e->by->rank || e->by->rank < 0);
    return e;
}

weft_status entry_answers(entry *e, weft_status status)
{
    e->inside--;
    e->answered = status;
    e->answered_ns = now_ns();
    return status;
}

/* ---- What fits ------------------------------------------------------------------------------------------------ */

/* Whom it calls. */
static bool is_target(const entry *e, const life *l)
{
    if (e->to.rank >= 0)
        return l->rank == e->to.rank || l->rank < 0 || l->moved;
    return l->actor == e->to.actor;
}

static bool concerns(const entry *e, const life *l)
{
    if (e->about && (e->about->owner == l || (e->about->maker && e->about->maker != e && concerns(e->about->maker, l))))
        return true; /* the owner confirms every handle */
    if (e->from && (e->from->owner == l || (e->from->maker && concerns(e->from->maker, l))))
        return true;
    return is_target(e, l);
}

static bool some_suspect(const entry *e)
{
    for (int i = 0; i < now_playing->life_count; i++)
        if (concerns(e, now_playing->lives[i]) && now_playing->lives[i]->suspect)
            return true;
    return now_playing->store_at_risk;
}

static bool some_leaving(const entry *e)
{
    for (int i = 0; i < now_playing->life_count; i++)
        if (concerns(e, now_playing->lives[i]) && now_playing->lives[i]->leaving)
            return true;
    return false;
}

/* Its time, or its attempt's, has passed: its own callback may be a little later. */
static bool time_is_over(const entry *e)
{
    uint64_t took_ns = now_ns() - e->begun_ns;
    return (e->limit_ms >= 0 && took_ns >= (uint64_t)e->limit_ms * NS_PER_MS) ||
           (e->attempt_ms && took_ns >= (uint64_t)e->attempt_ms * NS_PER_MS);
}

/* The call that it was made within has ended, or nobody wants it. */
static bool parent_is_over(const entry *e)
{
    for (const entry *p = e->parent; p; p = p->parent)
        if (p->cancelled || p->ended || time_is_over(p) || p->attempts > 1 || p->by->over || p->by->killed ||
            p->by->leaving || some_suspect(p) || p->by->suspect)
            return true;
    return false;
}

/* A handle is not seen, and cannot be used, before the owner knows it: as long as its making takes. */
static bool waits_for(const thing *t)
{
    return t && t->maker && !(t->maker->ended && t->maker->status == WEFT_OK);
}

static bool timeout_fits(const entry *e)
{
    if (e->attempt_ms && now_ns() - e->begun_ns >= (uint64_t)e->attempt_ms * NS_PER_MS)
        return true;
    if (e->limit_ms < 0 || now_ns() - e->begun_ns < (uint64_t)e->limit_ms * NS_PER_MS)
        return parent_is_over(e); /* it has the parent's limit, too */
    return e->waits || waits_for(e->about) || waits_for(e->from) || e->limit_ms < PATIENT_MS || some_suspect(e) ||
           e->by->suspect;
}

/* What the failing handler returned, or the reason why the result could not be made. */
static bool remote_fits(const entry *e, weft_status inner)
{
    return e->runs > 0 && e->answered && (inner == e->answered || e->answered == WEFT_ERR_REMOTE || e->attempts > 1);
}

/* The caller must know whom it calls: both are of the first of a job, or it was there before the caller came, or its
 * coming was told. */
static bool must_know(const entry *e, const life *l)
{
    const life *by = e->by;
    if (l == by || !l->opened_ns)
        return l == by;
    bool together = !now_playing->elastic && !by->late && !l->late;
    bool told = e->to.actor < 0 && by->there[l->rank] == THERE && by->there_ns[l->rank] < e->begun_ns;
    return together || told || l->opened_ns < by->tried_ns;
}

/* Nobody of that rank or name is there, as far as the caller can know. */
static bool may_miss(const entry *e)
{
    const job *j = now_playing;
    if (!j->elastic && !e->by->late && e->to.actor < 0)
        return false; /* ranks of the first are known, also of those who went */
    for (int i = 0; i < j->life_count; i++)
        if (is_target(e, j->lives[i]) && must_know(e, j->lives[i]) && !is_excused(j->lives[i]))
            return false;
    return true;
}

/* Of the called worker, the function or a reference: of one among the results, it has run. */
static bool not_found_fits(const entry *e, weft_status inner)
{
    bool lent = strcmp(e->function, "lend") == 0;
    if (e->runs > 0 && e->attempts == 1 && !(lent && inner == WEFT_ERR_UNKNOWN))
        return false;
    if (e->about && may_not_be(e->about))
        return true;
    return e->strange || (e->from && may_not_be(e->from)) || may_miss(e);
}

static bool fits(const entry *e, weft_status status, weft_status inner)
{
    const job *j = now_playing;
    switch (status) {
    case WEFT_OK:
        return true;
    case WEFT_ERR_TIMEOUT:
        return timeout_fits(e);
    case WEFT_ERR_CANCELLED:
        return e->cancelled || parent_is_over(e);
    case WEFT_ERR_PEER_DEAD:
        return some_suspect(e) || ((e->to.incarnation || e->about || e->from) &&
                                   some_leaving(e)); /* of an incarnation: either, once it is gone */
    case WEFT_ERR_PEER_LEFT:
        return some_leaving(e);
    case WEFT_ERR_NOT_FOUND:
        return not_found_fits(e, inner);
    case WEFT_ERR_BUSY:
        return j->budget > 0;
    case WEFT_ERR_UNKNOWN: /* or an attempt may have run, and the last one did not */
        return j->budget > 0 || (e->attempts > 1 && e->inner == WEFT_ERR_UNKNOWN);
    case WEFT_ERR_UNREACHABLE: /* a cut that is long makes suspect */
        return some_suspect(e) || e->by->suspect;
    case WEFT_ERR_TOO_LARGE: /* it would never fit */
        return j->budget && e->sent && weft_tensor_nbytes(e->sent) > j->budget;
    case WEFT_ERR_AGAIN:
        return j->queue_limit > 0 && e->may_be_refused;
    case WEFT_ERR_EVICTED:
        return e->by->suspect || j->store_at_risk;
    case WEFT_ERR_STORE_LOST:
        return j->store_at_risk || e->by->suspect;
    case WEFT_ERR_CLOSED:
        return e->by->leaving;
    case WEFT_ERR_REMOTE:
        return remote_fits(e, inner);
    default:
        return false;
    }
}

/* It may have failed as the making of what its reference names did, which its caller called off at the owner when
 * its time was over. */
static bool fits_making(const entry *e, const thing *t, weft_status status, weft_status inner)
{
    if (!t || !t->maker || t->maker == e)
        return false;
    return fits(t->maker, status, inner) || (status == WEFT_ERR_CANCELLED && t->maker->status == WEFT_ERR_TIMEOUT);
}

/* Whether a failure says that it surely did not run. */
static bool says_not_run(const entry *e)
{
    bool of_another = e->told_ms && e->started; /* of the call that was to tell of its end */
    return !of_another && promises_not_run(e->status, e->inner);
}

/* Its future is complete at its limit, or, if it is to its caller's own worker, when its handler is over. The callback
 * that tells us of it waits for a worker of the caller's: as long, at most, as handlers that slept there without a wait
 * of weft's, for which no other worker takes their place. */
static bool in_time(const entry *e)
{
    if (e->limit_ms < 0 || (e->at_home && e->inside && e->by->leaving))
        return true; /* the latter is finished by nobody: it ended when its worker began to close */
    int64_t slack_ms = now_playing->shaken ? SLACK_MS : CALM_SLACK_MS;
    uint64_t due_ns = e->begun_ns + (uint64_t)(e->limit_ms + e->told_ms) * NS_PER_MS;
    if (e->at_home && e->answered_ns > due_ns)
        due_ns = e->answered_ns;
    uint64_t worked_ns = e->by->worked_ns - e->worked_ns;
    return now_ns() <= due_ns + (uint64_t)slack_ms * NS_PER_MS + e->by->paused_ns + worked_ns;
}

static void show(const entry *e);

static void show_thing(const char *what, const thing *t)
{
    if (!t)
        return;
    fprintf(stderr, "%s: thing %lld of life %d, made %d times, dropped %d times%s\n", what, (long long)t->number,
            t->owner ? t->owner->number : -1, t->made, t->drops, t->maker ? ", by:" : "");
    if (t->maker)
        show(t->maker);
}

static void show(const entry *e)
{
    fprintf(stderr,
            "call %lld, %s, of life %d (actor %d) to rank %d (actor %d, incarnation %u): %s (%s), limit %lld ms, took "
            "%.3f ms, runs %d, answered %s%s%s\n",
            (long long)e->id, e->function, e->by->number, e->by->actor, e->to.rank, e->to.actor, e->to.incarnation,
            weft_status_name(e->status), weft_status_name(e->inner), (long long)e->limit_ms,
            (double)(now_ns() - e->begun_ns) / 1e6, e->runs, weft_status_name(e->answered),
            e->cancelled ? ", cancelled" : "", e->parent ? ", within:" : "");
    if (e->parent)
        show(e->parent);
    if (e->about && e->about->maker != e)
        show_thing("about", e->about);
    show_thing("from", e->from);
}

void show_running(void)
{
    for (int64_t i = 0; i < now_playing->entry_count; i++)
        if (now_playing->entries[i]->inside)
            show(now_playing->entries[i]);
}

#define MUST_OF(e, condition)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            tell_where();                                                                                              \
            show(e);                                                                                                   \
            MUST(condition);                                                                                           \
        }                                                                                                              \
    } while (0)

void entry_end(entry *e, weft_status status, weft_status inner)
{
    MUST_OF(e, !e->ended);
    e->ended = true;
    e->status = status;
    e->inner = inner;
    e->ended_ns = now_ns();
    MUST_OF(e, fits(e, status, inner) || fits_making(e, e->about, status, inner) ||
                   fits_making(e, e->from, status, inner));
    MUST_OF(e, in_time(e));
    MUST_OF(e, status != WEFT_OK || e->runs > 0 || e->strange);
    MUST_OF(e, !says_not_run(e) || e->runs == 0);
    MUST_OF(e, !e->at_home || !e->inside || e->keeps_none || e->attempts > 1 || e->told_ms || e->by->leaving);
}

/* ---- The end -------------------------------------------------------------------------------------------------- */

static void check_entry(const entry *e)
{
    if (e->by->killed)
        return;
    MUST_OF(e, e->ended);
    MUST_OF(e, !e->future || e->done_calls == 1);
    MUST_OF(e, !says_not_run(e) || e->runs == 0); /* nor afterwards */
    MUST_OF(e, e->runs <= e->attempts);
    MUST_OF(e, e->inside == 0 || now_playing->kills > 0);
}

static void check_thing(const thing *t)
{
    if (!t->object)
        return;
    bool owner_died = t->owner && t->owner->killed;
    if (t->made > 1 || t->drops > t->made || (t->drops < t->made && !owner_died))
        fprintf(stderr, "thing %lld: made %d times, dropped %d times\n", (long long)t->number, t->made, t->drops);
    MUST_IN_JOB(t->made <= 1 && t->drops <= t->made);
    MUST_IN_JOB(t->drops == t->made || owner_died);
}

static uint64_t mixed_in(uint64_t digest, uint64_t value)
{
    return (digest ^ value) * UINT64_C(0x100000001b3) + (digest >> 32);
}

uint64_t digest_book(void)
{
    const job *j = now_playing;
    uint64_t digest = weft_sim_trace_hash(j->sim);
    for (int64_t i = 0; i < j->entry_count; i++) {
        const entry *e = j->entries[i];
        digest = mixed_in(digest, (uint64_t)e->status << 32 ^ (uint64_t)(uint32_t)e->inner);
        digest = mixed_in(mixed_in(digest, e->begun_ns), e->ended_ns);
        digest = mixed_in(digest, (uint64_t)e->runs << 32 ^ (uint64_t)e->parts_seen);
    }
    for (const thing *t = j->things; t; t = t->next)
        digest = mixed_in(digest, (uint64_t)t->made << 32 ^ (uint64_t)t->drops);
    return mixed_in(digest, now_ns());
}

void check_book(void)
{
    const job *j = now_playing;
    for (int i = 0; i < j->life_count; i++)
        MUST_IN_JOB(j->lives[i]->over || j->lives[i]->killed);
    for (int64_t i = 0; i < j->entry_count; i++)
        check_entry(j->entries[i]);
    for (const thing *t = j->things; t; t = t->next)
        check_thing(t);
}
