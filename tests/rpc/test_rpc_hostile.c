/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_hostile.c - nonsense from the wire: mutated bytes into the decoders, and a worker that sends its peer
 * whatever it likes. Nothing crashes, nothing hangs, and the victim's other calls go on.
 */
#include "rpc/inside.h"
#include "rpc/world.h"
#include "prng.h"
#include "tensors.h"

static uint64_t state;

static size_t below(size_t limit)
{
    return (size_t)(prng_next(&state) % limit);
}

/* Bits turned, bytes that mean something put in, the end cut off. */
static size_t mutate(uint8_t *bytes, size_t size)
{
    static const uint8_t telling[] = {0, 1, 2, 3, 7, 8, 10, 0x7f, 0x80, 0xff};
    for (size_t n = below(6); n > 0 && size > 0; n--) {
        size_t at = below(size);
        if (below(2))
            bytes[at] ^= (uint8_t)(1u << below(8));
        else
            bytes[at] = telling[below(sizeof(telling))];
    }
    return below(4) ? size : below(size + 1);
}

/* ---- The decoders ---------------------------------------------------------------------------------------------- */

/* The size before the values, and the kind of body, are not the decoder's. */
enum { BODY_HEAD = 5 };

static void write_sample(wfi_writer *w, bool land)
{
    weft_tensor *small = tensor_arange(20, WEFT_DTYPE_INT32), *large = tensor_arange(2000, WEFT_DTYPE_FLOAT64);
    weft_tensor *both[] = {small, large};
    weft_tensor *place = tensor_empty(WEFT_SHAPE(4, 5), WEFT_DTYPE_INT32);
    inside_write_body(
        w,
        WEFT_VALUES(weft_of_null(), weft_of_i64(7), weft_of_f64(1), weft_of_string("text"), weft_of_tensor(small),
                    weft_of_tensors((weft_tensors){both, 2}),
                    weft_of_list(WEFT_VALUES(weft_of_bool(true), weft_of_list(WEFT_VALUES(weft_of_bytes("xy", 2)))))),
        land ? place : NULL);
    weft_tensor_unref(place);
    weft_tensor_unref(small);
    weft_tensor_unref(large);
}

static void decode_all(uint8_t *bytes, size_t size)
{
    wfi_writer values = {.data = bytes, .size = size};
    weft_status status = inside_decode(&values, size < 100 ? size : 100, below(3));
    (void)status; /* whatever it is */
}

/* More bytes than there is memory are said to follow: they are missed before memory is taken for them. */
static void test_large_words(void **s)
{
    uint8_t bytes[64];
    wfi_writer values;
    wfi_writer_init(&values, bytes, sizeof(bytes));
    wfi_write_u32(&values, 1);
    wfi_write_u8(&values, WEFT_TYPE_TENSOR);
    inside_write_tensor_type(&values, WEFT_DTYPE_FLOAT64, WEFT_SHAPE(1 << 25, 1 << 25));
    wfi_write_u8(&values, 0); /* right here */
    assert_int_equal(inside_decode(&values, 0, 0), WEFT_ERR_PROTOCOL);
}

static void test_mutated_metadata(void **s)
{
    state = 1;
    for (int i = 0; i < 20000; i++) {
        uint8_t bytes[4096];
        wfi_writer w;
        wfi_writer_init(&w, bytes, sizeof(bytes));
        write_sample(&w, i % 2);
        MUST(!w.failed);
        size_t size = w.size - BODY_HEAD;
        decode_all(bytes + BODY_HEAD, i < 2 ? size : mutate(bytes + BODY_HEAD, size));
    }
}

static void test_random_metadata(void **s)
{
    state = 2;
    for (int i = 0; i < 100000; i++) {
        uint8_t bytes[64];
        size_t size = below(sizeof(bytes));
        for (size_t k = 0; k < size; k++)
            bytes[k] = below(2) ? (uint8_t)below(12) : (uint8_t)prng_next(&state);
        decode_all(bytes, size);
    }
}

/* ---- A worker that says what it likes -------------------------------------------------------------------------- */

static weft_call *held[256];
static int held_count;
static bool done; /* the victim has seen all it wanted */

