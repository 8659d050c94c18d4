/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_bench_memory.c - how fast bytes move between the kinds of memory; run by tools/gpu-check.
 *
 * usage: gpu_bench_memory      one line a pair of kinds and size: the best of several copies, in GB/s
 * Exits 77 where no GPU is.
 */
#include "base/clock.h"
#include "mem/mem.h"

#include <stdio.h>

enum { ROUNDS = 8, SKIPPED = 77 };

static const char *const kind_names[] = {"host", "pinned", "cuda"};

static double best_gb_per_s(wfi_storage *to, const wfi_storage *from, size_t size, weft_status *status)
{
    uint64_t best_ns = UINT64_MAX;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t began = wfi_now(&wfi_clock_real);
        *status = wfi_memory_copy(to, 0, from, 0, size);
        if (*status != WEFT_OK)
            return 0;
        uint64_t took_ns = wfi_now(&wfi_clock_real) - began;
        if (took_ns < best_ns)
            best_ns = took_ns;
    }
    return best_ns ? (double)size / (double)best_ns : 0;
}

static weft_status bench_pair(wfi_memory_kind to_kind, wfi_memory_kind from_kind, size_t size)
{
    wfi_storage *to = NULL, *from = NULL;
    weft_status status = wfi_storage_create(to_kind, 0, size, &to);
    if (status != WEFT_OK)
        return status;
    status = wfi_storage_create(from_kind, 0, size, &from);
    if (status != WEFT_OK)
        goto unref_to;
    double speed = best_gb_per_s(to, from, size, &status);
    if (status == WEFT_OK)
        printf("%-6s to %-6s %10zu bytes  %8.2f GB/s\n", kind_names[from_kind], kind_names[to_kind], size, speed);
    wfi_storage_unref(from);
unref_to:
    wfi_storage_unref(to);
    return status;
}

int main(void)
{
    static const size_t sizes[] = {(size_t)64 << 10, (size_t)4 << 20, (size_t)256 << 20};
    static const wfi_memory_kind pairs[][2] = {{WFI_MEMORY_CUDA, WFI_MEMORY_HOST},
                                               {WFI_MEMORY_CUDA, WFI_MEMORY_PINNED},
                                               {WFI_MEMORY_HOST, WFI_MEMORY_CUDA},
                                               {WFI_MEMORY_PINNED, WFI_MEMORY_CUDA},
                                               {WFI_MEMORY_CUDA, WFI_MEMORY_CUDA}};
    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
        for (size_t j = 0; j < sizeof(sizes) / sizeof(*sizes); j++) {
            weft_status status = bench_pair(pairs[i][0], pairs[i][1], sizes[j]);
            if (status == WEFT_ERR_UNSUPPORTED) {
                puts("no GPU here");
                return SKIPPED;
            }
            if (status != WEFT_OK)
                return weft_report(status);
        }
    }
    return 0;
}
