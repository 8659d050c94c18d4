/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - an agent's options: checked, with the environment and defaults applied, with copies of their text. */
#ifndef WFI_OPTIONS_H
#define WFI_OPTIONS_H

#include "job/protocol/secret.h"

#include <weft/agent.h>

typedef struct wfi_options {
    weft_agent_options values;       /* its strings point into the arrays below */
    int store_fd;                    /* of a spawned job's rank 0; -1: none */
    int port_count;                  /* how many ports the store may have: values.master_port and those above */
    struct wfi_processes *processes; /* of a spawned job; NULL: none */
    bool is_spawned;                 /* weft_job_open started this process, and rank 0 is the process that called it */
    wfi_secret *secret;              /* NULL: there is none, or it has been wiped */
    bool budget_is_ours;             /* neither the program nor the environment has set the budget */
    char name[128], master_addr[256], fabric[64], iface[64], ports[32], trace_file[1024], metrics_file[1024];
} wfi_options;

/*
 * `out` must not move afterwards. A worker of an elastic job may have rank -1; its name is then empty, unless it was
 * given. Fails with WEFT_ERR_INVALID, and *error names the field or variable and its value, or WEFT_ERR_IO for the file
 * of the secret. The caller must call wfi_options_wipe in any case.
 */
weft_status wfi_options_resolve(const weft_agent_options *given, wfi_options *out, weft_error **error);
/* Sets the rank and the name that the store gave. */
void wfi_options_set_identity(wfi_options *options, int rank, const char *name);
/* Sets the default budget of one of `agents` agents of this process. Called when the number of workers on this machine
 * is known (topo/quota.h). */
void wfi_options_share(wfi_options *options, int agents);
/* Wipes the secret, and drops the processes of a spawned job: neither is needed after the rendezvous. */
void wfi_options_wipe(wfi_options *options);

#endif
