/* SPDX-License-Identifier: Apache-2.0 */
/* selection.c - the algorithm for each operation: by the user's rules, then by the measured ones. */
#include "coll/algorithm/algorithm.h"

#include "base/alloc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ANY SIZE_MAX
#define WORD_MAX 32

const char *const wfi_operation_names[WFI_OPERATION_KINDS] = {
    [WFI_BARRIER] = "barrier",
    [WFI_ALLREDUCE] = "allreduce",
    [WFI_REDUCE] = "reduce",
    [WFI_BROADCAST] = "broadcast",
    [WFI_ALLGATHER] = "allgather",
    [WFI_REDUCE_SCATTER] = "reduce_scatter",
    [WFI_GATHER] = "gather",
    [WFI_SCATTER] = "scatter",
    [WFI_ALL_TO_ALL] = "all_to_all",
    [WFI_SENDRECV] = "send and recv",
    [WFI_GATHER_VALUES] = "allgather of values",
};

typedef struct wfi_algorithm {
    const char *name;
    wfi_build_fn build;
    unsigned kinds; /* bit set of the kinds that it can run */
} wfi_algorithm;

enum { DISSEMINATION, DOUBLING, BRUCK, RABENSEIFNER, RING, TREE, CHAIN, DIRECT, TWO_LEVEL, SHARED, ALGORITHMS };

#define BIT(kind) (1u << (kind))
static const wfi_algorithm algorithms[ALGORITHMS] = {
    [DISSEMINATION] = {"dissemination", wfi_build_dissemination, BIT(WFI_BARRIER)},
    [DOUBLING] = {"recursive_doubling", wfi_build_doubling, BIT(WFI_ALLREDUCE)},
    [BRUCK] = {"bruck", wfi_build_bruck, BIT(WFI_ALLGATHER)},
    [RABENSEIFNER] = {"rabenseifner", wfi_build_rabenseifner, BIT(WFI_ALLREDUCE)},
    [RING] = {"ring", wfi_build_ring, BIT(WFI_ALLREDUCE) | BIT(WFI_ALLGATHER) | BIT(WFI_REDUCE_SCATTER)},
    [TREE] = {"tree", wfi_build_tree, BIT(WFI_ALLREDUCE) | BIT(WFI_REDUCE) | BIT(WFI_BROADCAST)},
    [CHAIN] = {"chain", wfi_build_chain, BIT(WFI_REDUCE) | BIT(WFI_BROADCAST)},
    [DIRECT] = {"direct", wfi_build_direct,
                BIT(WFI_ALLGATHER) | BIT(WFI_REDUCE_SCATTER) | BIT(WFI_GATHER) | BIT(WFI_SCATTER) |
                    BIT(WFI_ALL_TO_ALL)},
    [TWO_LEVEL] = {"two_level", wfi_build_two_level,
                   BIT(WFI_BARRIER) | BIT(WFI_ALLREDUCE) | BIT(WFI_REDUCE) | BIT(WFI_BROADCAST) | BIT(WFI_GATHER) |
                       BIT(WFI_SCATTER)},
    [SHARED] = {"shared", wfi_build_shared,
                BIT(WFI_BARRIER) | BIT(WFI_ALLREDUCE) | BIT(WFI_REDUCE) | BIT(WFI_BROADCAST) | BIT(WFI_ALLGATHER) |
                    BIT(WFI_REDUCE_SCATTER) | BIT(WFI_GATHER) | BIT(WFI_SCATTER) | BIT(WFI_ALL_TO_ALL)},
};

#define COUNT(rules) (sizeof(rules) / sizeof(*(rules)))
/* clang-format off */ /* a rule a line */

/*
 * For groups with several hosts, and several members on one: measured with two hosts of two members and 1 Gbit/s
 * between them: perf/results/2026-11-24-2cpu-x86_64-links.md. At 1 and 4 MiB two levels
 * took 1.16 and 1.27 times as long as a ring there. That was with a chain between the hosts; now the leaders use
 * recursive doubling (levels.c).
 */
static const wfi_rule with_levels[] = {
    {WFI_ALLREDUCE, ANY, 16384, &algorithms[DOUBLING]},
    {WFI_ALLREDUCE, ANY, ANY, &algorithms[TWO_LEVEL]},
    {WFI_REDUCE, ANY, ANY, &algorithms[TWO_LEVEL]},
    {WFI_BROADCAST, ANY, ANY, &algorithms[TWO_LEVEL]},
};

