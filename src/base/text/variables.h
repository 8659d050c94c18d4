/* SPDX-License-Identifier: Apache-2.0 */
/* variables.h - the environment variables of weft: a misspelt one is warned about. */
#ifndef WFI_VARIABLES_H
#define WFI_VARIABLES_H

/*
 * Warns about every variable that begins with WEFT_ and that weft does not know, and names the known one that is spelt
 * most like it. Once in a process; a process that weft_job_open started leaves it to its parent.
 */
void wfi_variables_check(void);

#endif
