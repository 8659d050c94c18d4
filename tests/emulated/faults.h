/* SPDX-License-Identifier: Apache-2.0 */
/* faults.h - the parameter struct of the faulty kernels in faults.cu, with which the tests provoke faults. */
#ifndef EMULATED_FAULTS_H
#define EMULATED_FAULTS_H

#include <stdint.h>

typedef struct faults_args {
    const int64_t *from;
    int64_t *to;
    int64_t first, count, number;
} faults_args;

#endif
