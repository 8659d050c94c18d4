/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - an agent's options with the environment and the defaults applied, checked, and owning their text. */
#ifndef WFI_OPTIONS_H
#define WFI_OPTIONS_H

#include <weft/agent.h>

typedef struct wfi_options {
    weft_agent_options values; /* its strings point below */
    int store_fd;              /* of a spawned job's rank 0; -1: none */
    char name[128], master_addr[256], fabric[16], iface[64], ports[32];
    char trace_file[1024];
} wfi_options;

/* `out` must not move afterwards. WEFT_ERR_INVALID with *error naming the field or variable and its value. */
weft_status wfi_options_resolve(const weft_agent_options *given, wfi_options *out, weft_error **error);

#endif
