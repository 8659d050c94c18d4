/* SPDX-License-Identifier: Apache-2.0 */
/* test_coll_named.c - who is named when an operation is late or members disagree; and what of a group outlives its
 * end. */
#include "rpc/world.h"
#include "tensors.h"

#include <weft/log.h>
#include <weft/ops.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void adjust(weft_agent_options *options, void *arg)
{
    options->death_timeout_ms = 20000;
}

#define LINE 400 /* of the log, the most that is looked at */
#define SCENE .size = 3, .adjust = adjust

static weft_group *make(weft_agent *agent, const char *name)
{
    weft_group *group;
    MUST_OK(weft_group_open(agent, name, NULL, 0, 0, &group, NULL));
    return group;
}

static weft_tensor *one(void)
{
    return tensor_full(WEFT_SHAPE(1), WEFT_DTYPE_FLOAT64, 1);
}

static void must_say(const weft_group *group, int worker, const char *words)
{
    const weft_error *error = weft_group_error(group);
    if (error && !strstr(weft_error_message(error), words))
        fprintf(stderr, "\"%s\", not \"%s\"\n", weft_error_message(error), words);
    MUST(error && strstr(weft_error_message(error), words));
    MUST(weft_error_worker(error) == worker && strcmp(weft_error_function(error), "group") == 0);
}

/* Member 1 has received from member 0 and waits for it; that one never sends. It is the sends that it is asked for. */
static void late_sender(weft_agent *agent, void *arg)
{
    weft_group *all = make(agent, "all"), *meet = make(agent, "meet");
    weft_tensor *x = one();
    int me = weft_agent_rank(agent);
    if (me == 0)
        MUST_OK(weft_group_recv(all, x, 1, 20000));
    if (me == 1) {
        MUST_OK(weft_group_send(all, x, 0, 20000));
        MUST_BE(weft_group_recv(all, x, 0, 200), WEFT_ERR_TIMEOUT);
        must_say(all, 0, "a recv from rank 0 was not complete within 200 ms: missing is rank 0 (has not called it)");
    }
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    weft_tensor_unref(x);
    weft_group_close(all);
    weft_group_close(meet);
}

/* One member alone shrinks: the others have the old group still, which is no other list of that name. Its time is over
 * before they call, and all meet in its next call. */
static void shrinks_alone(weft_agent *agent, void *arg)
{
    weft_group *all = make(agent, "all"), *meet = make(agent, "meet"), *less = NULL;
    bool is_first = weft_agent_rank(agent) == 1;
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    if (is_first)
        MUST_BE(weft_group_shrink(all, 200, &less, NULL), WEFT_ERR_TIMEOUT);
    MUST(!less);
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    MUST_OK(weft_group_shrink(all, 20000, &less, NULL));
    MUST_OK(weft_group_barrier(less, 20000));
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    weft_group_close(less);
    weft_group_close(all);
    weft_group_close(meet);
}

static weft_status carry_barrier(void *arg)
{
    (void)arg;
    return WEFT_OK;
}

static bool is_printed(const weft_group *group, const char *words)
{
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    MUST(to);
    weft_group_print_algorithms(group, to);
    MUST(fclose(to) == 0);
    bool found = strstr(text, words) != NULL;
    free(text);
    return found;
}

/* What shrink gives has the old group's rules, and is as good as new. */
static void shrunk_is_new(weft_agent *agent, void *arg)
{
    static const char rules[] = "allreduce 77 88 tree";
    weft_group *all = make(agent, "all"), *again, *twice = NULL;
    MUST_OK(weft_group_set_algorithms(all, rules));
    MUST_OK(weft_group_barrier(all, 20000)); /* it has had an operation */
    weft_group *meet = make(agent, "meet");
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    MUST_OK(weft_group_shrink(all, 20000, &again, NULL));
    MUST(is_printed(again, rules) && is_printed(all, rules));
    MUST_BE(weft_group_shrink(all, 20000, &twice, NULL), WEFT_ERR_EXISTS); /* `again` has the name */
    MUST(!twice);
    MUST_OK(weft_group_set_carrier(again, &(weft_group_carrier){.barrier = carry_barrier}, NULL, NULL));
    MUST_OK(weft_group_set_algorithms(again, "allreduce * * ring"));
    MUST_OK(weft_group_barrier(again, 20000));
    MUST_BE(weft_group_set_algorithms(again, rules), WEFT_ERR_STATE);
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    weft_group_close(meet);
    weft_group_close(again);
    weft_group_close(all);
}

