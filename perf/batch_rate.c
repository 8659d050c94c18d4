/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch_rate.c - calls a second of 1 to 64 callers, a process each with one call at a time, through the batcher and without it,
 * against blocking TCP clients and a server that only answers.
 */
#include "common/measure.h"
#include "common/raw_answer.h"
#include "common/workers.h"

#include "cli.h"

#define CALLERS_MAX RAW_ANSWER_CLIENTS_MAX
#define REQUEST_BYTES 64
#define COUNT(array) (sizeof(array) / sizeof *(array))

static const int numbers[] = {1, 2, 4, 8, 16, 32, 64};

/* ---- The server ------------------------------------------------------------------------------------------------------ */

/* A row of four numbers each, as an observer's; the answer is a number. */
static weft_status answer_batch(weft_batch *batch, void *user)
{
    (void)user;
    weft_tensor *answers = weft_tensor_zeros(WEFT_SHAPE((int64_t)weft_batch_count(batch)), WEFT_DTYPE_INT64);
    weft_batch_give(batch, 0, answers);
    weft_tensor_unref(answers);
    return WEFT_OK;
}

static weft_status answer_one(weft_call *call, void *user)
{
    (void)user;
    weft_call_give(call, WEFT_VALUES(weft_of_i64(0)));
    return WEFT_OK;
}

/* ---- The callers ------------------------------------------------------------------------------------------------------- */

/* Calls rank 0 until the time (ms) is over; answers how often. */
static weft_status call_for_a_while(weft_call *call, void *user)
{
    (void)user;
    weft_agent *agent = weft_call_agent(call);
    double end = measure_now_us() + (double)weft_call_i64(call, 1) * 1e3;
    weft_tensor *state = weft_tensor_zeros(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32);
    weft_status status = WEFT_OK;
    int64_t count = 0;
    for (; status == WEFT_OK && measure_now_us() < end; count++)
        status = weft_rpc_sync(agent, weft_to_rank(0), weft_call_string(call, 0), WEFT_VALUES(weft_of_tensor(state)),
                               NULL, NULL);
    weft_tensor_unref(state);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(count)));
    return status;
}

static const weft_function functions[] = {
    {.name = "batch",
     .takes = {WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_I64},
     .run_batch = answer_batch,
     .batch = {.size = CALLERS_MAX, .wait_us = 1000}},
    {.name = "as it comes",
     .takes = {WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_I64},
     .run_batch = answer_batch,
     .batch = {.size = CALLERS_MAX}},
    {.name = "one", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_I64}, .run = answer_one},
    {.name = "call for a while",
     .takes = {WEFT_TYPE_STRING, WEFT_TYPE_I64},
     .gives = {WEFT_TYPE_I64},
     .run = call_for_a_while},
};

typedef struct settings {
    int64_t slice_ms, slices, callers;
    const char *json;
    bool quick;
} settings;

/* Calls a second of the first `callers` workers. */
static bool call_slice(weft_agent *agent, const char *function, int callers, int64_t ms, series *out)
{
    weft_target targets[CALLERS_MAX];
    weft_future *all;
    int64_t total = 0;
    for (int i = 0; i < callers; i++)
        targets[i] = weft_to_rank(i + 1);
    double start = measure_now_us();
    weft_status status = weft_rpc_multicast(agent, targets, (size_t)callers, "call for a while",
                                            WEFT_VALUES(weft_of_string(function), weft_of_i64(ms)), NULL, &all);
    if (status || (status = weft_future_wait(all, WEFT_FOREVER)))
        return workers_complain(function, status, NULL);
    weft_future **each = weft_future_payload(all);
    for (int i = 0; i < callers && !status; i++) {
        int64_t count = 0;
        const weft_values *values = weft_future_values(each[i]);
        status = values ? weft_values_get_i64(values, 0, &count) : weft_error_code(weft_future_error(each[i]));
        total += count;
    }
    series_add(out, (double)total / (measure_now_us() - start) * 1e6);
    weft_future_unref(all);
    return !status || workers_complain(function, status, NULL);
}

static bool raw_slice(raw_answer *raw, int callers, bool batched, int64_t ms, series *out)
{
    double last = out->count ? out->values[out->count - 1] : 20000, us;
    int rounds = 1 + (int)(last * (double)ms / 1e3) / callers;
    if (raw_answer_slice(raw, callers, batched, rounds, &us))
        return false;
    series_add(out, (double)rounds * callers / us * 1e6);
    return true;
}

typedef struct rates {
    series raw_batched, raw_each, batch, greedy, one;
} rates;