static weft_status run_echo(weft_call *call, void *user)
{
    weft_args all = {NULL, 0};
    if (weft_call_count(call) && weft_call_type(call, 0) == WEFT_TYPE_LIST)
        all = weft_call_list(call, 0);
    weft_status sent = weft_call_send_item(call, all);
    (void)sent; /* to callers that never take it, or asked for none */
    weft_call_give(call, all);
    return WEFT_OK;
}

static void take_item(const weft_values *item, void *arg)
{
    MUST(item);
}

static weft_status run_hold(weft_call *call, void *user)
{
    if (held_count == 256)
        return WEFT_ERR_BUSY;
    held[held_count++] = weft_call_defer(call);
    return WEFT_DEFERRED;
}

static weft_tensor *land_nowhere(int from_rank, size_t index, weft_dtype dtype, weft_shape shape, void *user)
{
    return index % 2 ? NULL : tensor_empty(index % 4 ? WEFT_SHAPE(3) : shape, dtype);
}

static const weft_function functions[] = {
    {.name = "echo", .takes = {WEFT_TYPE_REST}, .gives = {WEFT_TYPE_REST}, .run = run_echo},
    {.name = "land", .takes = {WEFT_TYPE_REST}, .gives = {WEFT_TYPE_REST}, .run = run_echo, .land = land_nowhere},
    {.name = "hold",
     .takes = {WEFT_TYPE_REST},
     .gives = {WEFT_TYPE_REST},
     .run = run_hold,
     .flags = WEFT_FUNCTION_INLINE},
    {.name = "nothing", .run = world_run_nothing},
};

static void write_name(wfi_writer *w)
{
    inside_name name = {.owner = (uint32_t)below(4),
                        .creator = (uint32_t)below(4),
                        .creator_incarnation = (uint32_t)below(5),
                        .number = below(6)};
    inside_write_name(w, &name);
}

static void write_body(wfi_writer *w)
{
    if (below(5)) {
        write_sample(w, below(2));
        return;
    }
    wfi_write_u8(w, 1); /* elsewhere */
    wfi_write_u64(w, prng_next(&state));
    wfi_write_u64(w, prng_next(&state));
    wfi_write_u8(w, (uint8_t)(below(2) ? 64 : prng_next(&state)));
    wfi_write_u64(w, below(2) ? below(10000) : prng_next(&state));
}

static void write_call(wfi_writer *w)
{
    static const char *const names[] = {"echo", "land", "hold", "nothing", "weft:fetch", "none"};
    const char *name = names[below(6)];
    bool remote = below(3) == 0;
    bool items = below(2);
    wfi_write_u8(w, (uint8_t)(remote | (items ? INSIDE_CALL_ITEMS : 0)));
    wfi_write_u64(w, below(2) ? UINT64_MAX : below(100000000));
    wfi_write_u8(w, (uint8_t)strlen(name));
    wfi_write_bytes(w, name, strlen(name));
    wfi_write_blob(w, "context", below(8));
    if (remote) {
        write_name(w);
        wfi_write_u64(w, below(4));
    }
    write_body(w);
}

/* A message of type 0..10 that is nearly, or quite, well formed. */
static size_t compose(uint8_t type, uint8_t *bytes)
{
    wfi_writer w;
    wfi_writer_init(&w, bytes, INSIDE_MESSAGE_MAX);
    if (type >= INSIDE_FORK && type <= INSIDE_DROP) {
        write_name(&w);
        wfi_write_u64(&w, below(6));
        return w.size;
    }
    wfi_write_u64(&w, below(80)); /* an id that may be in use */
    if (type == INSIDE_CALL)
        write_call(&w);
    if (type == INSIDE_REFUSED)
        wfi_write_u64(&w, below(2) ? below(80) : prng_next(&state));
    if (type == INSIDE_REFUSED)
        wfi_write_u8(&w, (uint8_t)below(2));
    if (type == INSIDE_CANCEL)
        wfi_write_u8(&w, (uint8_t)below(2));
    if (type == INSIDE_ITEM || type == INSIDE_TOOK)
        wfi_write_u32(&w, (uint32_t)below(below(2) ? 3 : 20));
    if (type == INSIDE_ITEM) {
        wfi_write_u8(&w, below(8) == 0);
        write_body(&w);
    }
    if (type == INSIDE_REPLY) {
        wfi_write_u8(&w, (uint8_t)below(4));
        wfi_write_u32(&w, (uint32_t)below(4));
        write_body(&w);
    }
    return w.size;
}

