/* SPDX-License-Identifier: Apache-2.0 */
/* machine.h - tells whether two processes are on one machine. */
#ifndef WFI_MACHINE_H
#define WFI_MACHINE_H

#include <stdint.h>

/*
 * A number that is the same for all processes with this kernel, since it was booted, and this network namespace, and
 * differs from that of any other. 0: not known, because /proc cannot be read. Containers with networks of their own
 * count as machines of their own. Any thread may call.
 */
uint64_t wfi_machine(void);

#endif
