/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_onednn.c - see gemm_onednn.h. OpenBLAS chooses its kernels by the model of the processor, and takes those for AVX2 on models that it
 * does not know; oneDNN asks what the processor can do. So on many machines with AVX-512 oneDNN alone uses it, and is twice
 * as fast.
 */
#include "tensor/cpu/product/gemm_onednn.h"

#include <cblas.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <strings.h>

/* Below these oneDNN's preparations take longer than they gain. */
#define ELEMENTS_MIN 1000 /* of the result */
#define WORK_MIN 65536    /* multiplications */

static pthread_once_t asked = PTHREAD_ONCE_INIT;
static bool faster;

static bool openblas_has_avx512(void)
{
    static const char *const cores[] = {"SkylakeX", "Cooperlake", "SapphireRapids", "Zen4", "Zen5"};
    const char *core = openblas_get_corename();
    for (size_t i = 0; i < sizeof(cores) / sizeof(cores[0]); i++)
        if (strcasecmp(core, cores[i]) == 0)
            return true;
    return false;
}

static void ask(void)
{
    int isa = (int)dnnl_get_effective_cpu_isa(), avx512 = (int)dnnl_cpu_isa_avx512_core;
#ifdef __x86_64__
    faster = (isa & avx512) == avx512 && !openblas_has_avx512();
#endif
}

bool wfi_sgemm_onednn(const wfi_sgemm *p)
{
    if (p->m * p->n < ELEMENTS_MIN || p->m * p->n * p->k < WORK_MIN)
        return false;
    pthread_once(&asked, ask);
    return faster && dnnl_sgemm(p->transpose_a ? 'T' : 'N', p->transpose_b ? 'T' : 'N', p->m, p->n, p->k, 1.0f, p->a,
                                p->transpose_a ? p->m : p->k, p->b, p->transpose_b ? p->k : p->n, p->beta, p->c,
                                p->n) == dnnl_success;
}