static bool measure_callers(const settings *o, raw_answer *raw, weft_agent *agent, int callers, rates *r)
{
    int ranks[CALLERS_MAX];
    for (int i = 0; i < callers; i++)
        ranks[i] = i + 1;
    weft_status status = weft_agent_expect_callers(agent, "batch", ranks, (size_t)callers);
    bool ok = status == WEFT_OK || workers_complain("weft_agent_expect_callers", status, NULL);
    for (int64_t i = 0; ok && i < o->slices; i++)
        ok = raw_slice(raw, callers, true, o->slice_ms, &r->raw_batched) &&
             call_slice(agent, "batch", callers, o->slice_ms, &r->batch) &&
             call_slice(agent, "as it comes", callers, o->slice_ms, &r->greedy) &&
             raw_slice(raw, callers, false, o->slice_ms, &r->raw_each) &&
             call_slice(agent, "one", callers, o->slice_ms, &r->one);
    return ok;
}

static void print_callers(int callers, rates *r, report *json)
{
    double raw_batched = series_summary(&r->raw_batched).p50, raw_each = series_summary(&r->raw_each).p50;
    double batch = series_summary(&r->batch).p50, greedy = series_summary(&r->greedy).p50;
    double one = series_summary(&r->one).p50;
    printf("| %7d | %9.0f | %9.0f | %9.0f | %9.0f | %9.0f | %6.2f | %6.2f | %6.2f |\n", callers, raw_batched, batch,
           greedy, raw_each, one, batch / raw_batched, greedy / raw_each, one / raw_each);
    report_number(json, raw_batched, "callers_%d_raw_batched_per_s", callers);
    report_number(json, raw_each, "callers_%d_raw_each_per_s", callers);
    report_number(json, batch, "callers_%d_batch_per_s", callers);
    report_number(json, greedy, "callers_%d_as_it_comes_per_s", callers);
    report_number(json, one, "callers_%d_unbatched_per_s", callers);
    series *all[] = {&r->raw_batched, &r->raw_each, &r->batch, &r->greedy, &r->one};
    for (size_t i = 0; i < COUNT(all); i++)
        series_fini(all[i]);
}

static bool measure(const settings *o, raw_answer *raw, weft_agent *agent, report *json)
{
    bool ok = true;
    printf(
        "Calls a second of so many callers with one call each under way (medians of slices): a batch of all of them;\n"
        "batches of what has come; no batches. Raw: blocking TCP, the server reads all and answers all, or each.\n\n"
        "| callers | raw all   | batch     | as it     | raw each  | no batch  | batch  | as it  | none   |\n"
        "|         |           | of all    | comes     |           |           | of raw | of raw | of raw |\n"
        "|---------|-----------|-----------|-----------|-----------|-----------|--------|--------|--------|\n");
    for (size_t i = 0; ok && i < COUNT(numbers) && numbers[i] <= o->callers; i++) {
        rates r = {.one = {0}};
        ok = measure_callers(o, raw, agent, numbers[i], &r);
        print_callers(numbers[i], &r, json);
        fflush(stdout);
    }
    return ok;
}

static bool run(const settings *o)
{
    report json;
    raw_answer *raw = NULL;
    workers w;
    if (!report_open(&json, o->json))
        return false;
    bool ok = raw_answer_open((int)o->callers, REQUEST_BYTES, &raw) == 0;
    if (ok && (ok = workers_open(functions, COUNT(functions), (int)o->callers, &w))) {
        ok = measure(o, raw, w.agent, &json);
        ok = workers_close(&w) && ok;
    }
    raw_answer_close(raw);
    return report_close(&json) && ok;
}

int main(int argc, char **argv)
{
    settings o = {.slices = 5, .slice_ms = 200, .callers = CALLERS_MAX};
    const cli_option options[] = {
        {"callers", CLI_INT, &o.callers, 1, CALLERS_MAX, NULL, "N", "at most", "64"},
        {"slices", CLI_INT, &o.slices, 1, 10000, NULL, "N", "turns of all sides at every number of callers", "5"},
        {"slice-ms", CLI_INT, &o.slice_ms, 1, 10000, NULL, "N", "length of a slice", "200"},
        {"json", CLI_TEXT, &o.json, 0, 0, NULL, "FILE", "write the numbers there", NULL},
        {"quick", CLI_FLAG, &o.quick, 0, 0, NULL, NULL, "up to 8 callers, slices of 80 ms, half as many", NULL},
    };
    const cli program = {
        .program = "batch_rate",
        .purpose = "calls a second through the batcher, against a server that only answers",
        .example = "batch_rate --callers 16",
        .options = options,
        .count = COUNT(options),
    };
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    if (workers_is_child())
        return workers_serve(functions, COUNT(functions));
    if (o.quick) {
        o.callers = o.callers < 8 ? o.callers : 8;
        o.slice_ms = 80;
        o.slices = (o.slices + 1) / 2;
    }
    return run(&o) ? 0 : 1;
}
