/* SPDX-License-Identifier: Apache-2.0 */
/* test_coll_selection.c - the algorithm and the pieces of an operation: on one host, and between hosts. */
#include "coll/coll.h"

#include "coll/group.h"

enum { KIB = 1024, MIB = 1024 * 1024 };

typedef struct choice {
    wfi_operation_kind kind;
    size_t members, bytes;
    const char *on_host, *between_hosts;
    size_t piece_on_host, piece_between_hosts;
} choice;

static const choice choices[] = {
    {WFI_ALLREDUCE, 2, 4, "recursive_doubling", "recursive_doubling", 32 * KIB, 32 * KIB},
    {WFI_ALLREDUCE, 2, 128 * KIB, "recursive_doubling", "recursive_doubling", 32 * KIB, 32 * KIB},
    {WFI_ALLREDUCE, 2, 512 * KIB, "recursive_doubling", "recursive_doubling", 512 * KIB, 512 * KIB},
    {WFI_ALLREDUCE, 2, MIB, "tree", "recursive_doubling", 512 * KIB, 128 * KIB},
    {WFI_ALLREDUCE, 2, 4 * MIB, "rabenseifner", "rabenseifner", 512 * KIB, 512 * KIB},
    {WFI_ALLREDUCE, 2, 4 * MIB + 4, "ring", "ring", 512 * KIB, 512 * KIB},
    {WFI_ALLREDUCE, 4, 8 * KIB, "recursive_doubling", "recursive_doubling", 32 * KIB, 32 * KIB},
    {WFI_ALLREDUCE, 4, 16 * KIB, "recursive_doubling", "rabenseifner", 32 * KIB, 32 * KIB},
    {WFI_ALLREDUCE, 4, 256 * KIB, "recursive_doubling", "rabenseifner", 512 * KIB, 512 * KIB},
    {WFI_ALLREDUCE, 4, MIB, "tree", "ring", 512 * KIB, 128 * KIB},
    {WFI_ALLREDUCE, 4, 16 * MIB, "ring", "ring", 512 * KIB, 512 * KIB},
    {WFI_ALLREDUCE, 8, 2 * KIB, "recursive_doubling", "recursive_doubling", 32 * KIB, 32 * KIB},
    {WFI_ALLREDUCE, 8, 4 * KIB, "tree", "rabenseifner", 32 * KIB, 32 * KIB},
    {WFI_ALLREDUCE, 8, MIB, "tree", "rabenseifner", 512 * KIB, 128 * KIB},
    {WFI_ALLREDUCE, 100, 5 * MIB, "ring", "ring", 512 * KIB, 128 * KIB},
    {WFI_BROADCAST, 4, MIB, "chain", "chain", 512 * KIB, 128 * KIB},
    {WFI_REDUCE, 4, 2 * MIB, "chain", "chain", 512 * KIB, 128 * KIB},
    {WFI_REDUCE, 4, 4 * MIB, "chain", "chain", 512 * KIB, 512 * KIB},
    {WFI_ALLGATHER, 4, MIB, "ring", "ring", 512 * KIB, 128 * KIB},
    {WFI_REDUCE_SCATTER, 4, MIB, "ring", "ring", 512 * KIB, 128 * KIB},
    {WFI_GATHER, 4, MIB, "direct", "direct", 512 * KIB, 512 * KIB},
    {WFI_ALL_TO_ALL, 4, MIB, "direct", "direct", 512 * KIB, 512 * KIB},
};

static void is_chosen(const choice *is, bool spans_hosts)
{
    uint8_t which;
    const wfi_rules none = {0};
    wfi_collective what = {.kind = is->kind, .members = is->members, .count = is->bytes, .element = 1};
    what.spans_hosts = spans_hosts;
    (void)wfi_rules_choose(&none, &what, &which);
    assert_string_equal(wfi_algorithm_name(which), spans_hosts ? is->between_hosts : is->on_host);
    assert_int_equal(wfi_chunk_for(&what, is->bytes), spans_hosts ? is->piece_between_hosts : is->piece_on_host);
}

static void test_choices(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(choices) / sizeof(*choices); i++) {
        is_chosen(&choices[i], false);
        is_chosen(&choices[i], true);
    }
}

/* A group knows whether its members are on several hosts. A tree over these members sends each byte twice. */
static void prints(weft_agent *agent, void *arg)
{
    const world *w = arg;
    char *text = NULL;
    size_t size = 0;
    weft_group *group = NULL;
    FILE *to = open_memstream(&text, &size);
    MUST(to);
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &group, NULL));
    weft_group_print_algorithms(group, to);
    MUST(fclose(to) == 0);
    const char *between = strstr(text, "allreduce 4 * ring\n"), *tree = strstr(text, "allreduce 16 1048576 tree\n");
    MUST(tree && (w->ranks_per_host < w->size ? between && between < tree : !between));
    free(text);
    MUST_OK(weft_group_barrier(group, WEFT_FOREVER));
    weft_group_close(group);
}

WORLD_TEST(prints, 1, 0, .size = 4, .ranks_per_host = 1)

static void test_one_host(void **state)
{
    (void)state;
    world_play(&(world){.program = prints, .size = 4, .ranks_per_host = 4}, 1, 0);
}

UNIT_MAIN(test_choices, test_prints, test_one_host)