/* A wrong sum would come of it. */
static void rules_differ(weft_agent *agent, void *arg)
{
    weft_group *all = make(agent, "all"), *meet = make(agent, "meet");
    weft_tensor *x = one();
    MUST_OK(weft_group_set_algorithms(all, weft_agent_rank(agent) == 2 ? "allreduce * * tree"
                                                                       : "allreduce * * recursive_doubling"));
    MUST_BE(weft_group_allreduce(all, x, WEFT_OP_SUM, 20000), WEFT_ERR_STATE);
    MUST(strstr(weft_error_message(weft_group_error(all)), "their rules for algorithms differ") != NULL);
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    weft_tensor_unref(x);
    weft_group_close(all);
    weft_group_close(meet);
}

static atomic_int told; /* members that have heard of it */

static weft_status carry_until_told(void *arg)
{
    (void)arg;
    while (atomic_load(&told) < 2)
        usleep(1000);
    return WEFT_OK;
}

/* One has forgotten, or one alone was told, that others carry the operation. */
static void one_has_a_carrier(weft_agent *agent, void *arg)
{
    weft_group *all = make(agent, "all"), *meet = make(agent, "meet");
    const weft_group_carrier carrier = {.barrier = carry_until_told};
    if (weft_agent_rank(agent) == 1)
        MUST_OK(weft_group_set_carrier(all, &carrier, NULL, NULL));
    MUST_BE(weft_group_barrier(all, 20000), WEFT_ERR_STATE);
    atomic_fetch_add(&told, 1);
    MUST(strstr(weft_error_message(weft_group_error(all)), "barrier: rank 1 has a carrier for it, rank "));
    MUST(strstr(weft_error_message(weft_group_error(all)), " has none"));
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    weft_group_close(all);
    weft_group_close(meet);
}

/* A sender may be 64 ahead, whatever it asked before: so member 0 gets its last one through when member 1 has
 * received ten. */
#define SENDS 65
static void far_ahead(weft_agent *agent, void *arg)
{
    weft_group *all = make(agent, "all"), *meet = make(agent, "meet");
    weft_future *futures[SENDS];
    weft_tensor *x = one();
    int me = weft_agent_rank(agent);
    for (int i = 0; me == 0 && i < SENDS; i++)
        MUST_OK(weft_group_send_async(all, x, 1, WEFT_FOREVER, &futures[i]));
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    for (int i = 0; me == 1 && i < 10; i++)
        MUST_OK(weft_group_recv(all, x, 0, WEFT_FOREVER));
    for (int i = 0; me == 0 && i < SENDS; i++) {
        MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        weft_future_unref(futures[i]);
    }
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    for (int i = 10; me == 1 && i < SENDS; i++)
        MUST_OK(weft_group_recv(all, x, 0, WEFT_FOREVER));
    MUST_OK(weft_group_barrier(all, WEFT_FOREVER));
    weft_tensor_unref(x);
    weft_group_close(all);
    weft_group_close(meet);
}

/* The root has closed the group before it called: nobody else is missing. */
static void destroyed(weft_agent *agent, void *arg)
{
    weft_group *all = make(agent, "all"), *meet = make(agent, "meet");
    weft_tensor *x = one();
    int me = weft_agent_rank(agent);
    if (me == 0)
        weft_group_close(all);
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    if (me == 1) {
        MUST_BE(weft_group_recv(all, x, 0, 200), WEFT_ERR_TIMEOUT);
        must_say(all, 0, "rank 0 (has closed the group)");
    }
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    if (me != 0)
        weft_group_close(all);
    weft_tensor_unref(x);
    weft_group_close(meet);
}

