/* SPDX-License-Identifier: Apache-2.0 */
/* rref_counts.c - see rref_counts.h. */
#include "rpc/rref_counts.h"

_Atomic int checked_runs;

char *dump_text(weft_agent *agent)
{
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    MUST(to);
    MUST_OK(weft_debug_dump(agent, to));
    MUST(fclose(to) == 0);
    return text;
}

int64_t dump_number(weft_agent *agent, const char *key)
{
    char wanted[64];
    char *text = dump_text(agent);
    snprintf(wanted, sizeof(wanted), "\"%s\": ", key);
    const char *at = strstr(text, wanted);
    MUST(at);
    int64_t number = strtoll(at + strlen(wanted), NULL, 10);
    free(text);
    return number;
}

int64_t ask_number(weft_agent *agent, int rank, const char *key)
{
    weft_values *got;
    int64_t number;
    if (rank == weft_agent_rank(agent))
        return dump_number(agent, key);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), "number", WEFT_VALUES(weft_of_string(key)), NULL, &got));
    MUST_OK(weft_values_get_i64(got, 0, &number));
    weft_values_unref(got);
    return number;
}

void await_number(world *w, weft_agent *agent, int rank, const char *key, int64_t wanted)
{
    int64_t is = -1;
    for (int i = 0; i < 3000 && (is = ask_number(agent, rank, key)) != wanted; i++)
        world_sleep_ms(w, 1);
    if (is != wanted)
        fprintf(stderr, "rank %d: %s is %lld, not %lld\n", rank, key, (long long)is, (long long)wanted);
    MUST(is == wanted);
}

static weft_status run_number(weft_call *call, void *user)
{
    int64_t number = dump_number(weft_call_agent(call), weft_call_string(call, 0));
    weft_call_give(call, WEFT_VALUES(weft_of_i64(number)));
    return WEFT_OK;
}

static weft_status run_checked(weft_call *call, void *user)
{
    for (size_t i = 0; i < weft_call_count(call); i++)
        if (weft_call_type(call, i) == WEFT_TYPE_RREF)
            MUST(weft_rref_confirmed(weft_call_rref(call, i)));
    atomic_fetch_add(&checked_runs, 1);
    return WEFT_OK;
}

const weft_function count_functions[2] = {
    {.name = "number", .takes = {WEFT_TYPE_STRING}, .gives = {WEFT_TYPE_I64}, .run = run_number},
    {.name = "checked", .takes = {WEFT_TYPE_REST}, .run = run_checked},
};
