/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft_fortran.c - what weft.f90 calls: functions of weft without structs by value, which not every Fortran compiler can
 * pass. Each that can fail returns a weft_status, and writes the reason to `text`, which has room for TEXT bytes.
 * Indices count from 0. A list is a weft_values; a NULL list has no values.
 */
#include <weft/group.h>
#include <weft/rpc.h>
#include <weft/rref.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 1024, FUNCTIONS_MOST = 1024, AGENTS_MOST = 16 };

/* The one argument of a handler: Fortran passes it by reference. */
typedef struct fortran_call {
    weft_call *call;
} fortran_call;
typedef void (*fortran_handler)(const fortran_call *call);

static int say(weft_status status, const char *message, char *text)
{
    if (status)
        snprintf(text, TEXT, "%s: %s", weft_status_name(status), *message ? message : weft_status_text(status));
    return status;
}

/* Takes over `error`. */
static int tell(weft_status status, weft_error *error, char *text)
{
    say(status, weft_error_message(error), text);
    weft_error_unref(error);
    return status;
}

void weft_f_not_int32(int64_t value, char *text)
{
    snprintf(text, TEXT, "TYPE: %lld does not fit an int32", (long long)value);
}

int weft_f_is_open(char *text)
{
    snprintf(text, TEXT, "STATE: the agent is open already: close it first");
    return WEFT_ERR_STATE;
}

/* A failure without `stat`. */
void weft_f_print(const char *text)
{
    fprintf(stderr, "weft: %s\n", text);
}

/* ---- Handlers ---- */

static weft_function functions[FUNCTIONS_MOST];
static size_t function_count;
static weft_agent *agents[AGENTS_MOST]; /* that are open, and get functions that are registered later */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static weft_status run(weft_call *call, void *user)
{
    fortran_handler handler;
    memcpy(&handler, &user, sizeof(handler));
    handler(&(fortran_call){call});
    return weft_call_status(call);
}

int weft_f_register(const char *name, fortran_handler handler, char *text)
{
    weft_function f = {.name = strdup(name), .takes = {WEFT_TYPE_REST}, .gives = {WEFT_TYPE_REST}, .run = run};
    weft_status status = f.name ? WEFT_OK : WEFT_ERR_MEMORY;
    memcpy(&f.user, &handler, sizeof(handler));
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < function_count && !status; i++)
        status = strcmp(functions[i].name, name) ? WEFT_OK : WEFT_ERR_EXISTS;
    if (!status && function_count == FUNCTIONS_MOST)
        status = WEFT_ERR_TOO_LARGE;
    for (size_t i = 0; i < AGENTS_MOST && !status; i++)
        status = agents[i] ? weft_agent_register(agents[i], &f) : WEFT_OK;
    if (!status)
        functions[function_count++] = f;
    else
        free((char *)f.name);
    pthread_mutex_unlock(&lock);
    return say(status, "", text);
}

/* ---- Agents ---- */

int weft_f_open(const char *name, int rank, int size, weft_agent **out, char *text)
{
    weft_error *error = NULL;
    pthread_mutex_lock(&lock);
    weft_agent_options options = {.functions = functions,
                                  .function_count = function_count,
                                  .name = name,
                                  .has_rank = rank >= 0,
                                  .rank = rank,
                                  .world_size = size};
    size_t known = function_count;
    pthread_mutex_unlock(&lock); /* functions are only added, behind these */
    weft_status status = weft_agent_open(&options, out, &error);
    pthread_mutex_lock(&lock);
    size_t at = 0;
    while (at < AGENTS_MOST && agents[at])
        at++;
    if (!status && at == AGENTS_MOST) {
        pthread_mutex_unlock(&lock);
        weft_agent_stop(*out);
        *out = NULL;
        return say(WEFT_ERR_TOO_LARGE, "a process has at most 16 agents in Fortran", text);
    }
    for (; !status && known < function_count; known++)
        (void)!weft_agent_register(*out, &functions[known]);
    if (!status)
        agents[at] = *out;
    pthread_mutex_unlock(&lock);
    return tell(status, error, text);
}

