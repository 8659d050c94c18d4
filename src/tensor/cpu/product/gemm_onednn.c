/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_onednn.c - see gemm_onednn.h. OpenBLAS chooses its kernels by the model of the processor, and takes those for
 * AVX2 on models that it does not know; oneDNN asks what the processor can do. So on many machines with AVX-512 oneDNN
 * alone uses it, and is twice as fast. weft uses oneDNN on those machines (docs/decisions/047-products-by-rule.md).
 */
#include "tensor/cpu/product/gemm_onednn.h"
#include "tensor/cpu/product/libraries.h"

#include "base/env.h"
#include "base/error.h"
#include "base/text/log.h"

#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <strings.h>

/* Below these oneDNN's preparations take longer than they gain. */
#define ELEMENTS_MIN 1000 /* of the result */
#define WORK_MIN 65536    /* multiplications */

enum { AUTO, BLAS, ONEDNN };
static pthread_once_t asked = PTHREAD_ONCE_INIT;
static bool is_onednn;

static bool openblas_has_avx512(void)
{
    static const char *const cores[] = {"SkylakeX", "Cooperlake", "SapphireRapids", "Zen4", "Zen5"};
    const wfi_openblas *blas = wfi_openblas_find();
    const char *core = blas ? blas->corename() : "";
    for (size_t i = 0; i < sizeof(cores) / sizeof(cores[0]); i++)
        if (strcasecmp(core, cores[i]) == 0)
            return true;
    return false;
}

/* The same on every run of a machine: processes that compute the same thing must agree to the bit. */
static bool by_rule(void)
{
#ifdef __x86_64__
    int isa = (int)dnnl_get_effective_cpu_isa(), avx512 = (int)dnnl_cpu_isa_avx512_core;
    return (isa & avx512) == avx512 && !openblas_has_avx512();
#else
    return false;
#endif
}

static void ask(void)
{
    static const char *const words[] = {"auto", "blas", "onednn", NULL};
    int wanted = AUTO;
    weft_error *error = NULL;
    if (wfi_env_word("WEFT_PRODUCT", words, &wanted, &error) != WEFT_OK) {
        wfi_log(WEFT_LOG_ERROR, "%s", weft_error_message(error));
        weft_error_unref(error);
    }
    is_onednn = wanted == AUTO ? by_rule() : wanted == ONEDNN;
    wfi_log(WEFT_LOG_DEBUG, "float32 products by %s", is_onednn ? "oneDNN" : "CBLAS");
}

bool wfi_products_by_onednn(void)
{
    pthread_once(&asked, ask);
    return is_onednn;
}

bool wfi_sgemm_onednn(const wfi_sgemm *p)
{
    if (p->m * p->n < ELEMENTS_MIN || p->m * p->n * p->k < WORK_MIN || !wfi_products_by_onednn())
        return false;
    return dnnl_sgemm(p->transpose_a ? 'T' : 'N', p->transpose_b ? 'T' : 'N', p->m, p->n, p->k, 1.0f, p->a,
                      p->transpose_a ? p->m : p->k, p->b, p->transpose_b ? p->k : p->n, p->beta, p->c,
                      p->n) == dnnl_success;
}
