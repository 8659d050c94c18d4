/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_main.c - libFuzzer's entry: FUZZ_TARGET, set while compiling, names the decoder. Built by tools/long.d/fuzz. */
#include "fuzz/inside.h"

#include <weft/log.h>

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    weft_logging_set_level(WEFT_LOG_ERROR); /* refusals are what it is all about */
    for (const fuzz_target *target = fuzz_targets; target->name; target++) {
        if (strcmp(target->name, FUZZ_TARGET) == 0) {
            target->run(bytes, size);
            return 0;
        }
    }
    abort();
}
