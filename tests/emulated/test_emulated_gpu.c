/* SPDX-License-Identifier: Apache-2.0 */
/* test_emulated_gpu.c - the emulated GPU notices the faults that it promises to notice (emulated.h), and orders work as
 * CUDA does. Skips on a real GPU. */
#include "children.h"
#include "emulated.h"
#include "faults.h"
#include "mem/cuda.h"
#include "unit.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SKIPPED = 77, COUNT = 100 };

/* Functions of libcuda.so.1: those of emulated.h, and those of the driver that the tests call directly. */
static struct functions {
    void (*counts)(emulated_counts *out);
    void (*fail_next)(emulated_call call, uint64_t after, uint64_t times);
    void (*seed)(uint64_t seed);
    void (*expect_fault)(void);
    const char *(*fault)(void);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_wait_event)(void *stream, void *event, unsigned flags);
    int (*stream_synchronize)(void *stream);
    int (*event_create)(void **event, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    int (*context_now)(void **context);
    void (*fail_device)(int device);
    void (*mend_device)(int device);
    int (*read)(void *to, uint64_t from, size_t size); /* these two wait */
    int (*write)(uint64_t to, const void *from, size_t size);
} gpu;
static const wfi_cuda_driver *driver;
static void *module;

static uint64_t take(int64_t count)
{
    uint64_t at = 0;
    assert_int_equal(driver->memory_alloc(&at, (size_t)count * 8), 0);
    return at;
}

static void give(uint64_t at)
{
    assert_int_equal(driver->memory_free(at), 0);
}

static int start(const char *kernel, faults_args args, unsigned threads, void *stream)
{
    void *function = NULL;
    size_t size = sizeof(args);
    void *extra[] = {(void *)1, &args, (void *)2, &size, NULL};
    assert_int_equal(driver->module_function(&function, module, kernel), 0);
    return driver->launch(function, 1, 1, 1, threads, 1, 1, 0, stream, NULL, extra);
}

static void fill(uint64_t at, int64_t first, int64_t count, int64_t number, void *stream)
{
    faults_args args = {.to = (int64_t *)at, .first = first, .count = count, .number = number};
    assert_int_equal(start("weft_faults_write", args, 32, stream), 0);
}

static int64_t read_one(uint64_t at, int64_t i)
{
    int64_t value = 0;
    assert_int_equal(gpu.read(&value, at + 8 * (uint64_t)i, 8), 0);
    return value;
}

static emulated_counts counts(void)
{
    emulated_counts now;
    gpu.counts(&now);
    return now;
}

/* ---- Memory ---- */

static void the_host_cannot_touch_device_memory(void **state)
{
    uint64_t at = take(COUNT);
    child one = child_fork("touches device memory");
    if (!one.pid) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile int64_t *)at = 1;
        _exit(0);
    }
    int status = child_end(&one);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    give(at);
}

static void fresh_memory_is_poisoned(void **state)
{
    uint64_t at = take(COUNT);
    assert_int_equal(read_one(at, 0), -1);
    assert_int_equal(read_one(at, COUNT - 1), -1);
    give(at);
}

#if !defined(__SANITIZE_ADDRESS__) /* which ends the process there */
static void writes_beside_an_allocation_are_noticed(void **state)
{
    static const int64_t places[] = {COUNT, -1}; /* 100 numbers end within their last 256 bytes */
    for (int i = 0; i < 2; i++) {
        uint64_t at = take(COUNT);
        gpu.expect_fault();
        fill(at, places[i], 1, 7, NULL);
        (void)read_one(at, 0);
        assert_non_null(strstr(gpu.fault(), i == 0 ? "a write after the end" : "a write before"));
        fill(at, places[i], 1, -1, NULL); /* the pattern again */
        give(at);
    }
}
#endif

