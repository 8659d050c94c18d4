/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_gpu_hostile.c - nonsense about devices from the wire: calls and answers with tensors for devices that are
 * not there, in places where no tensor of a device can be, or shorter than they say. Each is refused before anything
 * is asked of the driver, and good calls go on. On the emulated GPU, whose driver counts.
 */
#include <stddef.h>
#include <stdint.h>

#include "emulated/emulated.h"
#include "gpu/gpu.h"
#include "make.h"
#include "prng.h"
#include "rpc/inside.h"
#include "rpc/world.h"
#include "tensors.h"

enum { HERE = 1, NOT_THERE = 3, LAST = 64, NONE = 65 }; /* codes: cuda:0, cuda:2, cuda:63, and no device */
enum { INLINE = INSIDE_ENCODING_INLINE, EAGER = INSIDE_ENCODING_EAGER, PULL = INSIDE_ENCODING_PULL };
enum { PUSH = INSIDE_ENCODING_PUSH, ADDRESS = 17 }; /* ADDRESS: bytes that follow PULL and EAGER */

static void (*read_counts)(emulated_counts *out);
static const weft_device gpu = {WEFT_DEVICE_CUDA, 0};
static uint64_t state;

static size_t below(size_t limit)
{
    return (size_t)(prng_next(&state) % limit);
}

typedef struct tensor_said {
    int64_t count;
    uint8_t from, to, encoding;
    size_t follows; /* bytes behind the encoding, all 0, unless it was pushed */
} tensor_said;

typedef struct body_said {
    tensor_said tensors[3];
    size_t count, tail; /* bytes behind the metadata */
    bool has_place;     /* a landing place of a device */
    size_t cut;         /* bytes that are missing at the end of the metadata */
} body_said;

static void write_zeros(wfi_writer *w, size_t count)
{
    for (size_t i = 0; i < count; i++)
        wfi_write_u8(w, 0);
}

static void write_body(wfi_writer *w, const body_said *said)
{
    uint8_t bytes[INSIDE_MESSAGE_MAX];
    wfi_writer meta;
    wfi_writer_init(&meta, bytes, sizeof(bytes));
    wfi_write_u32(&meta, (uint32_t)said->count);
    for (size_t i = 0; i < said->count; i++) {
        const tensor_said *one = &said->tensors[i];
        wfi_write_u8(&meta, WEFT_TYPE_TENSOR);
        inside_write_placed(&meta, WEFT_SHAPE(one->count), one->from, one->to, one->encoding);
        if (one->encoding == PUSH) /* into the place of its number */
            wfi_write_u32(&meta, (uint32_t)i);
        else
            write_zeros(&meta, one->follows);
    }
    wfi_write_u32(&meta, said->has_place);
    if (said->has_place) { /* as of a tensor: dtype with the mark, dimension, size, devices; and memory */
        wfi_write_u8(&meta, WEFT_DTYPE_FLOAT32 | 0x40);
        wfi_write_u8(&meta, 1);
        wfi_write_i64(&meta, 3);
        wfi_write_u8(&meta, HERE);
        wfi_write_u8(&meta, HERE);
        write_zeros(&meta, ADDRESS);
    }
    MUST(!meta.failed);
    wfi_write_u8(w, 0); /* here */
    wfi_write_blob(w, bytes, meta.size - said->cut);
    write_zeros(w, said->tail);
    MUST(!w->failed);
}

/* ---- What the hostile worker hears ------------------------------------------------------------------------------- */

static struct {
    uint64_t call, reply; /* the last ids; 0: none */
    weft_status status;   /* of the reply */
} heard;

static bool hear(uint8_t type, const uint8_t *bytes, size_t size)
{
    wfi_reader r;
    wfi_reader_init(&r, bytes, size);
    uint64_t id = wfi_read_u64(&r);
    if (type == INSIDE_CALL)
        heard.call = id;
    if (type != INSIDE_REPLY)
        return true;
    heard.reply = id;
    bool has_failed = wfi_read_u8(&r) & INSIDE_REPLY_ERROR;
    (void)wfi_read_u32(&r);
    heard.status = has_failed ? (weft_status)wfi_read_u32(&r) : WEFT_OK;
    return true;
}

