/* SPDX-License-Identifier: Apache-2.0 */
/* test_file_safetensors.c - what a stranger's file may have wrong: each is refused with a message that says what and
 * where. */
#include "file/safetensors.h"

#include <weft/weft.h>

#include "make.h"
#include "tensors.h"
#include "unit.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define T "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":"

/* A file of that header and `bytes` zeros behind it, through a stream that is no plain file. */
static weft_status read_text(const char *header, size_t header_size, size_t bytes, wfi_safetensors *file,
                             weft_error **error)
{
    uint8_t head[WFI_SAFETENSORS_HEAD] = {(uint8_t)header_size, (uint8_t)(header_size >> 8),
                                          (uint8_t)(header_size >> 16)};
    char *all = calloc(1, header_size + bytes + 1);
    assert_non_null(all);
    memcpy(all, header, header_size);
    FILE *stream = fmemopen(all, header_size + bytes, "rb");
    assert_non_null(stream);
    weft_status status = wfi_safetensors_open(file, stream, "it", head, error);
    if (status == WEFT_OK)
        status = wfi_safetensors_read(file, error);
    fclose(stream);
    free(all);
    return status;
}

static void refused(const char *header, size_t bytes, weft_status wanted, const char *text)
{
    wfi_safetensors file;
    weft_error *error = NULL;
    weft_status status = read_text(header, strlen(header), bytes, &file, &error);
    if (status != wanted || !error || !strstr(weft_error_message(error), text))
        fail_msg("%s: %s, \"%s\", not \"%s\"", header, weft_status_text(status), error ? weft_error_message(error) : "",
                 text);
    assert_non_null(strstr(weft_error_message(error), "\"it\""));
    weft_error_unref(error);
    wfi_safetensors_fini(&file);
}

static void taken(const char *header, size_t bytes, size_t count)
{
    wfi_safetensors file;
    weft_error *error = NULL;
    weft_status status = read_text(header, strlen(header), bytes, &file, &error);
    if (status != WEFT_OK)
        fail_msg("%s: %s", header, weft_error_message(error));
    assert_int_equal(file.count, count);
    wfi_safetensors_fini(&file);
}

