/* SPDX-License-Identifier: Apache-2.0 */
/*
 * secret.h - the job's secret: from WEFT_SECRET_FILE or WEFT_SECRET if the user has set one, otherwise random.
 *
 * It never appears in a command line or in the environment of a worker. A supervisor gets it through its standard
 * input, and the worker through a file in memory (WEFT_SECRET_FD, docs/security.md).
 */
#ifndef WEFT_RUN_SECRET_H
#define WEFT_RUN_SECRET_H

#include "job/protocol/secret.h" /* only its limits */

#include <stdbool.h>
#include <stddef.h>

#define SECRET_MIN WFI_SECRET_MIN
#define SECRET_MAX WFI_SECRET_MAX

typedef struct secret {
    char bytes[SECRET_MAX + 2];
    size_t size;
} secret;

/* Removes WEFT_SECRET from the environment. False: it cannot be read or made; the reason was printed. */
bool secret_find(secret *out);

#endif
