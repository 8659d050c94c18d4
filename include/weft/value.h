/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/value.h - the arguments and results of calls: lists of values with types.
 *
 * A list has two forms:
 *   A literal (weft_args) borrows the tensors and strings that it names. WEFT_VALUES(weft_of_tensor(x),
 *   weft_of_f64(2.0)) makes one, which lives until its block ends. A function that receives a literal copies or
 *   references the values before it returns. In C++ write `auto a = WEFT_VALUES(...);`, so that the literal lives as
 *   long as the variable; `weft_args a = WEFT_VALUES(...);` does not compile there.
 *   A weft_values owns its values, and is reference-counted. Add values to it before you share it. After that it does
 *   not change, and any thread may read it. The results of a call have this form.
 *
 *     weft_status half_of(const weft_values *results, double *out) // results: one double
 *     {
 *         weft_status status = weft_values_get_f64(results, 0, out); // WEFT_ERR_TYPE if it is not a double
 *         if (!status)
 *             *out /= 2;
 *         return status;
 *     }
 */
#ifndef WEFT_VALUE_H
#define WEFT_VALUE_H

#include <weft/tensor.h>

#ifdef __cplusplus
#include <tuple> /* std::tuple, std::get */
#endif

WEFT_BEGIN_C

/* Limits of one list. Lists that exceed them fail with WEFT_ERR_TOO_LARGE. */
#define WEFT_MAX_VALUES 1024        /* values in one list */
#define WEFT_MAX_LIST_DEPTH 8       /* lists in lists */
#define WEFT_MAX_CALL_TENSORS 65536 /* tensors in one call, in all its lists together */
/* A limit, in bytes, for the arguments of a call to another worker, for its results, and for each of its items
 * (weft_call_send_item). Strings, bytes, and a few bytes for each value and tensor count; the contents of tensors do
 * not count. Calls to this worker itself have no such limit. */
#define WEFT_MAX_CALL_BYTES 67108864

/* The type of a value. */
typedef enum weft_type {
    WEFT_TYPE_NONE = 0, /* ends a signature; no value has this type */
    WEFT_TYPE_NULL = 1,
    WEFT_TYPE_BOOL = 2,
    WEFT_TYPE_I64 = 3,
    WEFT_TYPE_F64 = 4,
    WEFT_TYPE_STRING = 5, /* UTF-8, stored with its length */
    WEFT_TYPE_BYTES = 6,
    WEFT_TYPE_TENSOR = 7,
    WEFT_TYPE_TENSORS = 8, /* a list of tensors */
    WEFT_TYPE_RREF = 9,
    WEFT_TYPE_LIST = 10, /* a list of values */
    WEFT_TYPE_ANY = 11,  /* in a signature: a value of any type; no value has this type */
    WEFT_TYPE_REST = 12, /* at the end of a signature: any number of further values; no value has this type */
} weft_type;

typedef struct weft_value weft_value;

/* A borrowed list of values. */
typedef struct weft_args {
    const weft_value *items;
    size_t count;
} weft_args;

/* ---- Literals ---- */

/* The type of function parameters that receive a literal. Do not declare variables of this type: they may outlive the
 * list. In C it is weft_args. In C++ it accepts a weft_args or the result of WEFT_VALUES. */
#ifdef __cplusplus
WEFT_END_C
template <typename... V> struct weft_literal;
struct weft_args_in {
    const weft_value *items;
    size_t count;
    weft_args_in(const weft_args &list) : items(list.items), count(list.count) {}
    template <typename... V> weft_args_in(const weft_literal<V...> &literal) : items(literal.items), count(sizeof...(V))
    {
    }
};
WEFT_BEGIN_C
#else
typedef weft_args weft_args_in;
#endif

/* One borrowed value, made by weft_of_tensor and similar functions. */
struct weft_value {
    weft_type type;
    union {
        bool boolean;
        int64_t i64;
        double f64;
        struct {
            const void *data;
            size_t size;
        } bytes; /* WEFT_TYPE_STRING and WEFT_TYPE_BYTES */
        weft_tensor *tensor;
        weft_tensors tensors;
        weft_rref *rref;
        weft_args list;
    } as;
};

WEFT_API const char *weft_type_name(weft_type type); /* the name of a type, such as "tensor" */

/* These functions make one borrowed value. */
WEFT_API weft_value weft_of_null(void);
WEFT_API weft_value weft_of_bool(bool value);
WEFT_API weft_value weft_of_i64(int64_t value);
WEFT_API weft_value weft_of_f64(double value);
WEFT_API weft_value weft_of_string(const char *text); /* NUL-terminated */
WEFT_API weft_value weft_of_bytes(const void *data, size_t size);
WEFT_API weft_value weft_of_tensor(weft_tensor *tensor); /* NULL: WEFT_ERR_INVALID where the value is used */
WEFT_API weft_value weft_of_tensors(weft_tensors tensors);
WEFT_API weft_value weft_of_rref(weft_rref *rref);
WEFT_API weft_value weft_of_list(weft_args_in list);

#ifdef __cplusplus
WEFT_END_C
/* weft_literal is the result of WEFT_VALUES, weft_literal_list that of weft_of_list(WEFT_VALUES(...)). Both own their
 * items and all nested lists. */