static void forget(const weft_agent *agent)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < AGENTS_MOST; i++)
        agents[i] = agents[i] == agent ? NULL : agents[i];
    pthread_mutex_unlock(&lock);
}

int weft_f_serve(weft_agent *agent, char *text)
{
    return say(weft_agent_serve(agent, WEFT_FOREVER), "", text);
}

int weft_f_close(weft_agent *agent, char *text)
{
    forget(agent);
    return say(weft_agent_close(agent, WEFT_FOREVER), "", text);
}

void weft_f_stop(weft_agent *agent)
{
    forget(agent);
    weft_agent_stop(agent);
}

/* ---- Values ---- */

/* A tensor over the program's memory, or a copy. `dims` and `strides` have the last Fortran dimension first. */
int weft_f_wrap(int ndim, const int64_t *dims, const int64_t *strides, int dtype, void *data, int copy,
                weft_tensor **out, char *text)
{
    static double nothing[2]; /* an array without elements has no address */
    weft_error *error = NULL;
    weft_shape shape = {.ndim = ndim};
    bool is_empty = false;
    for (int i = 0; i < ndim && i < WEFT_MAX_DIMS; i++) {
        shape.dims[i] = dims[i];
        is_empty |= dims[i] == 0;
    }
    weft_status status = weft_tensor_wrap(shape, (weft_dtype)dtype, is_empty ? nothing : data,
                                          is_empty ? NULL : strides, NULL, NULL, out, &error);
    if (!status && copy) {
        weft_tensor *borrowed = *out;
        status = weft_tensor_clone(borrowed, out, &error);
        weft_tensor_unref(borrowed);
    }
    return tell(status, error, text);
}

static weft_status add(weft_values **list, weft_value value)
{
    weft_status status = *list ? WEFT_OK : weft_values_create(WEFT_NO_VALUES, list, NULL);
    return status ? status : weft_values_add(*list, value);
}

int weft_f_add_i64(weft_values **list, int64_t value, char *text)
{
    return say(add(list, weft_of_i64(value)), "", text);
}

int weft_f_add_f64(weft_values **list, double value, char *text)
{
    return say(add(list, weft_of_f64(value)), "", text);
}

int weft_f_add_bool(weft_values **list, int value, char *text)
{
    return say(add(list, weft_of_bool(value != 0)), "", text);
}

int weft_f_add_string(weft_values **list, const char *value, size_t size, char *text)
{
    weft_value string = weft_of_bytes(value, size);
    string.type = WEFT_TYPE_STRING;
    return say(add(list, string), "", text);
}

/* Takes over the tensor. */
int weft_f_add_tensor(weft_values **list, weft_tensor *tensor, char *text)
{
    weft_status status = add(list, weft_of_tensor(tensor));
    weft_tensor_unref(tensor);
    return say(status, "", text);
}

int weft_f_add_rref(weft_values **list, weft_rref *rref, char *text)
{
    return say(add(list, weft_of_rref(rref)), "", text);
}

int weft_f_add_list(weft_values **list, const weft_values *item, char *text)
{
    return say(add(list, weft_of_list(weft_values_args(item))), "", text);
}

/* A value of a list, or of the arguments of a call. */
static weft_status find(const weft_values *list, const weft_call *call, size_t index, weft_type type, weft_value *out)
{
    size_t count = call ? weft_call_count(call) : weft_values_count(list);
    if (index >= count)
        return WEFT_ERR_NOT_FOUND;
    weft_type is = call ? weft_call_type(call, index) : weft_values_type(list, index);
    if (is != type)
        return WEFT_ERR_TYPE;
    if (!call) {
        *out = weft_values_args(list).items[index];
        return WEFT_OK;
    }
    switch (type) {
    case WEFT_TYPE_BOOL:
        *out = weft_of_bool(weft_call_bool(call, index));
        break;
    case WEFT_TYPE_I64:
        *out = weft_of_i64(weft_call_i64(call, index));
        break;
    case WEFT_TYPE_F64:
        *out = weft_of_f64(weft_call_f64(call, index));
        break;
    case WEFT_TYPE_STRING:
        *out = weft_of_string(weft_call_string(call, index));
        break;
    case WEFT_TYPE_TENSOR:
        *out = weft_of_tensor(weft_call_tensor(call, index));
        break;
    case WEFT_TYPE_RREF:
        *out = weft_of_rref(weft_call_rref(call, index));
        break;
    case WEFT_TYPE_LIST:
        *out = weft_of_list(weft_call_list(call, index));
        break;
    default:
        return WEFT_ERR_TYPE;
    }
    return WEFT_OK;
}