/* Member 0 has given its part, and closed the group: it is member 2 that the root waits for. */
static void gave_and_left(weft_agent *agent, void *arg)
{
    weft_group *all = make(agent, "all"), *meet = make(agent, "meet");
    weft_tensor *x = one();
    int me = weft_agent_rank(agent);
    if (me == 0) {
        MUST_OK(weft_group_reduce(all, x, WEFT_OP_SUM, 1, 20000));
        weft_group_close(all);
    }
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    if (me == 1) {
        MUST_BE(weft_group_reduce(all, x, WEFT_OP_SUM, 1, 200), WEFT_ERR_TIMEOUT);
        must_say(all, 2, "missing is rank 2 (has not called it)");
        MUST(!strstr(weft_error_message(weft_group_error(all)), "rank 0"));
    }
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    if (me != 0)
        weft_group_close(all);
    weft_tensor_unref(x);
    weft_group_close(meet);
}

/* All hear who brought another size, and which. */
static void sizes_differ(weft_agent *agent, void *arg)
{
    weft_group *all = make(agent, "all"), *meet = make(agent, "meet");
    int me = weft_agent_rank(agent);
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(me == 2 ? 5 : 7), WEFT_DTYPE_FLOAT64);
    MUST_BE(weft_group_allreduce(all, x, WEFT_OP_SUM, 20000), WEFT_ERR_STATE);
    const char *message = weft_error_message(weft_group_error(all));
    MUST(strstr(message, "allreduce of 7 float64 (sum)") && strstr(message, "allreduce of 5 float64 (sum)"));
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    weft_tensor_unref(x);
    weft_group_close(all);
    weft_group_close(meet);
}

/* Two members that are root each wait for the other, and nothing that they send tells it: their answers do, when it
 * is late. */
static void roots_differ(weft_agent *agent, void *arg)
{
    int me = weft_agent_rank(agent);
    weft_group *all = make(agent, "all"), *meet = make(agent, "meet");
    weft_tensor *x = one();
    if (me < 2)
        MUST_BE(weft_group_reduce(all, x, WEFT_OP_SUM, (size_t)me, 300), WEFT_ERR_STATE);
    if (me < 2)
        MUST(strstr(weft_error_message(weft_group_error(all)), "root 0") &&
             strstr(weft_error_message(weft_group_error(all)), "root 1"));
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    weft_tensor_unref(x);
    weft_group_close(all);
    weft_group_close(meet);
}

/* The same without a time limit: each asks those that it waits for, and their answers have another root. */
static void roots_differ_for_ever(weft_agent *agent, void *arg)
{
    int me = weft_agent_rank(agent);
    weft_group *meet = make(agent, "meet");
    weft_tensor *x = one(), *all_x = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT64);
    for (int gathers = 0; gathers < 2; gathers++) {
        weft_group *all = make(agent, gathers ? "gather" : "reduce");
        weft_status status = WEFT_OK;
        if (me < 2)
            status = gathers ? weft_group_gather(all, x, all_x, (size_t)me, WEFT_FOREVER)
                             : weft_group_reduce(all, x, WEFT_OP_SUM, (size_t)me, WEFT_FOREVER);
        if (me < 2) {
            MUST_BE(status, WEFT_ERR_STATE);
            MUST(strstr(weft_error_message(weft_group_error(all)), "root 0") &&
                 strstr(weft_error_message(weft_group_error(all)), "root 1"));
        }
        MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
        weft_group_close(all);
    }
    weft_tensor_unref(x);
    weft_tensor_unref(all_x);
    weft_group_close(meet);
}