static void pointers_that_a_kernel_cannot_use_are_refused(void **state)
{
    int64_t *here = malloc(8);
    uint64_t at = take(COUNT), freed = take(COUNT);
    give(freed);
    const struct {
        int64_t *to;
        const char *says;
    } cases[] = {{here, "memory of the host that is not pinned"}, {(int64_t *)freed, "device memory that is freed"}};
    for (int i = 0; i < 2; i++) {
        gpu.expect_fault();
        faults_args args = {.to = cases[i].to, .count = 1};
        assert_int_not_equal(start("weft_faults_write", args, 32, NULL), 0);
        assert_non_null(strstr(gpu.fault(), cases[i].says));
    }
    give(at);
    free(here);
}

static void memory_of_another_device_is_refused(void **state)
{
    uint64_t at = take(COUNT);
    assert_int_equal(wfi_cuda_enter(1), WEFT_OK);
    gpu.expect_fault();
    faults_args args = {.to = (int64_t *)at, .count = 1};
    assert_int_not_equal(start("weft_faults_write", args, 32, NULL), 0);
    assert_non_null(strstr(gpu.fault(), "memory of another device"));
    wfi_cuda_leave();
    give(at);
}

static void copies_outside_an_allocation_are_refused(void **state)
{
    int64_t here[2] = {0};
    uint64_t at = take(COUNT);
    gpu.expect_fault();
    assert_int_not_equal(driver->copy_to_host(here, at + 8 * (COUNT - 1), 16, NULL), 0);
    assert_non_null(strstr(gpu.fault(), "not within an allocation"));
    give(at);
}

static void a_call_that_fails_is_a_fault(void **state)
{
    gpu.expect_fault();
    void *function = NULL;
    assert_int_not_equal(driver->module_function(&function, module, "weft_no_such_kernel"), 0);
    assert_string_equal(gpu.fault(), "cuModuleGetFunction returned 500");
}

/* ---- Threads ---- */

static int64_t total_by(const char *kernel)
{
    int64_t numbers[256];
    uint64_t from = take(256), to = take(1);
    for (int i = 0; i < 256; i++)
        numbers[i] = i;
    assert_int_equal(gpu.write(from, numbers, sizeof(numbers)), 0);
    faults_args args = {.from = (int64_t *)from, .to = (int64_t *)to};
    assert_int_equal(start(kernel, args, 256, NULL), 0);
    int64_t total = read_one(to, 0);
    give(from);
    give(to);
    return total;
}

static void a_missing_barrier_is_noticed(void **state)
{
    int wrong = 0;
    for (int seed = 1; seed <= 20; seed++) {
        gpu.seed((uint64_t)seed);
        assert_int_equal(total_by("weft_faults_total"), 255 * 128);
        wrong += total_by("weft_faults_no_barrier") != 255 * 128;
    }
    assert_true(wrong >= 19);
}

static void threads_at_different_barriers_end_the_process(void **state)
{
    uint64_t at = take(1);
    child one = child_fork("two barriers");
    if (!one.pid) {
        signal(SIGABRT, SIG_DFL);
        (void)!freopen("/dev/null", "w", stderr);
        (void)start("weft_faults_two_barriers", (faults_args){.to = (int64_t *)at}, 32, NULL);
        (void)read_one(at, 0);
        _exit(0);
    }
    int status = child_end(&one);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    give(at);
}

static void the_order_of_threads_depends_on_the_seed(void **state)
{
    uint64_t at = take(1);
    int64_t last[3];
    static const uint64_t seeds[] = {5, 6, 5};
    for (int i = 0; i < 3; i++) {
        gpu.seed(seeds[i]);
        assert_int_equal(start("weft_faults_last", (faults_args){.to = (int64_t *)at}, 256, NULL), 0);
        last[i] = read_one(at, 0);
    }
    assert_int_equal(last[0], last[2]);
    assert_int_not_equal(last[0], last[1]);
    give(at);
}

/* ---- Streams ---- */

enum { NON_BLOCKING = 1 };

