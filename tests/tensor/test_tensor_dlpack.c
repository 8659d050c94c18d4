/* SPDX-License-Identifier: Apache-2.0 */
/* test_tensor_dlpack.c - host tensors are shared with other libraries by DLPack: layout, ownership, errors. */
#include <weft/dlpack.h>

#include "tensor/cell.h"
#include "tensor/dtype.h"
#include "tensors.h"
#include "unit.h"

#include <string.h>

static int dropped;

static void count_drop(void *arg)
{
    (void)arg;
    dropped++;
}

static weft_dlpack *lend(weft_tensor *tensor, uint64_t flags)
{
    weft_dlpack *lent = NULL;
    weft_error *error = NULL;
    assert_int_equal(weft_tensor_to_dlpack(tensor, flags, &lent, &error), WEFT_OK);
    assert_null(error);
    assert_int_equal(lent->version.major, 1);
    return lent;
}

static weft_tensor *borrow(weft_dlpack *managed, uint64_t flags)
{
    weft_tensor *tensor = NULL;
    weft_error *error = NULL;
    assert_int_equal(weft_tensor_from_dlpack(managed, flags, &tensor, &error), WEFT_OK);
    assert_null(error);
    return tensor;
}

static void a_lent_tensor_outlives_its_owner(void **state)
{
    static float data[6] = {1, 2, 3, 4, 5, 6};
    dropped = 0;
    weft_tensor *x = tensor_wrap(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT32, data, NULL, count_drop, NULL);
    weft_dlpack *lent = lend(x, 0);
    weft_tensor_unref(x);
    assert_int_equal(dropped, 0);
    assert_ptr_equal(lent->tensor.data, data);
    assert_int_equal(lent->tensor.byte_offset, 0);
    assert_int_equal(lent->tensor.device.type, 1);
    assert_int_equal(lent->tensor.device.id, 0);
    assert_int_equal(lent->flags, 0);
    assert_int_equal(lent->tensor.ndim, 2);
    assert_int_equal(lent->tensor.shape[0], 2);
    assert_int_equal(lent->tensor.shape[1], 3);
    assert_int_equal(lent->tensor.strides[0], 3);
    assert_int_equal(lent->tensor.strides[1], 1);
    assert_int_equal(lent->tensor.dtype.code, 2);
    assert_int_equal(lent->tensor.dtype.bits, 32);
    assert_int_equal(lent->tensor.dtype.lanes, 1);
    lent->deleter(lent);
    assert_int_equal(dropped, 1);
}

/* Every dtype goes out and comes back as the same dtype, over the same memory. */
static void every_dtype_is_shared(void **state)
{
    for (int dtype = 0; dtype < WFI_DTYPES; dtype++) {
        weft_tensor *x = tensor_full(WEFT_SHAPE(3, 2), (weft_dtype)dtype, 1);
        weft_dlpack *lent = lend(x, 0);
        assert_int_equal(lent->tensor.dtype.bits, 8 * weft_dtype_size((weft_dtype)dtype));
        weft_tensor *y = borrow(lent, 0);
        assert_int_equal(weft_tensor_dtype(y), dtype);
        assert_true(weft_tensor_same_shape(x, y));
        assert_ptr_equal(weft_tensor_data(x), weft_tensor_data(y));
        weft_tensor_unref(x);
        assert_true(weft_tensor_get_f64(y, 5) == 1);
        weft_tensor_unref(y);
    }
}

static void views_keep_strides_and_offset(void **state)
{
    weft_tensor *x = tensor_arange(24, WEFT_DTYPE_INT32), *whole = tensor_reshape(x, WEFT_SHAPE(4, 6));
    weft_tensor *part = tensor_narrow(whole, 1, 2, 3), *turned = tensor_transpose(part, 0, 1);
    weft_dlpack *lent = lend(turned, 0);
    assert_int_equal(lent->tensor.strides[0], 1);
    assert_int_equal(lent->tensor.strides[1], 6);
    weft_tensor *y = borrow(lent, 0);
    for (int64_t i = 0; i < 12; i++)
        assert_int_equal(weft_tensor_get_i64(y, i), weft_tensor_get_i64(turned, i));
    ((int32_t *)weft_tensor_data(y))[0] = -7;
    assert_int_equal(weft_tensor_get_i64(whole, 2), -7);
    weft_tensor *all[] = {x, whole, part, turned, y};
    for (int i = 0; i < 5; i++)
        weft_tensor_unref(all[i]);
}