/* A third member has given its part to one of the roots, and has closed the group: the other root waits for it too. */
static void roots_differ_and_one_has_left(weft_agent *agent, void *arg)
{
    int me = weft_agent_rank(agent);
    weft_group *all = make(agent, "all"), *meet = make(agent, "meet");
    weft_tensor *x = one();
    if (me == 2) {
        MUST_OK(weft_group_reduce(all, x, WEFT_OP_SUM, 0, WEFT_FOREVER));
        weft_group_close(all);
    }
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    if (me < 2) {
        MUST_BE(weft_group_reduce(all, x, WEFT_OP_SUM, (size_t)me, WEFT_FOREVER), WEFT_ERR_STATE);
        MUST(strstr(weft_error_message(weft_group_error(all)), "root 0") &&
             strstr(weft_error_message(weft_group_error(all)), "root 1"));
    }
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    if (me < 2)
        weft_group_close(all);
    weft_tensor_unref(x);
    weft_group_close(meet);
}

/* A root that waits for a member which has closed the group hears that, without a time limit. What such a member
 * gave before counts. */
static void root_waits_for_destroyed(weft_agent *agent, void *arg)
{
    int me = weft_agent_rank(agent);
    weft_group *all = make(agent, "all"), *meet = make(agent, "meet");
    weft_tensor *x = one(), *all_x = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT64);
    if (me == 2) {
        MUST_OK(weft_group_gather(all, x, NULL, 0, WEFT_FOREVER)); /* it has given its part */
        weft_group_close(all);
    }
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    if (me == 1) {
        world_sleep_ms(arg, 1500); /* member 0 has asked by then */
        MUST_OK(weft_group_gather(all, x, NULL, 0, WEFT_FOREVER));
        weft_group_close(all);
    }
    if (me == 0) {
        MUST_OK(weft_group_gather(all, x, all_x, 0, WEFT_FOREVER));
        MUST(weft_tensor_get_f64(all_x, 1) == 1 && weft_tensor_get_f64(all_x, 2) == 1);
        MUST_BE(weft_group_gather(all, x, all_x, 0, WEFT_FOREVER), WEFT_ERR_CANCELLED);
        MUST(strstr(weft_error_message(weft_group_error(all)), "has closed the group"));
        weft_group_close(all);
    }
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    weft_tensor_unref(x);
    weft_tensor_unref(all_x);
    weft_group_close(meet);
}

/* The values of one member exceed a limit: all members hear it, and the group goes on. */
static void one_gives_too_much(weft_agent *agent, void *arg)
{
    enum { TENSORS = WEFT_MAX_CALL_TENSORS + 1 };
    weft_group *all = make(agent, "all");
    weft_values *got = NULL;
    weft_value *many = calloc(TENSORS, sizeof(*many));
    weft_tensor *x = one();
    MUST(many);
    for (int i = 0; i < TENSORS; i++)
        many[i] = weft_of_tensor(x);
    weft_args much = {many, TENSORS};
    for (int who = 0; who < 3; who++) {
        weft_future *future;
        MUST_OK(weft_group_allgather_values_async(
            all, weft_agent_rank(agent) == who ? much : WEFT_VALUES(weft_of_i64(who)), WEFT_FOREVER, &future));
        MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_TOO_LARGE);
        char words[80];
        snprintf(words, sizeof(words), "the values of rank %d exceed a limit", who);
        MUST(strstr(weft_error_message(weft_future_error(future)), words));
        MUST(weft_error_worker(weft_future_error(future)) == who);
        weft_future_unref(future);
        MUST(!weft_group_error(all));
    }
    MUST_BE(weft_group_allgather_values(all, much, WEFT_FOREVER, &got), WEFT_ERR_TOO_LARGE); /* all of them */
    MUST(!got);
    MUST_OK(weft_group_allgather_values(all, WEFT_VALUES(weft_of_tensor(x)), WEFT_FOREVER, &got));
    MUST(weft_values_count(got) == 3);
    weft_values_unref(got);
    MUST_OK(weft_group_barrier(all, WEFT_FOREVER));
    free(many);
    weft_tensor_unref(x);
    weft_group_close(all);
}

