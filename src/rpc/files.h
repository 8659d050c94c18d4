/* SPDX-License-Identifier: Apache-2.0 */
/* files.h - the component of the agent that writes the files of metrics: files.c. */
#ifndef WFI_FILES_H
#define WFI_FILES_H

#include "rpc/agent/component.h"

/* Begins when this worker has its rank, if the options name a file. WEFT_ERR_INVALID, WEFT_ERR_MEMORY, WEFT_ERR_IO (a
 * file cannot be written), WEFT_ERR_SYSTEM. */
extern const wfi_component wfi_files_component;

#endif