static void assert_fault_says(const char *one, const char *two, const char *three)
{
    const char *all[] = {one, two, three}, *at = gpu.fault();
    assert_non_null(at);
    for (int i = 0; i < 3; i++) {
        const char *found = strstr(at, all[i]);
        if (!found)
            fail_msg("the fault is '%s', without '%s'", gpu.fault(), all[i]);
        at = found;
    }
}

/* Reads what a stream copies from `from` to `to`, with or without the event that orders it after the other stream. */
static int64_t across_streams(bool waits)
{
    void *writer = NULL, *reader = NULL, *event = NULL;
    uint64_t from = take(COUNT), to = take(COUNT);
    assert_int_equal(gpu.stream_create(&writer, NON_BLOCKING), 0);
    assert_int_equal(gpu.stream_create(&reader, NON_BLOCKING), 0);
    assert_int_equal(gpu.event_create(&event, 0), 0);
    fill(from, 0, COUNT, 5, writer);
    assert_int_equal(gpu.event_record(event, writer), 0);
    assert_int_not_equal(gpu.event_query(event), 0);
    if (waits)
        assert_int_equal(gpu.stream_wait_event(reader, event, 0), 0);
    faults_args args = {.from = (int64_t *)from, .to = (int64_t *)to, .count = COUNT};
    assert_int_equal(start("weft_faults_copy", args, 32, reader), 0);
    assert_int_equal(gpu.stream_synchronize(reader), 0);
    int64_t got = read_one(to, 3);
    assert_int_equal(gpu.event_query(event), waits ? 0 : 600);
    assert_int_equal(gpu.event_destroy(event), 0);
    assert_int_equal(gpu.stream_destroy(writer), 0);
    assert_int_equal(gpu.stream_destroy(reader), 0);
    give(from);
    give(to);
    return got;
}

static void streams_run_as_late_as_they_may(void **state)
{
    assert_int_equal(across_streams(true), 5);
    gpu.expect_fault();                          /* of the race, too */
    assert_int_equal(across_streams(false), -1); /* the poison: what the other stream writes has not run */
    assert_fault_says("weft_faults_write (work ",
                      "stream 3 of device 0) writes bytes 0 to 799, weft_faults_copy (work ",
                      "stream 4 of device 0) reads bytes 0 to 799; no event or wait orders them");
}

/* ---- Races ---- */

typedef struct crew { /* two streams that do not wait for the legacy one */
    void *streams[2];
    void *event;
    uint64_t from, to;
} crew;

static crew begin_crew(void)
{
    crew c = {.from = take(COUNT), .to = take(COUNT)};
    for (int i = 0; i < 2; i++)
        assert_int_equal(gpu.stream_create(&c.streams[i], NON_BLOCKING), 0);
    assert_int_equal(gpu.event_create(&c.event, 0), 0);
    gpu.expect_fault();
    return c;
}

/* Returns what the emulated GPU has reported, or NULL. */
static const char *end_crew(crew *c)
{
    for (int i = 0; i < 2; i++) {
        assert_int_equal(gpu.stream_synchronize(c->streams[i]), 0);
        assert_int_equal(gpu.stream_destroy(c->streams[i]), 0);
    }
    assert_int_equal(gpu.event_destroy(c->event), 0);
    give(c->from);
    give(c->to);
    return gpu.fault();
}

static void writes_of_two_streams_race(void **state)
{
    crew c = begin_crew();
    fill(c.to, 0, COUNT, 1, c.streams[0]);
    fill(c.to, 0, COUNT, -2, c.streams[1]); /* all bytes change */
    assert_non_null(end_crew(&c));
    assert_fault_says("a race on the 800 bytes at 0x", "writes bytes 0 to 799, weft_faults_write (work ",
                      "writes bytes 0 to 799; no event or wait orders them");
}

