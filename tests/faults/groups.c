/* SPDX-License-Identifier: Apache-2.0 */
/*
 * groups.c - a program of faults for groups. Each worker has lanes, threads that meet in a group with some of the
 * others. In each generation the members of a lane play one scene: random operations, a member that disagrees, is
 * absent, cancels, aborts, leaves, or does not make the group. All members know the scene from the seed, so each
 * knows how it has to end for everybody. Lanes overlap.
 *
 * A failure needs a reason: the scene, a death, a worker that leaves, or the end of the epoch. Where an error says that
 * a member is dead, the driver checks that it is.
 */
#include "faults/groups.h"
#include "faults/lanes.h"

#include "rpc/must.h"
#include "prng.h"
#include "tensors.h"

#include <stdio.h>

#define LANES 3
#define WINDOW 8     /* operations under way at once */
#define SHORT_MS 400 /* a limit that is meant to pass */
#define SHRINK_MS 5000
#define BUDGET (3 << 20)
#ifdef __SANITIZE_ADDRESS__
#define LARGE 40000
#else
#define LARGE 300000
#endif

typedef enum scene_kind {
    SCENE_NORMAL,
    SCENE_DISAGREE,
    SCENE_ABSENT,
    SCENE_CANCEL,
    SCENE_ABORT,
    SCENE_DESTROY,
    SCENE_SKEW,
    SCENE_TOO_LARGE,
    SCENES
} scene_kind;
static const char *const scene_names[SCENES] = {"normal", "disagree", "absent", "cancel",
                                                "abort",  "destroy",  "skew",   "too large"};

typedef struct groups_book {
    atomic_ulong scenes[SCENES], shrunk;
} groups_book;
#define book ((groups_book *)board_book())

typedef faults_lane session;

/* It had to end with `wanted`. Returns whether it did. */
static bool judge(const session *s, weft_status status, weft_status wanted, const char *what)
{
    return lane_judge(s, status, wanted, weft_group_error(s->group), what);
}

static void judge_words(const session *s, const char *words)
{
    lane_judge_words(s, weft_group_error(s->group), words);
}

/* ---- Groups and operations --------------------------------------------------------------------------------------- */

static weft_status operate(const session *s, const op_plan *plan)
{
    weft_status status = op_do(s->group, plan, s->where);
    board_count((int)plan->kind, status);
    return status;
}

static weft_status barrier(const session *s, int64_t limit_ms)
{
    op_plan plan = {.kind = OP_BARRIER, .limit_ms = limit_ms};
    return operate(s, &plan);
}

/* The operation may succeed on a member that had all it needed before the group ended. The next one does not. */
static weft_status operate_and_meet(const session *s, const op_plan *plan)
{
    weft_status status = operate(s, plan);
    return status ? status : barrier(s, 60000);
}

static op_plan plan_of(const session *s, unsigned i)
{
    uint64_t chance = prng_mix(s->seed + 7);
    return op_choose(prng_mix(s->seed + 1000 + i), s->size, chance % 6 == 0 ? LARGE : 3000);
}

/* Rules that all members have. */
static void choose_algorithms(const session *s)
{
    static const char *const rules[] = {"allreduce * * ring",
                                        "allreduce * * tree; broadcast * * chain",
                                        "allreduce * * rabenseifner",
                                        "allreduce * * two_level",
                                        "allgather * * bruck; reduce * * chain",
                                        "allgather * * ring; reduce_scatter * * ring",
                                        "reduce_scatter * * direct",
                                        "allreduce * * recursive_doubling"};
    uint64_t chance = prng_mix(s->seed + 3);
    if (chance % 2) {
        weft_status status = weft_group_set_algorithms(s->group, rules[chance / 2 % (sizeof(rules) / sizeof(*rules))]);
        if (status && status != WEFT_ERR_CLOSED)
            fault(FAULT_WRONG, "%s: weft_group_set_algorithms: %s", s->where, weft_status_name(status));
    }
}

/* Operations of which several are under way at once. The first failure. */
static weft_status run_operations(const session *s, unsigned first, unsigned count)
{
    op_run runs[WINDOW];
    unsigned begun = 0, ended = 0, window = 1 + (unsigned)(prng_mix(s->seed + 5) % WINDOW);
    weft_status status = WEFT_OK, one;
    while (begun < count && !status && epoch_is_current(&s->e)) {
        op_plan plan = plan_of(s, first + begun);
        if (begun - ended == window) {
            one = op_end(&runs[ended % WINDOW], s->where);
            board_count((int)runs[ended++ % WINDOW].plan.kind, one);
            status = one;
        }
        if (!status)
            status = op_begin(s->group, &plan, &runs[begun % WINDOW]);
        begun += !status;
    }
    if (!status && begun < count) /* the epoch is over: the others need not wait */
        weft_group_abort(s->group, NULL);
    for (; ended < begun; ended++) {
        one = op_end(&runs[ended % WINDOW], s->where);
        board_count((int)runs[ended % WINDOW].plan.kind, one);
        status = status ? status : one;
    }
    return status;
}

