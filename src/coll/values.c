/* SPDX-License-Identifier: Apache-2.0 */
/*
 * values.c - an allgather of values. A member's values are encoded as for a call, and followed by their tensors: one
 * block. First all members learn the size of each block, then the blocks are gathered; both in about log2(members)
 * rounds. A member whose values exceed the limits of one call sends TOO_LARGE instead of a size: then the operation
 * ends, on all members.
 */
#include "coll/request.h"

#include "base/alloc.h"
#include "rpc/agent/budget.h"
#include "rpc/client/client.h"
#include "rpc/payload/explain.h"
#include "value/decode.h"
#include "value/encode.h"
#include "value/value.h"
#include "tensor/tensor.h"
#include "value/walk.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 64         /* of tensors in a block */
#define TOO_LARGE UINT64_MAX /* in place of a block's size */

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

static size_t aligned(size_t size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* A block: u64 bytes of metadata, these, and the tensors, each aligned and at the address that the metadata say. */
static weft_status make_block(weft_args mine, wfi_storage **out)
{
    wfi_encoded encoded;
    weft_status status = wfi_encode(&encoded, mine, &(wfi_encode_options){0});
    if (status)
        return status;
    size_t size = aligned(sizeof(uint64_t) + encoded.meta.size);
    for (size_t i = 0; i < encoded.remote_count; i++) {
        wfi_encode_address(&encoded, &encoded.remote[i], &(wfi_rma_address){.address = size});
        size += aligned((size_t)weft_tensor_numel(encoded.remote[i].tensor) *
                        weft_dtype_size(encoded.remote[i].tensor->dtype));
    }
    wfi_storage *block;
    status = encoded.meta.failed ? WEFT_ERR_MEMORY : wfi_storage_create(WFI_MEMORY_HOST, 0, size, &block);
    if (!status) {
        uint8_t *at = wfi_storage_data(block);
        uint64_t meta = htole64(encoded.meta.size);
        memset(at, 0, size);
        memcpy(at, &meta, sizeof(meta));
        memcpy(at + sizeof(meta), encoded.meta.data, encoded.meta.size);
        at += aligned(sizeof(meta) + encoded.meta.size);
        for (size_t i = 0; i < encoded.remote_count; i++) {
            const weft_tensor *tensor = encoded.remote[i].tensor;
            size_t bytes = (size_t)weft_tensor_numel(tensor) * weft_dtype_size(tensor->dtype);
            memcpy(at, wfi_tensor_address(tensor), bytes);
            at += aligned(bytes);
        }
        *out = block;
    }
    wfi_encoded_fini(&encoded);
    return status;
}

/*
 * The tensors of a block lie one after another: no more memory is taken for them than the block has. `arg`: the bytes
 * left.
 */
static weft_status admit_tensor(void *arg, uint64_t bytes, char *problem, size_t room)
{
    uint64_t *left = arg;
    if (bytes > *left) {
        snprintf(problem, room, "tensors that are larger than what came");
        return WEFT_ERR_PROTOCOL;
    }
    *left -= bytes;
    return WEFT_OK;
}

/* Decodes the values of a block from a member: no field of it is trusted. */
static weft_status read_block(const uint8_t *block, size_t size, weft_values **out)
{
    uint64_t meta_size = 0;
    wfi_reader meta, tail;
    wfi_decoded decoded;
    if (size < sizeof(meta_size))
        return WEFT_ERR_PROTOCOL;
    memcpy(&meta_size, block, sizeof(meta_size));
    meta_size = le64toh(meta_size);
    if (meta_size > size - sizeof(meta_size))
        return WEFT_ERR_PROTOCOL;
    wfi_reader_init(&meta, block + sizeof(meta_size), meta_size);
    wfi_reader_init(&tail, block, 0);
    uint64_t left = size;
    weft_status status =
        wfi_decode(&decoded, &meta, &tail, &(wfi_decode_options){.admit = admit_tensor, .admit_arg = &left});
    if (status)
        return status;
    if (decoded.rref_count || decoded.moves)
        status = WEFT_ERR_PROTOCOL;
    for (size_t i = 0; i < decoded.segment_count && !status; i++) {
        const wfi_segment *segment = &decoded.segments[i];
        if (segment->size > size || segment->remote.address > size - segment->size)
            status = WEFT_ERR_PROTOCOL;
        else
            memcpy(segment->local, block + segment->remote.address, segment->size);
    }
    if (!status)
        *out = weft_values_ref(decoded.values);
    wfi_decoded_fini(&decoded);
    return status;
}

/* ---- The operation ----------------------------------------------------------------------------------------------- */

typedef struct gathering {
    weft_agent *agent;  /* borrowed from the operation */
    wfi_storage *mine;  /* NULL: this member's values exceed the limits of one call */
    int too_large_rank; /* the rank of the first member whose values do so; -1: none do */
    size_t counted;     /* bytes of blocks, against the memory budget */
    size_t members, me;
    /* in scratch: the start of the block of the i-th member after this one; and after the last the end of all */
    size_t *begins;
} gathering;

static void free_gathering(void *own)
{
    gathering *all = own;
    if (all->counted) {
        wfi_net_lock(all->agent->net);
        wfi_budget_keep_item(all->agent, -(int64_t)all->counted);
        wfi_net_unlock(all->agent->net);
    }
    wfi_storage_unref(all->mine);
    free(all->begins);
    free(all);
}

/* The sizes first, each as u64: in scratch, our own first. */
static weft_status add_sizes(wfi_operation *operation)
{
    const gathering *all = operation->own;
    wfi_schedule *schedule = &operation->schedule;
    wfi_schedule_init(schedule, all->members);
    if (schedule->failed)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i <= all->members; i++)
        all->begins[i] = i * sizeof(uint64_t);
    wfi_bruck_rounds(&operation->collective, schedule, all->begins);
    wfi_schedule_built(schedule);
    schedule->scratch = all->begins[all->members];
    weft_status status = schedule->failed ? WEFT_ERR_MEMORY : wfi_operation_make_scratch(operation);
    uint64_t own = all->mine ? htole64(wfi_storage_size(all->mine)) : TOO_LARGE;
    if (!status)
        memcpy(operation->memory[WFI_SCRATCH].data, &own, sizeof(own));
    return status;
}

