/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_onednn.c - see gemm_onednn.h. OpenBLAS chooses its kernels by the model of the processor, and takes those for AVX2 on models that it
 * does not know; oneDNN asks what the processor can do. So on many machines with AVX-512 oneDNN alone uses it, and is twice
 * as fast. One product of each, timed, tells (docs/decisions/047-products-by-timing.md).
 */
#include "tensor/cpu/product/gemm_onednn.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "base/text/log.h"
#include "tensor/cpu/product/libraries.h"

#include <cblas.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdlib.h>
#include <strings.h>

/* Below these oneDNN's preparations take longer than they gain. */
#define ELEMENTS_MIN 1000 /* of the result */
#define WORK_MIN 65536    /* multiplications */

#define SIDE 256    /* of the product that is timed: 17 million multiplications, about a millisecond */
#define ROUNDS 5    /* of which the best counts: what else runs on the machine only makes one slower */
#define CLEARLY 1.2 /* less of a lead says nothing: then the rule does, so that processes on one machine agree */

enum { AUTO, BLAS, ONEDNN };
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

/* What the machine says of itself. */
static bool by_rule(void)
{
#ifdef __x86_64__
    int isa = (int)dnnl_get_effective_cpu_isa(), avx512 = (int)dnnl_cpu_isa_avx512_core;
    return (isa & avx512) == avx512 && !openblas_has_avx512();
#else
    return false;
#endif
}

static bool run_onednn(const wfi_sgemm *p)
{
    return dnnl_sgemm(p->transpose_a ? 'T' : 'N', p->transpose_b ? 'T' : 'N', p->m, p->n, p->k, 1.0f, p->a,
                      p->transpose_a ? p->m : p->k, p->b, p->transpose_b ? p->k : p->n, p->beta, p->c,
                      p->n) == dnnl_success;
}

static bool run_blas(const wfi_sgemm *p)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, SIDE, SIDE, SIDE, 1.0f, p->a, SIDE, p->b, SIDE, p->beta,
                p->c, SIDE);
    return true;
}

static void time_one(bool (*run)(const wfi_sgemm *), const wfi_sgemm *product, int64_t *best)
{
    uint64_t begin = wfi_now(&wfi_clock_real);
    bool ran = run(product);
    int64_t took = (int64_t)(wfi_now(&wfi_clock_real) - begin);
    if (ran && took < *best)
        *best = took;
}

/* The best time of CBLAS by that of oneDNN; 1 if it could not be taken. */
static double lead_of_onednn(void)
{
    float *memory = wfi_calloc((size_t)3 * SIDE * SIDE, sizeof(float)); /* zeros take as long as other numbers */
    if (memory == NULL)
        return 1;
    const wfi_sgemm product = {.m = SIDE,
                               .n = SIDE,
                               .k = SIDE,
                               .a = memory,
                               .b = memory + (size_t)SIDE * SIDE,
                               .c = memory + (size_t)2 * SIDE * SIDE};
    int64_t blas = INT64_MAX, onednn = INT64_MAX;
    for (int i = 0; i < ROUNDS; i++) {
        time_one(run_blas, &product, &blas);
        time_one(run_onednn, &product, &onednn);
    }
    free(memory);
    return onednn == INT64_MAX ? 0 : (double)blas / (double)(onednn > 0 ? onednn : 1);
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
    faster = wanted == ONEDNN;
    if (wanted != AUTO)
        return;
    double lead = lead_of_onednn();
    faster = lead > CLEARLY || (lead >= 1 / CLEARLY && by_rule());
    wfi_log(WEFT_LOG_DEBUG, "float32 products by %s: oneDNN was %.2f times as fast as CBLAS",
            faster ? "oneDNN" : "CBLAS", lead);
}

bool wfi_sgemm_onednn(const wfi_sgemm *p)
{
    if (p->m * p->n < ELEMENTS_MIN || p->m * p->n * p->k < WORK_MIN)
        return false;
    pthread_once(&asked, ask);
    return faster && run_onednn(p);
}
