/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls_things.c - values and objects behind references: made, fetched, used, passed on, dropped. What a thing is
 * follows from the id of the call that made it. Objects are counted in the book, by the life that made them.
 */
#include "rpc/must.h"
#include "faults/calls_kinds.h"

#include <pthread.h>

#define HANDLES 12
#define THING_WORDS 5000
#define ALIVE 0x7415EEDU

/* ---- Handles -------------------------------------------------------------------------------------------------- */

typedef struct handle {
    weft_rref *rref;
    int64_t made_by; /* the call's id */
    bool object;
} handle;

static struct {
    pthread_mutex_t lock;
    handle items[HANDLES];
    bool over;
} handles = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Takes the reference; another one may go for it. */
static void keep_handle(handle one)
{
    handle old = one;
    pthread_mutex_lock(&handles.lock);
    if (!handles.over) {
        size_t at = (size_t)chance_below(HANDLES);
        old = handles.items[at];
        handles.items[at] = one;
    }
    pthread_mutex_unlock(&handles.lock);
    weft_rref_unref(old.rref);
}

/* With a reference, or NULL. */
static handle some_handle(void)
{
    pthread_mutex_lock(&handles.lock);
    handle h = handles.items[chance_below(HANDLES)];
    if (h.rref)
        h.rref = weft_rref_ref(h.rref);
    pthread_mutex_unlock(&handles.lock);
    return h;
}

void drop_things(void)
{
    handle all[HANDLES];
    pthread_mutex_lock(&handles.lock);
    memcpy(all, handles.items, sizeof(all));
    memset(handles.items, 0, sizeof(handles.items));
    handles.over = true;
    pthread_mutex_unlock(&handles.lock);
    for (int i = 0; i < HANDLES; i++)
        weft_rref_unref(all[i].rref);
}

/* ---- What is served ------------------------------------------------------------------------------------------- */

typedef struct thing {
    uint32_t mark;
    int64_t made_by;
} thing;

static void drop_thing(void *object)
{
    thing *t = object;
    if (t->mark != ALIVE)
        violation(-1, "an object is dropped that is not there any more");
    t->mark = 0;
    atomic_fetch_add(&book->lives[self.life].dropped, 1);
    free(t);
}
static const weft_object_type thing_type = {.name = "thing", .drop = drop_thing};

weft_status run_make(weft_call *call, void *user)
{
    int64_t id = weft_call_i64(call, 0);
    book_runs(id, MAKE, call);
    book_finishes(id);
    if (weft_call_bool(call, 1)) {
        thing *t = malloc(sizeof(*t));
        MUST(t);
        *t = (thing){.mark = ALIVE, .made_by = id};
        atomic_fetch_add(&book->lives[self.life].made, 1);
        weft_call_give_object(call, &thing_type, t);
        return WEFT_OK;
    }
    weft_tensor *value = make_tensor(THING_WORDS, id, RESULT);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(value)));
    weft_tensor_unref(value);
    return WEFT_OK;
}

static weft_status ends(int64_t id, weft_status status)
{
    book_finishes(id);
    return status;
}

weft_status run_use(weft_call *call, void *user)
{
    int64_t id = weft_call_i64(call, 1);
    void *object;
    book_runs(id, USE, call);
    weft_status status = weft_rref_local_typed(weft_call_rref(call, 0), &thing_type, 100, &object);
    if (status)
        return ends(id, status);
    const thing *t = object;
    if (t->mark != ALIVE)
        violation(id, "its object was dropped, though it holds a reference");
    weft_call_give(call, WEFT_VALUES(weft_of_i64(t->made_by)));
    return ends(id, WEFT_OK);
}

weft_status run_keep(weft_call *call, void *user)
{
    int64_t id = weft_call_i64(call, 0);
    book_runs(id, KEEP, call);
    keep_handle((handle){.rref = weft_rref_ref(weft_call_rref(call, 3)),
                         .made_by = weft_call_i64(call, 1),
                         .object = weft_call_bool(call, 2)});
    weft_call_give(call, WEFT_VALUES(weft_of_i64(id + 1)));
    return ends(id, WEFT_OK);
}

