/* SPDX-License-Identifier: Apache-2.0 */
/* group.c - a group: its names, its references, its error. */
#include "coll/group.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"
#include "coll/carrier.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- Names ------------------------------------------------------------------------------------------------------- */

uint64_t wfi_group_id(const weft_agent *agent, const wfi_group_key *key)
{
    uint64_t words[] = {key->number, key->incarnation};
    return wfi_hash_keyed(&agent->hash_key, words, sizeof(words));
}

/* ---- References -------------------------------------------------------------------------------------------------- */

weft_group *wfi_group_make(weft_agent *agent, const char *name, void (*ended)(wfi_done *done))
{
    weft_group *group = wfi_calloc(1, sizeof(*group));
    if (!group)
        return NULL;
    group->agent = wfi_agent_ref(agent);
    WFI_HANDLE_INIT(group);
    atomic_init(&group->users, 1);
    atomic_init(&group->refs, 1);
    snprintf(group->name, sizeof(group->name), "%s", name);
    group->name_hash = wfi_hash_bytes(name, strlen(name));
    group->told = true; /* until others have it */
    group->ended.run = ended;
    wfi_list_init(&group->link);
    wfi_list_init(&group->operations);
    group->share.fd = -1;
    wfi_list_init(&group->share.queue);
    wfi_list_init(&group->share.hook.link);
    wfi_map_init(&group->places);
    for (size_t i = 0; i < WFI_GROUP_AHEAD; i++)
        wfi_list_init(&group->early[i]);
    return group;
}

weft_group *wfi_group_ref(weft_group *group)
{
    atomic_fetch_add_explicit(&group->refs, 1, memory_order_relaxed);
    return group;
}

void wfi_group_unref(weft_group *group)
{
    if (atomic_fetch_sub_explicit(&group->refs, 1, memory_order_acq_rel) != 1)
        return;
    weft_error_unref(group->over);
    wfi_rules_fini(&group->rules);
    wfi_carrier_free(group->carrier);
    if (group->share.slots.memory)
        munmap(group->share.slots.memory, wfi_slots_bytes(group->share.slots.members));
    if (group->share.fd >= 0)
        close(group->share.fd);
    wfi_map_fini(&group->places);
    free(group->members);
    free(group->hosts);
    free(group->share.by_place);
    wfi_agent_unref(group->agent);
    wfi_handle_free(group);
}

void wfi_group_use(weft_group *group)
{
    atomic_fetch_add_explicit(&group->users, 1, memory_order_relaxed);
    wfi_group_ref(group);
}

void wfi_group_unuse(weft_group *group)
{
    if (atomic_fetch_sub_explicit(&group->users, 1, memory_order_acq_rel) == 1)
        WFI_HANDLE_END(group);
    wfi_group_unref(group);
}

/* ---- Its members ------------------------------------------------------------------------------------------------- */

weft_status wfi_group_reserve(weft_group *group, size_t count)
{
    group->index = -1;
    group->members = wfi_calloc(count, sizeof(*group->members));
    return group->members ? WEFT_OK : WEFT_ERR_MEMORY;
}

weft_status wfi_group_add(weft_group *group, int rank)
{
    const wfi_net *net = group->agent->net;
    const wfi_member *known = wfi_net_member(net, rank);
    if (!known || !known->incarnation)
        return WEFT_ERR_NOT_FOUND;
    wfi_group_member *member = &group->members[group->size];
    *member = (wfi_group_member){.rank = rank, .incarnation = known->incarnation};
    wfi_list_init(&member->early);
    weft_status status = wfi_map_put(&group->places, (uint64_t)rank + 1, member);
    if (status)
        return status;
    if (rank == wfi_agent_rank(group->agent))
        group->index = (int)group->size;
    else
        member->peer = wfi_net_peer(net, rank);
    group->size++;
    return WEFT_OK;
}