static int found(weft_status status, const weft_values *list, const weft_call *call, size_t index, weft_type wanted,
                 char *text)
{
    size_t count = call ? weft_call_count(call) : weft_values_count(list);
    if (status == WEFT_ERR_NOT_FOUND)
        snprintf(text, TEXT, "NOT_FOUND: there is no value %zu: there are %zu", index + 1, count);
    else if (status)
        snprintf(text, TEXT, "TYPE: value %zu is a %s, not a %s", index + 1,
                 weft_type_name(call ? weft_call_type(call, index) : weft_values_type(list, index)),
                 weft_type_name(wanted));
    return status;
}

size_t weft_f_count(const weft_values *list, const weft_call *call)
{
    return call ? weft_call_count(call) : list ? weft_values_count(list) : 0;
}

/* The type as in weft/value.h; 0 past the end. */
int weft_f_type(const weft_values *list, const weft_call *call, size_t index)
{
    if (index >= weft_f_count(list, call))
        return WEFT_TYPE_NONE;
    return call ? weft_call_type(call, index) : weft_values_type(list, index);
}

int weft_f_get_i64(const weft_values *list, const weft_call *call, size_t index, int64_t *out, char *text)
{
    weft_value value;
    weft_status status = find(list, call, index, WEFT_TYPE_I64, &value);
    if (!status)
        *out = value.as.i64;
    return found(status, list, call, index, WEFT_TYPE_I64, text);
}

int weft_f_get_f64(const weft_values *list, const weft_call *call, size_t index, double *out, char *text)
{
    weft_value value;
    weft_status status = find(list, call, index, WEFT_TYPE_F64, &value);
    if (!status)
        *out = value.as.f64;
    return found(status, list, call, index, WEFT_TYPE_F64, text);
}

int weft_f_get_bool(const weft_values *list, const weft_call *call, size_t index, int *out, char *text)
{
    weft_value value;
    weft_status status = find(list, call, index, WEFT_TYPE_BOOL, &value);
    if (!status)
        *out = value.as.boolean;
    return found(status, list, call, index, WEFT_TYPE_BOOL, text);
}

/* Borrowed. */
int weft_f_get_string(const weft_values *list, const weft_call *call, size_t index, const char **out, size_t *size,
                      char *text)
{
    weft_value value;
    weft_status status = find(list, call, index, WEFT_TYPE_STRING, &value);
    if (!status) {
        *out = value.as.bytes.data;
        *size = value.as.bytes.size;
    }
    return found(status, list, call, index, WEFT_TYPE_STRING, text);
}

/* The caller owns the reference. */
int weft_f_get_rref(const weft_values *list, const weft_call *call, size_t index, weft_rref **out, char *text)
{
    weft_value value;
    weft_status status = find(list, call, index, WEFT_TYPE_RREF, &value);
    if (!status)
        *out = weft_rref_ref(value.as.rref);
    return found(status, list, call, index, WEFT_TYPE_RREF, text);
}

int weft_f_get_list(const weft_values *list, const weft_call *call, size_t index, weft_values **out, char *text)
{
    weft_value value;
    weft_status status = find(list, call, index, WEFT_TYPE_LIST, &value);
    if (!status)
        return say(weft_values_create(value.as.list, out, NULL), "", text);
    return found(status, list, call, index, WEFT_TYPE_LIST, text);
}

/*
 * The memory of a tensor with this dtype and number of dimensions, borrowed from the list or call. `dims`, the last
 * Fortran dimension first, gets the sizes.
 */