static void send_call(weft_agent *agent, uint64_t id, const char *function, const body_said *said)
{
    uint8_t bytes[INSIDE_MESSAGE_MAX];
    wfi_writer w;
    wfi_writer_init(&w, bytes, sizeof(bytes));
    wfi_write_u64(&w, id);
    wfi_write_u8(&w, 0);
    wfi_write_u64(&w, UINT64_MAX);
    wfi_write_u8(&w, (uint8_t)strlen(function));
    wfi_write_bytes(&w, function, strlen(function));
    wfi_write_blob(&w, NULL, 0);
    write_body(&w, said);
    MUST_OK(inside_send(agent, 0, INSIDE_CALL, false, bytes, w.size));
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static weft_tensor *land_there(int from_rank, size_t index, weft_dtype dtype, weft_shape shape, void *user)
{
    return tensor_empty_on(gpu, shape, dtype);
}

static weft_status run_take(weft_call *call, void *user)
{
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "take", .takes = {WEFT_TYPE_REST}, .run = run_take},
    {.name = "land", .takes = {WEFT_TYPE_REST}, .run = run_take, .land = land_there},
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo},
};

static const struct {
    const char *what, *function;
    body_said said;
} calls[] = {
    {"a device that is not there", "take", {{{3, 1, NOT_THERE, INLINE, 12}}, .count = 1}},
    {"the last device", "take", {{{3, 1, LAST, INLINE, 12}}, .count = 1}},
    {"no device", "take", {{{3, 1, NONE, INLINE, 12}}, .count = 1}},
    {"no device, 255", "take", {{{3, 1, 255, INLINE, 12}}, .count = 1}},
    {"from no device", "take", {{{3, NONE, HERE, INLINE, 12}}, .count = 1}},
    {"one that is not there, behind one that is",
     "take",
     {{{3, 1, HERE, INLINE, 12}, {3, 1, LAST, INLINE, 12}}, .count = 2}},
    {"before one that is", "take", {{{3, 1, NOT_THERE, INLINE, 12}, {3, 1, HERE, INLINE, 12}}, .count = 2}},
    {"an empty tensor", "take", {{{0, 1, NOT_THERE, INLINE, 0}}, .count = 1}},
    {"to be pulled", "take", {{{5001, 1, NOT_THERE, PULL, ADDRESS}}, .count = 1}},
    {"to be pulled, among others",
     "take",
     {{{5001, 1, NOT_THERE, PULL, ADDRESS}, {3, 1, HERE, INLINE, 12}}, .count = 2}},
    {"eager", "take", {{{100, 1, NOT_THERE, EAGER, ADDRESS}}, .count = 1, .tail = 400}},
    {"eager without a tail", "take", {{{5001, 1, HERE, EAGER, ADDRESS}}, .count = 1}},
    {"eager with a short tail", "take", {{{100, 1, HERE, EAGER, ADDRESS}}, .count = 1, .tail = 399}},
    {"two with the tail of one",
     "take",
     {{{90, 1, 1, EAGER, ADDRESS}, {90, 1, 1, EAGER, ADDRESS}}, .count = 2, .tail = 400}},
    {"short", "take", {{{3, 1, HERE, INLINE, 12}}, .count = 1, .cut = 5}},
    {"cut behind the devices", "take", {{{0, 1, HERE, INLINE, 0}}, .count = 1, .cut = 5}},
    {"cut between the devices", "take", {{{0, 1, HERE, INLINE, 0}}, .count = 1, .cut = 6}},
    {"cut before them", "take", {{{0, 1, HERE, INLINE, 0}}, .count = 1, .cut = 7}},
    {"pushed", "take", {{{3, 1, HERE, .encoding = PUSH}}, .count = 1}},
    {"pushed to the CPU", "take", {{{3, 1, 0, .encoding = PUSH}}, .count = 1}},
    {"a landing place of a device", "take", {{{3, 0, 0, INLINE, 12}}, .count = 1, .has_place = true}},
    {"that for one that is there", "take", {{{3, 1, HERE, INLINE, 12}}, .count = 1, .has_place = true}},
    {"of unknown encoding", "take", {{{3, 1, HERE, 4, 12}}, .count = 1}},
};

static emulated_counts counts(void)
{
    emulated_counts now;
    read_counts(&now);
    return now;
}

static void echo(weft_agent *agent, int rank)
{
    static const int64_t sizes[] = {3, 700, 300007};
    for (size_t i = 0; i < 3; i++) {
        weft_tensor *x = tensor_arange(sizes[i], WEFT_DTYPE_FLOAT32), *there = tensor_to_device(x, gpu), *y;
        weft_values *got;
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), "echo", WEFT_VALUES(weft_of_tensor(there)), NULL, &got));
        MUST_OK(weft_values_get_tensor(got, 0, &y));
        MUST(weft_tensor_get_f64(y, sizes[i] - 1) == (double)(sizes[i] - 1));
        weft_values_unref(got);
        weft_tensor_unref(there);
        weft_tensor_unref(x);
    }
}

