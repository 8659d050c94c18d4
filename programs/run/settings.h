/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h - the command line of weft-run. */
#ifndef WEFT_RUN_SETTINGS_H
#define WEFT_RUN_SETTINGS_H

#include "run/hosts.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct settings {
    int64_t workers; /* that start */
    bool has_workers;
    int64_t least, most; /* --elastic; least 0: the job is not elastic */
    int64_t restarts, grace_ms, connect_ms;
    const char *hosts, *master_addr, *exported, *ssh, *node_program;
    int64_t master_port; /* 0: any free one */
    bool no_prefix;
    char **argv; /* the program with its arguments */
} settings;

/* Returns -1 to continue, or the exit code to end with. */
int settings_read(int argc, char **argv, settings *out);
/* Finds the hosts, and the number of workers if -n does not give it. The same result. */
int settings_find_hosts(settings *o, host_list *hosts);

#endif
