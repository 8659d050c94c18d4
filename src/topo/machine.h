/* SPDX-License-Identifier: Apache-2.0 */
/* machine.h - tells whether two processes are on one machine. */
#ifndef WFI_MACHINE_H
#define WFI_MACHINE_H

#include <stdint.h>

/*
 * Identifies this machine: a hash of the kernel's boot id and the network namespace, equal for all processes that share
 * both. 0: unknown, because /proc cannot be read. A container with a network of its own counts as a machine. Any thread
 * may call.
 */
uint64_t wfi_machine(void);

#endif
