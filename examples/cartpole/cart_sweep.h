/* SPDX-License-Identifier: Apache-2.0 */
/* cart_sweep.h - the tutorial's figure: how long a run takes with one observer, two, and so on, batched and not. */
#ifndef EXAMPLES_CART_SWEEP_H
#define EXAMPLES_CART_SWEEP_H

#include "cart_settings.h"

/*
 * Runs this program for each world size in both modes, and PyTorch's (or --peer's) the same way; writes a CSV file and draws it, if
 * gnuplot is there. Returns the exit code.
 */
int cart_sweep(const cart_settings *settings);

#endif
