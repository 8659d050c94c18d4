/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inside.h - the decoders that read bytes of strangers and peers, each as one function over any bytes. libFuzzer calls
 * them through fuzz_main.c; the replay test feeds them the files of corpus/.
 */
#ifndef TESTS_FUZZ_INSIDE_H
#define TESTS_FUZZ_INSIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct fuzz_target {
    const char *name;                               /* also its folder in corpus/ */
    bool (*run)(const uint8_t *bytes, size_t size); /* whether it was taken as whole: seeds but those named bad- are */
} fuzz_target;

bool fuzz_agent(const uint8_t *bytes, size_t size);   /* fuzz_agent.c */
bool fuzz_context(const uint8_t *bytes, size_t size); /* fuzz_context.c */
bool fuzz_ring(const uint8_t *bytes, size_t size);    /* fuzz_ring.c */
bool fuzz_machine(const uint8_t *bytes, size_t size); /* tests/job/fuzz_machine.c */

extern const fuzz_target fuzz_targets[]; /* the last one has no name */

#endif
