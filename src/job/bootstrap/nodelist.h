/* SPDX-License-Identifier: Apache-2.0 */
/* nodelist.h - Slurm's lists of nodes, such as "login,node[01-16,20],r[1-2]n[0-3]". */
#ifndef WFI_NODELIST_H
#define WFI_NODELIST_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Finds node `index` (from 0) of a list, in the order of `scontrol show hostnames`: the last bracket of a name counts
 * fastest, and numbers keep their leading zeros. False: the list has fewer nodes, is no such list, or the name does not
 * fit.
 */
bool wfi_nodelist_at(const char *list, size_t index, char *name, size_t room);

#endif
