/* SPDX-License-Identifier: Apache-2.0 */
/* launcher.h - whether srun or mpirun has started this process as one of several. */
#ifndef WEFT_RUN_LAUNCHER_H
#define WEFT_RUN_LAUNCHER_H

/* The number of tasks, of which this process is one; 0: it is the only one; -1: several, it is not known how many.
 * *launcher gets the name of what started them. */
int launcher_tasks(const char **launcher);

#endif
