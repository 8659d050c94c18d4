/* SPDX-License-Identifier: Apache-2.0 */
/* test_value.c - values without any network: walked through, owned, encoded, decoded, measured. */
#include "tensors.h"
#include "unit.h"
#include "said.h"
#include "tensor/tensor.h"
#include "value/decode.h"
#include "value/encode.h"
#include "value/value.h"
#include "value/walk.h"

#include <weft/weft.h>

#include <string.h>

/* 1, [2, [3], []], 4 */
static const weft_value threes[] = {{.type = WEFT_TYPE_I64, .as.i64 = 3}};
static const weft_value twos[] = {
    {.type = WEFT_TYPE_I64, .as.i64 = 2}, {.type = WEFT_TYPE_LIST, .as.list = {threes, 1}}, {.type = WEFT_TYPE_LIST}};
static const weft_value ones[] = {{.type = WEFT_TYPE_I64, .as.i64 = 1},
                                  {.type = WEFT_TYPE_LIST, .as.list = {twos, 3}},
                                  {.type = WEFT_TYPE_I64, .as.i64 = 4}};
static const weft_args nested = {ones, 3};

static void all_values_are_walked_through_in_order(void **state)
{
    static const char *const paths[] = {"0", "1", "1.0", "1.1", "1.1.0", "1.2", "2"};
    char text[WFI_WALK_PATH];
    wfi_walk walk;
    size_t at = 0;
    wfi_walk_begin(&walk, nested);
    for (const weft_value *value; (value = wfi_walk_next(&walk)); at++) {
        assert_true(at < 7);
        assert_string_equal(wfi_walk_path(&walk, text), paths[at]);
        assert_int_equal(walk.depth, strlen(paths[at]) / 2);
        assert_int_equal(value->type, at == 1 || at == 3 || at == 5 ? WEFT_TYPE_LIST : WEFT_TYPE_I64);
    }
    assert_int_equal(at, 7);
    assert_null(wfi_walk_next(&walk));
}

static void nothing_is_entered_that_cannot_be_read(void **state)
{
    weft_value lists[WEFT_MAX_LIST_DEPTH + 3] = {{.type = WEFT_TYPE_I64}}; /* each has the one before it */
    for (int i = 1; i < WEFT_MAX_LIST_DEPTH + 3; i++)
        lists[i] = weft_of_list((weft_args){&lists[i - 1], 1});
    wfi_walk walk;
    int seen = 0;
    wfi_walk_begin(&walk, (weft_args){&lists[WEFT_MAX_LIST_DEPTH + 2], 1});
    while (wfi_walk_next(&walk))
        seen++;
    assert_int_equal(seen, WEFT_MAX_LIST_DEPTH + 1);
    weft_value at_null = weft_of_list((weft_args){NULL, 5});
    wfi_walk_begin(&walk, (weft_args){&at_null, 1});
    assert_ptr_equal(wfi_walk_next(&walk), &at_null);
    assert_null(wfi_walk_next(&walk));
    assert_false(wfi_args_are_readable((weft_args){&at_null, 1}));
    weft_value endless = weft_of_list((weft_args){threes, SIZE_MAX});
    wfi_walk_begin(&walk, (weft_args){&endless, 1});
    assert_ptr_equal(wfi_walk_next(&walk), &endless);
    assert_null(wfi_walk_next(&walk));
    wfi_walk_begin(&walk, endless.as.list);
    assert_null(wfi_walk_next(&walk));
    assert_true(wfi_args_are_readable(nested));
}

static void an_owned_list_is_whole_or_not_at_all(void **state)
{
    weft_tensor *tensor = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    weft_values *values;
    weft_value inner[] = {weft_of_string("kept"), weft_of_tensor(tensor), weft_of_tensor(tensor)};
    weft_value outer[] = {weft_of_tensors((weft_tensors){&tensor, 1}), weft_of_list((weft_args){inner, 3}),
                          weft_of_bytes("behind", 6)};
    assert_int_equal(weft_values_create((weft_args){outer, 3}, &values, NULL), WEFT_OK);
    assert_int_equal(wfi_values_tensors(weft_values_args(values), NULL, 0), 3);
    weft_values_unref(values);
    inner[2].as.tensor = NULL; /* in the midst of it: what was taken before is given back */
    assert_int_equal(weft_values_create((weft_args){outer, 3}, &values, NULL), WEFT_ERR_INVALID);
    weft_value deep[WEFT_MAX_LIST_DEPTH + 2] = {weft_of_string("deep")};
    for (int i = 1; i < WEFT_MAX_LIST_DEPTH + 2; i++)
        deep[i] = weft_of_list((weft_args){&deep[i - 1], 1});
    assert_int_equal(weft_values_create((weft_args){&deep[WEFT_MAX_LIST_DEPTH], 1}, &values, NULL), WEFT_OK);
    weft_values_unref(values);
    assert_int_equal(weft_values_create((weft_args){&deep[WEFT_MAX_LIST_DEPTH + 1], 1}, &values, NULL),
                     WEFT_ERR_TOO_LARGE);
    weft_tensor_unref(tensor);
}