/* The members that live make a smaller group, and go on in it. */
static void shrink(session *s)
{
    weft_group *left = NULL, *old = s->group;
    faults_wait *wait = wait_begins(SHRINK_MS, "%s: weft_group_shrink", s->where);
    weft_status status = weft_group_shrink(old, SHRINK_MS, &left, NULL);
    wait_ends(wait);
    if (status) {
        if (status != WEFT_ERR_TIMEOUT && !lane_excuses(s, status, weft_group_error(old)))
            fault(FAULT_WRONG, "%s: weft_group_shrink ended with %s", s->where, weft_status_name(status));
        return;
    }
    session smaller = *s;
    smaller.group = left;
    smaller.size = weft_group_size(left);
    smaller.me = (size_t)weft_group_index(left);
    for (size_t i = 0, at = 0; i < smaller.size; i++, at++) { /* the same order */
        while (at < s->size && s->ranks[at] != weft_group_member(left, i))
            at++;
        if (at == s->size)
            fault(FAULT_WRONG, "%s: the smaller group has rank %d in another order", s->where,
                  weft_group_member(left, i));
    }
    atomic_fetch_add(&book->shrunk, 1);
    for (unsigned i = 0; i < 4 && !status; i++) {
        op_plan plan = op_choose(prng_mix(s->seed + 5000 + i), smaller.size, 3000);
        plan.limit_ms = SHRINK_MS; /* a member may have gone on to the next epoch */
        status = smaller.size > 1 ? operate(&smaller, &plan) : WEFT_OK;
        if (status && epoch_is_current(&s->e))
            judge(&smaller, status, WEFT_OK, "an operation after weft_group_shrink");
    }
    lane_drop_group(&smaller);
}

/* ---- Scenes ------------------------------------------------------------------------------------------------------ */

static void play_normal(session *s)
{
    choose_algorithms(s);
    weft_status status = run_operations(s, 0, 20 + (unsigned)(s->seed % 60));
    if (!status && epoch_is_current(&s->e))
        status = barrier(s, 60000);
    if (status)
        judge(s, status, WEFT_OK, "an operation");
    if (status == WEFT_ERR_PEER_DEAD && goes_on())
        shrink(s);
}

/* One member calls another operation, or the same with another dtype, reduction, root or count. */
static void play_disagree(session *s)
{
    static const op_kind reductions[] = {OP_ALLREDUCE, OP_REDUCE, OP_REDUCE_SCATTER};
    static const op_kind rooted[] = {OP_REDUCE, OP_BROADCAST, OP_GATHER, OP_SCATTER};
    static const op_kind counted[] = {OP_ALLREDUCE,      OP_REDUCE, OP_BROADCAST, OP_ALLGATHER,
                                      OP_REDUCE_SCATTER, OP_GATHER, OP_SCATTER,   OP_ALL_TO_ALL};
    uint64_t chance = prng_mix(s->seed + 11);
    unsigned way = (unsigned)(chance % 5);
    op_plan plan = {.dtype = WEFT_DTYPE_FLOAT32,
                    .how = WEFT_OP_SUM,
                    .root = chance / 8 % s->size,
                    .count = chance / 64 % 4 ? 1 + (int64_t)(chance / 256 % 700) : 20000,
                    .limit_ms = 60000};
    plan.kind = way == 0   ? rooted[chance / 4096 % 4]
                : way == 1 ? reductions[chance / 4096 % 3]
                           : counted[chance / 4096 % 8];
    if (s->me == s->odd) {
        plan.root = way == 0 ? (plan.root + 1) % s->size : plan.root;
        plan.how = way == 1 ? WEFT_OP_MAX : plan.how;
        plan.dtype = way == 2 ? WEFT_DTYPE_INT32 : plan.dtype;
        plan.count += way == 3;
        plan.kind = way == 4 ? (plan.kind == OP_ALLREDUCE ? OP_BARRIER : OP_ALLREDUCE) : plan.kind;
    }
    char what[200], text[160];
    op_describe(&plan, text, sizeof(text));
    snprintf(what, sizeof(what), "members that differ in the %s: %s",
             (const char *[]){"root", "reduction", "dtype", "count", "operation"}[way], text);
    judge(s, operate_and_meet(s, &plan), WEFT_ERR_STATE, what);
}