/*
 * The same, if the members of each host may share memory: small operations too cross to each host once. Measured:
 * perf/results/2026-11-28-two-levels.md. Gather and scatter: perf/results/2026-11-30-roots-between-hosts.md. Larger
 * parts gain nothing. A leader has the parts of all its members in one slot in a scatter, but not in a gather.
 */
static const wfi_rule with_levels_and_memory[] = {
    {WFI_BARRIER, ANY, ANY, &algorithms[TWO_LEVEL]},
    {WFI_ALLREDUCE, ANY, ANY, &algorithms[TWO_LEVEL]},
    {WFI_REDUCE, ANY, ANY, &algorithms[TWO_LEVEL]},
    {WFI_BROADCAST, ANY, ANY, &algorithms[TWO_LEVEL]},
    {WFI_GATHER, ANY, WFI_SLOT_BYTES, &algorithms[TWO_LEVEL]},
    {WFI_SCATTER, ANY, WFI_SLOT_BYTES / 4, &algorithms[TWO_LEVEL]},
};

/*
 * For groups on one host whose members may share memory. Allreduce: measured over host, 256 KiB to 4 MiB:
 * perf/results/2026-11-30-quick-groups.md. A rule with shared memory holds where the data fit it.
 */
static const wfi_rule with_memory[] = {
    {WFI_BARRIER, ANY, ANY, &algorithms[SHARED]},
    {WFI_ALLREDUCE, 2, 2 << 20, &algorithms[SHARED]},
    {WFI_ALLREDUCE, ANY, 512 << 10, &algorithms[SHARED]},
    {WFI_ALLREDUCE, 4, 4 << 20, &algorithms[RABENSEIFNER]},
    {WFI_ALLREDUCE, 16, 1 << 20, &algorithms[SHARED]},
    {WFI_ALLREDUCE, 16, 4 << 20, &algorithms[TREE]},
    {WFI_REDUCE, ANY, ANY, &algorithms[SHARED]},
    {WFI_BROADCAST, ANY, ANY, &algorithms[SHARED]},
    {WFI_ALLGATHER, ANY, ANY, &algorithms[SHARED]},
    {WFI_REDUCE_SCATTER, ANY, ANY, &algorithms[SHARED]},
    {WFI_GATHER, ANY, ANY, &algorithms[SHARED]},
    {WFI_SCATTER, ANY, ANY, &algorithms[SHARED]},
    {WFI_ALL_TO_ALL, ANY, ANY, &algorithms[SHARED]},
};

/*
 * For groups with several hosts. A network is slower than a processor, so each byte should cross it as rarely as
 * possible, even if that takes more rounds. Measured with 1 and 10 Gbit/s: perf/results/2026-11-30-hosts.md.
 */
static const wfi_rule between_hosts[] = {
    {WFI_ALLREDUCE, 2, 1 << 20, &algorithms[DOUBLING]},
    {WFI_ALLREDUCE, 4, 8192, &algorithms[DOUBLING]},
    {WFI_ALLREDUCE, ANY, 2048, &algorithms[DOUBLING]},
    {WFI_ALLREDUCE, ANY, 256 << 10, &algorithms[RABENSEIFNER]},
    {WFI_ALLREDUCE, 2, 4 << 20, &algorithms[RABENSEIFNER]},
    {WFI_ALLREDUCE, 4, ANY, &algorithms[RING]},
    {WFI_ALLREDUCE, ANY, 4 << 20, &algorithms[RABENSEIFNER]},
    {WFI_ALLREDUCE, ANY, ANY, &algorithms[RING]},
};

/*
 * Allreduce: measured on two cores over tcp; the results of the rules are in
 * perf/results/2026-11-25-2cpu-x86_64-allreduce.md. To compare two algorithms, measure each with WEFT_ALGORITHMS and
 * weft-perf --only collectives --json, then with --compare. The last rule of each operation always holds.
 */