static weft_status decode(const wfi_writer *meta, size_t size, uint8_t *tail, wfi_decoded *decoded)
{
    wfi_reader reader, behind;
    wfi_reader_init(&reader, meta->data, size);
    wfi_reader_init(&behind, tail, 0);
    return wfi_decode(decoded, &reader, &behind, &(wfi_decode_options){0});
}

static void what_is_decoded_was_encoded(void **state)
{
    uint8_t tail[1] = {0};
    weft_tensor *small = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32),
                *large = tensor_zeros(WEFT_SHAPE(5000), WEFT_DTYPE_FLOAT32);
    weft_tensor *both[] = {small, large};
    weft_value list[] = {weft_of_string("text"), weft_of_f64(0.5), weft_of_list(nested)};
    weft_args values =
        WEFT_VALUES(weft_of_list((weft_args){list, 3}), weft_of_tensors((weft_tensors){both, 2}), weft_of_null());
    wfi_encoded encoded;
    wfi_decoded decoded;
    assert_int_equal(wfi_encode(&encoded, values, &(wfi_encode_options){0}), WEFT_OK);
    assert_int_equal(encoded.tensor_count, 2);
    assert_int_equal(encoded.remote_count, 1);
    assert_int_equal(encoded.remote_bytes, 20000);
    assert_int_equal(decode(&encoded.meta, encoded.meta.size, tail, &decoded), WEFT_OK);
    assert_int_equal(decoded.segment_count, 1);
    assert_int_equal(decoded.segments[0].size, 20000);
    wfi_walk walk, again;
    wfi_walk_begin(&walk, values);
    wfi_walk_begin(&again, weft_values_args(decoded.values));
    for (const weft_value *value, *other; (value = wfi_walk_next(&walk));) {
        other = wfi_walk_next(&again);
        assert_non_null(other);
        assert_int_equal(value->type, other->type);
        assert_int_equal(walk.depth, again.depth);
        if (value->type == WEFT_TYPE_I64)
            assert_int_equal(value->as.i64, other->as.i64);
    }
    assert_null(wfi_walk_next(&again));
    wfi_decoded_fini(&decoded);
    wfi_encoded_fini(&encoded);
    weft_tensor_unref(small);
    weft_tensor_unref(large);
}

static weft_status measure(const wfi_encoded *encoded, size_t size, wfi_decoded *measured, wfi_tensor_types *types)
{
    uint64_t bytes = 0;
    weft_status status = wfi_decode_measure(measured, encoded->meta.data, size, &bytes, types);
    assert_true(status || bytes >= types->count * 256);
    return status;
}