static void await_heard(world *w, const uint64_t *id, uint64_t expected)
{
    for (int i = 0; i < 10000 && *id != expected; i++)
        world_sleep_ms(w, 1);
    MUST(*id == expected);
}

/* The driver has allocated, copied and run nothing since then. */
static void must_be_untouched(const emulated_counts *before, const char *what)
{
    emulated_counts now = counts();
    if (memcmp(now.calls, before->calls, sizeof(now.calls)) != 0)
        fail_msg("%s: the driver was called", what);
}

static void say_calls(weft_agent *agent, void *arg)
{
    world *w = arg;
    if (weft_agent_rank(agent) == 0)
        return; /* closing waits */
    echo(agent, 0);
    inside_divert(agent, hear);
    emulated_counts before = counts();
    for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
        send_call(agent, i + 1, calls[i].function, &calls[i].said);
        await_heard(w, &heard.reply, i + 1);
        if (heard.status != WEFT_ERR_PROTOCOL)
            fail_msg("%s: %s", calls[i].what, weft_status_name(heard.status));
        must_be_untouched(&before, calls[i].what);
    }
    /* The function makes a place on the device for each; nobody can have pushed into it. Or its size is nonsense. */
    const body_said pushed = {{{3, 1, HERE, .encoding = PUSH}}, .count = 1},
                    huge = {{{INT64_C(1) << 40, 1, HERE, PULL, ADDRESS}}, .count = 1};
    send_call(agent, 100, "land", &pushed);
    await_heard(w, &heard.reply, 100);
    MUST(heard.status == WEFT_ERR_PROTOCOL);
    before = counts();
    send_call(agent, 101, "take", &huge);
    await_heard(w, &heard.reply, 101);
    MUST(heard.status != WEFT_OK);
    must_be_untouched(&before, "4 TiB");
    inside_divert(agent, NULL);
    echo(agent, 0);
}

static void test_calls(void **cmocka)
{
    world_play(&(world){.program = say_calls, .size = 2, WORLD_FUNCTIONS(functions)}, 5, 0);
}

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

static const struct {
    const char *what;
    body_said said;
    weft_status status; /* of the call */
} answers[] = {
    {"from a device that is not here", {{{3, NOT_THERE, 0, INLINE, 12}}, .count = 1}, WEFT_ERR_INVALID},
    {"from the last one", {{{5001, LAST, 0, PULL, ADDRESS}}, .count = 1}, WEFT_ERR_INVALID},
    {"from no device", {{{3, NONE, 0, INLINE, 12}}, .count = 1}, WEFT_ERR_PROTOCOL},
    {"to no device", {{{3, 1, NONE, INLINE, 12}}, .count = 1}, WEFT_ERR_PROTOCOL},
    {"eager with a short tail", {{{100, 1, 0, EAGER, ADDRESS}}, .count = 1, .tail = 399}, WEFT_ERR_PROTOCOL},
    {"pushed", {{{3, 1, 0, .encoding = PUSH}}, .count = 1}, WEFT_ERR_PROTOCOL},
    {"pushed, and so is one of the CPU",
     {{{70000, 0, 0, .encoding = PUSH}, {3, 1, 0, .encoding = PUSH}}, .count = 2},
     WEFT_ERR_PROTOCOL},
    {"cut between the devices", {{{0, 1, HERE, INLINE, 0}}, .count = 1, .cut = 6}, WEFT_ERR_PROTOCOL},
};

/* Where the tensors shall land: on the CPU, if that is where they were. */
static void make_places(const body_said *said, weft_tensor *places[3])
{
    for (size_t i = 0; i < said->count; i++) {
        weft_shape shape = WEFT_SHAPE(said->tensors[i].count);
        places[i] = said->tensors[i].from ? tensor_empty_on(gpu, shape, WEFT_DTYPE_FLOAT32)
                                          : tensor_empty(shape, WEFT_DTYPE_FLOAT32);
    }
}

static bool has_answered;