/* Computes where each block begins. No size is trusted; a sum above half of the address space is malformed. */
static weft_status place_blocks(const wfi_operation *operation, gathering *all)
{
    weft_group *group = operation->group;
    const uint8_t *sizes = operation->memory[WFI_SCRATCH].data;
    size_t first_too_large = all->members;
    for (size_t i = 0; i < all->members; i++) {
        size_t member = (all->me + i) % all->members;
        uint64_t size;
        memcpy(&size, sizes + i * sizeof(size), sizeof(size));
        size = le64toh(size);
        if (size == TOO_LARGE) {
            first_too_large = member < first_too_large ? member : first_too_large;
            size = 0;
        }
        if (size > SIZE_MAX / 2 - all->begins[i]) {
            int rank = group->members[member].rank;
            wfi_group_break_for(group, WEFT_ERR_PROTOCOL, rank, "rank %d speaks of values of %llu bytes", rank,
                                (unsigned long long)size);
            return WEFT_ERR_PROTOCOL;
        }
        all->begins[i + 1] = all->begins[i] + size;
    }
    if (first_too_large < all->members)
        all->too_large_rank = group->members[first_too_large].rank;
    return WEFT_OK;
}

/* Counts the blocks against the memory budget until the operation is freed. */
static weft_status count_blocks(const wfi_operation *operation, gathering *all)
{
    weft_group *group = operation->group;
    size_t budget = all->agent->options.values.memory_budget_bytes, held = wfi_budget_unreserved(all->agent);
    size_t bytes = all->begins[all->members];
    int me = wfi_agent_rank(all->agent);
    if (budget && (held > budget || bytes > budget - held)) {
        wfi_group_break_for(group, WEFT_ERR_BUSY, me,
                            "rank %d: the values of all have %zu bytes, and %zu are held: raise memory_budget_bytes "
                            "(WEFT_MEMORY_BUDGET) above %zu, or give less",
                            me, bytes, held, budget);
        return WEFT_ERR_BUSY;
    }
    all->counted = bytes;
    wfi_budget_keep_item(all->agent, (int64_t)bytes);
    return WEFT_OK;
}