static const wfi_rule measured[] = {
    {WFI_BARRIER, ANY, ANY, &algorithms[DISSEMINATION]},
    {WFI_ALLREDUCE, 2, 512 << 10, &algorithms[DOUBLING]},
    {WFI_ALLREDUCE, 4, 256 << 10, &algorithms[DOUBLING]},
    {WFI_ALLREDUCE, ANY, 2048, &algorithms[DOUBLING]},
    {WFI_ALLREDUCE, 16, 1 << 20, &algorithms[TREE]},
    {WFI_ALLREDUCE, ANY, 4 << 20, &algorithms[RABENSEIFNER]},
    {WFI_ALLREDUCE, ANY, ANY, &algorithms[RING]},
    {WFI_REDUCE, ANY, 65536, &algorithms[TREE]},
    {WFI_REDUCE, ANY, ANY, &algorithms[CHAIN]},
    {WFI_BROADCAST, ANY, 65536, &algorithms[TREE]},
    {WFI_BROADCAST, ANY, ANY, &algorithms[CHAIN]},
    {WFI_ALLGATHER, 8, 16384, &algorithms[DIRECT]},
    {WFI_ALLGATHER, ANY, 16384, &algorithms[BRUCK]},
    {WFI_ALLGATHER, ANY, ANY, &algorithms[RING]},
    {WFI_REDUCE_SCATTER, 16, 16384, &algorithms[DIRECT]},
    {WFI_REDUCE_SCATTER, ANY, ANY, &algorithms[RING]},
    {WFI_GATHER, ANY, ANY, &algorithms[DIRECT]},
    {WFI_SCATTER, ANY, ANY, &algorithms[DIRECT]},
    {WFI_ALL_TO_ALL, ANY, ANY, &algorithms[DIRECT]},
};
/* clang-format on */

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

/* A rule that names shared memory holds only where all members may share memory, and the data fit it. */
static const wfi_algorithm *find(const wfi_rule *rules, size_t count, const wfi_collective *collective)
{
    size_t members = collective->members, bytes = wfi_part_bytes(collective);
    bool may_share = !collective->has_levels && collective->uses_memory && wfi_slot_suits(collective);
    for (size_t i = 0; i < count; i++)
        if (rules[i].kind == collective->kind && members <= rules[i].members && bytes <= rules[i].bytes &&
            (may_share || rules[i].algorithm != &algorithms[SHARED]))
            return rules[i].algorithm;
    return NULL;
}

wfi_build_fn wfi_rules_choose(const wfi_rules *rules, const wfi_collective *collective, uint8_t *which)
{
    const wfi_algorithm *chosen = find(rules->items, rules->count, collective);
    if (!chosen && !collective->has_levels && collective->uses_memory)
        chosen = find(with_memory, COUNT(with_memory), collective);
    if (!chosen && collective->has_levels && collective->hosts_may_share)
        chosen = find(with_levels_and_memory, COUNT(with_levels_and_memory), collective);
    if (!chosen && collective->has_levels)
        chosen = find(with_levels, COUNT(with_levels), collective);
    if (!chosen && collective->spans_hosts)
        chosen = find(between_hosts, COUNT(between_hosts), collective);
    if (!chosen)
        chosen = find(measured, COUNT(measured), collective);
    *which = (uint8_t)(chosen - algorithms);
    return chosen->build;
}

const char *wfi_algorithm_name(uint8_t which)
{
    if (which == WFI_CARRIED)
        return "a carrier";
    return which < ALGORITHMS ? algorithms[which].name : "?";
}

static void print(const wfi_rule *rules, size_t count, FILE *to)
{
    for (size_t i = 0; i < count; i++) {
        fprintf(to, "%s ", wfi_operation_names[rules[i].kind]);
        rules[i].members == ANY ? fprintf(to, "* ") : fprintf(to, "%zu ", rules[i].members);
        rules[i].bytes == ANY ? fprintf(to, "* ") : fprintf(to, "%zu ", rules[i].bytes);
        fprintf(to, "%s\n", rules[i].algorithm->name);
    }
}

