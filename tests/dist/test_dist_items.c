/* SPDX-License-Identifier: Apache-2.0 */
/* test_dist_items.c - items of calls under a distributed context: gradients flow through them. */
#include "dist/parameters.h"

/* (x, count, fails) -> parameter * x; before, in items: i times that, for i from 0 to count - 1, and the constant i */
static weft_status serve_stream(weft_call *call, void *user)
{
    (void)user;
    weft_tape *t = weft_call_tape(call);
    weft_tensor *y = weft_mul(t, parameter_here(call), weft_call_tensor(call, 0));
    for (int64_t i = 0; i < weft_call_i64(call, 1); i++) {
        weft_status status =
            weft_call_send_item(call, WEFT_VALUES(weft_of_tensor(weft_scale(t, y, (double)i)), weft_of_i64(i)));
        if (status)
            return status;
    }
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(y)));
    return weft_call_bool(call, 2) ? WEFT_ERR_SYSTEM : WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "stream",
     .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_I64, WEFT_TYPE_BOOL},
     .gives = {WEFT_TYPE_TENSOR},
     .run = serve_stream},
    {.name = "gradient", .gives = {WEFT_TYPE_ANY}, .run = serve_gradient},
};

#define ITEMS 12

typedef struct stream {
    weft_tensor *items[ITEMS];
    int64_t count;
} stream;

static void take_item(const weft_values *item, void *arg)
{
    stream *s = arg;
    int64_t number = -1;
    weft_tensor *tensor = result(item, 0);
    MUST_OK(weft_values_get_i64(item, 1, &number));
    MUST(number == s->count && number < ITEMS);
    s->items[s->count++] = weft_tensor_ref(tensor);
}

/* Gradients flow through items: all but two of which are used, and the result; from another worker, one that fails
 * at its end, and this one. */
static void items_are_linked(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    for (int round = 0; round < 3; round++) {
        weft_context *c;
        stream s = {.count = 0};
        weft_tensor *x = leaf_of(5, 7);
        weft_values *results = NULL;
        int to = round < 2 ? 1 : 0;
        MUST_OK(weft_context_open(agent, &c, NULL));
        weft_tape *t = weft_context_tape(c, NULL);
        weft_status status =
            weft_rpc_sync(agent, weft_to_rank(to), "stream",
                          WEFT_VALUES(weft_of_tensor(x), weft_of_i64(ITEMS), weft_of_bool(round == 1)),
                          &(weft_rpc_options){.tape = t, .on_item = take_item, .item_arg = &s}, &results);
        MUST(status == (round == 1 ? WEFT_ERR_REMOTE : WEFT_OK) && s.count == ITEMS);
        weft_tensor *loss = round == 1 ? NULL : weft_sum(t, result(results, 0));
        float factor = round == 1 ? 0 : 1;
        for (int i = 2; i < ITEMS; i++) {
            weft_tensor *share = weft_sum(t, s.items[i]);
            loss = loss ? weft_add(t, loss, share) : share;
            factor += (float)i;
        }
        weft_dist_backward(t, loss, NULL);
        MUST_OK(weft_tape_status(t));
        must_have_gradient(c, x, factor * (float)(to + 2), factor * (float)(to - 3));
        must_have_there(t, agent, to, (float[]){factor * 5, factor * 7});
        for (int i = 0; i < ITEMS; i++)
            weft_tensor_unref(s.items[i]);
        weft_values_unref(results);
        weft_tape_close(t);
        close_and_look(c, agent);
        weft_tensor_unref(x);
    }
}
DIST_TEST(items_are_linked, 10, 2)

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_items_are_linked)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