/* The sizes have arrived: gathers the blocks. [agent lock] */
static weft_status add_blocks(wfi_operation *operation)
{
    gathering *all = operation->own;
    wfi_schedule *schedule = &operation->schedule;
    weft_status status = place_blocks(operation, all);
    if (!status && all->too_large_rank >= 0)
        return WEFT_OK; /* no blocks: read_blocks fails, on all members */
    if (!status)
        status = count_blocks(operation, all);
    if (status)
        return status;
    wfi_storage_unref(operation->memory[WFI_SCRATCH].storage);
    operation->memory[WFI_SCRATCH].storage = NULL;
    schedule->scratch = all->begins[all->members];
    status = wfi_operation_make_scratch(operation);
    if (status)
        return status;
    operation->memory[WFI_INPUT].storage = wfi_storage_ref(all->mine);
    operation->memory[WFI_INPUT].data = wfi_storage_data(all->mine);
    operation->collective.chunk = wfi_chunk_for(&operation->collective, all->begins[all->members]);
    wfi_pieces_copy(&operation->collective, schedule, wfi_at(WFI_SCRATCH, 0), wfi_at(WFI_INPUT, 0), all->begins[1]);
    wfi_bruck_rounds(&operation->collective, schedule, all->begins);
    wfi_schedule_built(schedule);
    return schedule->failed ? WEFT_ERR_MEMORY : WEFT_OK;
}

/* Fails the operation, on all members, because values are too large. Returns WEFT_ERR_TOO_LARGE. */
static weft_status fail_for_size(wfi_operation *operation, int worker, const char *whose, const char *problem)
{
    operation->failure = wfi_group_problem(
        operation->group, WEFT_ERR_TOO_LARGE, worker,
        "operation %llu, %s: the values of %s exceed a limit of one call%s%s", (unsigned long long)operation->number,
        wfi_operation_names[WFI_GATHER_VALUES], whose, *problem ? ": " : "", problem);
    return WEFT_ERR_TOO_LARGE;
}