static void headers_that_are_right(void **state)
{
    taken("{}", 0, 0);
    taken("{}   \n", 0, 0);
    taken("{\"a\":" T "[0,8]}}", 8, 1);
    taken("{\"b\":" T "[8,16]},\"a\":" T "[0,8]}}", 16, 2);
    taken("{\"__metadata__\":{\"k\":\"v\"},\"a\":" T "[0,8],\"more\":[1]}}", 8, 1);
    taken("{\"a\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, 1);
    taken("{\"a\":{\"dtype\":\"BF16\",\"shape\":[0,9],\"data_offsets\":[0,0]}, \"b\":" T "[0,8]}}", 8, 2);
    taken("{\"caf\\u00e9 \\\" \xc3\xa9\":" T "[0,8]}}", 8, 1);
}

static void quoted_names_are_cut_between_characters(void **state)
{
    char header[400], name[200];
    for (size_t ascii = 70; ascii < 80; ascii++) {
        memset(name, 'x', ascii);
        strcpy(name + ascii, "\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac"); /* the euro sign */
        snprintf(header, sizeof(header), "{\"%s\":{\"dtype\":\"Q8\",\"shape\":[],\"data_offsets\":[0,1]}}", name);
        weft_error *error = NULL;
        wfi_safetensors file;
        assert_int_not_equal(read_text(header, strlen(header), 1, &file, &error), WEFT_OK);
        const char *shown = strstr(weft_error_message(error), "xxx"), *dots = strstr(shown, "...");
        assert_non_null(dots);
        assert_int_equal((dots - shown - (ptrdiff_t)strspn(shown, "x")) % 3, 0);
        weft_error_unref(error);
        wfi_safetensors_fini(&file);
    }
}

static void texts_are_found(void **state)
{
    const char header[] = "{\"__metadata__\":{\"k\":\"v\"}}";
    wfi_safetensors file;
    assert_int_equal(read_text(header, strlen(header), 0, &file, NULL), WEFT_OK);
    assert_string_equal(wfi_safetensors_text(&file, "k"), "v");
    assert_null(wfi_safetensors_text(&file, "other"));
    wfi_safetensors_fini(&file);
}

/* In texts alone; they are read as U+FFFD, so that none passes for another key or text. */
static void characters_0_in_texts(void **state)
{
    const char header[] = "{\"__metadata__\":{\"weft.blake2b\\u0000\":\"a\\u0000b\",\"k\":\"\\\\u0000\",\"weft.kind\":"
                          "\"SGD\\u0000\"},\"a\":" T "[0,8]}}";
    wfi_safetensors file;
    weft_error *error = NULL;
    if (read_text(header, strlen(header), 8, &file, &error) != WEFT_OK)
        fail_msg("%s", weft_error_message(error));
    assert_int_equal(file.count, 1);
    assert_null(wfi_safetensors_text(&file, WFI_SAFETENSORS_SUM_KEY));
    assert_string_equal(wfi_safetensors_text(&file, "weft.blake2b\xef\xbf\xbd"), "a\xef\xbf\xbd"
                                                                                 "b");
    assert_string_equal(wfi_safetensors_text(&file, "k"), "\\u0000"); /* a backslash and five characters */
    assert_string_equal(wfi_safetensors_text(&file, "weft.kind"), "SGD\xef\xbf\xbd");
    wfi_safetensors_fini(&file);
    refused("{\"__metadata__\":{},\"a\\u0000\":" T "[0,8]}}", 8, WEFT_ERR_FORMAT, "has a character 0, at its byte 21");
    refused("{\"__metadata__ \":{\"a\\u0000\":1}}", 0, WEFT_ERR_FORMAT, "has a character 0");
    refused("{\"a\":{\"__metadata__\":\"\\u0000\"}}", 0, WEFT_ERR_FORMAT, "has a character 0");
}

static void headers_that_are_no_json(void **state)
{
    refused("[]", 0, WEFT_ERR_FORMAT, "does not begin with '{'");
    refused(" {}", 0, WEFT_ERR_FORMAT, "does not begin with '{'");
    refused("{\"a\":", 0, WEFT_ERR_FORMAT, "is no JSON");
    refused("{} x", 0, WEFT_ERR_FORMAT, "is no JSON, or memory is out, at its byte 3");
    refused("{\"a\xff\":1}", 0, WEFT_ERR_FORMAT, "is not UTF-8, at its byte 3");
    refused("{\"a\\u0000\":1}", 0, WEFT_ERR_FORMAT, "has a character 0, at its byte 3");
    refused("{\"a\":[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]}", 0, WEFT_ERR_FORMAT,
            "nested deeper than 16 brackets, at its byte 20");
    wfi_safetensors file;
    assert_int_equal(read_text("{\0}", 3, 0, &file, NULL), WEFT_ERR_FORMAT);
    wfi_safetensors_fini(&file);
}

static void tensors_that_are_badly_described(void **state)
{
    refused("{\"a\":1}", 0, WEFT_ERR_FORMAT, "\"a\" is described by something that is no object");
    refused("{\"a\":{}}", 0, WEFT_ERR_FORMAT, "\"a\" has no \"dtype\"");
    refused("{\"a\":{\"dtype\":1}}", 0, WEFT_ERR_FORMAT, "\"dtype\" that is no string");
    refused("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F64\"}}", 0, WEFT_ERR_FORMAT, "has \"dtype\" twice");
    refused("{\"a\":{\"dtype\":\"U16\"}}", 0, WEFT_ERR_TYPE, "\"a\" has dtype \"U16\", which weft does not have");
    refused("{\"a\":{\"dtype\":\"F32\"}}", 0, WEFT_ERR_FORMAT, "has no \"shape\"");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":2}}", 0, WEFT_ERR_FORMAT, "\"shape\" that is no array");
    static const char *const odd[] = {"-2", "-0", "1.5", "1.0", "1e0", "1E9", "01", "00", "1e99"};
    for (size_t k = 0; k < sizeof(odd) / sizeof(*odd); k++) {
        char header[96];
        snprintf(header, sizeof(header), "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,%s]}}", odd[k]);
        refused(header, 0, WEFT_ERR_FORMAT, "has a number that is not written as a whole one, at its byte");
    }
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[9007199254740993000]}}", 0, WEFT_ERR_FORMAT,
            "no whole number up to 2^53");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[true]}}", 0, WEFT_ERR_FORMAT, "no whole number up to 2^53");
    refused("{\"a\nb\":1}", 0, WEFT_ERR_FORMAT, "has a control character in a string, at its byte 3");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}}", 0, WEFT_ERR_FORMAT,
            "dimensions");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4503599627370496,4503599627370496],\"data_offsets\":[0,8]}}", 8,
            WEFT_ERR_FORMAT, "larger than 2^63");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 0, WEFT_ERR_FORMAT, "has no \"data_offsets\"");
    refused("{\"a\":" T "[0]}}", 8, WEFT_ERR_FORMAT, "not two whole numbers");
    refused("{\"a\":" T "[8,0]}}", 8, WEFT_ERR_FORMAT, "begins at 8 and ends at 0");
    refused("{\"a\":" T "[0,7]}}", 7, WEFT_ERR_FORMAT, "is float32 [2], 8 bytes, but lies from 0 to 7");
    refused("{\"a\\n\\u007f\":1}", 0, WEFT_ERR_FORMAT, "\"a??\" is");
}

