/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random_things.c - values and objects behind references: made here or there, passed along, read, used, let go. An
 * object's destructor runs once, and not while somebody holds a handle who was not disturbed.
 */
#include "rpc/random.h"

static void drop_thing(void *object);

const weft_object_type thing_type = {"thing", drop_thing};

/* ---- The book of things --------------------------------------------------------------------------------------- */

thing *thing_begin(bool object)
{
    job *j = now_playing;
    thing *t = calloc(1, sizeof(*t));
    MUST_IN_JOB(t);
    t->object = object;
    t->number = 1000000 + j->thing_count++;
    t->next = j->things;
    j->things = t;
    return t;
}

void thing_made(thing *t, life *owner)
{
    MUST_IN_JOB(t->made++ == 0);
    t->owner = owner;
}

static void drop_thing(void *object)
{
    thing *t = object;
    job *j = now_playing;
    MUST_IN_JOB(t->made == 1 && t->drops++ == 0);
    for (int i = 0; i < j->life_count; i++) {
        if (!t->held[i] || is_excused(j->lives[i]) || may_not_be(t))
            continue;
        tell_where();
        fprintf(stderr, "thing %lld of life %d is dropped while life %d (actor %d) holds %d handles\n",
                (long long)t->number, t->owner->number, i, j->lives[i]->actor, t->held[i]);
        abort();
    }
}

void hold(life *l, thing *t)
{
    t->held[l->number]++;
}

void let_go(life *l, thing *t, weft_rref *rref)
{
    MUST_IN_JOB(t->held[l->number]-- > 0);
    weft_rref_unref(rref);
}

void check_confirmed(const weft_rref *rref, const entry *e, bool to_itself)
{
    MUST_IN_JOB(weft_rref_confirmed(rref) || to_itself || may_not_be(e->about));
}

void keep_handle(life *l, weft_rref *rref, thing *of, int at)
{
    handle before = l->handles[at];
    l->handles[at] = (handle){rref, of};
    if (before.rref)
        let_go(l, before.of, before.rref);
}

void drop_handles(life *l)
{
    for (int i = 0; i < HANDLES_MAX; i++)
        if (l->handles[i].rref) {
            handle h = l->handles[i];
            l->handles[i] = (handle){NULL, NULL};
            let_go(l, h.of, h.rref);
        }
}

/* ---- Steps ---------------------------------------------------------------------------------------------------- */

static bool make_here(life *l, handle *out)
{
    thing *t = thing_begin(once_in(&l->state, 2));
    weft_status status;
    thing_made(t, l);
    if (t->object)
        status = weft_rref_create_typed(l->agent, &thing_type, t, &out->rref, NULL);
    else
        status = weft_rref_create(l->agent, weft_of_i64(t->number), &out->rref, NULL);
    if (status)
        MUST_IN_JOB(is_excused(l));
    out->of = t;
    return !status;
}

static void on_made(weft_future *future, void *arg)
{
    entry *e = arg;
    const weft_error *error = weft_future_error(future);
    MUST_IN_JOB(e->done_calls++ == 0);
    entry_end(e, weft_error_code(error), inner_of(error));
    MUST_IN_JOB(error || e->about->made == 1);
}

/* By a call, or by one on what a reference names: at its owner. */
static bool make_there(life *l, const handle *on, handle *out)
{
    whom to;
    weft_target target = choose_target(l, &to);
    if (on)
        to = (whom){.rank = weft_rref_owner(on->rref), .actor = -1};
    thing *t = thing_begin(once_in(&l->state, 2));
    entry *e = entry_begin(l, on ? "derive" : "make", to, choose_limit(l));
    weft_error *error = NULL;
    weft_rpc_options how = {.timeout_ms = e->limit_ms, .error = &error, .retry.attempts = below(&l->state, 3)};
    weft_args args = WEFT_VALUES(weft_of_i64(e->id), weft_of_i64(below(&l->state, 3000)));
    weft_status status;
    e->about = t;
    e->from = on ? on->of : NULL;
    t->maker = e;
    e->may_be_refused = true;
    if (on)
        status = weft_rref_rpc_remote(on->rref, "derive", args, &how, &out->rref);
    else
        status = weft_rpc_remote(l->agent, target, "make", args, &how, &out->rref);
    out->of = t;
    if (status)
        entry_end(e, status, WEFT_OK);
    weft_error_unref(error);
    if (status)
        return false;
    e->future = weft_rref_created(out->rref);
    MUST_IN_JOB(e->future);
    e->told_ms = DEFAULT_MS;
    e->started = true;
    MUST_OK(weft_future_add_done_callback(e->future, on_made, e, NULL));
    return true;
}