static void empty_tensors_and_scalars_are_shared(void **state)
{
    weft_tensor *none = tensor_empty(WEFT_SHAPE(0, 3), WEFT_DTYPE_FLOAT64);
    weft_tensor *one = tensor_full(WEFT_SCALAR, WEFT_DTYPE_FLOAT64, 2.5);
    weft_tensor *none_too = borrow(lend(none, 0), 0), *one_too = borrow(lend(one, 0), 0);
    assert_int_equal(weft_tensor_size(none_too, 1), 3);
    assert_int_equal(weft_tensor_numel(none_too), 0);
    assert_int_equal(weft_tensor_ndim(one_too), 0);
    assert_true(weft_tensor_get_f64(one_too, 0) == 2.5);
    weft_tensor *all[] = {none, one, none_too, one_too};
    for (int i = 0; i < 4; i++)
        weft_tensor_unref(all[i]);
}

/* ---- A struct of another library ---- */

static float numbers[16];
static int64_t shape[WEFT_MAX_DIMS + 1], strides[WEFT_MAX_DIMS + 1];
static int deleted;

static void count_deletion(weft_dlpack *self)
{
    assert_ptr_equal(self->manager, &deleted);
    deleted++;
}

static weft_dlpack foreign(void)
{
    for (int i = 0; i < 16; i++)
        numbers[i] = (float)i;
    shape[0] = 2;
    shape[1] = 3;
    strides[0] = 1;
    strides[1] = 4;
    deleted = 0;
    return (weft_dlpack){.version = {1, 3},
                         .manager = &deleted,
                         .deleter = count_deletion,
                         .tensor = {.data = numbers,
                                    .device = {1, 0},
                                    .ndim = 2,
                                    .dtype = {2, 32, 1},
                                    .shape = shape,
                                    .strides = strides,
                                    .byte_offset = 8}};
}

static void foreign_memory_is_released_with_the_last_view(void **state)
{
    weft_dlpack managed = foreign();
    weft_tensor *x = borrow(&managed, 0);
    assert_ptr_equal(weft_tensor_data(x), numbers + 2);
    assert_true(weft_tensor_get_f64(x, 2) == 10); /* row 0, column 2 */
    weft_tensor *row = tensor_select(x, 0, 1);
    weft_tensor_unref(x);
    assert_int_equal(deleted, 0);
    assert_true(weft_tensor_get_f64(row, 1) == 7);
    weft_tensor_unref(row);
    assert_int_equal(deleted, 1);
    managed = foreign();
    managed.tensor.strides = NULL;
    managed.deleter = NULL;
    x = borrow(&managed, 0);
    assert_true(weft_tensor_get_f64(x, 5) == 7);
    weft_tensor_unref(x);
}

static void read_only_memory_is_copied_unless_promised(void **state)
{
    weft_dlpack managed = foreign();
    managed.flags = WEFT_DLPACK_READ_ONLY;
    weft_tensor *copy = borrow(&managed, 0);
    assert_int_equal(deleted, 1);
    weft_tensor_fill(copy, 9);
    assert_true(numbers[2] == 2 && weft_tensor_get_f64(copy, 0) == 9);
    weft_tensor_unref(copy);
    managed = foreign();
    managed.flags = WEFT_DLPACK_READ_ONLY;
    weft_tensor *shared = borrow(&managed, WEFT_DLPACK_READ_ONLY);
    assert_ptr_equal(weft_tensor_data(shared), numbers + 2);
    assert_int_equal(deleted, 0);
    weft_tensor_unref(shared);
    assert_int_equal(deleted, 1);
}

static void parameters_are_lent_read_only(void **state)
{
    weft_tensor *x = tensor_full(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32, 1);
    weft_dlpack *lent = lend(x, WEFT_DLPACK_READ_ONLY);
    assert_int_equal(lent->flags, WEFT_DLPACK_READ_ONLY);
    lent->deleter(lent);
    assert_int_equal(wfi_tensor_make_cell(x), WEFT_OK);
    lent = lend(x, 0);
    assert_int_equal(lent->flags, WEFT_DLPACK_READ_ONLY);
    weft_tensor *two = tensor_full(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32, 2);
    assert_int_equal(weft_tensor_assign(x, two), WEFT_OK);
    assert_true(((const float *)lent->tensor.data)[2] == 1); /* the value that was lent */
    lent->deleter(lent);
    weft_tensor_unref(two);
    weft_tensor_unref(x);
}