static void tensors_that_do_not_fit_together(void **state)
{
    refused("{\"a\":" T "[8,16]}}", 16, WEFT_ERR_FORMAT, "\"a\" begins at 8, behind a hole");
    refused("{\"a\":" T "[0,8]},\"b\":" T "[4,12]}}", 12, WEFT_ERR_FORMAT,
            "\"b\" begins at 4, inside the one before it");
    refused("{\"a\":" T "[0,8]},\"b\":" T "[0,8]}}", 8, WEFT_ERR_FORMAT, "\"b\" begins at 0, inside");
    refused("{\"a\":" T "[0,8]},\"b\":" T "[8,16]},\"a\":" T "[16,24]}}", 24, WEFT_ERR_FORMAT, "\"a\" stands twice");
    refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0, WEFT_ERR_FORMAT, "\"__metadata__\" twice");
    refused("{\"__metadata__\":[]}", 0, WEFT_ERR_FORMAT, "\"__metadata__\" is no object");
    refused("{\"__metadata__\":{\"k\":1}}", 0, WEFT_ERR_FORMAT, "has \"k\", which is no string");
}

static void elements_that_are_not_as_the_header_says(void **state)
{
    refused("{\"a\":" T "[0,8]}}", 7, WEFT_ERR_FORMAT, "ends too early");
    refused("{\"a\":" T "[0,8]}}", 9, WEFT_ERR_FORMAT, "goes on after its end");
    refused("{\"__metadata__\":{\"weft.blake2b\":\"00\"},\"a\":" T "[0,8]}}", 8, WEFT_ERR_FORMAT,
            "checksum does not match");
    const char header[] = "{\"a\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]}}\1\1\2";
    wfi_safetensors file;
    weft_error *error = NULL;
    uint8_t head[WFI_SAFETENSORS_HEAD] = {sizeof(header) - 4};
    FILE *stream = fmemopen((void *)header, sizeof(header) - 1, "rb");
    assert_int_equal(wfi_safetensors_open(&file, stream, "it", head, NULL), WEFT_OK);
    assert_int_equal(wfi_safetensors_read(&file, &error), WEFT_ERR_FORMAT);
    assert_non_null(strstr(weft_error_message(error), "element 2 of tensor \"a\" is 2, no bool"));
    weft_error_unref(error);
    wfi_safetensors_fini(&file);
    fclose(stream);
}

