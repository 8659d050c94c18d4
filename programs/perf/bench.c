/* SPDX-License-Identifier: Apache-2.0 */
/* bench.c - see bench.h. */
#include "perf/bench.h"

#include "perf/serve.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TURNS 4
#define END_MS 10000
#define JOIN_MS 15000
#define BULK_BYTES (4 << 20) /* of a tensor that needs the bulk lane */

/* ---- Opening and closing ---------------------------------------------------------------------------------------- */

static bool open_local(bench *b, int workers)
{
    weft_error *error = NULL;
    (void)setenv("WEFT_FABRIC", b->list, 1); /* of the children too */
    (void)unsetenv("WEFT_NAME");             /* names are unique */
    (void)unsetenv("WEFT_ELASTIC");
    weft_status status = weft_job_open(&(weft_job_options){.count = workers - 1}, &b->job, &error);
    if (status)
        return task_fail_status(b->to, "starting the workers", status, error);
    weft_agent_options options = {
        .functions = service_functions, .function_count = service_function_count, .job = b->job};
    status = weft_agent_open(&options, &b->agent, &error);
    if (status)
        return task_fail_status(b->to, "opening the agent", status, error);
    b->peer = 1;
    b->world = workers;
    return true;
}

static bool join_remote(bench *b)
{
    char what[320];
    weft_error *error = NULL;
    weft_agent_options options = serve_options(b->o->to_host, (int)b->o->to_port, b->list);
    (void)unsetenv("WEFT_NAME"); /* the other side may have the same */
    options.rank = WEFT_ANY_RANK;
    options.rendezvous_timeout_ms = JOIN_MS;
    weft_status status = weft_agent_open(&options, &b->agent, &error);
    snprintf(what, sizeof(what), "joining the weft-perf at %s, port %d", b->o->to_host, (int)b->o->to_port);
    if (status)
        return task_fail_status(b->to, what, status, error);
    b->peer = 0;
    b->world = 2;
    return true;
}

static void end_job(bench *b)
{
    weft_agent_stop(b->agent);
    b->agent = NULL;
    (void)!weft_job_close(b->job, 1000, NULL);
    b->job = NULL;
}

/* Whether the lists have a fabric in common. */
static bool share_fabric(const char *ours, const char *theirs)
{
    char item[32];
    for (const char *at = ours; next_item(&at, item, sizeof(item));)
        if (list_has(theirs, item))
            return true;
    return false;
}

static void explain_absent(bench *b)
{
    char theirs[128], text[600];
    serve_list(b->agent, theirs, sizeof(theirs));
    if (*theirs && !share_fabric(b->list, theirs))
        snprintf(b->absent, sizeof(b->absent),
                 "%s does not reach the other side, which has only %s: start weft-perf --serve without --fabric, or "
                 "measure with --fabric %s",
                 b->fabric, theirs, theirs);
    else if (weft_agent_fabric(b->agent, b->peer, WEFT_LANE_CONTROL, text, sizeof(text)) == WEFT_OK)
        snprintf(b->absent, sizeof(b->absent), "%s does not reach the other side: %s", b->fabric, text);
}

/* The first call opens the control lane. After it, weft knows over which fabric the bulk lane would go. */
static bool greet(bench *b, bool *is_absent)
{
    weft_error *error = NULL;
    weft_rpc_options options = {.timeout_ms = SERVICE_CALL_MS, .error = &error};
    double start = measure_now_us();
    weft_status status = weft_rpc_sync(b->agent, weft_to_rank(b->peer), "inline", WEFT_NO_VALUES, &options, NULL);
    b->first_call_us = measure_now_us() - start;
    *is_absent = status == WEFT_ERR_UNREACHABLE;
    if (*is_absent) {
        weft_error_unref(error);
        explain_absent(b);
    }
    return !status || (*is_absent ? false : bench_fail(b, "inline", b->peer, status, error));
}