static void a_copy_races_with_a_kernel(void **state)
{
    int64_t here[COUNT] = {0};
    crew c = begin_crew();
    fill(c.from, 10, 1, 1, c.streams[0]);
    assert_int_equal(driver->copy_to_host(here, c.from + 80, 8, c.streams[1]), 0);
    assert_non_null(end_crew(&c));
    assert_fault_says("weft_faults_write (work ", "writes bytes 80 to 87, a copy to the host (work ",
                      "reads bytes 80 to 87");
}

/* Readers of one allocation, and writers of different parts. */
static void what_does_not_touch_the_same_bytes_is_no_race(void **state)
{
    int64_t here[COUNT] = {0};
    crew c = begin_crew();
    assert_int_equal(driver->copy_to_device(c.from, here, sizeof(here), NULL), 0);
    assert_int_equal(gpu.stream_synchronize(NULL), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(driver->copy_to_host(here, c.from, sizeof(here), c.streams[i]), 0);
    assert_int_equal(driver->copy_to_device(c.to, here, 8, c.streams[0]), 0);
    assert_int_equal(driver->copy_to_device(c.to + 8, here, 8, c.streams[1]), 0);
    assert_null(end_crew(&c));
}

/* By events in a chain of three streams, by a wait of the host, and by a query that says that the work is done. */
static void what_is_ordered_is_no_race(void **state)
{
    void *third = NULL;
    crew c = begin_crew();
    assert_int_equal(gpu.stream_create(&third, NON_BLOCKING), 0);
    void *chain[] = {c.streams[0], c.streams[1], third};
    for (int i = 0; i < 3; i++) {
        if (i > 0)
            assert_int_equal(gpu.stream_wait_event(chain[i], c.event, 0), 0);
        if (i != 1)
            fill(c.to, 0, COUNT, i, chain[i]); /* the second stream only carries the order */
        assert_int_equal(gpu.event_record(c.event, chain[i]), 0);
    }
    assert_int_equal(gpu.stream_synchronize(third), 0);
    fill(c.to, 0, COUNT, 7, c.streams[0]);
    assert_int_equal(gpu.event_record(c.event, c.streams[0]), 0);
    assert_int_equal(gpu.stream_synchronize(c.streams[0]), 0);
    assert_int_equal(gpu.event_query(c.event), 0);
    fill(c.to, 0, COUNT, 8, third);
    assert_int_equal(gpu.stream_destroy(third), 0);
    assert_null(end_crew(&c));
}

/* An event that was recorded before the write does not order it. */
static void an_early_event_does_not_order(void **state)
{
    crew c = begin_crew();
    fill(c.from, 0, COUNT, 1, c.streams[0]);
    assert_int_equal(gpu.event_record(c.event, c.streams[0]), 0);
    fill(c.to, 0, COUNT, 1, c.streams[0]);
    assert_int_equal(gpu.stream_wait_event(c.streams[1], c.event, 0), 0);
    fill(c.from, 0, COUNT, 2, c.streams[1]);
    fill(c.to, 0, COUNT, 2, c.streams[1]);
    assert_non_null(end_crew(&c));
    char at[32];
    snprintf(at, sizeof(at), "the 800 bytes at %p", (void *)c.to);
    assert_fault_says(at, "weft_faults_write", "weft_faults_write");
}

/* Work that nothing waits for: the race is reported when the process ends. */
static void the_end_of_the_process_reports_races(void **state)
{
    char text[512] = "";
    child one = child_fork("races");
    if (!one.pid) {
        crew c = begin_crew();
        (void)gpu.fault();
        dup2(one.line, STDERR_FILENO);
        fill(c.to, 0, COUNT, 1, c.streams[0]);
        fill(c.to, 0, COUNT, 2, c.streams[1]);
        exit(0);
    }
    assert_true(read(one.line, text, sizeof(text) - 1) > 0);
    int status = child_end(&one);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(text, "emulated GPU: a race on the 800 bytes at 0x"));
}