static void a_header_over_the_limit_is_not_read(void **state)
{
    wfi_safetensors file;
    weft_error *error = NULL;
    const uint8_t head[WFI_SAFETENSORS_HEAD] = {1, 0xe1, 0xf5, 5}; /* 100,000,001 */
    FILE *stream = fmemopen("{}", 2, "rb");
    assert_int_equal(wfi_safetensors_open(&file, stream, "it", head, &error), WEFT_ERR_FORMAT);
    assert_non_null(strstr(weft_error_message(error), "would have 100000001 bytes"));
    weft_error_unref(error);
    wfi_safetensors_fini(&file);
    fclose(stream);
}

static void what_the_format_does_not_have_is_not_written(void **state)
{
    weft_tensor *wide = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_COMPLEX128),
                *x = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    const wfi_file_tensor items[] = {{"wide", wide}, {"not \xff", x}, {"__metadata__", x}};
    const weft_status wanted[] = {WEFT_ERR_UNSUPPORTED, WEFT_ERR_INVALID, WEFT_ERR_INVALID};
    const char *const texts[] = {"has no complex128, as \"wide\" is", "is not UTF-8", "no tensor may be called"};
    for (int i = 0; i < 3; i++) {
        weft_error *error = NULL;
        assert_int_equal(wfi_safetensors_save("never-made", &(wfi_file_tensors){&items[i], 1, NULL, 0}, &error),
                         wanted[i]);
        assert_non_null(strstr(weft_error_message(error), texts[i]));
        weft_error_unref(error);
    }
    assert_null(fopen("never-made", "rb"));
    weft_tensor_unref(wide);
    weft_tensor_unref(x);
}

/* ---- weft_tensors_save and weft_tensors_load ---- */

static char path[] = "weft-test-tensors-XXXXXX";

static int make_path(void **state)
{
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state)
{
    return unlink(path);
}

/* Drops the tensors. */
static weft_named_tensors *there_and_back(const char *const *names, weft_tensor **tensors, size_t count)
{
    weft_named_tensors *loaded = NULL;
    assert_int_equal(weft_tensors_save(path, names, (weft_tensors){tensors, count}, NULL), WEFT_OK);
    assert_int_equal(weft_tensors_load(path, &loaded, NULL), WEFT_OK);
    assert_int_equal(loaded->tensors.count, count);
    for (size_t i = 0; i < count; i++)
        weft_tensor_unref(tensors[i]);
    return loaded;
}

static void tensors_of_all_dtypes_come_back(void **state)
{
    uint8_t bytes[6 * 8];
    const char *names[WEFT_DTYPE_COMPLEX64 + 1];
    weft_tensor *tensors[WEFT_DTYPE_COMPLEX64 + 1];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = i % 2;
    for (int i = 0; i <= WEFT_DTYPE_COMPLEX64; i++) {
        names[i] = weft_dtype_name((weft_dtype)i);
        tensors[i] = tensor_copy_of(WEFT_SHAPE(2, 3), (weft_dtype)i, bytes);
    }
    weft_named_tensors *loaded = there_and_back(names, tensors, WEFT_DTYPE_COMPLEX64 + 1);
    for (int i = 0; i <= WEFT_DTYPE_COMPLEX64; i++) {
        weft_tensor *back = weft_tensors_find(loaded, weft_dtype_name((weft_dtype)i));
        assert_int_equal(weft_tensor_dtype(back), i);
        assert_int_equal(weft_tensor_ndim(back), 2);
        assert_int_equal(weft_tensor_size(back, 1), 3);
        assert_memory_equal(weft_tensor_data(back), bytes, 6 * weft_dtype_size((weft_dtype)i));
    }
    for (size_t i = 1; i < loaded->tensors.count; i++) /* the order of the file */
        assert_true(weft_dtype_size(weft_tensor_dtype(loaded->tensors.items[i - 1])) >=
                    weft_dtype_size(weft_tensor_dtype(loaded->tensors.items[i])));
    assert_null(weft_tensors_find(loaded, "float"));
    assert_null(weft_tensors_find(loaded, NULL));
    assert_null(weft_tensors_find(NULL, "float32"));
    weft_tensors_free(loaded);
    weft_tensors_free(NULL);
}

