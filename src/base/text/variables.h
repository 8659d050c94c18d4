/* SPDX-License-Identifier: Apache-2.0 */
/* variables.h - warns about misspelled environment variables of weft. */
#ifndef WFI_VARIABLES_H
#define WFI_VARIABLES_H

#include <stdbool.h>

/*
 * Warns about every variable that begins with WEFT_ and is unknown to weft, and names the known variable with the most
 * similar name. Does so once in a process, and not in processes that weft_job_open started, because the parent does.
 */
void wfi_variables_check(void);
/* Whether "WEFT_NAME=value" sets a variable of weft. If not, *meant is the most similar known name; NULL: none. */
bool wfi_variable_is_known(const char *setting, const char **meant);

#endif