/* One member does not come. The others' limit passes, and the error names it. Then all go on together. */
static void play_absent(session *s)
{
    char words[32];
    op_plan plan = {.kind = s->seed % 2 ? OP_ALLREDUCE : OP_BARRIER, .count = 1000, .limit_ms = SHORT_MS};
    plan.count = plan.kind == OP_BARRIER ? 0 : plan.count;
    snprintf(words, sizeof(words), "rank %d", s->ranks[s->odd]);
    bool as_planned = true;
    if (s->me != s->odd)
        as_planned = judge(s, operate(s, &plan), WEFT_ERR_TIMEOUT, "an operation to which a member does not come");
    if (as_planned && s->me != s->odd && lane_is_calm(s))
        judge_words(s, words);
    if (!lane_meet(s, 1))
        return;
    if (s->me == s->odd)
        judge(s, operate_and_meet(s, &plan), WEFT_ERR_TIMEOUT, "an operation that the others have given up");
    shrink(s);
}

/*
 * Begins an operation on all members but one, does `act` there, and then lets that one come. All must end with
 * `wanted`.
 */
static void play_ended_by_one(session *s, weft_status wanted, void (*act)(session *s, op_run *run), const char *words)
{
    size_t late = (s->odd + 1) % s->size;
    op_plan plan = {
        .kind = OP_ALLREDUCE, .count = s->seed % 2 ? 100 : 50000, .limit_ms = s->seed % 4 < 2 ? 60000 : WEFT_FOREVER};
    op_run run;
    weft_status status = WEFT_OK;
    if (s->me != late)
        status = op_begin(s->group, &plan, &run);
    bool begun = s->me != late && !status;
    if (s->me == s->odd)
        act(s, begun ? &run : NULL);
    bool met = lane_meet(s, 1);
    if (!met && s->group)
        weft_group_abort(s->group, NULL);
    if (met && s->me == late) {
        status = op_begin(s->group, &plan, &run);
        begun = !status;
    }
    if (begun) {
        status = op_end(&run, s->where);
        board_count((int)plan.kind, status);
    }
    if (!status && met && s->group)
        status = barrier(s, 60000);
    if ((status || met) && s->group && judge(s, status, wanted, "an operation that a member ended") && lane_is_calm(s))
        judge_words(s, words);
    if (!s->group && status != WEFT_ERR_CANCELLED && begun && epoch_is_undisturbed(&s->e))
        fault(FAULT_WRONG, "%s: the future of a destroyed group ended with %s", s->where, weft_status_name(status));
}

static void act_cancel(session *s, op_run *run)
{
    weft_status status = run ? weft_future_cancel(run->futures[0]) : WEFT_ERR_COMPLETED;
    if (status && status != WEFT_ERR_COMPLETED)
        fault(FAULT_WRONG, "%s: weft_future_cancel: %s", s->where, weft_status_name(status));
}

static void act_abort(session *s, op_run *run)
{
    weft_error *why = weft_error_create(WEFT_ERR_FORMAT, "a fault of seed %llu", (unsigned long long)(s->seed % 1000));
    weft_group_abort(s->group, why);
    weft_error_unref(why);
}

static void act_destroy(session *s, op_run *run)
{
    lane_drop_group(s);
}

/* One member's weft_group_open fails, or it does not call it. The next attempt succeeds. */
static void play_skew(session *s)
{
    op_plan plan = {.kind = OP_ALLREDUCE, .count = 500, .limit_ms = 60000};
    weft_error *why = NULL;
    char words[32];
    snprintf(words, sizeof(words), "missing is rank %d", s->ranks[s->odd]);
    if (s->me != s->odd) {
        weft_status status = lane_open(s, "-skew", SHORT_MS, &why);
        bool fits = lane_judge(s, status, WEFT_ERR_TIMEOUT, why, "weft_group_open, which a member did not call,");
        if (fits && lane_is_calm(s))
            lane_judge_words(s, why, words);
        lane_drop_group(s);
        weft_error_unref(why);
    } else if (s->seed % 2) {
        int wrong[] = {s->ranks[s->me], board->size + 7};
        weft_group *none;
        if (!weft_group_open(self.agent, "lane-wrong", wrong, 2, 0, &none, NULL))
            fault(FAULT_WRONG, "%s: a group with a rank that cannot be was made", s->where);
    }
    if (!lane_meet(s, 2) || !lane_make_group(s, "-skew"))
        return;
    judge(s, operate(s, &plan), WEFT_OK, "an operation after members could not open the group");
    lane_drop_group(s);
}

