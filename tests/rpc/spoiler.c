/* SPDX-License-Identifier: Apache-2.0 */
/* spoiler.c - see spoiler.h. */
#include "rpc/spoiler.h"
#include "rpc/must.h"
#include "prng.h"

#include <string.h>

enum { KINDS = 4, SPOILER_RANK = 1001, FAULTS_MOST = 12 };

static const char *const kinds[KINDS] = {"sim", "sim-reads", "sim-verbs", "sim-rdm"};

static uint64_t draw(spoiler *s, uint64_t limit)
{
    return prng_below(&s->state, limit);
}

/* From 10 us to 5 s; every order of magnitude is equally likely. */
static void rest(spoiler *s)
{
    uint64_t ns = 10000;
    for (uint64_t i = draw(s, 6); i; i--)
        ns *= 10;
    weft_sim_sleep(s->sim, ns / 2 + draw(s, ns));
}

static const char *victim_kind(spoiler *s)
{
    return kinds[((uint64_t)s->good + 1 + draw(s, KINDS - 1)) % KINDS];
}

static bool heals(spoiler *s)
{
    rest(s);
    return draw(s, 4) > 0;
}

static void fail_one(spoiler *s, const char *kind)
{
    int rank = (int)draw(s, (uint64_t)s->workers);
    MUST_OK(weft_sim_fabric_fail(s->sim, rank, kind));
    if (heals(s))
        MUST_OK(weft_sim_fabric_repair(s->sim, rank, kind));
}

static void refuse_one(spoiler *s, const char *kind)
{
    int rank = (int)draw(s, (uint64_t)s->workers);
    MUST_OK(weft_sim_fabric_refuse_memory(s->sim, rank, kind, true));
    if (heals(s))
        MUST_OK(weft_sim_fabric_refuse_memory(s->sim, rank, kind, false));
}

static void cut_two(spoiler *s, const char *kind)
{
    int a = (int)draw(s, (uint64_t)s->workers), b = (a + 1 + (int)draw(s, (uint64_t)s->workers - 1)) % s->workers;
    bool both = draw(s, 2);
    MUST_OK(weft_sim_fabric_cut(s->sim, a, b, kind));
    if (both)
        MUST_OK(weft_sim_fabric_cut(s->sim, b, a, kind));
    if (!heals(s))
        return;
    MUST_OK(weft_sim_fabric_heal(s->sim, a, b, kind));
    MUST_OK(weft_sim_fabric_heal(s->sim, b, a, kind));
}

static void spoil(weft_sim *sim, int rank, void *arg)
{
    spoiler *s = arg;
    for (uint64_t left = draw(s, FAULTS_MOST); left; left--) {
        const char *kind = victim_kind(s);
        uint64_t what = draw(s, 4);
        rest(s);
        s->faults++;
        if (what == 0)
            fail_one(s, kind);
        else if (what == 1)
            refuse_one(s, kind);
        else
            cut_two(s, kind);
    }
    s->over = true;
}

static void begin(spoiler *s, weft_sim *sim)
{
    s->begun = true;
    s->sim = sim;
    for (int rank = 0; rank < s->workers; rank++)
        if (draw(s, 4) == 0)
            MUST_OK(weft_sim_fabric_fail(sim, rank, victim_kind(s))); /* never opens there */
    MUST_OK(weft_sim_spawn(sim, SPOILER_RANK, spoil, s));
}

void spoiler_init(spoiler *s, uint64_t seed, int workers)
{
    *s = (spoiler){.workers = workers, .state = seed * 7919 + 3};
    s->good = (int)draw(s, 2); /* one that announces what breaks, as tcp does */
}

void spoiler_choose(spoiler *s, weft_agent_options *options)
{
    if (!s->begun)
        begin(s, options->sim);
    int order[KINDS] = {0, 1, 2, 3};
    size_t length = 0;
    for (size_t i = KINDS - 1; i; i--) {
        size_t other = draw(s, i + 1);
        int swapped = order[i];
        order[i] = order[other];
        order[other] = swapped;
    }
    for (size_t i = 0; i < KINDS; i++)
        if (order[i] == s->good || draw(s, 2))
            length += (size_t)snprintf(s->list + length, sizeof(s->list) - length, "%s%s", length ? "," : "",
                                       kinds[order[i]]);
    options->fabric = s->list;
}
