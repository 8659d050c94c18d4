/* SPDX-License-Identifier: Apache-2.0 */
/* env.c - environment variables, checked. */
#include "base/env.h"
#include "base/error.h"
#include "base/utf8.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h> /* getenv, strtoll */
#include <string.h>
#include <strings.h>

#define SHOWN_MAX 64 /* bytes of a malformed value that a message quotes */

const char *wfi_env_string(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] != '\0' ? value : NULL;
}

weft_status wfi_env_i64(const char *name, int64_t min, int64_t max, int64_t *out, weft_error **error)
{
    const char *text = wfi_env_string(name);
    char *end;
    long long value;
    if (!text)
        return WEFT_OK;
    errno = 0;
    value = strtoll(text, &end, 10);
    if (isspace((unsigned char)text[0]) || *end != '\0' || end == text)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "%s=\"%.*s\" is not a whole number from %" PRId64 " to %" PRId64,
                              name, wfi_utf8_fit(text, SHOWN_MAX), text, min, max);
    if (errno == ERANGE || value < min || value > max)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "%s=\"%.*s\" is outside %" PRId64 " to %" PRId64, name,
                              wfi_utf8_fit(text, SHOWN_MAX), text, min, max);
    *out = value;
    return WEFT_OK;
}

weft_status wfi_env_bool(const char *name, bool *out, weft_error **error)
{
    static const char *const words[][2] = {{"0", "1"}, {"no", "yes"}, {"false", "true"}, {"off", "on"}};
    const char *text = wfi_env_string(name);
    size_t i;
    if (!text)
        return WEFT_OK;
    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcasecmp(text, words[i][0]) == 0 || strcasecmp(text, words[i][1]) == 0) {
            *out = strcasecmp(text, words[i][1]) == 0;
            return WEFT_OK;
        }
    }
    return wfi_error_fail(error, WEFT_ERR_INVALID, "%s=\"%.*s\" is neither yes (true, on, 1) nor no (false, off, 0)",
                          name, wfi_utf8_fit(text, SHOWN_MAX), text);
}

weft_status wfi_env_word(const char *name, const char *const *words, int *out, weft_error **error)
{
    const char *text = wfi_env_string(name);
    char list[128] = "";
    if (!text)
        return WEFT_OK;
    for (int i = 0; words[i]; i++) {
        size_t length = strlen(list);
        if (strcmp(text, words[i]) == 0) {
            *out = i;
            return WEFT_OK;
        }
        snprintf(list + length, sizeof(list) - length, "%s%s", i > 0 ? ", " : "", words[i]);
    }
    return wfi_error_fail(error, WEFT_ERR_INVALID, "%s=\"%.*s\" is none of %s", name, wfi_utf8_fit(text, SHOWN_MAX),
                          text, list);
}