/* Bytes, and two tensors whose contents follow the metadata: as a call without an agent's memory has them. */
static void tensors_may_follow_the_metadata(void **state)
{
    weft_tensor *two[] = {tensor_arange(1000, WEFT_DTYPE_FLOAT32), tensor_arange(600, WEFT_DTYPE_FLOAT64)};
    weft_args values = WEFT_VALUES(weft_of_bytes("word", 4), weft_of_tensors((weft_tensors){two, 2}));
    static uint8_t tail[1000 * 4 + 600 * 8];
    wfi_encoded encoded;
    wfi_decoded decoded;
    wfi_tensor_types types;
    wfi_peeked peeked[2];
    wfi_reader meta, behind;
    memcpy(tail, weft_tensor_data(two[0]), 4000);
    memcpy(tail + 4000, weft_tensor_data(two[1]), 4800);
    assert_int_equal(wfi_encode(&encoded, values, &(wfi_encode_options){0}), WEFT_OK);
    for (size_t i = 0; i < 2; i++)
        wfi_encode_eager(&encoded, &encoded.remote[i]);
    assert_int_equal(measure(&encoded, encoded.meta.size, &decoded, &types), WEFT_OK);
    assert_int_equal(types.count, 2);
    assert_true(wfi_peek_values(encoded.meta.data, encoded.meta.size, peeked, 2));
    assert_int_equal(peeked[1].tensor_count, 2);
    for (size_t i = 0; i < 2; i++) {
        assert_true(wfi_peek_tensor(&peeked[1].tensors, &types.items[0]));
        assert_int_equal(types.items[0].dtype, weft_tensor_dtype(two[i]));
    }
    for (size_t size = 0; size <= sizeof(tail); size += sizeof(tail) / 2) {
        wfi_reader_init(&meta, encoded.meta.data, encoded.meta.size);
        wfi_reader_init(&behind, tail, size);
        weft_status status = wfi_decode(&decoded, &meta, &behind, &(wfi_decode_options){0});
        assert_int_equal(status, size == sizeof(tail) ? WEFT_OK : WEFT_ERR_PROTOCOL);
    }
    weft_tensors got = weft_values_args(decoded.values).items[1].as.tensors;
    for (size_t i = 0; i < 2; i++) {
        assert_memory_equal(weft_tensor_data(got.items[i]), weft_tensor_data(two[i]), weft_tensor_nbytes(two[i]));
        weft_tensor_unref(two[i]);
    }
    assert_int_equal(decoded.segment_count, 0);
    assert_int_equal(decoded.copied_bytes, sizeof(tail));
    wfi_decoded_fini(&decoded);
    wfi_encoded_fini(&encoded);
}

static void encode_some(wfi_encoded *encoded)
{
    weft_tensor *tensor = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32), *two[] = {tensor, tensor};
    weft_args values = WEFT_VALUES(weft_of_list(nested), weft_of_tensors((weft_tensors){two, 2}),
                                   weft_of_string("text"), weft_of_bool(true), weft_of_tensor(tensor));
    assert_int_equal(wfi_encode(encoded, values, &(wfi_encode_options){0}), WEFT_OK);
    weft_tensor_unref(tensor);
}

/* The byte behind the list's length and the value's type. */
static void an_unknown_dtype_is_refused(void **state)
{
    enum { DTYPE_AT = 5 };
    weft_tensor *tensor = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_INT8);
    uint8_t tail[1] = {0};
    wfi_encoded encoded;
    assert_int_equal(wfi_encode(&encoded, WEFT_VALUES(weft_of_tensor(tensor)), &(wfi_encode_options){0}), WEFT_OK);
    assert_int_equal(encoded.meta.data[DTYPE_AT], WEFT_DTYPE_INT8);
    for (int dtype = 0; dtype < 256; dtype++) {
        wfi_decoded decoded;
        encoded.meta.data[DTYPE_AT] = (uint8_t)dtype;
        bool fits = dtype == WEFT_DTYPE_INT8 || dtype == WEFT_DTYPE_UINT8 ||
                    dtype == WEFT_DTYPE_BOOL; /* of one byte an element */
        weft_status status = decode(&encoded.meta, encoded.meta.size, tail, &decoded);
        assert_int_equal(status, fits ? WEFT_OK : WEFT_ERR_PROTOCOL);
        bool linked = dtype == (WFI_LINKED | WEFT_DTYPE_FLOAT32) || dtype == (WFI_LINKED | WEFT_DTYPE_FLOAT64);
        bool placed =
            dtype & WFI_NAMES_DEVICES && (dtype & 0x3f) <= WEFT_DTYPE_COMPLEX128; /* the next bytes do not fit */
        if (!fits && dtype > WEFT_DTYPE_COMPLEX128 && !placed)
            assert_string_equal(decoded.problem, linked ? "tensor 0 is linked, outside of a distributed context"
                                                        : "malformed type of tensor 0");
        wfi_decoded_fini(&decoded);
    }
    wfi_encoded_fini(&encoded);
    weft_tensor_unref(tensor);
}

