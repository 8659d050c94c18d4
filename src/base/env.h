/* SPDX-License-Identifier: Apache-2.0 */
/*
 * env.h - environment variables, with their values checked. A malformed value is an error that names the variable, its
 * value and what it may be; it never becomes the default. What the process reads only once, wherever it is first
 * needed, is logged there if it is malformed; opening an agent checks the same variables and fails.
 */
#ifndef WFI_ENV_H
#define WFI_ENV_H

#include <weft/status.h>

const char *wfi_env_string(const char *name); /* NULL if unset or empty */
/* Leaves *out alone if unset. WEFT_ERR_INVALID with *error (if not NULL) outside [min, max] or if no number. */
weft_status wfi_env_i64(const char *name, int64_t min, int64_t max, int64_t *out, weft_error **error);
/* One of `words`, which NULL ends: its place there. */
weft_status wfi_env_word(const char *name, const char *const *words, int *out, weft_error **error);
/* "0"/"1", "no"/"yes", "false"/"true", "off"/"on". */
weft_status wfi_env_bool(const char *name, bool *out, weft_error **error);

#endif