/* Work of the legacy stream runs after the earlier work of a blocking stream, and before its later work. */
static void the_legacy_stream_orders_blocking_streams(void **state)
{
    void *stream = NULL;
    uint64_t at = take(COUNT);
    assert_int_equal(gpu.stream_create(&stream, 0), 0);
    fill(at, 0, 1, 1, stream);
    fill(at, 0, 1, 2, NULL);
    fill(at, 0, 1, 3, stream);
    fill(at, 0, 1, 4, NULL);
    assert_int_equal(read_one(at, 0), 4);
    fill(at, 0, 1, 5, NULL);
    fill(at, 0, 1, 6, stream);
    assert_int_equal(gpu.stream_synchronize(stream), 0);
    assert_int_equal(read_one(at, 0), 6);
    assert_int_equal(gpu.stream_destroy(stream), 0);
    give(at);
}

static void a_launch_only_queues(void **state)
{
    uint64_t at = take(COUNT);
    emulated_counts before = counts();
    fill(at, 0, COUNT, 5, NULL);
    emulated_counts after = counts();
    assert_int_equal(after.pending, before.pending + 1);
    assert_int_equal(after.synchronisations, before.synchronisations);
    assert_int_equal(read_one(at, 0), 5);
    assert_int_equal(counts().pending, 0);
    assert_int_equal(counts().synchronisations, before.synchronisations + 1);
    give(at);
}

/* ---- Host functions, and devices that fail ---- */

typedef struct notes { /* what the host function sees */
    const int64_t *bytes;
    int64_t seen[4];
    _Atomic int count;
} notes;

static void look(void *arg)
{
    notes *n = arg;
    int at = atomic_load(&n->count);
    n->seen[at] = *n->bytes;
    atomic_store(&n->count, at + 1);
}

/* Each comes after the work before it and before the work after it, on a thread, without a call that waits. */
static void host_functions_are_in_order_with_their_stream(void **state)
{
    int late = 0;
    for (int seed = 0; seed < 20; seed++) {
        crew c = begin_crew();
        void *pinned = NULL;
        gpu.seed((uint64_t)seed);
        assert_int_equal(driver->pinned_alloc(&pinned, 8, 0), 0);
        notes n = {.bytes = pinned};
        uint64_t before = counts().synchronisations;
        for (int i = 0; i < 3; i++) {
            fill(c.from, 0, COUNT, i, c.streams[0]);
            assert_int_equal(driver->copy_to_host(pinned, c.from, 8, c.streams[0]), 0);
            assert_int_equal(driver->launch_host(c.streams[0], look, &n), 0);
        }
        late += atomic_load(&n.count) == 0;
        if (seed % 2 == 0) {
            while (atomic_load(&n.count) < 3)
                nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
            assert_int_equal(counts().synchronisations, before);
        } else { /* or somebody waits */
            assert_int_equal(gpu.stream_synchronize(c.streams[0]), 0);
            assert_int_equal(atomic_load(&n.count), 3);
        }
        for (int i = 0; i < 3; i++)
            assert_int_equal(n.seen[i], i);
        assert_int_equal(driver->pinned_free(pinned), 0);
        assert_null(end_crew(&c));
    }
    assert_true(late > 0);
}

static void call_the_driver(void *arg)
{
    (void)wfi_cuda_enter(0);
    wfi_cuda_leave();
}

static void a_call_of_the_driver_in_a_host_function_is_noticed(void **state)
{
    crew c = begin_crew();
    assert_int_equal(driver->launch_host(c.streams[0], call_the_driver, NULL), 0);
    assert_string_equal(end_crew(&c), "a call of the driver in a host function");
}

static void a_poller_sees_the_end(void **state)
{
    crew c = begin_crew();
    fill(c.from, 0, COUNT, 1, c.streams[0]);
    assert_int_equal(gpu.event_record(c.event, c.streams[0]), 0);
    int questions = 1;
    while (gpu.event_query(c.event) != 0)
        questions++;
    assert_true(questions > 1 && questions < 12);
    assert_null(end_crew(&c));
}