/* Without elements: all must mean that, and nobody is through before all have called. */
static void no_elements(weft_agent *agent, void *arg)
{
    int me = weft_agent_rank(agent);
    weft_group *all = make(agent, "all"), *pair = make(agent, "pair"), *meet = make(agent, "meet");
    weft_tensor *none = tensor_zeros(WEFT_SHAPE(0), WEFT_DTYPE_FLOAT64), *x = one();
    MUST_OK(weft_group_allreduce(all, none, WEFT_OP_SUM, 20000));
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER)); /* it is complete on all before the next one ends the group */
    MUST_BE(weft_group_broadcast(all, me ? x : none, 0, 20000), WEFT_ERR_STATE);
    if (me == 0)
        MUST_OK(weft_group_send(pair, none, 1, 20000));
    if (me == 1)
        MUST_BE(weft_group_recv(pair, x, 0, 20000), WEFT_ERR_STATE);
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    weft_tensor_unref(none);
    weft_tensor_unref(x);
    weft_group_close(all);
    weft_group_close(pair);
    weft_group_close(meet);
}

/* Operations that wait their turn were called all the same: who called them is not missing. */
static void waits_its_turn(weft_agent *agent, void *arg)
{
    enum { CALLED = 70 };
    weft_group *all = make(agent, "all"), *meet = make(agent, "meet");
    weft_future *futures[CALLED] = {NULL};
    for (int i = 0; i < CALLED && weft_agent_rank(agent) < 2; i++)
        MUST_OK(weft_group_barrier_async(all, i < CALLED - 1 ? WEFT_FOREVER : 300, &futures[i]));
    for (int i = 0; i < CALLED && futures[i]; i++) {
        MUST_BE(weft_future_wait(futures[i], WEFT_FOREVER), WEFT_ERR_TIMEOUT);
        weft_future_unref(futures[i]);
    }
    if (weft_agent_rank(agent) < 2)
        must_say(all, 2, "missing is rank 2 (has not called it)");
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    weft_group_close(all);
    weft_group_close(meet);
}

static void test_print_when_closed(void **state)
{
    (void)state;
    char text[4096] = "";
    weft_agent *agent;
    weft_group *alone;
    FILE *to = fmemopen(text, sizeof(text), "w");
    assert_non_null(to);
    MUST_OK(weft_agent_open(&(weft_agent_options){.has_rank = true, .world_size = 1, .master_port = world_free_port()},
                            &agent, NULL));
    alone = make(agent, "alone");
    MUST_OK(weft_group_set_algorithms(alone, "allreduce 3 64 ring"));
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    weft_group_print_algorithms(alone, to);
    fclose(to);
    weft_group_close(alone);
    assert_non_null(strstr(text, "allreduce 3 64 ring"));
}

static void small_budget(weft_agent_options *options, void *arg)
{
    options->memory_budget_bytes = 64 << 10;
    options->death_timeout_ms = 20000;
}

/* What comes early takes no more than the memory budget: with less than that the group ends, and says why. */
static void early_flood(weft_agent *agent, void *arg)
{
    enum { FLOOD = 40, ELEMENTS = 400 };
    weft_group *all = make(agent, "all"), *meet = make(agent, "meet");
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(ELEMENTS), WEFT_DTYPE_FLOAT64);
    weft_future *futures[FLOOD];
    size_t begun = 0;
    MUST_OK(weft_group_set_algorithms(meet, "barrier * * dissemination")); /* by messages, which follow the flood */
    if (weft_agent_rank(agent) == 0)
        while (begun < FLOOD && !weft_group_send_async(all, x, 1, 20000, &futures[begun]))
            begun++;
    for (size_t i = 0; i < begun; i++) {
        (void)!weft_future_wait(futures[i], WEFT_FOREVER); /* a send succeeds when it is sent */
        weft_future_unref(futures[i]);
    }
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    if (weft_agent_rank(agent) < 2) {
        MUST_BE(weft_group_recv(all, x, weft_agent_rank(agent) ^ 1, 20000), WEFT_ERR_BUSY);
        must_say(all, 1,
                 "more came early: raise memory_budget_bytes (WEFT_MEMORY_BUDGET) above 65536, or let members "
                 "call in step");
    }
    weft_tensor_unref(x);
    weft_group_close(all);
    weft_group_close(meet);
}

