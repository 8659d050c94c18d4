/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - an agent's options with the environment and the defaults applied, checked, and owning their text. */
#ifndef WFI_OPTIONS_H
#define WFI_OPTIONS_H

#include "job/protocol/secret.h"

#include <weft/agent.h>

typedef struct wfi_options {
    weft_agent_options values;       /* its strings point below */
    int store_fd;                    /* of a spawned job's rank 0; -1: none */
    struct wfi_processes *processes; /* of a spawned job; NULL: none */
    wfi_secret *secret;              /* NULL: there is none, or it has been wiped */
    bool budget_is_ours;             /* nobody said what it should be */
    char name[128], master_addr[256], fabric[16], iface[64], ports[32], trace_file[1024];
} wfi_options;

/*
 * `out` must not move afterwards. An elastic job's worker may have rank -1 and then, if it has no name, the empty one. What is
 * wrong: WEFT_ERR_INVALID with *error naming the field or variable and its value; WEFT_ERR_IO for the secret's file. Either
 * way wfi_options_wipe follows.
 */
weft_status wfi_options_resolve(const weft_agent_options *given, wfi_options *out, weft_error **error);
/* Once the rank is known, and with it the name. */
void wfi_options_settle(wfi_options *options, int rank, const char *name);
/* Once it is known how many workers are on this machine (topo/share.h): the default of the budget, of one of `agents` of ours. */
void wfi_options_share(wfi_options *options, int agents);
/* The secret and the children are not needed after the rendezvous. */
void wfi_options_wipe(wfi_options *options);

#endif
