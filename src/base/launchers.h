/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launchers.h - the variables by which launchers tell a process its rank and the size of its job. docs/environment.md
 * lists them for users; tests/project/variables.py compares the two.
 *
 * Programs that are not linked with the library compile launchers.c: it needs nothing of weft.
 */
#ifndef WFI_LAUNCHERS_H
#define WFI_LAUNCHERS_H

#include <stddef.h>

#define WFI_LAUNCHER_NAMES 2 /* the most variables of a launcher for one number */

/* One launcher. The lists of names end with NULL, or are full; the first variable that is set counts. */
typedef struct wfi_launcher {
    const char *name;
    const char *command; /* what a user types to start a job with it */
    const char *rank;
    const char *size[WFI_LAUNCHER_NAMES];       /* workers of the job; none: only PMIx knows them */
    const char *local_size[WFI_LAUNCHER_NAMES]; /* workers of the job on this machine */
    const char *local_rank;                     /* rank among the workers on this machine; NULL: none */
    /* Is set if the launcher started this process. NULL: the rank shows it. A batch script has SLURM_PROCID, too. */
    const char *started;
} wfi_launcher;

enum { WFI_LAUNCHER_BY_HAND }; /* the first one: RANK and WORLD_SIZE */
/* In the order in which they count; ends with a launcher without a name. */
extern const wfi_launcher wfi_launchers[];

/*
 * Asks the launchers that tell how many workers the job has, and how many of them are on this node. 1: one node, 2:
 * several, 0: none of them started this process. *launcher is the name of the one that told it.
 */
int wfi_launcher_nodes(const char **launcher);

/*
 * The number of a node, counted from 0, in a list of Slurm. In "4(x3),2" the first three nodes have 4, and the fourth
 * has 2. Returns 0 if the list is NULL, is malformed or lacks that node, or if the number is not in 1 to `most`.
 */
long wfi_launcher_slurm_number(const char *list, size_t node, long most);

#endif