/* The values of all do not fit: the error says how many bytes, and whose budget. Nothing of it is held when it is
 * over. */
static void values_over_budget(weft_agent *agent, void *arg)
{
    weft_group *all = make(agent, "all"), *few = make(agent, "few");
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(30 << 10), WEFT_DTYPE_UINT8), *y = one();
    weft_values *got = NULL;
    MUST_BE(weft_group_allgather_values(all, WEFT_VALUES(weft_of_tensor(x)), 20000, &got), WEFT_ERR_BUSY);
    const char *message = weft_error_message(weft_group_error(all));
    MUST(strstr(message, ": the values of all have 9") &&
         strstr(message, "raise memory_budget_bytes (WEFT_MEMORY_BUDGET) above 65536"));
    MUST(!got);
    MUST_OK(weft_group_allgather_values(few, WEFT_VALUES(weft_of_tensor(y)), 20000, &got));
    weft_values_unref(got);
    MUST_OK(weft_group_barrier(few, 20000));
    while (world_stats(agent).bytes_held)
        world_sleep_ms(arg, 1); /* the operation may still be let go of */
    weft_tensor_unref(x);
    weft_tensor_unref(y);
    weft_group_close(all);
    weft_group_close(few);
}

static weft_tensor *numbers(int me, int64_t count)
{
    weft_tensor *x = tensor_empty(WEFT_SHAPE(count), WEFT_DTYPE_FLOAT64);
    for (int64_t i = 0; i < count; i++)
        ((double *)weft_tensor_data(x))[i] = 100.0 * me + (double)i;
    return x;
}

/* Of three members, each with two elements for each: what each has at `stride` in an all_to_all. */
static void must_be_exchanged(const weft_tensor *got, int me, int64_t stride)
{
    for (int i = 0; i < 6; i++)
        MUST(weft_tensor_get_f64(got, i * stride) == 100 * (i / 2) + 2 * me + i % 2);
}

/* Input and output are not the same memory, but where that is said; who has copies may say what it likes. */
static void overlaps(weft_agent *agent, void *arg)
{
    weft_group *all = make(agent, "all");
    int me = weft_agent_rank(agent);
    weft_tensor *x = numbers(me, 12), *first = tensor_narrow(x, 0, 0, 6), *second = tensor_narrow(x, 0, 6, 6);
    weft_tensor *late = tensor_narrow(x, 0, 5, 6), *part = tensor_narrow(first, 0, 2 * ((me + 1) % 3), 2);
    weft_tensor *own = tensor_narrow(first, 0, 2 * me, 2), *crooked = tensor_narrow(first, 0, 1, 2);
    MUST_BE(weft_group_all_to_all(all, first, first, 20000), WEFT_ERR_INVALID);
    MUST_BE(weft_group_all_to_all(all, first, late, 20000), WEFT_ERR_INVALID);
    MUST_BE(weft_group_all_to_all(all, late, first, 20000), WEFT_ERR_INVALID);
    MUST_BE(weft_group_allgather(all, part, first, 20000), WEFT_ERR_INVALID);
    MUST_BE(weft_group_allgather(all, crooked, first, 20000), WEFT_ERR_INVALID);
    MUST_BE(weft_group_reduce_scatter(all, first, own, WEFT_OP_SUM, 20000), WEFT_ERR_INVALID);
    MUST_BE(weft_group_gather(all, part, first, (size_t)me, 20000), WEFT_ERR_INVALID);
    MUST_BE(weft_group_scatter(all, first, part, (size_t)me, 20000), WEFT_ERR_INVALID);
    MUST_OK(weft_group_set_algorithms(all, "allgather * * ring")); /* none of these counted */
    MUST_OK(weft_group_all_to_all(all, first, second, 20000));
    must_be_exchanged(second, me, 1);
    MUST_OK(weft_group_allgather(all, own, first, 20000));
    MUST(weft_tensor_get_f64(first, 5) == 205);
    MUST_OK(weft_group_gather(all, own, first, 1, 20000));
    MUST_OK(weft_group_scatter(all, first, own, 1, 20000));
    weft_tensor *wide = tensor_zeros(WEFT_SHAPE(6, 2), WEFT_DTYPE_FLOAT64), *column = tensor_select(wide, 1, 0);
    weft_tensor *mine = numbers(me, 6);
    MUST_OK(weft_tensor_assign(column, mine));
    MUST_OK(weft_group_all_to_all(all, column, column, 20000));
    must_be_exchanged(column, me, 1);
    MUST_OK(weft_group_barrier(all, 20000));
    weft_tensor *made[] = {x, first, second, late, part, own, crooked, wide, column, mine};
    for (size_t i = 0; i < sizeof(made) / sizeof(*made); i++)
        weft_tensor_unref(made[i]);
    weft_group_close(all);
}

