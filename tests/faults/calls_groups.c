/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls_groups.c - barriers and all-gathers of all who are in the job. The driver says in the book who that is: an
 * epoch. For each epoch the members make a group and meet in it again and again, until the next epoch.
 */
#include "faults/calls.h"

#include <stdio.h>

#define MEET_MS 3000
#define GATHER_WORDS 3000

static int64_t gather_id(const faults_epoch *e, unsigned number, int rank)
{
    return ((int64_t)e->number << 24 | number) * SEATS + rank;
}

/* It succeeded: then everybody had come. */
static void check_all_came(const faults_epoch *e, unsigned number, calls_kind kind)
{
    for (size_t i = 0; i < e->count; i++) {
        unsigned came_epoch = atomic_load(&book->came[e->ranks[i]].epoch),
                 came = atomic_load(&book->came[e->ranks[i]].number);
        if (came_epoch < e->number || (came_epoch == e->number && came < number))
            violation(-1, "%s %u of epoch %u succeeded, and rank %d had only come to %u of epoch %u",
                      calls_kind_names[kind], number, e->number, e->ranks[i], came, came_epoch);
    }
}

static void check_gathered(const faults_epoch *e, unsigned number, const weft_values *values)
{
    for (size_t i = 0; i < e->count; i++) {
        weft_args list;
        int64_t id = gather_id(e, number, e->ranks[i]);
        if (weft_values_get_list(values, i, &list) || list.count != 2 || list.items[0].as.i64 != id) {
            violation(-1, "all-gather %u of epoch %u: what rank %d gave is not here", number, e->number, e->ranks[i]);
            continue;
        }
        const uint32_t *words = weft_tensor_data(list.items[1].as.tensor);
        if (words_wrong_at(words, GATHER_WORDS, id, ARGUMENT) < GATHER_WORDS)
            violation(-1, "all-gather %u of epoch %u: what rank %d gave is wrong", number, e->number, e->ranks[i]);
    }
}

static weft_status meet(weft_group *group, const faults_epoch *e, unsigned number)
{
    weft_values *values = NULL;
    calls_kind kind = number % 3 == 2 ? ALL_GATHER : BARRIER;
    weft_status status;
    if (kind == ALL_GATHER) {
        int64_t id = gather_id(e, number, self.rank);
        weft_tensor *mine = make_tensor(GATHER_WORDS, id, ARGUMENT);
        status =
            weft_group_allgather_values(group, WEFT_VALUES(weft_of_i64(id), weft_of_tensor(mine)), MEET_MS, &values);
        weft_tensor_unref(mine);
    } else {
        status = weft_group_barrier(group, MEET_MS);
    }
    if (!status_fits(kind, status, true))
        violation(-1, "%s %u of epoch %u ended with %s", calls_kind_names[kind], number, e->number,
                  weft_status_name(status));
    if (status == WEFT_OK)
        check_all_came(e, number, kind);
    if (values)
        check_gathered(e, number, values);
    weft_values_unref(values);
    board_count((int)kind, status);
    return status;
}

static void meet_in(const faults_epoch *e)
{
    char name[32];
    weft_group *group;
    snprintf(name, sizeof(name), "epoch%u", e->number);
    weft_status status;
    do /* a member is late, or has not heard of all yet */
        status = weft_group_open(self.agent, name, e->ranks, e->count, MEET_MS, &group, NULL);
    while ((status == WEFT_ERR_NOT_FOUND || status == WEFT_ERR_TIMEOUT) && epoch_is_current(e));
    if (status && status_fits(BARRIER, status, true))
        return;
    if (status == WEFT_ERR_NOT_FOUND || status == WEFT_ERR_EVICTED || status == WEFT_ERR_STORE_LOST)
        return;
    if (status) {
        violation(-1, "a group of %zu could not be made: %s", e->count, weft_status_name(status));
        return;
    }
    atomic_store(&book->came[self.rank].number, 0);
    atomic_store(&book->came[self.rank].epoch, e->number);
    for (unsigned number = 1; epoch_is_current(e); number++) {
        atomic_store(&book->came[self.rank].number, number);
        status = meet(group, e, number);
        sleep_ms(status ? 50 : chance_below(20));
    }
    weft_group_close(group);
}

void meet_until_over(void)
{
    for (unsigned last = 1; goes_on(); sleep_ms(5)) {
        faults_epoch e;
        if (!epoch_read(&e) || !e.ours || e.number == last || e.count < 2)
            continue;
        last = e.number;
        meet_in(&e);
    }
}
