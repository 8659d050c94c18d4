/* SPDX-License-Identifier: Apache-2.0 */
/* cart_sweep.h - the figure of the tutorial: the time of a run with one observer, two, and so on, batched and not. */
#ifndef EXAMPLES_CART_SWEEP_H
#define EXAMPLES_CART_SWEEP_H

#include "cart_settings.h"

/*
 * Runs this program for each world size in both modes, and the program in PyTorch (or --peer) in the same way. Writes a
 * CSV file, and draws it if gnuplot is installed. Returns the exit code.
 */
int cart_sweep(const cart_settings *settings);

#endif