int weft_f_point(const weft_values *list, const weft_call *call, size_t index, int dtype, int ndim, int64_t *dims,
                 void **out, char *text)
{
    weft_value value;
    weft_status status = find(list, call, index, WEFT_TYPE_TENSOR, &value);
    if (status)
        return found(status, list, call, index, WEFT_TYPE_TENSOR, text);
    weft_tensor *x = value.as.tensor;
    if ((int)weft_tensor_dtype(x) != dtype || weft_tensor_ndim(x) != ndim || !weft_tensor_is_contiguous(x) ||
        weft_tensor_device(x).kind != WEFT_DEVICE_CPU) {
        snprintf(text, TEXT, "TYPE: value %zu is a tensor of %d dimensions of %s%s, not one of %d dimensions of %s",
                 index + 1, weft_tensor_ndim(x), weft_dtype_name(weft_tensor_dtype(x)),
                 weft_tensor_device(x).kind == WEFT_DEVICE_CPU
                     ? weft_tensor_is_contiguous(x) ? "" : ", a section of this worker's own array"
                     : ", on a GPU",
                 ndim, weft_dtype_name((weft_dtype)dtype));
        return WEFT_ERR_TYPE;
    }
    for (int i = 0; i < ndim; i++)
        dims[i] = weft_tensor_size(x, i);
    *out = weft_tensor_data(x);
    return WEFT_OK;
}

/* Copies a tensor of a list or call into another of the same dtype and shape, which it takes over. */
int weft_f_copy(const weft_values *list, const weft_call *call, size_t index, weft_tensor *to, char *text)
{
    weft_value value;
    weft_status status = find(list, call, index, WEFT_TYPE_TENSOR, &value);
    if (status) {
        weft_tensor_unref(to);
        return found(status, list, call, index, WEFT_TYPE_TENSOR, text);
    }
    weft_error *error = NULL;
    if (weft_tensor_dtype(value.as.tensor) != weft_tensor_dtype(to))
        status = say(WEFT_ERR_TYPE, "the tensor has another kind than the array", text);
    else if (!weft_tensor_same_shape(value.as.tensor, to))
        status = say(WEFT_ERR_SHAPE, "the tensor has another shape than the array", text);
    else
        status = tell(weft_tensor_assign(to, value.as.tensor), error, text);
    weft_tensor_unref(to);
    return status;
}

/* ---- Calls ---- */

static weft_target target_of(int rank, const char *name)
{
    return name ? weft_to_name(name) : weft_to_rank(rank);
}

static weft_args arguments_of(const weft_values *list)
{
    return list ? weft_values_args(list) : WEFT_NO_VALUES;
}

/* The tensors of a list, for options.land. Free the result. */
static weft_status landing_of(const weft_values *list, weft_tensors *out)
{
    size_t count = list ? weft_values_count(list) : 0;
    weft_tensor **items = calloc(count + 1, sizeof(*items));
    weft_status status = items ? WEFT_OK : WEFT_ERR_MEMORY;
    for (size_t i = 0; i < count && !status; i++)
        status = weft_values_get_tensor(list, i, &items[i]);
    *out = (weft_tensors){items, count};
    return status;
}

int weft_f_rpc(weft_agent *agent, weft_rref *rref, int rank, const char *name, const char *function,
               const weft_values *list, const weft_values *land, int64_t timeout_ms, weft_future **out, char *text)
{
    weft_error *error = NULL;
    weft_rpc_options options = {.timeout_ms = timeout_ms, .wait_for_room = true, .error = &error};
    weft_status status = landing_of(land, &options.land);
    if (!status && rref)
        status = weft_rref_rpc_async(rref, function, arguments_of(list), &options, out);
    else if (!status)
        status = weft_rpc_async(agent, target_of(rank, name), function, arguments_of(list), &options, out);
    free((void *)options.land.items);
    return tell(status, error, text);
}

int weft_f_remote(weft_agent *agent, int rank, const char *name, const char *function, const weft_values *list,
                  int64_t timeout_ms, weft_rref **out, char *text)
{
    weft_error *error = NULL;
    weft_rpc_options options = {.timeout_ms = timeout_ms, .wait_for_room = true, .error = &error};
    weft_status status = weft_rpc_remote(agent, target_of(rank, name), function, arguments_of(list), &options, out);
    return tell(status, error, text);
}

