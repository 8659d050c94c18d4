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