static void keep_line(weft_log_level level, const char *line, void *arg)
{
    (void)level;
    snprintf(arg, LINE, "%s", line);
}

/* What is refused at once is said in the log. */
static void refusals(weft_agent *agent, void *arg)
{
    char line[LINE] = "";
    weft_group *all = make(agent, "all"), *less = NULL;
    weft_tensor *x = one(), *whole = tensor_zeros(WEFT_SHAPE(1), WEFT_DTYPE_INT64);
    weft_logging_set_sink(keep_line, line);
    MUST_BE(weft_group_broadcast(all, x, 7, 0), WEFT_ERR_INVALID);
    MUST(strstr(line, "root is 7: the group has 1 members"));
    MUST_BE(weft_group_send(all, x, 0, 0), WEFT_ERR_INVALID);
    MUST(strstr(line, "to is 0, this member itself"));
    MUST_BE(weft_group_allreduce(all, whole, WEFT_OP_AVG, 0), WEFT_ERR_TYPE);
    MUST(strstr(line, "how is 1: there is no average of int64"));
    MUST_BE(weft_group_shrink(all, -5, &less, NULL), WEFT_ERR_INVALID);
    MUST(strstr(line, "weft_group_shrink (\"all\"): timeout_ms is -5"));
    MUST_OK(weft_group_barrier(all, 0));
    MUST_BE(weft_group_set_carrier(all, &(weft_group_carrier){.barrier = carry_barrier}, NULL, NULL), WEFT_ERR_STATE);
    MUST(strstr(line, "weft_group_set_carrier: group \"all\" has had operations already"));
    weft_logging_set_sink(NULL, NULL);
    MUST(!less);
    weft_tensor_unref(whole);
    weft_tensor_unref(x);
    weft_group_close(all);
}