static void tensors_of_any_form_come_back(void **state)
{
    weft_tensor *whole = tensor_arange(6, WEFT_DTYPE_INT64), *rows = tensor_reshape(whole, WEFT_SHAPE(2, 3));
    const char *const names[] = {"turned", "none", "one", "\xc3\xa9 \"\n"};
    weft_tensor *tensors[] = {tensor_transpose(rows, 0, 1), tensor_zeros(WEFT_SHAPE(0, 9), WEFT_DTYPE_FLOAT32),
                              tensor_full(WEFT_SCALAR, WEFT_DTYPE_FLOAT64, 2.5), weft_tensor_ref(whole)};
    weft_named_tensors *loaded = there_and_back(names, tensors, 4);
    const int64_t turned[] = {0, 3, 1, 4, 2, 5};
    assert_memory_equal(weft_tensor_data(weft_tensors_find(loaded, "turned")), turned, sizeof(turned));
    assert_int_equal(weft_tensor_size(weft_tensors_find(loaded, "turned"), 0), 3);
    assert_int_equal(weft_tensor_size(weft_tensors_find(loaded, "none"), 1), 9);
    assert_int_equal(weft_tensor_ndim(weft_tensors_find(loaded, "one")), 0);
    assert_true(weft_tensor_get_f64(weft_tensors_find(loaded, "one"), 0) == 2.5);
    weft_tensor *kept = weft_tensor_ref(weft_tensors_find(loaded, names[3]));
    weft_tensors_free(loaded);
    assert_int_equal(weft_tensor_get_i64(kept, 5), 5);
    weft_tensor_unref(kept);
    weft_tensor_unref(rows);
    weft_tensor_unref(whole);
    weft_tensors_free(there_and_back(NULL, NULL, 0));
}

static void bools_are_written_as_0_and_1(void **state)
{
    const uint8_t bytes[] = {0, 1, 2, 255}, right[] = {0, 1, 1, 1};
    const char *const names[] = {"bools"};
    weft_tensor *tensors[] = {tensor_copy_of(WEFT_SHAPE(4), WEFT_DTYPE_BOOL, bytes)};
    weft_named_tensors *loaded = there_and_back(names, tensors, 1);
    assert_int_equal(weft_tensor_dtype(loaded->tensors.items[0]), WEFT_DTYPE_BOOL);
    assert_memory_equal(weft_tensor_data(loaded->tensors.items[0]), right, sizeof(right));
    weft_tensors_free(loaded);
}

static void files_of_modules_are_loaded_as_tensors(void **state)
{
    weft_named_tensors *loaded = NULL;
    weft_module *linear = linear_create(3, 4, false, 1, NULL), *other = linear_create(3, 4, false, 2, NULL);
    assert_int_equal(weft_module_save(linear, path, NULL), WEFT_OK);
    assert_int_equal(weft_tensors_load(path, &loaded, NULL), WEFT_OK);
    assert_int_equal(loaded->tensors.count, 2);
    assert_memory_equal(weft_tensor_data(weft_tensors_find(loaded, "weight")),
                        weft_tensor_data(weft_module_find(linear, "weight")), 12 * sizeof(float));
    assert_int_equal(weft_tensors_save(path, loaded->names, loaded->tensors, NULL), WEFT_OK);
    assert_int_equal(weft_module_load(other, path, NULL), WEFT_OK);
    weft_tensors_free(loaded);
    weft_module_unref(linear);
    weft_module_unref(other);
}