/* Whether there is no fabric for large tensors; `why` then says why. */
static bool lacks_bulk(const bench *b, char why[600])
{
    weft_status status = weft_agent_fabric(b->agent, b->peer, WEFT_LANE_BULK, why, 600);
    return !status && strncmp(why, "none", 4) == 0;
}

bool bench_try_bulk(bench *b, char *why, size_t room)
{
    weft_error *error = NULL;
    weft_rpc_options options = {.timeout_ms = SERVICE_CALL_MS, .error = &error};
    weft_tensor *large = NULL;
    weft_status status = weft_tensor_full(WEFT_SHAPE(BULK_BYTES), WEFT_DTYPE_UINT8, 1, &large, &error);
    if (!status)
        status =
            weft_rpc_sync(b->agent, weft_to_rank(b->peer), "take", WEFT_VALUES(weft_of_tensor(large)), &options, NULL);
    weft_tensor_unref(large);
    snprintf(why, room, "%s", error ? weft_error_message(error) : weft_status_text(status));
    weft_error_unref(error);
    return status != WEFT_ERR_UNREACHABLE;
}

static bool open_job(bench *b, int workers, bool *is_absent)
{
    bool ok = *b->o->to_host ? join_remote(b) : open_local(b, workers);
    return ok && greet(b, is_absent);
}

static void close_helpers(bench *b)
{
    floors_close(b->floors);
    peers_close(b->peers);
    b->floors = NULL;
    b->peers = NULL;
}

bool bench_open(bench *b, const settings *o, task_end *to, const char *list, int workers, bool has_helpers,
                bool *is_absent)
{
    static char longer[48];
    char why[600];
    size_t most = o->size_count ? 0 : (size_t)64 << 20;
    for (size_t i = 0; i < o->size_count; i++)
        most = o->sizes[i] > most ? o->sizes[i] : most;
    *b = (bench){.o = o, .to = to, .list = list};
    *is_absent = false;
    (void)fabric_name(list, b->fabric);
    if (has_helpers && !o->no_floor && !*o->to_host) {
        b->floors = floors_open(list, most < FLOOR_TRIP_MOST ? FLOOR_TRIP_MOST : most, why, sizeof(why));
        if (!b->floors)
            task_note(to, "%s has no floor here: %s", b->fabric, why);
    }
    if (has_helpers && o->peers)
        b->peers = peers_open(o, list, to);
    bool ok = open_job(b, workers, is_absent);
    if (ok && !strstr(list, "tcp") && lacks_bulk(b, why)) {
        task_note(to, "%s cannot carry large tensors here, so it is measured with tcp for them: %s", b->fabric, why);
        end_job(b);
        snprintf(longer, sizeof(longer), "%s,tcp", list);
        b->list = longer;
        ok = open_job(b, workers, is_absent);
    }
    if (!ok) {
        end_job(b);
        close_helpers(b);
    }
    return ok;
}

