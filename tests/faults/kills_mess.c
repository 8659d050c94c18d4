/* SPDX-License-Identifier: Apache-2.0 */
/* kills_mess.c - everything that rank 0 can have under way with a worker when that dies. See kills.h. */
#include "faults/kills.h"
#include "tensors.h"

#include <stdlib.h>

typedef enum kind { ADD, CHECK, MAKE, HOLD, STREAM, KEEP, FETCH, KINDS } kind;
static const char *const functions[KINDS] = {"add", "check", "make", "hold", "stream", "keep", "(fetch)"};

struct kill_mess {
    weft_agent *agent;
    weft_worker victim;
    weft_future *futures[32];
    kind kinds[32];
    int count;
    weft_rref *theirs[2]; /* values of the victim's */
    atomic_int parts;     /* the next one expected */
};

static void take_part(const weft_values *part, void *arg)
{
    kill_mess *mess = arg;
    int64_t number = -1;
    MUST_OK(weft_values_get_i64(part, 0, &number));
    MUST(number == atomic_fetch_add(&mess->parts, 1));
}

static void add_call(kill_mess *mess, kind what, weft_args arguments)
{
    weft_rpc_options options = {.timeout_ms = WEFT_FOREVER};
    if (what == STREAM) {
        options.on_item = take_part;
        options.item_arg = mess;
    }
    MUST_OK(weft_rpc_async(mess->agent, weft_to_worker(mess->victim), functions[what], arguments, &options,
                           &mess->futures[mess->count]));
    mess->kinds[mess->count++] = what;
}

/* Objects of both survivors', which only the victim holds from now on. */
static void lend(kill_mess *mess)
{
    for (int owner = 0; owner < FIRST_VICTIM; owner++) {
        weft_rref *object;
        MUST_OK(weft_rpc_remote(mess->agent, weft_to_rank(owner), "create", WEFT_NO_VALUES, NULL, &object));
        add_call(mess, KEEP, WEFT_VALUES(weft_of_rref(object)));
        weft_rref_unref(object);
    }
}

/* Values of the victim's: one that is fetched, and one that is only held. */
static void borrow(kill_mess *mess)
{
    for (int i = 0; i < 2; i++)
        MUST_OK(weft_rpc_remote(mess->agent, weft_to_worker(mess->victim), "make", WEFT_VALUES(weft_of_i64(5)), NULL,
                                &mess->theirs[i]));
    MUST_OK(weft_rref_to_here_async(mess->theirs[0], WEFT_FOREVER, &mess->futures[mess->count]));
    mess->kinds[mess->count++] = FETCH;
}

/* `shape` has a bit for each kind of thing: what is under way alone behaves unlike what queues behind other things. */
kill_mess *kill_mess_begin(weft_agent *agent, int victim, unsigned shape)
{
    kill_mess *mess = calloc(1, sizeof(*mess));
    MUST(mess);
    *mess = (kill_mess){.agent = agent, .victim = weft_agent_worker(agent, victim)};
    weft_tensor *tensor = tensor_full(WEFT_SHAPE(LARGE), WEFT_DTYPE_FLOAT32, 3);
    for (int i = 0; i < 2; i++) {
        add_call(mess, HOLD, WEFT_VALUES(weft_of_i64(i), weft_of_tensor(tensor)));
        if (shape & 1)
            add_call(mess, CHECK, WEFT_VALUES(weft_of_tensor(tensor)));
        if (shape & 2)
            add_call(mess, MAKE, WEFT_VALUES(weft_of_i64(4)));
        if (shape & 4 && i == 0)
            add_call(mess, STREAM, WEFT_NO_VALUES);
        if (shape & 8 && i == 0)
            lend(mess);
        if (shape & 16 && i == 0)
            borrow(mess);
        for (int64_t k = 0; k < 5; k++)
            add_call(mess, ADD, WEFT_VALUES(weft_of_i64(k)));
    }
    weft_tensor_unref(tensor);
    return mess;
}

static void must_be_right(kind what, weft_future *future)
{
    const weft_values *values = weft_future_values(future);
    int64_t sum = 0;
    bool equal = false;
    if (what == ADD)
        MUST(weft_values_get_i64(values, 0, &sum) == WEFT_OK && sum > 0);
    if (what == CHECK)
        MUST(weft_values_get_bool(values, 0, &equal) == WEFT_OK && equal);
    if (what == MAKE || what == FETCH) {
        const float *data = weft_tensor_data(weft_future_tensor(future, 0));
        for (size_t i = 0; i < LARGE; i++)
            MUST(data[i] == (what == MAKE ? 4.0F : 5.0F));
    }
    MUST(what != HOLD);
}

static void must_be_dead(kind what, weft_future *future, int victim)
{
    const weft_error *error = weft_future_error(future);
    if (weft_error_code(error) != WEFT_ERR_PEER_DEAD) {
        fprintf(stderr, "%s ended with: ", functions[what]);
        weft_error_print(error, stderr);
        abort();
    }
    MUST(weft_error_worker(error) == victim);
    MUST(weft_error_ran(error) != WEFT_RAN_YES);
}

double kill_mess_end(kill_mess *mess)
{
    double began = kill_now_ms(), last;
    for (int i = 0; i < mess->count; i++) {
        weft_status status = weft_future_wait(mess->futures[i], END_MS);
        if (!weft_future_done(mess->futures[i])) {
            fprintf(stderr, "%s has not ended after %d ms\n", functions[mess->kinds[i]], END_MS);
            (void)!weft_debug_dump(mess->agent, stderr);
            abort();
        }
        if (status == WEFT_OK)
            must_be_right(mess->kinds[i], mess->futures[i]);
        else
            must_be_dead(mess->kinds[i], mess->futures[i], mess->victim.rank);
        weft_future_unref(mess->futures[i]);
    }
    last = kill_now_ms();
    weft_status again =
        weft_rpc_sync(mess->agent, weft_to_worker(mess->victim), "add", WEFT_VALUES(weft_of_i64(1)), NULL, NULL);
    MUST_BE(again, WEFT_ERR_PEER_DEAD);
    for (int i = 0; i < 2 && mess->theirs[i]; i++) {
        weft_values *none;
        weft_status status = weft_rref_to_here(mess->theirs[i], END_MS, &none, NULL);
        MUST_BE(status, WEFT_ERR_PEER_DEAD);
        weft_rref_unref(mess->theirs[i]);
    }
    free(mess);
    return last - began;
}
