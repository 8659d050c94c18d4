/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous_link.h - the worker's end of the store's protocol, without its transport; for rendezvous*.c only.
 *
 * A shell (rendezvous_socket.c, rendezvous_sim.c) embeds wfi_rendezvous, feeds it with frames, the loss of the connection
 * and the time, from one flow of control at a time (the link's own), and sends what it is given.
 *
 * LOCKING. `lock` guards `state` and the shell's output; nothing else happens under it, so it may be taken below the
 * agent's lock, by suspect, closing and report. Upcalls are made without it. The rest belongs to the link's own flow of
 * control; what open returned (members, key) never changes.
 */
#ifndef WFI_RENDEZVOUS_LINK_H
#define WFI_RENDEZVOUS_LINK_H

#include "base/error.h"
#include "base/mutex.h"
#include "net/store_wire.h"

typedef enum wfi_link_state {
    WFI_LINK_JOINING,
    WFI_LINK_MEMBER,
    WFI_LINK_OUT, /* closed, evicted, or the store is lost: nothing is sent, no upcall follows */
} wfi_link_state;

typedef struct wfi_link_shell {
    void (*send)(wfi_rendezvous *link, const uint8_t *frame, size_t size); /* never blocks; lock held */
    void (*close)(wfi_rendezvous *link);                                   /* says goodbye, ends and frees */
    int (*pump)(wfi_rendezvous *link, uint64_t *due_ns);
} wfi_link_shell;

struct wfi_rendezvous {
    const wfi_link_shell *shell;
    const wfi_clock *clock;
    wfi_rendezvous_events events;
    wfi_mutex lock;
    wfi_link_state state;
    wfi_store_world world;
    weft_status refusal; /* joining: why not; with refusal_text */
    char refusal_text[WFI_STORE_TEXT_MAX];
    int rank, world_size;
    uint64_t heard_ns, beat_ns, ticked_ns;
};

weft_status wfi_link_check(const wfi_rendezvous_options *options, weft_error **error); /* before anything is opened */
void wfi_link_init(wfi_rendezvous *link, const wfi_rendezvous_options *options, const wfi_link_shell *shell);
void wfi_link_fini(wfi_rendezvous *link);
size_t wfi_link_join_frame(const wfi_rendezvous_options *options, int64_t patience_ms, uint8_t *out);

/* True: joined (state is MEMBER) or refused (refusal is set). Feed no more until the opener has returned. */
bool wfi_link_join_answered(wfi_rendezvous *link, const uint8_t *frame, size_t size);
weft_status wfi_link_refused(const wfi_rendezvous *link, weft_error **error); /* gives the detail, returns the code */

/* Of a member. All three make upcalls. */
void wfi_link_received(wfi_rendezvous *link, const uint8_t *frame, size_t size);
void wfi_link_lost(wfi_rendezvous *link, const char *why); /* no-op if out already */
uint64_t wfi_link_tick(wfi_rendezvous *link);              /* sends the heartbeat when due; returns the next time */

/* The link is out from now on. True if it was a member's, and the goodbye was sent. */
bool wfi_link_say_goodbye(wfi_rendezvous *link);
bool wfi_link_is_out(wfi_rendezvous *link);
/* How long rank 0's store serves on for the others: the bound, or 2 s where that is switched off. */
int64_t wfi_link_grace_ms(const wfi_rendezvous *link);

weft_status wfi_link_open_socket(const wfi_rendezvous_options *options, wfi_rendezvous **out, weft_error **error);
weft_status wfi_link_open_sim(const wfi_rendezvous_options *options, wfi_rendezvous **out, weft_error **error);

#endif
