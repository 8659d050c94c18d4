/* SPDX-License-Identifier: Apache-2.0 */
/* type.c - the names of the types of values. */
#include <weft/value.h>

static const char *const type_names[] = {
    [WEFT_TYPE_NONE] = "none",   [WEFT_TYPE_NULL] = "null",     [WEFT_TYPE_BOOL] = "bool",
    [WEFT_TYPE_I64] = "int64",   [WEFT_TYPE_F64] = "double",    [WEFT_TYPE_STRING] = "string",
    [WEFT_TYPE_BYTES] = "bytes", [WEFT_TYPE_TENSOR] = "tensor", [WEFT_TYPE_TENSORS] = "tensors",
    [WEFT_TYPE_RREF] = "rref",   [WEFT_TYPE_LIST] = "list",     [WEFT_TYPE_ANY] = "any",
    [WEFT_TYPE_REST] = "rest",
};

const char *weft_type_name(weft_type type)
{
    size_t i = (size_t)type;
    return i < sizeof(type_names) / sizeof(*type_names) ? type_names[i] : "unknown";
}