static void say_answers(weft_agent *agent, void *arg)
{
    world *w = arg;
    int rank = weft_agent_rank(agent);
    if (rank == 1)
        inside_divert(agent, hear);
    for (size_t i = 0; i < 2 * sizeof(answers) / sizeof(*answers); i++) {
        const body_said *said = &answers[i / 2].said;
        if (rank == 1) { /* answers with nonsense */
            uint8_t bytes[INSIDE_MESSAGE_MAX];
            wfi_writer writer;
            for (int k = 0; k < 10000 && !heard.call; k++)
                world_sleep_ms(w, 1);
            MUST(heard.call);
            wfi_writer_init(&writer, bytes, sizeof(bytes));
            wfi_write_u64(&writer, heard.call);
            wfi_write_u8(&writer, 0);
            wfi_write_u32(&writer, 0);
            write_body(&writer, said);
            heard.call = 0;
            MUST_OK(inside_send(agent, 0, INSIDE_REPLY, false, bytes, writer.size));
            continue;
        }
        weft_tensor *x = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32);
        weft_tensor *places[3];
        make_places(said, places);
        bool lands = i % 2;
        emulated_counts before = counts();
        weft_rpc_options options = {.timeout_ms = 10000, .land = {places, lands ? said->count : 0}};
        weft_status status =
            weft_rpc_sync(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(x)), &options, NULL);
        weft_status expected = answers[i / 2].status;
        bool is_here = lands && expected == WEFT_ERR_INVALID; /* a place wins over the device that was said */
        if (!is_here && status != expected)
            fail_msg("%s: %s", answers[i / 2].what, weft_status_name(status));
        if (!is_here)
            must_be_untouched(&before, answers[i / 2].what);
        for (size_t k = 0; k < said->count; k++)
            weft_tensor_unref(places[k]);
        weft_tensor_unref(x);
    }
    has_answered |= rank == 0;
    while (rank == 1 && !has_answered)
        world_sleep_ms(w, 1);
    if (rank == 1)
        inside_divert(agent, NULL);
    else
        world_sleep_ms(w, 10);
    echo(agent, 1 - rank);
}

static void begin_world(world *w)
{
    has_answered = false;
    heard.call = heard.reply = 0;
}

static void test_answers(void **cmocka)
{
    world_play(&(world){.program = say_answers, .begin = begin_world, .size = 2, WORLD_FUNCTIONS(functions)}, 5, 0);
}

/* ---- Anything ---------------------------------------------------------------------------------------------------- */

/* Well-formed calls for devices, with some bytes that are not. Whatever they are, all ends, and nothing stays. */
static void say_anything(weft_agent *agent, void *arg)
{
    static const int64_t sizes[] = {0, 1, 3, 90, 5001};
    static const uint8_t codes[] = {0, 1, 2, NOT_THERE, LAST, NONE};
    if (weft_agent_rank(agent) == 0)
        return;
    inside_divert(agent, hear);
    state = ((world *)arg)->seed;
    for (uint64_t id = 1; id <= 400; id++) {
        body_said said = {.count = 1 + below(3), .has_place = below(8) == 0, .tail = below(2) ? 1080 : below(700)};
        for (size_t i = 0; i < said.count; i++) {
            tensor_said *one = &said.tensors[i];
            *one =
                (tensor_said){.count = sizes[below(5)], .from = codes[below(6)], .to = codes[below(below(2) ? 3 : 6)]};
            one->encoding = (uint8_t)below(4);
            one->count = one->encoding <= EAGER && one->count > 90 ? 90 : one->count;
            one->follows = one->encoding == INLINE ? 4 * (size_t)one->count : ADDRESS;
        }
        said.cut = below(10) ? 0 : below(12);
        send_call(agent, id, below(3) ? "take" : "land", &said);
        if (id % 20 == 0)
            await_heard(arg, &heard.reply, heard.reply);
        world_sleep_ms(arg, (int)below(3));
    }
    world_sleep_ms(arg, 1000);
    inside_divert(agent, NULL);
    echo(agent, 0);
}

static void test_anything(void **cmocka)
{
    world_play(&(world){.program = say_anything, .begin = begin_world, .size = 2, WORLD_FUNCTIONS(functions)}, 20, 0);
}

/* ---- What is left ------------------------------------------------------------------------------------------------ */

static uint64_t usual; /* bytes of devices and page-locked ones: the pieces of ordinary copies stay */

static uint64_t bytes_live(void)
{
    emulated_counts now = counts();
    return now.device_bytes + now.pinned_bytes;
}

static int use_devices(void **cmocka)
{
    weft_tensor *x = tensor_arange(3, WEFT_DTYPE_FLOAT32), *there = tensor_to_device(x, gpu);
    weft_tensor_unref(there);
    weft_tensor_unref(x);
    usual = bytes_live();
    return 0;
}

static int nothing_is_left(void **cmocka)
{
    if (bytes_live() != usual)
        print_error("%llu bytes are in use, %llu before\n", (unsigned long long)bytes_live(),
                    (unsigned long long)usual);
    return bytes_live() != usual;
}

int main(int argc, char **argv)
{
    gpu_find("emulated_gpu_counts", &read_counts);
    if (!read_counts)
        return GPU_SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_calls, nothing_is_left),
        cmocka_unit_test_teardown(test_answers, nothing_is_left),
        cmocka_unit_test_teardown(test_anything, nothing_is_left),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, use_devices, NULL);
}
