/* SPDX-License-Identifier: Apache-2.0 */
/* must.h - an assertion for any thread or fiber: cmocka's jump, which only its own thread may do. */
#ifndef TESTS_RPC_MUST_H
#define TESTS_RPC_MUST_H

#include <stdio.h>
#include <stdlib.h>

#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition);                                   \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* A status that must be this one; says which it is. */
#define MUST_BE(status, wanted)                                                                                        \
    do {                                                                                                               \
        weft_status is_ = (status);                                                                                    \
        if (is_ != (wanted)) {                                                                                         \
            fprintf(stderr, "%s:%d: %s is %s, not %s\n", __FILE__, __LINE__, #status, weft_status_name(is_),           \
                    weft_status_name(wanted));                                                                         \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)
#define MUST_OK(status) MUST_BE(status, WEFT_OK)

#endif
