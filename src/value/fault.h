/* SPDX-License-Identifier: Apache-2.0 */
/* fault.h - finds what is wrong with a value or a list of values, for the texts of errors. */
#ifndef WFI_FAULT_H
#define WFI_FAULT_H

#include <weft/log.h>
#include <weft/value.h>

/* These write the first fault to `text`, if `text` is empty. `path` names what is checked, as in "argument 3.0". */
/* One value; of a list only its size is checked, not its items. `depth`: how many lists it is in. */
void wfi_value_fault(const weft_value *value, int depth, const char *path, char *text, size_t room);
void wfi_value_tensors_fault(weft_tensors tensors, const char *path, char *text, size_t room); /* NULL, too many */
void wfi_value_list_fault(weft_args list, int depth, const char *path, char *text, size_t room);

/* Writes the fault for which `function` returns `status`, which is returned, to *error, or to the log if `error` is
 * NULL. `null_tensor` is then the level of the line about a NULL tensor, which usually comes from an operator that
 * failed. The level of other lines is error. */
__attribute__((cold)) weft_status wfi_values_refuse(weft_error **error, const char *function, weft_args values,
                                                    weft_status status, weft_log_level null_tensor);

#endif
