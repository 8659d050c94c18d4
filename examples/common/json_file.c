/* SPDX-License-Identifier: Apache-2.0 */
/* json_file.c - a JSON document as a file. */
#include "json_file.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Writes `beside`, which then becomes `path`. Returns 0 or an errno value. */
static int write_text(const char *beside, const char *text, const char *path)
{
    FILE *file = fopen(beside, "we");
    if (!file)
        return errno;
    int trouble = fputs(text, file) < 0 || fputc('\n', file) < 0 ? errno : 0;
    if (fclose(file) != 0 && !trouble)
        trouble = errno;
    if (!trouble && rename(beside, path) != 0)
        trouble = errno;
    if (trouble)
        unlink(beside);
    return trouble;
}

weft_status json_file_write(const char *path, cJSON *json, weft_error **error)
{
    char beside[PATH_MAX];
    char *text = json ? cJSON_Print(json) : NULL;
    int length = snprintf(beside, sizeof beside, "%s.%d", path, (int)getpid());
    int trouble = !text ? ENOMEM : length < 0 || (size_t)length >= sizeof beside ? ENAMETOOLONG : 0;
    if (!trouble)
        trouble = write_text(beside, text, path);
    cJSON_free(text);
    cJSON_Delete(json);
    if (!trouble)
        return WEFT_OK;
    weft_status st = trouble == ENOMEM ? WEFT_ERR_MEMORY : WEFT_ERR_IO;
    *error = weft_error_create(st, "%s cannot be written: %s", path, strerror(trouble));
    return st;
}
