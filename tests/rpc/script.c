/* SPDX-License-Identifier: Apache-2.0 */
/* script.c - see script.h. Input and output go through files: neither side can then wait for the other. */
#include "rpc/script.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char *read_all(FILE *from)
{
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    for (int c; to && (c = fgetc(from)) != EOF;)
        fputc(c, to);
    if (to)
        fclose(to);
    return text;
}

char *script_run(const char *name, const char *arguments, const char *input, size_t size)
{
    char path[] = "/tmp/weft-script-XXXXXX", command[2048];
    int fd = mkstemp(path);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file || fwrite(input, 1, size, file) != size || fclose(file))
        return NULL;
    snprintf(command, sizeof(command), "python3 %s/%s %s < %s", SCRIPTS, name, arguments, path);
    FILE *from = popen(command, "r");
    char *output = from ? read_all(from) : NULL;
    int rc = from ? pclose(from) : -1;
    unlink(path);
    if (rc) {
        free(output);
        return NULL;
    }
    return output;
}