static void a_failed_device_does_nothing_any_more(void **state)
{
    notes n = {.bytes = (int64_t[]){1}};
    crew c = begin_crew();
    uint64_t bytes = counts().device_bytes;
    assert_true(bytes >= 2 * 8 * COUNT);
    fill(c.from, 0, COUNT, 1, c.streams[0]);
    assert_int_equal(gpu.event_record(c.event, c.streams[0]), 0);
    gpu.fail_device(0); /* before the thread can run: the host function is queued afterwards */
    assert_int_equal(driver->launch_host(c.streams[0], look, &n), 700);
    assert_int_equal(gpu.event_query(c.event), 700);
    assert_int_equal(gpu.stream_synchronize(c.streams[0]), 700);
    assert_int_equal(driver->memory_free(c.to), 700);
    assert_int_equal(counts().device_bytes, bytes - 8 * COUNT);
    assert_int_equal(counts().pending, 0);
    gpu.mend_device(0);
    c.to = take(COUNT);
    assert_null(end_crew(&c));
    assert_int_equal(n.count, 0);
}

/* ---- The rest ---- */

static void waits_are_counted_by_kind(void **state)
{
    crew c = begin_crew();
    emulated_counts before = counts();
    assert_int_equal(gpu.stream_synchronize(c.streams[0]), 0);
    assert_int_equal(gpu.event_record(c.event, c.streams[0]), 0);
    assert_int_equal(driver->event_wait(c.event), 0);
    emulated_counts after = counts();
    assert_int_equal(after.stream_waits, before.stream_waits + 1);
    assert_int_equal(after.event_waits, before.event_waits + 1);
    assert_int_equal(after.context_waits, before.context_waits);
    assert_int_equal(after.synchronisations, before.synchronisations + 2);
    assert_null(end_crew(&c));
}

static void uuids_are_those_of_the_environment(void **state)
{
    uint8_t one[WFI_CUDA_UUID], two[WFI_CUDA_UUID];
    assert_true(wfi_cuda_uuid(0, one) && wfi_cuda_uuid(1, two));
    assert_memory_not_equal(one, two, WFI_CUDA_UUID);
    setenv("EMULATED_GPU_UUIDS", "000102030405060708090a0b0c0d0e0f,f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff", 1);
    assert_true(wfi_cuda_uuid(0, one) && wfi_cuda_uuid(1, two));
    unsetenv("EMULATED_GPU_UUIDS");
    for (int i = 0; i < WFI_CUDA_UUID; i++)
        assert_true(one[i] == i && two[i] == 0xf0 + i);
}

static void calls_fail_on_demand(void **state)
{
    uint64_t at = 0;
    int64_t here = 0;
    gpu.fail_next(EMULATED_ALLOCATION, 1, 1);
    uint64_t first = take(1);
    assert_int_equal(driver->memory_alloc(&at, 8), WFI_CUDA_OUT_OF_MEMORY);
    gpu.fail_next(EMULATED_COPY, 0, 1);
    assert_int_not_equal(driver->copy_to_host(&here, first, 8, NULL), 0);
    gpu.fail_next(EMULATED_LAUNCH, 0, 1);
    assert_int_not_equal(start("weft_faults_write", (faults_args){.to = (int64_t *)first, .count = 1}, 32, NULL), 0);
    fill(first, 0, 1, 5, NULL); /* only one call of each kind fails */
    assert_int_equal(read_one(first, 0), 5);
    give(first);
}

static void the_context_of_the_caller_is_restored(void **state)
{
    void *before = NULL, *after = NULL;
    assert_int_equal(gpu.context_now(&before), 0);
    assert_int_equal(wfi_cuda_enter(1), WEFT_OK);
    wfi_cuda_leave();
    assert_int_equal(gpu.context_now(&after), 0);
    assert_ptr_equal(before, after);
    assert_int_equal(counts().contexts, 1);
}