weft_status run_read(weft_call *call, void *user)
{
    int64_t id = weft_call_i64(call, 0), made_by = weft_call_i64(call, 1);
    weft_values *values;
    weft_tensor *tensor = NULL;
    book_runs(id, READ, call);
    weft_status status = weft_rref_to_here(weft_call_rref(call, 2), 2000, &values, NULL);
    if (status)
        return ends(id, status);
    if (weft_values_get_tensor(values, 0, &tensor))
        violation(id, "the value fetched is no tensor");
    else
        check_tensor(tensor, made_by, RESULT, "the value fetched");
    weft_values_unref(values);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(id + 1)));
    return ends(id, WEFT_OK);
}

/* ---- What is done --------------------------------------------------------------------------------------------- */

static void make_thing(void)
{
    calls_plan plan = plan_call(self.agent);
    plan.retry.attempts = 0;
    bool object = once_in(2);
    trip *t = trip_begin(MAKE, &plan, 1);
    weft_error *error = NULL;
    weft_rref *rref = NULL;
    if (!t)
        return;
    book->calls[t->id].lenient = true;
    const weft_rpc_options options = {
        .timeout_ms = plan.limit_ms, .wait_for_room = plan.wait_for_room, .error = &error};
    weft_status status = weft_rpc_remote(self.agent, plan.target, "make",
                                         WEFT_VALUES(weft_of_i64(t->id), weft_of_bool(object)), &options, &rref);
    if (status) {
        book->calls[t->id].lenient = false; /* it was not even started */
        trip_over(t, status, inner_of(error), NULL);
        weft_error_unref(error);
        return;
    }
    int64_t id = t->id;
    weft_future *made = weft_rref_created(rref);
    MUST(made);
    trip_watch(t, made);
    keep_handle((handle){.rref = rref, .made_by = id, .object = object});
}

/* A copy comes here. */
static void fetch_thing(const handle *h)
{
    calls_plan plan = plan_call(self.agent);
    plan.to = weft_rref_owner(h->rref);
    weft_future *future;
    trip *t = trip_begin(FETCH, &plan, 1);
    if (!t)
        return;
    t->more = h->made_by;
    weft_status status = weft_rref_to_here_async(h->rref, plan.limit_ms, &future);
    if (status)
        trip_over(t, status, WEFT_OK, NULL);
    else
        trip_watch(t, future);
}

static void use_thing(const handle *h)
{
    calls_plan plan = plan_call(self.agent);
    plan.to = weft_rref_owner(h->rref);
    plan.target = weft_to_rank(plan.to);
    trip *t = trip_begin(USE, &plan, 1);
    if (!t)
        return;
    t->more = h->made_by;
    t->rref = weft_rref_ref(h->rref);
    trip_start(t, WEFT_VALUES(weft_of_i64(t->id)), NULL);
}

static void pass_thing(const handle *h, calls_kind kind)
{
    calls_plan plan = plan_call(self.agent);
    trip *t = trip_begin(kind, &plan, 1);
    if (!t)
        return;
    weft_value id = weft_of_i64(t->id), made_by = weft_of_i64(h->made_by), rref = weft_of_rref(h->rref);
    if (kind == KEEP)
        trip_start(t, WEFT_VALUES(id, made_by, weft_of_bool(h->object), rref), NULL);
    else
        trip_start(t, WEFT_VALUES(id, made_by, rref), NULL);
}

void step_thing(void)
{
    handle h = some_handle();
    uint64_t what = chance_below(4);
    if (!h.rref || what == 0)
        make_thing();
    else if (what == 1)
        pass_thing(&h, KEEP);
    else if (h.object)
        use_thing(&h);
    else if (what == 2)
        fetch_thing(&h);
    else
        pass_thing(&h, READ);
    weft_rref_unref(h.rref);
}