void wfi_group_clear(weft_group *group)
{
    wfi_map_fini(&group->places);
    wfi_map_init(&group->places);
    free(group->members);
    group->members = NULL;
    group->size = 0;
}

void wfi_group_interest(weft_group *group, int change)
{
    for (size_t i = 0; i < group->size; i++)
        if (group->members[i].peer)
            wfi_peer_interest(group->members[i].peer, change);
}

wfi_group_member *wfi_group_member_of(const weft_group *group, const wfi_peer *peer)
{
    wfi_group_member *member = wfi_map_get(&group->places, (uint64_t)wfi_peer_rank(peer) + 1);
    return member && member->peer == peer ? member : NULL;
}

void wfi_group_depend(weft_group *group, int change)
{
    for (size_t i = 0; i < group->size; i++)
        if (group->members[i].peer)
            wfi_peer_depend(group->members[i].peer, change, 0);
}

void wfi_group_wake(const weft_group *group)
{
    if (group->woken)
        wfi_complete_future(group->woken, NULL, NULL);
}

/* ---- Its error --------------------------------------------------------------------------------------------------- */

WEFT_PRINTF(4, 0)
static weft_error *problem_of(const weft_group *group, weft_status code, int worker, const char *format, va_list args)
{
    wfi_error_detail detail = {.code = code, .function = "group", .worker = worker}; /* its name is in the message */
    char text[WFI_ERROR_MESSAGE_MAX];
    wfi_utf8_print_v(text, sizeof(text), format, args);
    return wfi_error_create(&detail, "group \"%s\": %s", group->name, text);
}

weft_error *wfi_group_problem(const weft_group *group, weft_status code, int worker, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    weft_error *error = problem_of(group, code, worker, format, args);
    va_end(args);
    return error;
}

void wfi_group_break(weft_group *group, weft_error *error, bool tells)
{
    if (group->over) {
        weft_error_unref(error);
        return;
    }
    group->over = error;
    group->tells = tells;
    wfi_group_wake(group);
    if (group->share.quick) { /* its thread must not wait longer */
        atomic_store(&group->share.stop, true);
        wfi_slots_futex_wake(&group->share.slots);
    }
    wfi_group_ref(group); /* operation.c drops it */
    wfi_progress_end(&group->agent->net->progress, &group->ended, WFI_DONE_MESSAGE);
}

void wfi_group_break_for(weft_group *group, weft_status code, int worker, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    wfi_group_break(group, problem_of(group, code, worker, format, args), true);
    va_end(args);
}

weft_error *wfi_group_end_of(const weft_group *group, weft_status why, int rank)
{
    return wfi_group_problem(group, why, rank, "rank %d %s", rank,
                             why == WEFT_ERR_PEER_LEFT ? "has left the job" : "is dead");
}

void wfi_group_lacks(weft_group *group, wfi_group_member *member, weft_status why)
{
    member->peer = NULL;
    wfi_group_break(group, wfi_group_end_of(group, why, member->rank), false); /* the store tells the others */
}

const char *wfi_reduction_name(unsigned how)
{
    static const char *const names[] = {[WEFT_OP_SUM] = "sum",
                                        [WEFT_OP_AVG] = "average",
                                        [WEFT_OP_MIN] = "minimum",
                                        [WEFT_OP_MAX] = "maximum",
                                        [WEFT_OP_PROD] = "product"};
    return how < sizeof(names) / sizeof(*names) ? names[how] : "reduction of that number";
}

