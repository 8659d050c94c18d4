/* SPDX-License-Identifier: Apache-2.0 */
/* variables.h - warns about misspelled environment variables of weft. */
#ifndef WFI_VARIABLES_H
#define WFI_VARIABLES_H

/*
 * Warns about every variable that begins with WEFT_ and is unknown to weft, and names the known variable with the most
 * similar name. Does so once in a process, and not in processes that weft_job_open started, because the parent does.
 */
void wfi_variables_check(void);

#endif