static void send_nonsense(weft_agent *agent, int to)
{
    uint8_t type = (uint8_t)below(INSIDE_REFUSED + 2) /* 0 and the last are nobody's */, bytes[INSIDE_MESSAGE_MAX];
    size_t size = compose(type, bytes);
    if (below(3))
        size = mutate(bytes, size);
    weft_status status = inside_send(agent, to, type, below(2), bytes, size);
    (void)status; /* the victim may be tired of us */
}

/* Rank 1 is hostile, rank 0 its victim, rank 2 a bystander. */
static void play(weft_agent *agent, void *arg)
{
    world *w = arg;
    weft_future *futures[60];
    weft_rref *rrefs[20];
    int rank = weft_agent_rank(agent);
    if (rank == 1) {
        for (int i = 0; i < 300; i++) {
            send_nonsense(agent, 0);
            if (i % 10 == 0)
                weft_sim_sleep(w->sim, 50000);
        }
    }
    while (rank != 0 && !done)
        world_sleep_ms(w, 1);
    if (rank != 0)
        return;
    for (int i = 0; i < 60; i++) /* answered by whatever comes */
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1), i % 2 ? "hold" : "nothing", WEFT_NO_VALUES,
                               &(weft_rpc_options){.timeout_ms = 500, .on_item = i % 3 ? take_item : NULL},
                               &futures[i]));
    for (int i = 0; i < 20; i++)
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(1 + i % 2), "hold", WEFT_NO_VALUES,
                                &(weft_rpc_options){.timeout_ms = 200}, &rrefs[i]));
    for (int i = 0; i < 50; i++) {
        weft_tensor *x = tensor_arange(i * 100, WEFT_DTYPE_INT32);
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(2), "echo", WEFT_VALUES(weft_of_list(WEFT_VALUES(weft_of_tensor(x)))),
                              NULL, NULL));
        weft_tensor_unref(x);
    }
    for (int i = 0; i < 60; i++) {
        weft_status status = weft_future_wait(futures[i], 20000);
        MUST(weft_future_done(futures[i]));
        (void)status; /* whatever it is */
        weft_future_unref(futures[i]);
    }
    for (int i = 0; i < 20; i++)
        weft_rref_unref(rrefs[i]);
    done = true;
}

static void open_so(weft_agent_options *options, void *arg)
{
    options->call_timeout_ms = 5000;
}

static void test_hostile_worker(void **s)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        world w = {.fabric = WORLD_SIM,
                   .seed = seed,
                   .size = 3,
                   WORLD_FUNCTIONS(functions),
                   .program = play,
                   .adjust = open_so,
                   .stop = true};
        w.arg = &w;
        state = seed;
        held_count = 0;
        done = false;
        world_run(&w);
        for (int i = 0; i < held_count; i++) /* all after their agents have gone */
            weft_call_finish(held[i], WEFT_OK);
    }
}

/* ---- Options --------------------------------------------------------------------------------------------------- */

static void test_environment(void **s)
{
    static const char *const names[] = {"RANK",         "WORLD_SIZE",    "MASTER_PORT",
                                        "WEFT_THREADS", "WEFT_DEATH_MS", "WEFT_NO_BINDING",
                                        "WEFT_PORTS",   "WEFT_NAME",     "WEFT_FABRIC"};
    static const char *const values[] = {
        "", "-1", "1", "4294967296", "99999999999999999999", "1x", "0x10", " 2", "true", "one two", "\xff\xfe", "1e3"};
    state = 3;
    for (int i = 0; i < 5000; i++) {
        weft_status status;
        weft_error *error = NULL;
        for (size_t k = 0; k < sizeof(names) / sizeof(*names); k++)
            if (below(3))
                setenv(names[k], values[below(sizeof(values) / sizeof(*values))], 1);
        const weft_agent_options *out = inside_resolve(NULL, &status, &error);
        MUST((status == WEFT_OK) == (out != NULL) && ((status == WEFT_OK) == (!error) || status == WEFT_ERR_MEMORY));
        weft_error_unref(error);
        for (size_t k = 0; k < sizeof(names) / sizeof(*names); k++)
            unsetenv(names[k]);
    }
}

UNIT_MAIN(test_large_words, test_mutated_metadata, test_random_metadata, test_hostile_worker, test_environment)