bool bench_close(bench *b, bool ok)
{
    for (int rank = 1; ok && b->job && rank < b->world; rank++)
        ok = bench_call(b, rank, "leave", WEFT_NO_VALUES, NULL);
    if (ok) {
        weft_status left = weft_agent_close(b->agent, WEFT_FOREVER), ended = weft_job_close(b->job, END_MS, NULL);
        if (left)
            ok = task_fail_status(b->to, "closing the agent", left, NULL);
        else if (ended)
            ok = task_fail_status(b->to, "ending the workers", ended, NULL);
    } else {
        end_job(b);
    }
    close_helpers(b);
    return ok;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------ */

bool bench_fail(bench *b, const char *function, int rank, weft_status status, weft_error *error)
{
    char what[128];
    snprintf(what, sizeof(what), "calling \"%s\" of worker %d over %s", function, rank, b->fabric);
    return task_fail_status(b->to, what, status, error);
}

bool bench_call(bench *b, int rank, const char *function, weft_args arguments, weft_tensor *land)
{
    weft_error *error = NULL;
    weft_rpc_options options = {.land = {&land, land ? 1 : 0}, .timeout_ms = SERVICE_CALL_MS, .error = &error};
    weft_status status = weft_rpc_sync(b->agent, weft_to_rank(rank), function, arguments, &options, NULL);
    return !status || bench_fail(b, function, rank, status, error);
}

bool bench_wait(bench *b, const char *function, int rank, weft_future *future, double out[2])
{
    weft_status status = weft_future_wait(future, WEFT_FOREVER);
    const weft_values *values = status ? NULL : weft_future_values(future);
    for (size_t i = 0; i < 2 && !status && out; i++)
        status = weft_values_get_f64(values, i, &out[i]);
    const weft_error *why = status ? weft_future_error(future) : NULL;
    weft_error *error = why ? weft_error_ref(why) : NULL;
    weft_future_unref(future);
    return !status || bench_fail(b, function, rank, status, error);
}

/* ---- Measuring -------------------------------------------------------------------------------------------------- */

void bench_put(bench *b, result *r)
{
    const struct {
        weft_lane lane;
        char *to;
    } lanes[] = {{WEFT_LANE_CONTROL, r->control}, {WEFT_LANE_BULK, r->bulk}};
    text_copy(r->fabric, sizeof(r->fabric), b->fabric);
    for (size_t i = 0; i < 2; i++) {
        char text[600];
        if (weft_agent_fabric(b->agent, b->peer, lanes[i].lane, text, sizeof(text)) != WEFT_OK)
            continue;
        text[strcspn(text, " ")] = '\0'; /* the reasons follow */
        text_copy(lanes[i].to, sizeof(r->control), text);
    }
    task_put(b->to, r);
}

/* One slice of the floor. A floor that fails is left out from then on: its results are empty. */
static void measure_floor(const probe *p, const result *r, double us, series *out)
{
    bench *b = p->b;
    char why[256];
    size_t before = out->count;
    if (!b->floors)
        return;
    if (!floors_measure(b->floors, p->floor, p->floor_bytes, p->window, us, out, why, sizeof(why))) {
        task_note(b->to, "the floor of %s failed at %s of %zu bytes, and is not measured further: %s", b->fabric,
                  r->what, p->bytes, why);
        floors_close(b->floors);
        b->floors = NULL;
        out->count = 0;
    }
    for (size_t i = before; i < out->count && strcmp(r->unit, "GB/s") == 0; i++)
        out->values[i] = (double)p->bytes / out->values[i] / 1e3; /* from microseconds */
}

bool bench_measure(probe *p, result *r)
{
    bench *b = p->b;
    bool has_floor = p->has_floor && floors_have(b->floors, p->floor);
    const char *floor_name = has_floor ? floors_name(b->floors, p->floor) : "";
    double slice = b->o->seconds * 1e6 / (TURNS * (has_floor ? 2 : 1));
    series warm = {0}, ours = {0}, floor = {0}, theirs[PEERS] = {{0}};
    r->bytes = (int64_t)p->bytes;
    r->window = p->window;
    r->workers = r->workers ? r->workers : 2;
    text_copy(r->fabric, sizeof(r->fabric), b->fabric);
    bool ok = p->ours(p, slice / 4, &warm);
    for (int turn = 0; ok && turn < TURNS; turn++) {
        if (has_floor)
            measure_floor(p, r, slice, &floor);
        ok = p->ours(p, slice, &ours);
        for (int i = 0; ok && i < PEERS; i++)
            peers_measure(b->peers, i, r, slice, &theirs[i]);
    }
    if (ok) {
        result_fill(r, &ours, floor.count ? series_summary(&floor).p50 : (double)NAN, floor_name);
        bench_put(b, r);
    }
    for (int i = 0; i < PEERS; i++) {
        if (ok && theirs[i].count) {
            result peer = peers_result(b->peers, i, r, &theirs[i]);
            task_put(b->to, &peer);
        }
        series_fini(&theirs[i]);
    }
    series_fini(&warm);
    series_fini(&ours);
    series_fini(&floor);
    return ok;
}