template <typename... V> struct weft_literal_list {
    weft_literal<V...> list;
};
static inline weft_value weft_literal_value(const weft_value &value)
{
    return value;
}
template <typename... V> static inline weft_value weft_literal_value(const weft_literal_list<V...> &value)
{
    return weft_of_list(weft_args{value.list.items, sizeof...(V)});
}
template <size_t I, size_t N>
struct weft_literal_items /* item I and those after it */
{
    template <typename T> static void list(const T &values, weft_value *items)
    {
        items[I] = weft_literal_value(std::get<I>(values));
        weft_literal_items<I + 1, N>::list(values, items);
    }
};
template <size_t N> struct weft_literal_items<N, N> {
    template <typename T> static void list(const T &, weft_value *) {}
};
template <typename... V> struct weft_literal {
    std::tuple<V...> values;
    weft_value items[sizeof...(V) ? sizeof...(V) : 1];
    explicit weft_literal(const std::tuple<V...> &from) : values(from), items()
    {
        list_items();
    }
    weft_literal(const weft_literal &from) : weft_literal(from.values) {}
    weft_literal &operator=(const weft_literal &from)
    {
        values = from.values;
        list_items();
        return *this;
    }

  private:
    void list_items() /* an item that is a list points into `values` */
    {
        weft_literal_items<0, sizeof...(V)>::list(values, items);
    }
};
template <typename... V> static inline weft_literal<V...> WEFT_VALUES(V... v)
{
    return weft_literal<V...>(std::tuple<V...>(v...));
}
template <typename... V> static inline weft_literal_list<V...> weft_of_list(const weft_literal<V...> &list)
{
    return weft_literal_list<V...>{list};
}
static const weft_args WEFT_NO_VALUES = {nullptr, 0};
WEFT_BEGIN_C
#else
/* A literal of the given values, which lives until its block ends: WEFT_VALUES(weft_of_tensor(x), weft_of_f64(2.0)). It
 * borrows the tensors and strings. The items of a list are values too: weft_of_list(WEFT_VALUES(...)). */
#define WEFT_VALUES(...)                                                                                               \
    ((weft_args){(const weft_value[]){__VA_ARGS__}, sizeof((const weft_value[]){__VA_ARGS__}) / sizeof(weft_value)})
#define WEFT_NO_VALUES ((weft_args){NULL, 0})
#endif

/* ---- Owned lists ---- */

/* Makes an owned list of the values of a literal. Scalars, strings and bytes are copied; tensors and remote references
 * are referenced. WEFT_ERR_INVALID (a NULL tensor, string or list, or an invalid type), WEFT_ERR_TOO_LARGE,
 * WEFT_ERR_MEMORY. */
WEFT_API WEFT_NODISCARD weft_status weft_values_create(weft_args_in from, weft_values **out, weft_error **error);
WEFT_API weft_values *weft_values_ref(weft_values *values);
WEFT_API void weft_values_unref(weft_values *values);

/* Adds one value, copied or referenced as by weft_values_create, with the same errors. Allowed only before the list is
 * shared. */
WEFT_API WEFT_NODISCARD weft_status weft_values_add(weft_values *values, weft_value value);

WEFT_API size_t weft_values_count(const weft_values *values); /* the number of values */
/* The type of value `index`; WEFT_TYPE_NONE past the end. */
WEFT_API weft_type weft_values_type(const weft_values *values, size_t index);
/* The list as a literal, borrowed from `values`. */
WEFT_API weft_args weft_values_args(const weft_values *values);

/*
 * Waits until the data of all tensors in the list, and in its lists, are on their devices, at most wait_ms (0 or
 * more; or WEFT_FOREVER). The future of a call is complete when the copies to the devices are queued. Operators need
 * no wait, because their streams are in order with the copies (weft/stream.h). Your own CUDA code on other streams
 * needs one. Does nothing for tensors of the CPU. With 0 it returns WEFT_OK only if the streams that wrote the
 * tensors are idle. Any thread.
 *   WEFT_ERR_TIMEOUT: not all of the data were there after wait_ms.
 *   WEFT_ERR_SYSTEM: a device has failed, and its data are lost. The log has the driver's words.
 *   WEFT_ERR_INVALID: `values` is NULL, or wait_ms is below WEFT_FOREVER.
 */
WEFT_API WEFT_NODISCARD weft_status weft_values_wait(const weft_values *values, int64_t wait_ms);

/* These functions read value `index` of a list; *out is borrowed from `values`. WEFT_ERR_NOT_FOUND if there is no such
 * value, WEFT_ERR_TYPE if it has another type; the log names the index and the types. weft_values_type tells the
 * type. */
WEFT_API WEFT_NODISCARD weft_status weft_values_get_bool(const weft_values *values, size_t index, bool *out);
WEFT_API WEFT_NODISCARD weft_status weft_values_get_i64(const weft_values *values, size_t index, int64_t *out);
WEFT_API WEFT_NODISCARD weft_status weft_values_get_f64(const weft_values *values, size_t index, double *out);
WEFT_API WEFT_NODISCARD weft_status weft_values_get_string(const weft_values *values, size_t index, const char **out);
WEFT_API WEFT_NODISCARD weft_status weft_values_get_bytes(const weft_values *values, size_t index, const void **data,
                                                          size_t *size);
WEFT_API WEFT_NODISCARD weft_status weft_values_get_tensor(const weft_values *values, size_t index, weft_tensor **out);
WEFT_API WEFT_NODISCARD weft_status weft_values_get_tensors(const weft_values *values, size_t index, weft_tensors *out);
WEFT_API WEFT_NODISCARD weft_status weft_values_get_rref(const weft_values *values, size_t index, weft_rref **out);
WEFT_API WEFT_NODISCARD weft_status weft_values_get_list(const weft_values *values, size_t index, weft_args *out);

WEFT_END_C
#endif