static void refused(weft_dlpack managed, weft_status code, const char *says)
{
    weft_tensor *tensor = NULL;
    weft_error *error = NULL;
    deleted = 0;
    assert_int_equal(weft_tensor_from_dlpack(&managed, 0, &tensor, &error), code);
    assert_null(tensor);
    assert_non_null(strstr(weft_error_message(error), says));
    assert_int_equal(deleted, 1);
    weft_error_unref(error);
}

static void wrong_structs_are_refused_and_released(void **state)
{
    weft_dlpack m = foreign();
    m.version.major = 2;
    refused(m, WEFT_ERR_UNSUPPORTED, "DLPack 2.3");
    m = foreign();
    m.tensor.device.type = 4;
    refused(m, WEFT_ERR_UNSUPPORTED, "device type 4");
    m = foreign();
    m.tensor.dtype.lanes = 4;
    refused(m, WEFT_ERR_TYPE, "4 lanes");
    m.tensor.dtype = (weft_dlpack_dtype){2, 8, 1};
    refused(m, WEFT_ERR_TYPE, "8 bits");
    m = foreign();
    m.tensor.ndim = WEFT_MAX_DIMS + 1;
    refused(m, WEFT_ERR_SHAPE, "9 dimensions");
    m.tensor.ndim = -1;
    refused(m, WEFT_ERR_SHAPE, "-1 dimensions");
    m = foreign();
    m.tensor.shape = NULL;
    refused(m, WEFT_ERR_INVALID, "shape is NULL");
    m = foreign();
    shape[1] = -3;
    refused(m, WEFT_ERR_SHAPE, "");
    m = foreign();
    strides[1] = -1;
    refused(m, WEFT_ERR_INVALID, "a stride is negative: -1 of dimension 1");
    m = foreign();
    m.tensor.byte_offset = 2;
    refused(m, WEFT_ERR_INVALID, "not aligned");
    m = foreign();
    m.tensor.data = NULL;
    refused(m, WEFT_ERR_INVALID, "address is NULL");
    m = foreign();
    shape[0] = shape[1] = (int64_t)1 << 31;
    strides[0] = INT64_MAX;
    refused(m, WEFT_ERR_TOO_LARGE, "float32 [2147483648, 2147483648]");
    m = foreign();
    shape[0] = shape[1] = (int64_t)1 << 40;
    refused(m, WEFT_ERR_TOO_LARGE, "float32 [1099511627776, 1099511627776]");
    m = foreign();
    m.tensor.device = (weft_dlpack_device){2, 1000};
    weft_tensor *tensor = NULL;
    assert_true(weft_tensor_from_dlpack(&m, 0, &tensor, NULL) != WEFT_OK); /* no GPU, or none with this number */
    assert_int_equal(deleted, 1);
}

/* ---- The struct of DLPack before 1.0 ---- */

static void an_unversioned_tensor_outlives_its_owner(void **state)
{
    static float data[6] = {1, 2, 3, 4, 5, 6};
    dropped = 0;
    weft_tensor *x = tensor_wrap(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT32, data, NULL, count_drop, NULL);
    weft_tensor *column = tensor_select(x, 1, 2);
    weft_dlpack_unversioned *lent = NULL;
    assert_int_equal(weft_tensor_to_dlpack_unversioned(column, 0, &lent, NULL), WEFT_OK);
    weft_tensor_unref(x);
    weft_tensor_unref(column);
    assert_int_equal(dropped, 0);
    assert_ptr_equal(lent->tensor.data, data + 2);
    assert_int_equal(lent->tensor.device.type, 1);
    assert_int_equal(lent->tensor.ndim, 1);
    assert_int_equal(lent->tensor.shape[0], 2);
    assert_int_equal(lent->tensor.strides[0], 3);
    assert_int_equal(lent->tensor.dtype.bits, 32);
    weft_tensor *again = NULL;
    assert_int_equal(weft_tensor_from_dlpack_unversioned(lent, &again, NULL), WEFT_OK);
    assert_true(weft_tensor_get_f64(again, 1) == 6);
    assert_int_equal(dropped, 0);
    weft_tensor_unref(again);
    assert_int_equal(dropped, 1);
}