static bool find_functions(void)
{
    const struct {
        void *place;
        const char *name;
    } all[] = {{&gpu.counts, "emulated_gpu_counts"},
               {&gpu.fail_next, "emulated_gpu_fail"},
               {&gpu.seed, "emulated_gpu_seed"},
               {&gpu.expect_fault, "emulated_gpu_expect_fault"},
               {&gpu.fault, "emulated_gpu_fault"},
               {&gpu.stream_create, "cuStreamCreate"},
               {&gpu.stream_destroy, "cuStreamDestroy_v2"},
               {&gpu.stream_wait_event, "cuStreamWaitEvent"},
               {&gpu.stream_synchronize, "cuStreamSynchronize"},
               {&gpu.read, "cuMemcpyDtoH_v2"},
               {&gpu.write, "cuMemcpyHtoD_v2"},
               {&gpu.event_create, "cuEventCreate"},
               {&gpu.event_destroy, "cuEventDestroy_v2"},
               {&gpu.event_record, "cuEventRecord"},
               {&gpu.event_query, "cuEventQuery"},
               {&gpu.context_now, "cuCtxGetCurrent"},
               {&gpu.fail_device, "emulated_gpu_fail_device"},
               {&gpu.mend_device, "emulated_gpu_mend_device"}};
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        void *found = !library ? NULL : dlsym(library, all[i].name);
        memcpy(all[i].place, &found, sizeof(found));
        if (!found)
            return false;
    }
    return true;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_cannot_touch_device_memory),
        cmocka_unit_test(fresh_memory_is_poisoned),
#if !defined(__SANITIZE_ADDRESS__)
        cmocka_unit_test(writes_beside_an_allocation_are_noticed),
#endif
        cmocka_unit_test(pointers_that_a_kernel_cannot_use_are_refused),
        cmocka_unit_test(memory_of_another_device_is_refused),
        cmocka_unit_test(copies_outside_an_allocation_are_refused),
        cmocka_unit_test(a_call_that_fails_is_a_fault),
        cmocka_unit_test(a_missing_barrier_is_noticed),
        cmocka_unit_test(threads_at_different_barriers_end_the_process),
        cmocka_unit_test(the_order_of_threads_depends_on_the_seed),
        cmocka_unit_test(streams_run_as_late_as_they_may),
        cmocka_unit_test(writes_of_two_streams_race),
        cmocka_unit_test(a_copy_races_with_a_kernel),
        cmocka_unit_test(what_does_not_touch_the_same_bytes_is_no_race),
        cmocka_unit_test(what_is_ordered_is_no_race),
        cmocka_unit_test(an_early_event_does_not_order),
        cmocka_unit_test(the_end_of_the_process_reports_races),
        cmocka_unit_test(the_legacy_stream_orders_blocking_streams),
        cmocka_unit_test(a_launch_only_queues),
        cmocka_unit_test(host_functions_are_in_order_with_their_stream),
        cmocka_unit_test(a_call_of_the_driver_in_a_host_function_is_noticed),
        cmocka_unit_test(a_poller_sees_the_end),
        cmocka_unit_test(a_failed_device_does_nothing_any_more),
        cmocka_unit_test(waits_are_counted_by_kind),
        cmocka_unit_test(uuids_are_those_of_the_environment),
        cmocka_unit_test(calls_fail_on_demand),
        cmocka_unit_test(the_context_of_the_caller_is_restored),
    };
    char name[WFI_CUDA_NAME];
    printf("device: %s\n", wfi_cuda_name(0, name));
    fflush(stdout);
    driver = wfi_cuda_driver_get();
    if (!driver || !find_functions() || wfi_cuda_enter(0) != WEFT_OK)
        return SKIPPED;
    static const char any[] = "the emulated GPU takes any image";
    if (driver->module_load(&module, any) != 0)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    wfi_cuda_leave();
    return failed;
}