static void not_saved(const char *const *names, weft_tensor **tensors, weft_status wanted, const char *text)
{
    weft_error *error = NULL;
    assert_int_equal(weft_tensors_save("never-made", names, (weft_tensors){tensors, 2}, &error), wanted);
    if (!strstr(weft_error_message(error), text))
        fail_msg("\"%s\", not \"%s\"", weft_error_message(error), text);
    weft_error_unref(error);
    assert_null(fopen("never-made", "rb"));
}

static void not_loaded(const char *from, weft_status wanted, const char *text)
{
    weft_error *error = NULL;
    weft_named_tensors *loaded = (void *)path;
    assert_int_equal(weft_tensors_load(from, &loaded, &error), wanted);
    assert_null(loaded);
    if (!strstr(weft_error_message(error), text))
        fail_msg("\"%s\", not \"%s\"", weft_error_message(error), text);
    weft_error_unref(error);
}

static void wrong_tensors_are_not_saved(void **state)
{
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32), *pair[] = {x, x}, *half[] = {x, NULL};
    const char *const good[] = {"a", "b"}, *const same[] = {"a", "a"}, *const empty[] = {"a", ""},
                      *const null[] = {"a", NULL};
    not_saved(same, pair, WEFT_ERR_INVALID, "two tensors are called \"a\"");
    not_saved(empty, pair, WEFT_ERR_INVALID, "the name of tensor 1 is empty");
    not_saved(null, pair, WEFT_ERR_INVALID, "the name of tensor 1 is NULL");
    not_saved(good, half, WEFT_ERR_INVALID, "tensor 1 is NULL");
    not_saved(NULL, pair, WEFT_ERR_INVALID, "names");
    not_saved(good, NULL, WEFT_ERR_INVALID, "tensors.items");
    weft_error *error = NULL;
    assert_int_equal(weft_tensors_save(NULL, good, (weft_tensors){pair, 2}, NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_tensors_save("no/such/folder", good, (weft_tensors){pair, 2}, &error), WEFT_ERR_IO);
    weft_error_unref(error);
    weft_tensor_unref(x);
}

static void wrong_files_are_not_loaded(void **state)
{
    const char header[] = "{\"a\":" T "[0,8]}}";
    char bytes[8 + sizeof(header) + 8] = {sizeof(header) - 1};
    memcpy(bytes + 8, header, sizeof(header));
    for (size_t size = 0; size < 8 + sizeof(header) - 1 + 8; size++) {
        FILE *file = fopen(path, "wb");
        assert_int_equal(fwrite(bytes, 1, size, file), size);
        fclose(file);
        not_loaded(path, WEFT_ERR_FORMAT, "ends too early");
    }
    not_loaded("never-made", WEFT_ERR_NOT_FOUND, "never-made");
    not_loaded(".", WEFT_ERR_IO, "cannot read");
    not_loaded(NULL, WEFT_ERR_INVALID, "path");
    assert_int_equal(weft_tensors_load(path, NULL, NULL), WEFT_ERR_INVALID);
}

UNIT_MAIN_WITH(make_path, remove_path, headers_that_are_right, quoted_names_are_cut_between_characters, texts_are_found,
               characters_0_in_texts, headers_that_are_no_json, tensors_that_are_badly_described,
               tensors_that_do_not_fit_together, elements_that_are_not_as_the_header_says,
               a_header_over_the_limit_is_not_read, what_the_format_does_not_have_is_not_written,
               tensors_of_all_dtypes_come_back, tensors_of_any_form_come_back, bools_are_written_as_0_and_1,
               files_of_modules_are_loaded_as_tensors, wrong_tensors_are_not_saved, wrong_files_are_not_loaded)