/* One member alone exceeds the limit of tensors in one call. */
static void play_too_large(session *s)
{
    enum { COUNT = WEFT_MAX_CALL_TENSORS + 1 };
    weft_tensor *one = tensor_zeros(WEFT_SHAPE(1), WEFT_DTYPE_FLOAT32), **many = malloc(COUNT * sizeof(weft_tensor *));
    weft_values *all = NULL;
    for (size_t i = 0; i < COUNT; i++)
        many[i] = one;
    size_t count = s->me == s->odd ? COUNT : 1 + s->seed % 5;
    faults_wait *wait = wait_begins(60000, "%s: weft_group_allgather_values", s->where);
    weft_status status =
        weft_group_allgather_values(s->group, WEFT_VALUES(weft_of_tensors((weft_tensors){many, count})), 60000, &all);
    wait_ends(wait);
    board_count((int)OP_VALUES, status);
    judge(s, status, WEFT_ERR_TOO_LARGE, "weft_group_allgather_values over the limit of tensors");
    weft_values_unref(all);
    weft_tensor_unref(one);
    free(many);
}

static void play(session *s, scene_kind scene)
{
    char words[64];
    if (scene == SCENE_SKEW) {
        play_skew(s);
        lane_drop_group(s);
        return;
    }
    if (!lane_make_group(s, ""))
        return;
    switch (scene) {
    case SCENE_DISAGREE:
        play_disagree(s);
        break;
    case SCENE_ABSENT:
        play_absent(s);
        break;
    case SCENE_CANCEL:
        snprintf(words, sizeof(words), "rank %d cancelled", s->ranks[s->odd]);
        play_ended_by_one(s, WEFT_ERR_CANCELLED, act_cancel, words);
        break;
    case SCENE_ABORT:
        snprintf(words, sizeof(words), "a fault of seed %llu", (unsigned long long)(s->seed % 1000));
        play_ended_by_one(s, WEFT_ERR_FORMAT, act_abort, words);
        break;
    case SCENE_DESTROY:
        snprintf(words, sizeof(words), "rank %d", s->ranks[s->odd]);
        play_ended_by_one(s, WEFT_ERR_CANCELLED, act_destroy, words);
        break;
    case SCENE_TOO_LARGE:
        play_too_large(s);
        break;
    default:
        play_normal(s);
    }
    lane_drop_group(s);
}

/* ---- Lanes ------------------------------------------------------------------------------------------------------- */

static scene_kind choose_scene(uint64_t seed)
{
    unsigned chance = (unsigned)(prng_mix(seed + 17) % 32);
    if (board->scene >= 0)
        return (scene_kind)board->scene;
    if (chance == 0)
        return SCENE_TOO_LARGE;
    return chance < 13 ? (scene_kind)(1 + chance / 2 % (SCENES - 2)) : SCENE_NORMAL;
}

static void play_scene(session *s)
{
    scene_kind scene = choose_scene(s->seed);
    snprintf(s->where, sizeof(s->where), "lane %d, epoch %u, generation %u, %s (odd: member %zu of %zu)", s->number,
             s->e.number, s->generation, scene_names[scene], s->odd, s->size);
    atomic_fetch_add(&book->scenes[scene], s->me == 0);
    play(s, scene);
}

static void run(int number)
{
    lane_run(number, play_scene);
}

static void table(void) /* in the driver */
{
    printf("scenes:");
    for (int i = 0; i < SCENES; i++)
        printf(" %s %lu", scene_names[i], atomic_load(&book->scenes[i]));
    printf("; members of smaller groups %lu\n", atomic_load(&book->shrunk));
}

int main(int argc, char **argv)
{
    const faults_program program = {
        .name = "faults_groups",
        .about = "Groups under attack: random operations, members that disagree, are absent, cancel, abort, die, join "
                 "and leave.",
        .book_bytes = sizeof(groups_book),
        .workers = 5,
        .leaves = true,
        .scenes = scene_names,
        .scene_count = SCENES,
        .operations = "operations",
        .kinds = op_names,
        .kind_count = OPS,
        .budget_bytes = BUDGET,
        .threads = LANES,
        .run = run,
        .table = table,
    };
    return faults_main(&program, argc, argv);
}