static void count_unversioned(weft_dlpack_unversioned *self)
{
    assert_ptr_equal(self->manager, &deleted);
    deleted++;
}

static weft_dlpack_unversioned foreign_unversioned(void)
{
    return (weft_dlpack_unversioned){foreign().tensor, &deleted, count_unversioned};
}

static void unversioned_memory_is_released_once(void **state)
{
    weft_dlpack_unversioned managed = foreign_unversioned();
    weft_tensor *x = NULL;
    weft_error *error = NULL;
    assert_int_equal(weft_tensor_from_dlpack_unversioned(&managed, &x, &error), WEFT_OK);
    assert_ptr_equal(weft_tensor_data(x), numbers + 2);
    assert_int_equal(deleted, 0);
    weft_tensor_unref(x);
    assert_int_equal(deleted, 1);
    managed = foreign_unversioned();
    managed.tensor.dtype.lanes = 4;
    assert_int_equal(weft_tensor_from_dlpack_unversioned(&managed, &x, &error), WEFT_ERR_TYPE);
    assert_non_null(strstr(weft_error_message(error), "weft_tensor_from_dlpack_unversioned: no dtype"));
    assert_int_equal(deleted, 1);
    weft_error_unref(error);
    managed = foreign_unversioned();
    assert_int_equal(weft_tensor_from_dlpack_unversioned(&managed, NULL, NULL), WEFT_ERR_INVALID);
    assert_int_equal(deleted, 1);
    assert_int_equal(weft_tensor_from_dlpack_unversioned(NULL, &x, NULL), WEFT_ERR_INVALID);
}

static void unversioned_parameters_want_a_promise(void **state)
{
    weft_tensor *x = tensor_full(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32, 1);
    weft_dlpack_unversioned *lent = NULL;
    weft_error *error = NULL;
    assert_int_equal(weft_tensor_to_dlpack_unversioned(x, 2, &lent, NULL), WEFT_ERR_INVALID);
    assert_int_equal(wfi_tensor_make_cell(x), WEFT_OK);
    assert_int_equal(weft_tensor_to_dlpack_unversioned(x, 0, &lent, &error), WEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(weft_error_message(error), "pass WEFT_DLPACK_READ_ONLY"));
    assert_null(lent);
    assert_int_equal(weft_tensor_to_dlpack_unversioned(x, WEFT_DLPACK_READ_ONLY, &lent, NULL), WEFT_OK);
    assert_true(((const float *)lent->tensor.data)[2] == 1);
    lent->deleter(lent);
    weft_error_unref(error);
    weft_tensor_unref(x);
}

static void wrong_arguments_are_refused(void **state)
{
    weft_tensor *x = tensor_full(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32, 1), *y = NULL;
    weft_dlpack *lent = NULL, m = foreign();
    assert_int_equal(weft_tensor_to_dlpack(NULL, 0, &lent, NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_tensor_to_dlpack(x, 0, NULL, NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_tensor_to_dlpack(x, 2, &lent, NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_tensor_from_dlpack(NULL, 0, &y, NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_tensor_from_dlpack(&m, 2, &y, NULL), WEFT_ERR_INVALID);
    assert_int_equal(deleted, 1);
    m = foreign();
    assert_int_equal(weft_tensor_from_dlpack(&m, 0, NULL, NULL), WEFT_ERR_INVALID);
    assert_int_equal(deleted, 1);
    assert_null(lent);
    weft_tensor_unref(x);
}

UNIT_MAIN(a_lent_tensor_outlives_its_owner, every_dtype_is_shared, views_keep_strides_and_offset,
          empty_tensors_and_scalars_are_shared, foreign_memory_is_released_with_the_last_view,
          read_only_memory_is_copied_unless_promised, parameters_are_lent_read_only,
          wrong_structs_are_refused_and_released, an_unversioned_tensor_outlives_its_owner,
          unversioned_memory_is_released_once, unversioned_parameters_want_a_promise, wrong_arguments_are_refused)
