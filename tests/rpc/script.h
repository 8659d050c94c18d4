/* SPDX-License-Identifier: Apache-2.0 */
/* script.h - runs a python script of this folder with text on its standard input. */
#ifndef TESTS_RPC_SCRIPT_H
#define TESTS_RPC_SCRIPT_H

#include <stddef.h>

/* What it printed (to be freed), or NULL with its complaint on stderr if it failed. `arguments` go to a shell. */
char *script_run(const char *name, const char *arguments, const char *input, size_t size);

#endif
