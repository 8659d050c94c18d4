/* SPDX-License-Identifier: Apache-2.0 */
/* stubs.c - TEMPORARY: what is declared and not built yet; whoever builds one takes it out here. */
#include "rpc/call.h"
#include "rpc/serve.h"

#include <weft/weft.h>

/* callers */
weft_status weft_rpc_multicast(weft_agent *agent, const weft_target *to, size_t count, const char *function,
                               weft_args arguments, const weft_rpc_options *options, weft_future **out)
{
    (void)agent, (void)to, (void)count, (void)function, (void)arguments, (void)options, (void)out;
    return WEFT_ERR_UNSUPPORTED;
}

/* references */
void weft_call_give_object(weft_call *call, const weft_object_type *type, void *object)
{
    type->drop(object);
    weft_call_fail(call, WEFT_ERR_UNSUPPORTED, "not built yet");
}
weft_status weft_rref_create_typed(weft_agent *agent, const weft_object_type *type, void *object, weft_rref **out)
{
    (void)agent, (void)out;
    type->drop(object);
    return WEFT_ERR_UNSUPPORTED;
}
weft_status weft_rref_local_typed(weft_rref *rref, const weft_object_type *type, int64_t timeout_ms, void **out)
{
    (void)rref, (void)type, (void)timeout_ms, (void)out;
    return WEFT_ERR_UNSUPPORTED;
}
weft_future *weft_rref_created(weft_rref *rref)
{
    (void)rref;
    return NULL;
}
weft_status weft_rref_rpc_async(weft_rref *rref, const char *function, weft_args arguments,
                                const weft_rpc_options *options, weft_future **out)
{
    (void)rref, (void)function, (void)arguments, (void)options, (void)out;
    return WEFT_ERR_UNSUPPORTED;
}
weft_status weft_rref_rpc_sync(weft_rref *rref, const char *function, weft_args arguments,
                               const weft_rpc_options *options, weft_values **out)
{
    (void)rref, (void)function, (void)arguments, (void)options, (void)out;
    return WEFT_ERR_UNSUPPORTED;
}
weft_status weft_rref_rpc_remote(weft_rref *rref, const char *function, weft_args arguments,
                                 const weft_rpc_options *options, weft_rref **out)
{
    (void)rref, (void)function, (void)arguments, (void)options, (void)out;
    return WEFT_ERR_UNSUPPORTED;
}
weft_status weft_debug_dump(const weft_agent *agent, FILE *to)
{
    (void)agent, (void)to;
    return WEFT_ERR_UNSUPPORTED;
}

