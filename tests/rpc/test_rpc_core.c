/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_core.c - a core dump of a worker in the middle of a job has neither the job's secret nor any key.
 *
 * Instead of making a dump this reads what one would have: all that is mapped and writable, but for what is marked
 * as not to be dumped ("dd" in /proc/self/smaps). What is looked for is compared where it lies, so that nothing here
 * makes a copy of it.
 *
 * Linked with -z now, as the shared library is: a function that is bound when it is first called leaves the
 * registers of its caller on the stack, and a key that was just copied may be in one.
 */
#include "base/guarded.h"
#include "rpc/inside.h"
#include "rpc/world.h"
#include "tensors.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/mman.h>
#include <unistd.h>

#define NEEDLES_MAX 64
#define PIECE ((size_t)1 << 20)
#define SECRET_BYTES 48

typedef struct needle {
    const char *name;
    const uint8_t *bytes;
    size_t size, found;
} needle;

static needle needles[NEEDLES_MAX];
static size_t needle_count;
static uint8_t *secret; /* guarded */

static void look_for(const char *name, const uint8_t *bytes, size_t size)
{
    MUST(needle_count < NEEDLES_MAX && !sodium_is_zero(bytes, size));
    needles[needle_count++] = (needle){.name = name, .bytes = bytes, .size = size};
}

static void look_at(const uint8_t *memory, size_t size)
{
    for (size_t i = 0; i < needle_count; i++) {
        needle *n = &needles[i];
        const uint8_t *at = memory;
        while ((at = memmem(at, size - (size_t)(at - memory), n->bytes, n->size))) {
            n->found++;
            at++;
        }
    }
}

/* Piece by piece, each with the end of the one before, through the kernel: memory may be unmapped meanwhile. */
static void look_through(int memory_fd, uint8_t *piece, uint64_t from, uint64_t to)
{
    while (from < to) {
        size_t want = to - from < PIECE ? (size_t)(to - from) : PIECE;
        ssize_t got = pread(memory_fd, piece, want, (off_t)from);
        if (got <= 0)
            return;
        look_at(piece, (size_t)got);
        from += (size_t)got > SECRET_BYTES && from + (size_t)got < to ? (size_t)got - SECRET_BYTES : (size_t)got;
    }
}

static void look_through_what_is_dumped(void)
{
    uint64_t from = 0, to = 0;
    char line[512], modes[8] = "";
    uint8_t *piece = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int memory_fd = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    FILE *maps = fopen("/proc/self/smaps", "r");
    MUST(piece != MAP_FAILED && madvise(piece, PIECE, MADV_DONTDUMP) == 0 && memory_fd >= 0 && maps);
    while (fgets(line, sizeof(line), maps)) {
        char *end;
        uint64_t begin = strtoull(line, &end, 16);
        if (*end == '-') { /* "begin-end modes ..." */
            from = begin;
            to = strtoull(end + 1, &end, 16);
            memcpy(modes, end + 1, 4);
        } else if (strncmp(line, "VmFlags:", 8) == 0 && modes[0] == 'r' && modes[1] == 'w' && !strstr(line, " dd")) {
            look_through(memory_fd, piece, from, to);
        }
    }
    fclose(maps);
    close(memory_fd);
    munmap(piece, PIECE);
}

/* A thread may be stopped in the middle of a computation, with a key on its stack; when that is over it is wiped. */
static void look_until_none_shows(void)
{
    bool shows = true;
    for (int i = 0; i < 5 && shows; i++) {
        usleep(i * 20000);
        for (size_t k = 0; k < needle_count; k++)
            needles[k].found = 0;
        look_through_what_is_dumped();
        shows = false;
        for (size_t k = 1; k < needle_count; k++)
            shows = shows || needles[k].found > 0;
    }
}

/* ---- The job -------------------------------------------------------------------------------------------------- */

static weft_status run_sum(weft_call *call, void *user)
{
    weft_tensor *sum = tensor_clone(weft_call_tensor(call, 0));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(sum)));
    weft_tensor_unref(sum);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "clone", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = run_sum}};

static void look_for_keys(weft_agent *agent)
{
    inside_key keys[NEEDLES_MAX];
    size_t count = inside_keys(agent, 1 - weft_agent_rank(agent), keys, NEEDLES_MAX);
    for (size_t i = 0; i < count; i++)
        look_for(keys[i].name, keys[i].bytes, keys[i].size);
}

static _Atomic int looked;

/* Both ranks are of this process, and so is the store. */
static void talk_and_look(weft_agent *agent, void *arg)
{
    int rank = weft_agent_rank(agent);
    weft_tensor *large = tensor_arange(100000, WEFT_DTYPE_FLOAT32);
    const weft_values *back;
    weft_future *future;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1 - rank), "clone", WEFT_VALUES(weft_of_tensor(large)), NULL, &future));
    MUST_OK(weft_future_wait(future, WEFT_FOREVER));
    back = weft_future_values(future);
    MUST(back);
    weft_future_unref(future);
    weft_tensor_unref(large);
    if (rank == 0) {
        inside_lock(agent);
        look_for("the secret", secret, SECRET_BYTES);
        look_for_keys(agent);
        look_until_none_shows();
        inside_unlock(agent);
        atomic_store(&looked, 1);
    }
    while (!atomic_load(&looked))
        usleep(1000);
}

static void with_secret(weft_agent_options *options, void *arg)
{
    options->secret = secret;
    options->secret_size = SECRET_BYTES;
}

static void a_dump_has_no_secret_and_no_key(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* they keep what was freed, and map more than can be read */
#endif
    world w = {
        .fabric = WORLD_TCP, .size = 2, WORLD_FUNCTIONS(functions), .program = talk_and_look, .adjust = with_secret};
    uint8_t *canary = malloc(32);
    secret = wfi_guarded_calloc(SECRET_BYTES);
    assert_non_null(secret);
    assert_non_null(canary);
    randombytes_buf(secret, SECRET_BYTES);
    randombytes_buf(canary, 32);
    look_for("what a dump does have", canary, 32);
    world_run(&w);
    for (size_t i = 1; i < needle_count; i++)
        if (needles[i].found)
            fprintf(stderr, "%s would be in a core dump, %zu times\n", needles[i].name, needles[i].found);
    assert_int_equal(needles[0].found, 1);
    for (size_t i = 1; i < needle_count; i++)
        assert_int_equal(needles[i].found, 0);
    wfi_guarded_free(secret);
    free(canary);
}

UNIT_MAIN(a_dump_has_no_secret_and_no_key)