/* Two bytes name devices: the tensor's at the sender, and the one where it shall be. */
static void devices_are_named(void **state)
{
    weft_tensor *tensor = tensor_arange(3, WEFT_DTYPE_FLOAT32);
    wfi_encoded encoded;
    wfi_decoded decoded;
    uint8_t tail[1] = {0};
    assert_int_equal(wfi_encode(&encoded, WEFT_VALUES(weft_of_tensor(tensor)), &(wfi_encode_options){0}), WEFT_OK);
    assert_null(encoded.devices);
    wfi_encoded_fini(&encoded);
    assert_int_equal(
        wfi_encode(&encoded, WEFT_VALUES(weft_of_tensor(tensor)), &(wfi_encode_options){.names_devices = true}),
        WEFT_OK);
    assert_int_equal(encoded.devices->offset_count, 1);
    uint8_t *place = encoded.meta.data + encoded.devices->offsets[0];
    for (int from = 0; from < 256; from += 5) {
        for (int to = 0; to < 256; to++) {
            place[0] = (uint8_t)from;
            place[1] = (uint8_t)to;
            weft_status status = decode(&encoded.meta, encoded.meta.size, tail, &decoded);
            bool fits = from < WFI_DEVICE_CODES && to < WFI_DEVICE_CODES;
            assert_int_equal(status, fits ? WEFT_OK : WEFT_ERR_PROTOCOL);
            assert_int_equal(decoded.moves != NULL, fits && to);
            if (decoded.moves) { /* its bytes wait in memory of the host */
                const wfi_decoded_move *move = &decoded.moves->items[0];
                assert_int_equal(decoded.moves->count, 1);
                assert_int_equal(move->device, to);
                assert_memory_equal(weft_tensor_data(move->host), weft_tensor_data(tensor), 12);
                assert_null(weft_values_args(decoded.values).items[0].as.tensor);
            }
            wfi_decoded_fini(&decoded);
        }
    }
    wfi_encoded_fini(&encoded);
    weft_tensor_unref(tensor);
}

/* Measuring is done before memory is taken. */
static void measuring_refuses_what_decoding_refuses(void **state)
{
    uint8_t tail[1] = {0};
    wfi_encoded encoded;
    wfi_decoded decoded, measured;
    wfi_tensor_types types;
    encode_some(&encoded);
    for (size_t size = 0; size < encoded.meta.size; size++) {
        assert_int_equal(decode(&encoded.meta, size, tail, &decoded), WEFT_ERR_PROTOCOL);
        assert_int_equal(measure(&encoded, size, &measured, &types), WEFT_ERR_PROTOCOL);
        assert_string_equal(decoded.problem, measured.problem);
    }
    assert_int_equal(measure(&encoded, encoded.meta.size, &measured, &types), WEFT_OK);
    assert_int_equal(types.count, 3);
    wfi_encoded_fini(&encoded);
}

