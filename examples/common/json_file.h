/* SPDX-License-Identifier: Apache-2.0 */
/* json_file.h - a JSON document as a file. */
#ifndef EXAMPLES_JSON_FILE_H
#define EXAMPLES_JSON_FILE_H

#include <weft/status.h>

#include <cjson/cJSON.h>

/*
 * Writes `json` (NULL: memory was out) to a temporary file beside `path`, which then takes its name, and deletes `json`. Links are
 * followed, an old file's mode stays; what is no plain file (a pipe, a device), or is standard output, is written as it stands.
 * WEFT_ERR_IO, WEFT_ERR_MEMORY; `error` receives a line with the file's name.
 */
WEFT_NODISCARD weft_status json_file_write(const char *path, cJSON *json, weft_error **error);

#endif