void wfi_rules_print(const wfi_rules *rules, const wfi_collective *like, FILE *to)
{
    print(rules->items, rules->count, to);
    if (like->hosts_may_share && !like->has_levels)
        print(with_memory, COUNT(with_memory), to);
    if (like->hosts_may_share && like->has_levels)
        print(with_levels_and_memory, COUNT(with_levels_and_memory), to);
    else if (like->has_levels)
        print(with_levels, COUNT(with_levels), to);
    if (like->spans_hosts)
        print(between_hosts, COUNT(between_hosts), to);
    print(measured, COUNT(measured), to);
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static bool read_number(const char *word, size_t *out)
{
    char *end;
    if (!strcmp(word, "*")) {
        *out = ANY;
        return true;
    }
    errno = 0;
    unsigned long long number = strtoull(word, &end, 10);
    *out = (size_t)number;
    return word[0] >= '0' && word[0] <= '9' && !*end && !errno;
}

/* Returns the word of a rule that is wrong; NULL: none. */
static const char *read_rule(char words[4][WORD_MAX], wfi_rule *out)
{
    *out = (wfi_rule){.kind = WFI_OPERATION_KINDS};
    for (int kind = 0; kind < WFI_KINDS_WITH_ALGORITHMS; kind++)
        if (!strcmp(words[0], wfi_operation_names[kind]))
            out->kind = (wfi_operation_kind)kind;
    if (out->kind == WFI_OPERATION_KINDS)
        return words[0];
    if (!read_number(words[1], &out->members))
        return words[1];
    if (!read_number(words[2], &out->bytes))
        return words[2];
    for (int i = 0; i < ALGORITHMS; i++)
        if (!strcmp(words[3], algorithms[i].name) && algorithms[i].kinds & BIT(out->kind))
            out->algorithm = &algorithms[i];
    return out->algorithm ? NULL : words[3];
}

static void list_algorithms(wfi_operation_kind kind, char *problem, size_t room)
{
    size_t used = strlen(problem);
    for (int i = 0; i < ALGORITHMS; i++)
        if (kind < WFI_KINDS_WITH_ALGORITHMS && algorithms[i].kinds & BIT(kind) && used < room)
            used += (size_t)snprintf(problem + used, room - used, " %s", algorithms[i].name);
}

static void list_operations(char *problem, size_t room)
{
    size_t used = strlen(problem);
    for (int kind = 0; kind < WFI_KINDS_WITH_ALGORITHMS && used < room; kind++)
        used += (size_t)snprintf(problem + used, room - used, " %s", wfi_operation_names[kind]);
}

static weft_status read_one(const char *text, size_t length, wfi_rule *out, char *problem, size_t room)
{
    char words[4][WORD_MAX] = {{0}}, extra[2] = "", line[5 * WORD_MAX];
    snprintf(line, sizeof(line), "%.*s", (int)length, text);
    int count = length < sizeof(line)
                    ? sscanf(line, "%31s %31s %31s %31s %1s", words[0], words[1], words[2], words[3], extra)
                    : 0;
    if (count != 4) {
        snprintf(problem, room, "\"%s\" is no rule: OPERATION MEMBERS BYTES ALGORITHM", line);
        return WEFT_ERR_INVALID;
    }
    const char *wrong = read_rule(words, out);
    if (!wrong)
        return WEFT_OK;
    snprintf(problem, room, "\"%s\" in \"%s\" is wrong%s", wrong, line,
             wrong == words[0]   ? ": operations that have algorithms are"
             : wrong == words[3] ? ": this operation has"
                                 : ": a number or *");
    if (wrong == words[0])
        list_operations(problem, room);
    if (wrong == words[3])
        list_algorithms(out->kind, problem, room);
    return WEFT_ERR_INVALID;
}

weft_status wfi_rules_read(const char *text, wfi_rules *out, char *problem, size_t room)
{
    size_t most = 1;
    weft_status status = WEFT_OK;
    for (const char *at = text; *at; at++)
        most += *at == ';' || *at == '\n';
    wfi_rules rules = {.items = wfi_calloc(most, sizeof(*rules.items))};
    if (!rules.items)
        return WEFT_ERR_MEMORY;
    for (const char *at = text; *at && !status;) {
        size_t length = strcspn(at, ";\n");
        if (strspn(at, " \t") < length)
            status = read_one(at, length, &rules.items[rules.count++], problem, room);
        at += length + (at[length] != 0);
    }
    if (status)
        wfi_rules_fini(&rules);
    else
        *out = rules;
    return status;
}

weft_status wfi_rules_copy(const wfi_rules *from, wfi_rules *out)
{
    wfi_rule *items = wfi_calloc(from->count, sizeof(*items));
    if (!items)
        return WEFT_ERR_MEMORY;
    if (from->count)
        memcpy(items, from->items, from->count * sizeof(*items));
    *out = (wfi_rules){items, from->count};
    return WEFT_OK;
}

void wfi_rules_fini(wfi_rules *rules)
{
    free(rules->items);
    *rules = (wfi_rules){0};
}