/* A call that takes the handle along: it holds its own until it ends, so we may let ours go at once. */
static void pass(life *l, handle h, const char *function, int64_t more)
{
    whom to;
    weft_target target = choose_target(l, &to);
    entry *e = entry_begin(l, function, to, choose_limit(l));
    e->about = h.of;
    weft_value number = weft_of_i64(e->id), last = weft_of_i64(more), rref = weft_of_rref(h.rref);
    if (strcmp(function, "keep") == 0)
        start(e, target, WEFT_VALUES(number, last, rref), (weft_rpc_options){.wait_for_room = true});
    else
        start(e, target, WEFT_VALUES(number, rref, last), (weft_rpc_options){.wait_for_room = true});
}

static void use(life *l, handle h)
{
    entry *e = entry_begin(l, "use", (whom){.rank = weft_rref_owner(h.rref), .actor = -1}, choose_limit(l));
    weft_error *error = NULL;
    e->about = h.of;
    e->may_be_refused = true;
    weft_status status =
        weft_rref_rpc_async(h.rref, "use", WEFT_VALUES(weft_of_i64(e->id)),
                            &(weft_rpc_options){.timeout_ms = e->limit_ms, .error = &error}, &e->future);
    watch_entry(e, status);
    weft_error_unref(error);
}

static void read_it(life *l, handle h)
{
    weft_values *got;
    int64_t value, limit = 1 + below(&l->state, 300);
    weft_status status = weft_rref_to_here(h.rref, limit, &got, NULL);
    if (status == WEFT_ERR_TYPE)
        MUST_IN_JOB(h.of->object);
    if (status == WEFT_ERR_NOT_FOUND)
        MUST_IN_JOB(may_not_be(h.of));
    if (status)
        return;
    MUST_OK(weft_values_get_i64(got, 0, &value));
    weft_values_unref(got);
    MUST_IN_JOB(!h.of->object && value == h.of->number);
}

/* Makes one, and passes it on before anybody knows of it; keeps it or lets it go. */
static void step_make(life *l, handle *on)
{
    handle h;
    if (!(!on && once_in(&l->state, 2) ? make_here(l, &h) : make_there(l, on, &h)))
        return;
    hold(l, h.of);
    if (once_in(&l->state, 2))
        pass(l, h, "keep", below(&l->state, 100));
    if (!h.of->object && once_in(&l->state, 2))
        pass(l, h, "read", 1 + below(&l->state, 500));
    if (once_in(&l->state, 2))
        keep_handle(l, h.rref, h.of, below(&l->state, HANDLES_MAX));
    else
        let_go(l, h.of, h.rref);
}

/* Asks another for one of its handles. */
static void borrow(life *l)
{
    whom to;
    weft_target target = choose_target(l, &to);
    entry *e = entry_begin(l, "lend", to, choose_limit(l));
    start(e, target, WEFT_VALUES(weft_of_i64(e->id), weft_of_i64(below(&l->state, 100))),
          (weft_rpc_options){.wait_for_room = true});
}

void take_lent(entry *e, const weft_values *values)
{
    weft_rref *rref;
    life *l = e->by;
    if (weft_values_type(values, 0) != WEFT_TYPE_RREF || l->finishing)
        return;
    MUST_OK(weft_values_get_rref(values, 0, &rref));
    check_confirmed(rref, e, e->to.rank == l->rank || e->to.actor == l->actor);
    hold(l, e->about);
    keep_handle(l, weft_rref_ref(rref), e->about, below(&l->state, HANDLES_MAX));
}

void step_thing(life *l)
{
    int at = below(&l->state, HANDLES_MAX);
    handle h = l->handles[at];
    if (!h.rref) {
        if (once_in(&l->state, 3))
            borrow(l);
        else
            step_make(l, NULL);
        return;
    }
    hold(l, h.of);
    h.rref = weft_rref_ref(h.rref); /* a call may come and put another one there while we wait */
    switch (below(&l->state, 7)) {
    case 0:
    case 1:
        pass(l, h, "keep", below(&l->state, 100));
        break;
    case 2:
        pass(l, h, "read", 1 + below(&l->state, 500));
        break;
    case 3:
        use(l, h);
        break;
    case 4:
        read_it(l, h);
        break;
    case 5:
        step_make(l, once_in(&l->state, 2) ? &h : NULL);
        break;
    default:
        keep_handle(l, NULL, NULL, at);
    }
    let_go(l, h.of, h.rref);
}