const char *wfi_operation_signature_text(const wfi_signature *signature, bool whole, char text[WFI_SIGNATURE_TEXT])
{
    uint8_t kind = signature->kind;
    bool has_tensor = kind != WFI_BARRIER && kind != WFI_GATHER_VALUES;
    bool reduces = kind == WFI_ALLREDUCE || kind == WFI_REDUCE || kind == WFI_REDUCE_SCATTER;
    bool has_root = kind == WFI_REDUCE || kind == WFI_BROADCAST || kind == WFI_GATHER || kind == WFI_SCATTER;
    const char *name = wfi_operation_names[kind], *how = reduces ? wfi_reduction_name(signature->how) : "";
    char root[24] = "";
    if (has_root)
        snprintf(root, sizeof(root), "%sroot %u", reduces ? ", " : "", signature->root);
    if (whole && has_tensor)
        snprintf(text, WFI_SIGNATURE_TEXT, "%s of %llu %s%s%s%s%s", name, (unsigned long long)signature->count,
                 weft_dtype_name((weft_dtype)signature->dtype), reduces || has_root ? " (" : "", how, root,
                 reduces || has_root ? ")" : "");
    else
        snprintf(text, WFI_SIGNATURE_TEXT, "%s", name);
    return text;
}

wfi_signature wfi_operation_signature(const wfi_operation *operation)
{
    return (wfi_signature){.kind = (uint8_t)operation->collective.kind,
                           .dtype = (uint8_t)operation->dtype,
                           .how = (uint8_t)operation->how,
                           .algorithm = operation->algorithm,
                           .root = (uint32_t)operation->collective.root,
                           .count = operation->collective.count};
}

bool wfi_operation_signature_equals(const wfi_signature *a, const wfi_signature *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && a->how == b->how && a->algorithm == b->algorithm &&
           a->root == b->root && a->count == b->count;
}

bool wfi_group_delivers(const weft_group *group)
{
    weft_status why = group->over ? weft_error_code(group->over) : WEFT_OK;
    bool is_gone = why == WEFT_ERR_PEER_LEFT || why == WEFT_ERR_PEER_DEAD || why == WEFT_ERR_STORE_LOST ||
                   why == WEFT_ERR_JOB_ENDED;
    return is_gone && group->open && !group->agent->stopped;
}

static void break_for_algorithms(const wfi_operation *operation, size_t member, uint8_t ours, uint8_t theirs)
{
    weft_group *group = operation->group;
    const char *kind = wfi_operation_names[operation->collective.kind];
    unsigned long long number = operation->number;
    int me = wfi_agent_rank(group->agent), other = group->members[member].rank;
    bool carried = ours == WFI_CARRIED;
    if (carried || theirs == WFI_CARRIED)
        wfi_group_break_for(group, WEFT_ERR_STATE, other,
                            "operation %llu, %s: rank %d has a carrier for it, rank %d has none", number, kind,
                            carried ? me : other, carried ? other : me);
    else
        wfi_group_break_for(
            group, WEFT_ERR_STATE, other,
            "operation %llu, %s: rank %d does it by %s, rank %d by %s: their rules for algorithms differ", number, kind,
            me, wfi_algorithm_name(ours), other, wfi_algorithm_name(theirs));
}

bool wfi_operation_check(const wfi_operation *operation, size_t member, const wfi_signature *theirs)
{
    weft_group *group = operation->group;
    wfi_signature ours = wfi_operation_signature(operation);
    char mine[WFI_SIGNATURE_TEXT], other[WFI_SIGNATURE_TEXT];
    bool same_kind = ours.kind == theirs->kind;
    bool same_call = same_kind && ours.dtype == theirs->dtype && ours.how == theirs->how && ours.root == theirs->root &&
                     ours.count == theirs->count;
    if (same_call && ours.algorithm == theirs->algorithm)
        return true;
    if (same_call) {
        break_for_algorithms(operation, member, ours.algorithm, theirs->algorithm);
        return false;
    }
    wfi_group_break_for(group, WEFT_ERR_STATE, group->members[member].rank,
                        "operation %llu: rank %d called %s, rank %d %s", (unsigned long long)operation->number,
                        wfi_agent_rank(group->agent), wfi_operation_signature_text(&ours, same_kind, mine),
                        group->members[member].rank, wfi_operation_signature_text(theirs, same_kind, other));
    return false;
}
