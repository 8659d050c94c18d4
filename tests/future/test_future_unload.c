/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_future_unload.c - dlclose leaves the library mapped: its threads run until the process ends, such as those of
 * the executor that a future without an agent starts.
 */
#include "unit.h"

#include <weft/future.h>

#include <dlfcn.h>
#include <semaphore.h>

/* The executable is not linked with the library: it has no reference that would keep the library mapped. */
typedef struct api {
    weft_future *(*create)(weft_agent *agent);
    weft_status (*add_done_callback)(weft_future *future, weft_done_fn fn, void *arg, weft_drop_fn drop);
    weft_status (*complete)(weft_future *future, void *payload, weft_drop_fn drop);
    void (*unref)(weft_future *future);
} api;

static void *find(void *library, const char *name)
{
    void *symbol = dlsym(library, name);
    assert_non_null(symbol);
    return symbol;
}

static api load(void *library)
{
    api a;
    *(void **)&a.create = find(library, "weft_future_create");
    *(void **)&a.add_done_callback = find(library, "weft_future_add_done_callback");
    *(void **)&a.complete = find(library, "weft_future_complete");
    *(void **)&a.unref = find(library, "weft_future_unref");
    return a;
}

static void post(weft_future *future, void *arg)
{
    sem_post(arg);
}

static void run_on_a_thread_of_the_library(void *library)
{
    sem_t ran;
    api a = load(library);
    assert_int_equal(sem_init(&ran, 0, 0), 0);
    weft_future *future = a.create(NULL);
    assert_non_null(future);
    assert_int_equal(a.add_done_callback(future, post, &ran, NULL), WEFT_OK);
    assert_int_equal(a.complete(future, NULL, NULL), WEFT_OK);
    assert_int_equal(sem_wait(&ran), 0);
    a.unref(future);
    sem_destroy(&ran);
}

static void stays_mapped(void **state)
{
    void *library = dlopen(WEFT_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail_msg("%s", dlerror());
    run_on_a_thread_of_the_library(library);
    assert_int_equal(dlclose(library), 0);
    void *again = dlopen(WEFT_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(again); /* its thread sleeps in its code */
    run_on_a_thread_of_the_library(again);
    assert_int_equal(dlclose(again), 0);
}

UNIT_MAIN(stays_mapped)