static void measuring_refuses_nothing_else(void **state)
{
    uint8_t tail[1] = {0};
    wfi_encoded encoded;
    wfi_decoded decoded, measured;
    wfi_tensor_types types;
    size_t good = 0;
    encode_some(&encoded);
    for (size_t bit = 0; bit < 8 * encoded.meta.size; bit++) {
        encoded.meta.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        weft_status status = decode(&encoded.meta, encoded.meta.size, tail, &decoded);
        if (!status) {
            good++;
            assert_int_equal(measure(&encoded, encoded.meta.size, &measured, &types), WEFT_OK);
            assert_int_equal(types.count, wfi_values_tensors(weft_values_args(decoded.values), NULL, 0));
            wfi_decoded_fini(&decoded);
        }
        encoded.meta.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_true(good > 0);
    wfi_encoded_fini(&encoded);
}

static void types_have_names(void **state)
{
    assert_string_equal(weft_type_name(WEFT_TYPE_TENSOR), "tensor");
    assert_string_equal(weft_type_name(WEFT_TYPE_REST), "rest");
    assert_string_equal(weft_type_name((weft_type)(WEFT_TYPE_REST + 1)), "unknown");
    assert_string_equal(weft_type_name((weft_type)-1), "unknown");
}

static void wrong_values_are_named(void **state)
{
    weft_values *values = NULL, *none = NULL;
    weft_tensor *tensor = NULL;
    const void *bytes;
    int64_t number = 0;
    size_t size;
    assert_int_equal(weft_values_create(WEFT_VALUES(weft_of_f64(1)), &values, NULL), WEFT_OK);
    REFUSES(weft_values_get_i64(values, 0, &number), WEFT_ERR_TYPE,
            "weft_values_get_i64: value 0 has the type double, not int64");
    REFUSES(weft_values_get_i64(values, 4, &number), WEFT_ERR_NOT_FOUND,
            "weft_values_get_i64: there is no value 4: the list has 1");
    REFUSES(weft_values_get_i64(NULL, 0, &number), WEFT_ERR_INVALID, "weft_values_get_i64: the list is NULL");
    REFUSES(weft_values_get_tensor(values, 0, NULL), WEFT_ERR_INVALID, "weft_values_get_tensor: out is NULL");
    REFUSES(weft_values_get_tensor(values, 0, &tensor), WEFT_ERR_TYPE, "not tensor");
    REFUSES(weft_values_get_bytes(values, 0, &bytes, NULL), WEFT_ERR_INVALID, "size is NULL");
    REFUSES(weft_values_get_bytes(values, 0, &bytes, &size), WEFT_ERR_TYPE, "weft_values_get_bytes: value 0");
    REFUSES(weft_values_create(WEFT_NO_VALUES, NULL, NULL), WEFT_ERR_INVALID, "weft_values_create: out is NULL");
    REFUSES(weft_values_create(WEFT_VALUES(weft_of_i64(1), weft_of_string(NULL)), &none, NULL), WEFT_ERR_INVALID,
            "weft_values_create: value 1 is a string at NULL");
    REFUSES(weft_values_create((weft_args){NULL, 3}, &none, NULL), WEFT_ERR_INVALID, "the list: 3 values at NULL");
    REFUSES(weft_values_create(WEFT_VALUES(weft_of_list(WEFT_VALUES(weft_of_rref(NULL)))), &none, NULL),
            WEFT_ERR_INVALID, "value 0.0 is a NULL reference");
    REFUSES(weft_values_create(WEFT_VALUES(weft_of_tensors((weft_tensors){NULL, 3})), &none, NULL), WEFT_ERR_INVALID,
            "value 0 is a list of 3 tensors at NULL");
    REFUSES(weft_values_add(NULL, weft_of_i64(3)), WEFT_ERR_INVALID, "weft_values_add: the list is NULL");
    REFUSES(weft_values_add(values, (weft_value){.type = (weft_type)77}), WEFT_ERR_INVALID, "value 0 has type 77");
    REFUSES(weft_values_add(values, weft_of_tensor(NULL)), WEFT_ERR_INVALID, NULL); /* an operator failed before */
    weft_log_level level = weft_logging_get_level();
    weft_logging_set_level(WEFT_LOG_DEBUG);
    REFUSES(weft_values_add(values, weft_of_tensor(NULL)), WEFT_ERR_INVALID, "value 0 is a NULL tensor");
    weft_logging_set_level(level);
    for (size = SIZE_MAX; size > SIZE_MAX - 3; size--) {
        REFUSES(weft_values_create(WEFT_VALUES(weft_of_bytes("x", size)), &none, NULL), WEFT_ERR_TOO_LARGE,
                "weft_values_create: value 0 has 1844674407370955161");
        REFUSES(weft_values_add(values, weft_of_bytes("x", size)), WEFT_ERR_TOO_LARGE,
                "value 0 has 1844674407370955161");
        weft_args endless = {threes, size};
        weft_tensors tensors = {&tensor, size};
        REFUSES(weft_values_create(endless, &none, NULL), WEFT_ERR_TOO_LARGE, "values where a list may have 1024");
        REFUSES(weft_values_create(WEFT_VALUES(weft_of_list(endless)), &none, NULL), WEFT_ERR_TOO_LARGE,
                "values where a list may have 1024");
        REFUSES(weft_values_add(values, weft_of_list(endless)), WEFT_ERR_TOO_LARGE, "where a list may have 1024");
        REFUSES(weft_values_create(WEFT_VALUES(weft_of_tensors(tensors)), &none, NULL), WEFT_ERR_TOO_LARGE,
                "tensors where a call may have 65536");
        REFUSES(weft_values_add(values, weft_of_tensors(tensors)), WEFT_ERR_TOO_LARGE, "tensors where a call may have");
    }
    weft_values_unref(values);
}

UNIT_MAIN(types_have_names, all_values_are_walked_through_in_order, nothing_is_entered_that_cannot_be_read,
          an_unknown_dtype_is_refused, devices_are_named, an_owned_list_is_whole_or_not_at_all,
          what_is_decoded_was_encoded, tensors_may_follow_the_metadata, measuring_refuses_what_decoding_refuses,
          measuring_refuses_nothing_else, wrong_values_are_named)
