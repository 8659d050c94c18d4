/* SPDX-License-Identifier: Apache-2.0 */
/* no_simulation.c - libweft has no simulation. In libweft_sim sim/simulation.c takes the place of this file. */
#include "base/simulation.h"

const wfi_simulation_ops *const wfi_simulation = NULL;