/* Waits. For a call, *list receives a reference to the results. */
int weft_f_wait(weft_future *future, int64_t wait_ms, weft_values **list, char *text)
{
    weft_status status = weft_future_wait(future, wait_ms);
    const weft_error *error = weft_future_error(future);
    const weft_values *results = weft_future_values(future);
    if (status && error && *weft_error_function(error))
        snprintf(text, TEXT, "%s: %s on rank %d: %s", weft_status_name(status), weft_error_function(error),
                 weft_error_worker(error), weft_error_message(error));
    else
        say(status, weft_error_message(error), text);
    if (!status && results)
        *list = weft_values_ref((weft_values *)results); /* it does not change */
    return status;
}

/* ---- In a handler ---- */

void weft_f_give(weft_call *call, const weft_values *list)
{
    weft_call_give(call, arguments_of(list));
}

void weft_f_fail(weft_call *call, const char *message)
{
    weft_call_fail(call, WEFT_ERR_INVALID, "%s", message);
}

/* ---- References ---- */

int weft_f_rref_create(weft_agent *agent, const weft_values *list, weft_rref **out, char *text)
{
    weft_error *error = NULL;
    weft_args values = arguments_of(list);
    if (values.count != 1)
        return say(WEFT_ERR_INVALID, "a reference needs a list of one value", text);
    return tell(weft_rref_create(agent, values.items[0], out, &error), error, text);
}

int weft_f_to_here(weft_rref *rref, int64_t timeout_ms, weft_values **out, char *text)
{
    weft_error *error = NULL;
    weft_status status = weft_rref_to_here(rref, timeout_ms, out, &error);
    return tell(status, error, text);
}

/* ---- Groups ---- */

int weft_f_group_open(weft_agent *agent, const char *name, const int *ranks, size_t count, int64_t timeout_ms,
                      weft_group **out, char *text)
{
    weft_error *error = NULL;
    weft_status status = weft_group_open(agent, name, count ? ranks : NULL, count, timeout_ms, out, &error);
    return tell(status, error, text);
}

int weft_f_group_shrink(weft_group *group, int64_t timeout_ms, weft_group **out, char *text)
{
    weft_error *error = NULL;
    weft_status status = weft_group_shrink(group, timeout_ms, out, &error);
    return tell(status, error, text);
}

static weft_status operate(int which, weft_group *group, weft_tensor *in, weft_tensor *out, int how, size_t root,
                           int64_t timeout_ms, weft_future **future)
{
    weft_op op = (weft_op)how;
    switch (which) {
    case 0:
        return weft_group_barrier_async(group, timeout_ms, future);
    case 1:
        return weft_group_allreduce_async(group, in, op, timeout_ms, future);
    case 2:
        return weft_group_reduce_async(group, in, op, root, timeout_ms, future);
    case 3:
        return weft_group_broadcast_async(group, in, root, timeout_ms, future);
    case 4:
        return weft_group_send_async(group, in, root, timeout_ms, future);
    case 5:
        return weft_group_recv_async(group, in, root, timeout_ms, future);
    case 6:
        return weft_group_allgather_async(group, in, out, timeout_ms, future);
    case 7:
        return weft_group_gather_async(group, in, out, root, timeout_ms, future);
    case 8:
        return weft_group_scatter_async(group, in, out, root, timeout_ms, future);
    case 9:
        return weft_group_all_to_all_async(group, in, out, timeout_ms, future);
    case 10:
        return weft_group_reduce_scatter_async(group, in, out, op, timeout_ms, future);
    default:
        return WEFT_ERR_UNSUPPORTED;
    }
}

/* Starts an operation, by its number in weft.f90. Takes over both tensors, which may be NULL. */
int weft_f_operate(int which, weft_group *group, weft_tensor *in, weft_tensor *out, int how, size_t root,
                   int64_t timeout_ms, weft_future **future, char *text)
{
    weft_status status = operate(which, group, in, out, how, root, timeout_ms, future);
    weft_tensor_unref(in);
    weft_tensor_unref(out);
    return say(status, weft_error_message(weft_group_error(group)), text);
}

int weft_f_allgather_values(weft_group *group, const weft_values *list, int64_t timeout_ms, weft_future **future,
                            char *text)
{
    return say(weft_group_allgather_values_async(group, arguments_of(list), timeout_ms, future), "", text);
}
