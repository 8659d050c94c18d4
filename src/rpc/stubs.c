/* SPDX-License-Identifier: Apache-2.0 */
/* stubs.c - TEMPORARY: what is declared and not built yet; whoever builds one takes it out here. */
#include "rpc/call.h"
#include "rpc/serve.h"

#include <weft/weft.h>