/* On fibers: nothing here waits, so the lines are this member's. */
static void refused_words(weft_agent *agent, void *arg)
{
    char line[LINE] = "";
    weft_group *all = make(agent, "all");
    weft_tensor *three = numbers(0, 3), *two = numbers(0, 2), *one_element = numbers(0, 1), *four = numbers(0, 4);
    weft_values *got = NULL;
    weft_logging_set_sink(keep_line, line);
    MUST_BE(weft_group_all_to_all(all, three, three, 0), WEFT_ERR_INVALID);
    MUST(strstr(line, "weft_group_all_to_all (\"all\"): input has 3 elements: not a multiple of 2 (the members)"));
    MUST_BE(weft_group_all_to_all(all, two, three, 0), WEFT_ERR_INVALID);
    MUST(strstr(line, "output has 3 elements, input 2"));
    MUST_BE(weft_group_all_to_all(all, two, two, 0), WEFT_ERR_INVALID);
    MUST(strstr(line, "input and output overlap: give each memory of its own"));
    MUST_BE(weft_group_allgather(all, two, three, 0), WEFT_ERR_INVALID);
    MUST(strstr(line, "output has 3 elements: not 2 (the members) times 2 (input's)"));
    MUST_BE(weft_group_reduce_scatter(all, three, one_element, WEFT_OP_SUM, 0), WEFT_ERR_INVALID);
    MUST(strstr(line, "input has 3 elements: not 2 (the members) times 1 (output's)"));
    weft_tensor *inside = tensor_narrow(four, 0, 1, 2);
    MUST_BE(weft_group_allgather(all, inside, four, 0), WEFT_ERR_INVALID);
    MUST(strstr(line, "input overlaps output, and is not this member's part of it, from element "));
    MUST_BE(weft_group_allgather_values(all, WEFT_VALUES(weft_of_tensor(NULL)), 0, &got), WEFT_ERR_INVALID);
    MUST(strstr(line, "weft_group_allgather_values (\"all\"): value 0 is a NULL tensor"));
    MUST_BE(weft_group_allgather_values(all, (weft_args){NULL, 3}, 0, &got), WEFT_ERR_INVALID);
    MUST(strstr(line, "3 values at NULL"));
    MUST_BE(weft_group_set_algorithms(all, "send * * direct"), WEFT_ERR_INVALID);
    MUST(strstr(line,
                "\"send\" in \"send * * direct\" is wrong: operations that have algorithms are barrier allreduce"));
    weft_logging_set_sink(NULL, NULL);
    weft_tensor *made[] = {three, two, one_element, four, inside};
    for (size_t i = 0; i < sizeof(made) / sizeof(*made); i++)
        weft_tensor_unref(made[i]);
    weft_group_close(all);
}

WORLD_TEST(refusals, 1, 0, .size = 1)
WORLD_TEST(refused_words, 1, 0, .size = 2)
WORLD_TEST(overlaps, 2, 1, SCENE)
WORLD_TEST(one_has_a_carrier, 0, 1, SCENE)
WORLD_TEST(values_over_budget, 2, 1, .size = 3, .adjust = small_budget)
WORLD_TEST(late_sender, 2, 1, SCENE)
WORLD_TEST(shrinks_alone, 2, 1, SCENE)
WORLD_TEST(shrunk_is_new, 2, 1, SCENE)
WORLD_TEST(rules_differ, 2, 1, SCENE)
WORLD_TEST(far_ahead, 2, 1, SCENE)
WORLD_TEST(destroyed, 2, 1, SCENE)
WORLD_TEST(gave_and_left, 2, 1, SCENE)
WORLD_TEST(sizes_differ, 2, 1, SCENE)
WORLD_TEST(roots_differ, 2, 1, SCENE)
WORLD_TEST(roots_differ_for_ever, 4, 1, SCENE)
WORLD_TEST(roots_differ_and_one_has_left, 4, 1, SCENE)
WORLD_TEST(root_waits_for_destroyed, 4, 1, SCENE)
WORLD_TEST(one_gives_too_much, 2, 1, SCENE)
WORLD_TEST(no_elements, 2, 1, SCENE)
WORLD_TEST(waits_its_turn, 2, 1, SCENE)
WORLD_TEST(early_flood, 2, 1, .size = 3, .adjust = small_budget)
UNIT_MAIN(test_late_sender, test_shrinks_alone, test_shrunk_is_new, test_rules_differ, test_far_ahead, test_destroyed,
          test_gave_and_left, test_sizes_differ, test_roots_differ, test_roots_differ_for_ever,
          test_roots_differ_and_one_has_left, test_root_waits_for_destroyed, test_one_gives_too_much, test_no_elements,
          test_waits_its_turn, test_early_flood, test_refusals, test_print_when_closed, test_refused_words,
          test_overlaps, test_one_has_a_carrier, test_values_over_budget)
