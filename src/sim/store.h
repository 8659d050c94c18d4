/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - the store inside the simulation. It runs in rank 0's group of fibers, so it is paused and killed together
 * with rank 0.
 *
 * One thread, the simulation's, does everything; there is no lock. wfi_sim_store_end frees a store that ran to its end,
 * and wfi_sim_store_abandon one whose rank was killed.
 */
#ifndef WFI_STORE_SIM_H
#define WFI_STORE_SIM_H

#include "job/store/store.h"

#include <weft/sim.h>

typedef struct wfi_sim_store wfi_sim_store;

/* Listens as rank 0. It has a key, the time and outputs of its own: of `how` these do not count. WEFT_ERR_EXISTS if a
 * store listens already. */
weft_status wfi_sim_store_start(weft_sim *sim, const wfi_store_options *how, wfi_sim_store **out);
void wfi_sim_store_count(const wfi_sim_store *store, wfi_store_counts *out); /* NULL: zeros */
/* Serves on until all members are gone, at most grace_ms; parks for that; frees. NULL is a no-op. */
void wfi_sim_store_end(wfi_sim_store *store, int64_t grace_ms);
/* Of a rank 0 that was killed, or a world that runs no more: frees the memory, touches nothing of the world. */
void wfi_sim_store_abandon(wfi_sim_store *store);

#endif
