/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inside.h - what the tests of net do to a net, or ask of it, that its headers do not offer. These headers come with
 * it; what lies within a net, a peer and a connection is named in inside.c alone, so that the tests need not know
 * where it is kept.
 */
#ifndef TESTS_NET_INSIDE_H
#define TESTS_NET_INSIDE_H

#include "fabric.h"
#include "net/net.h"

/* Those that do not say [locked] take the lock. */

size_t inside_peers(wfi_net *net); /* they live on while somebody holds them */
size_t inside_timers(wfi_net *net);
size_t inside_timers_reserved(wfi_net *net); /* so many can be set without memory */
weft_stats inside_stats(wfi_net *net);
uint64_t inside_silent(wfi_net *net);                 /* callers who were hung up on, and are not counted yet */
bool inside_interested(wfi_net *net, int rank);       /* as the store was told; nothing waits to be told */
uint64_t inside_suspected_ns(wfi_net *net, int rank); /* when the store was asked to look at it; 0: never */
uint64_t inside_asked(wfi_net *net, int rank, wfi_lane_kind kind); /* the greatest number with which it asked for one */

/* ---- Connections ---------------------------------------------------------------------------------------------- */

wfi_conn *inside_up(wfi_net *net, int rank, wfi_lane_kind kind); /* the one that is up, or NULL; [locked] */
bool inside_has_conn(wfi_net *net, int rank, wfi_lane_kind kind);
size_t inside_moving(wfi_net *net, int rank);   /* bytes of chunks under way on its bulk lane */
void inside_close_conn(wfi_net *net, int rank); /* of the control lane, whatever it is doing */
void inside_break(wfi_net *net, int rank);      /* as if the fabric had said so of its control lane, which is up */
void inside_count_up(wfi_net *net, int rank, int by);   /* as if so many attempts to connect had come to nothing */
void inside_hang_up_on(wfi_net *net, size_t strangers); /* as if the fabric had told of so many */

/* ---- Frames, [locked] ----------------------------------------------------------------------------------------- */

wfi_frame inside_next_frame(const wfi_conn *conn,
                            size_t size); /* with one message: what it would say were it sent now */
const uint8_t *inside_frame_key(const wfi_conn *conn, bool theirs); /* NULL: the connection is private */
/* As if the peer had returned all but so many credits, and had sent a frame of which nothing was said yet. */
void inside_leave_credit(wfi_conn *conn, uint32_t credits);
/* How many of its receives from `rank` have that length. Not locked. */
size_t inside_receives(wfi_net *net, int rank, wfi_length length);
size_t inside_lend(wfi_net *net,
                   size_t peers); /* as if so many more had large receives; how many there were. Not locked */
uint64_t inside_announced(const wfi_conn *conn); /* how many of our frames it said it has consumed */
weft_status inside_put(wfi_conn *conn, const void *data,
                       size_t size); /* it is the next frame, past all that send.c sees to */
/* What is queued leaves as if the peer had returned all credits, and what comes is thrown away unread. Not locked. */
void inside_push_out(wfi_net *net, int rank);
size_t inside_last_frame(wfi_net *net, uint8_t *out);
/* The next message has the number that `other` awaits, and nothing is said to wait before it. False: a message is
 * queued. */
bool inside_synchronize(wfi_net *net, int rank, const wfi_net *other);

/* ---- Handshakes, [locked] ------------------------------------------------------------------------------------- */

bool inside_hello_of(const wfi_conn *conn,
                     wfi_hello *out); /* with which we asked for this connection; false: they did */
/* In this net's name to `to`; pair_key NULL: the right one. */
size_t inside_write_hello(wfi_net *net, const wfi_hello *hello, const uint8_t *pair_key, const wfi_member *to,
                          uint8_t *out);
bool inside_takes_hello(wfi_net *net, const uint8_t *text, size_t size, uint64_t asked);
bool inside_is_proven(wfi_net *net, int from, const uint8_t *text, uint64_t asked);
const uint8_t *inside_address(const wfi_member *member, size_t *size); /* of its fabric with the lowest number */
const wfi_member *inside_self(const wfi_net *net);
const wfi_net_keys *inside_net_keys(const wfi_net *net);
bool inside_pair_key(wfi_net *net, const wfi_member *self, const wfi_member *other,
                     uint8_t *out);                                          /* of its private key */
wfi_lane *inside_ask(wfi_net *net, int rank, const void *data, size_t size); /* for a connection, with these words */
void inside_hang_up(wfi_net *net, wfi_lane *lane);

/* The fabric's operations; `ops` take their place, if that is not NULL. [locked] */
const wfi_fabric_ops *inside_fabric_ops(wfi_net *net, const wfi_fabric_ops *ops);
bool inside_is_fabric(const wfi_net *net, const wfi_fabric *fabric);

#endif