/* The lists of all members become the result. Not locked. */
static weft_status read_blocks(wfi_operation *operation)
{
    const gathering *all = operation->own;
    char whose[24];
    snprintf(whose, sizeof(whose), "rank %d", all->too_large_rank);
    if (all->too_large_rank >= 0)
        return fail_for_size(operation, all->too_large_rank, whose, "");
    const uint8_t *blocks = operation->memory[WFI_SCRATCH].data;
    weft_values **lists = wfi_calloc(all->members, sizeof(*lists));
    weft_value *items = wfi_calloc(all->members, sizeof(*items));
    weft_status status = lists && items ? WEFT_OK : WEFT_ERR_MEMORY;
    char problem[200];
    for (size_t i = 0; i < all->members && !status; i++) {
        size_t member = (all->me + i) % all->members;
        status = read_block(blocks + all->begins[i], all->begins[i + 1] - all->begins[i], &lists[i]);
        if (!status)
            items[member] = weft_of_list(weft_values_args(lists[i]));
    }
    weft_args whole = {items, all->members};
    if (!status && wfi_encode_fits(whole, problem, sizeof(problem)))
        status = fail_for_size(operation, -1, "all members together", problem);
    if (!status)
        status = wfi_values_create(whole, &operation->values);
    for (size_t i = 0; i < all->members && lists; i++)
        weft_values_unref(lists[i]);
    free(lists);
    free(items);
    return status;
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

static weft_status refuse(const weft_group *group, weft_status status, const char *problem)
{
    wfi_agent_log(group->agent, WEFT_LOG_WARN, 0, "weft_group_allgather_values (\"%s\"): %s", group->name, problem);
    return status;
}

/* Says which of the values is too large. */
static weft_status refuse_values(const weft_group *group, weft_status status, weft_args mine)
{
    weft_error *why = wfi_explain_values(group->agent, mine, status);
    (void)refuse(group, status, weft_error_message(why));
    weft_error_unref(why);
    return status;
}

static weft_status check_arguments(const weft_group *group, weft_args mine, int64_t timeout_ms)
{
    char problem[200];
    wfi_walk walk;
    if (timeout_ms < WEFT_FOREVER) {
        snprintf(problem, sizeof(problem), "timeout_ms is %lld: 0, more, or WEFT_FOREVER", (long long)timeout_ms);
        return refuse(group, WEFT_ERR_INVALID, problem);
    }
    if (!wfi_args_are_readable(mine))
        return refuse_values(group, WEFT_ERR_INVALID, mine);
    wfi_walk_begin(&walk, mine);
    for (const weft_value *value; (value = wfi_walk_next(&walk));)
        if (value->type == WEFT_TYPE_RREF)
            return refuse(group, WEFT_ERR_UNSUPPORTED, "a remote reference: pass it on in calls");
    if (wfi_values_on_device(mine))
        return refuse(group, WEFT_ERR_UNSUPPORTED,
                      "a tensor is on a CUDA device: give a copy on the CPU (weft_tensor_to_device)");
    weft_status status = wfi_encode_fits(mine, problem, sizeof(problem));
    return status ? refuse(group, status, problem) : WEFT_OK;
}

/*
 * If this member's values are too large, it still takes part, with TOO_LARGE as their size: so the operation fails on
 * all members, and none waits.
 */
static weft_status create_operation(weft_group *group, weft_args mine, int64_t timeout_ms, wfi_operation **out)
{
    weft_status status = check_arguments(group, mine, timeout_ms);
    bool exceeds = status == WEFT_ERR_TOO_LARGE;
    if (exceeds) /* the other members must be told */
        status = WEFT_OK;
    wfi_operation *operation = status ? NULL : wfi_operation_create(group, WFI_GATHER_VALUES, timeout_ms);
    if (!operation)
        return status ? status : WEFT_ERR_MEMORY;
    gathering *all = wfi_calloc(1, sizeof(*all));
    operation->own = all;
    operation->free_own = all ? free_gathering : NULL;
    operation->more = add_blocks;
    operation->finish = read_blocks;
    if (all) {
        all->agent = group->agent;
        all->members = group->size;
        all->me = (size_t)group->index;
        all->too_large_rank = -1;
        all->begins = wfi_calloc(group->size + 1, sizeof(*all->begins));
    }
    status = !all || !all->begins ? WEFT_ERR_MEMORY : exceeds ? WEFT_OK : make_block(mine, &all->mine);
    if (status == WEFT_ERR_INVALID || status == WEFT_ERR_TOO_LARGE)
        (void)refuse_values(group, status, mine);
    if (status == WEFT_ERR_TOO_LARGE)
        status = WEFT_OK;
    if (!status)
        status = add_sizes(operation);
    if (status)
        wfi_operation_free(operation);
    else
        *out = operation;
    return status;
}

weft_status weft_group_allgather_values_async(weft_group *group, weft_args mine, int64_t timeout_ms, weft_future **out)
{
    WFI_CHECK_HANDLE(group);
    wfi_operation *operation;
    if (!group || !out)
        return wfi_refuse_null("weft_group_allgather_values_async", group ? "out" : "group");
    if (!wfi_agent_enter(group->agent))
        return WEFT_ERR_CLOSED;
    weft_status status = wfi_group_may_start(group, "weft_group_allgather_values");
    if (!status)
        status = create_operation(group, mine, timeout_ms, &operation);
    if (!status)
        status = wfi_operation_run(operation, out);
    if (status == WEFT_ERR_MEMORY)
        wfi_group_lacks_memory(group, WFI_GATHER_VALUES);
    wfi_agent_leave(group->agent);
    return status;
}

weft_status weft_group_allgather_values(weft_group *group, weft_args mine, int64_t timeout_ms, weft_values **out)
{
    WFI_CHECK_HANDLE(group);
    weft_future *future = NULL;
    weft_status status = out ? wfi_group_may_wait(group, "weft_group_allgather_values")
                             : wfi_refuse_null("weft_group_allgather_values", "out");
    if (!status)
        status = weft_group_allgather_values_async(group, mine, timeout_ms, &future);
    return status ? status : wfi_rpc_await(NULL, future, NULL, out);
}
