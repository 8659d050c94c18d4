/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c - echoes of a tensor of a GPU, one at a time and four in flight. The floor is the echo of the same tensor in
 * page-locked memory, in turns: the difference is what the copies from and to the device cost. Then small calls
 * beside the largest. An echo ends when its data are on the device.
 */
#include "perf/bench.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TURNS = 4, WINDOW = 4, NAME = 200 };
static const size_t usual[] = {1 << 10, (size_t)64 << 20};

/* The tensor that is echoed, and the landing places of the echoes in flight. */
typedef struct echoes {
    weft_tensor *there, *back[WINDOW];
} echoes;

static void drop(echoes *e)
{
    weft_tensor_unref(e->there);
    for (int i = 0; i < WINDOW; i++)
        weft_tensor_unref(e->back[i]);
    *e = (echoes){NULL};
}

static weft_status make_one(bench *b, bool on_device, size_t bytes, weft_tensor **out)
{
    weft_shape shape = WEFT_SHAPE((int64_t)bytes);
    weft_status status = on_device ? weft_tensor_empty_on(b->o->device, shape, WEFT_DTYPE_UINT8, out, NULL)
                                   : weft_tensor_empty_pinned(b->o->device, shape, WEFT_DTYPE_UINT8, out, NULL);
    if (!status)
        weft_tensor_fill(*out, 1);
    return status;
}

static bool make(bench *b, bool on_device, size_t bytes, echoes *e)
{
    weft_status status = make_one(b, on_device, bytes, &e->there);
    for (int i = 0; i < WINDOW && !status; i++)
        status = make_one(b, on_device, bytes, &e->back[i]);
    return !status || task_fail(b->to, "no memory for tensors of %zu bytes: %s", bytes, weft_status_text(status));
}

static bool start(bench *b, echoes *e, unsigned slot, weft_future **out)
{
    weft_error *error = NULL;
    weft_rpc_options options = {
        .land = {&e->back[slot], 1}, .wait_for_room = true, .timeout_ms = SERVICE_CALL_MS, .error = &error};
    weft_status status =
        weft_rpc_async(b->agent, weft_to_rank(b->peer), "echo", WEFT_VALUES(weft_of_tensor(e->there)), &options, out);
    return !status || bench_fail(b, "echo", b->peer, status, error);
}

static bool finish(bench *b, weft_future *echo)
{
    weft_status status = weft_future_wait(echo, WEFT_FOREVER);
    if (!status)
        status = weft_values_wait(weft_future_values(echo), SERVICE_CALL_MS);
    const weft_error *why = status ? weft_future_error(echo) : NULL;
    weft_error *error = why ? weft_error_ref(why) : NULL;
    weft_future_unref(echo);
    return !status || bench_fail(b, "echo", b->peer, status, error);
}

/* Adds the time of each echo or, with several in flight, one rate of all. */
static bool run(bench *b, echoes *e, unsigned window, double us, series *out)
{
    weft_future *flying[WINDOW];
    unsigned long started = 0, ended = 0;
    double began = measure_now_us(), last = began;
    bool ok = true;
    while (ok && started < window)
        ok = start(b, e, (unsigned)started, &flying[started]) && ++started;
    while (ended < started) { /* the oldest first */
        unsigned slot = (unsigned)(ended++ % window);
        ok = finish(b, flying[slot]) && ok;
        double now = measure_now_us();
        if (ok && window == 1)
            series_add(out, now - last);
        last = now;
        if (ok && now < began + us)
            ok = start(b, e, slot, &flying[slot]) && ++started;
    }
    if (ok && window > 1)
        series_add(out, (double)weft_tensor_nbytes(e->there) * (double)ended / (last - began) / 1e3);
    return ok;
}

static bool measure(bench *b, size_t bytes, unsigned window)
{
    result r = result_of("device", window > 1 ? "echo, in flight" : "echo", window > 1 ? "GB/s" : "us", window > 1);
    bool has_floor = !b->o->no_floor;
    double slice = b->o->seconds * 1e6 / (TURNS * (has_floor ? 2 : 1));
    series warm = {0}, ours = {0}, locked = {0};
    echoes device = {NULL}, host = {NULL};
    bool ok = make(b, true, bytes, &device) && make(b, false, bytes, &host) &&
              run(b, &device, window, slice / 4, &warm) && run(b, &host, window, slice / 4, &warm);
    for (int turn = 0; ok && turn < TURNS; turn++)
        ok = (!has_floor || run(b, &host, window, slice, &locked)) && run(b, &device, window, slice, &ours);
    if (ok) {
        r.bytes = (int64_t)bytes;
        r.window = window;
        r.workers = 2;
        result_fill(&r, &ours, has_floor ? series_summary(&locked).p50 : (double)NAN,
                    has_floor ? "page-locked memory" : "");
        bench_put(b, &r);
    }
    drop(&device);
    drop(&host);
    series_fini(&warm);
    series_fini(&ours);
    series_fini(&locked);
    return ok;
}

/* The driver's name of the device. */
static void read_name(int index, char name[NAME])
{
    int (*get)(int *device, int index) = NULL, (*get_name)(char *out, int room, int device) = NULL;
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *found[2] = {NULL};
    int device;
    if (library) { /* weft has loaded it, and has begun CUDA */
        found[0] = dlsym(library, "cuDeviceGet");
        found[1] = dlsym(library, "cuDeviceGetName");
    }
    memcpy(&get, &found[0], sizeof(get));
    memcpy(&get_name, &found[1], sizeof(get_name));
    if (!get || !get_name || get(&device, index) != 0 || get_name(name, NAME, device) != 0)
        snprintf(name, NAME, "a device without a name");
}

bool measure_device(bench *b)
{
    size_t sizes[SIZES_MAX], count = settings_sizes(b->o, usual, sizeof(usual) / sizeof(*usual), sizes);
    weft_error *error = NULL;
    char name[NAME];
    weft_status status = weft_device_check(b->o->device, &error);
    if (status)
        return task_fail_status(b->to, "--device", status, error);
    read_name(b->o->device.index, name);
    task_note(b->to, "cuda:%d is %s%s", b->o->device.index, name,
              strstr(name, "emulated") ? ": these figures try the program, and say nothing about a GPU" : "");
    bool ok = true;
    for (size_t i = 0; ok && i < 2 * count; i++)
        ok = measure(b, sizes[i % count], i < count ? 1 : WINDOW);
    echoes large = {NULL};
    ok = ok && make(b, true, sizes[count - 1], &large) && beside_run(b, "device", large.there, large.back[0]);
    drop(&large);
    return ok;
}
