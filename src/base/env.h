/* SPDX-License-Identifier: Apache-2.0 */
/*
 * env.h - environment variables, with their values checked.
 *
 * A malformed value is an error that names the variable, its value and the allowed values; the default is not used
 * instead. Some variables are read once, when they are first needed; if malformed, they are logged there. Opening an
 * agent checks the same variables and fails.
 */
#ifndef WFI_ENV_H
#define WFI_ENV_H

#include <weft/status.h>

const char *wfi_env_string(const char *name); /* NULL if unset or empty */
/* Does not change *out if unset. WEFT_ERR_INVALID and *error (may be NULL) if it is no number in [min, max]. */
weft_status wfi_env_i64(const char *name, int64_t min, int64_t max, int64_t *out, weft_error **error);
/* One of `words`, a list that ends with NULL; *out is its index. */
weft_status wfi_env_word(const char *name, const char *const *words, int *out, weft_error **error);
/* "0"/"1", "no"/"yes", "false"/"true", "off"/"on". */
weft_status wfi_env_bool(const char *name, bool *out, weft_error **error);

#endif
