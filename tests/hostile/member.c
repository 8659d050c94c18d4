/* SPDX-License-Identifier: Apache-2.0 */
/*
 * member.c - somebody who has the secret and a seat in the job, and says what it likes to its peers: wild keys and
 * lengths, deep lists, words about the calls and references of others, nonsense for weft's own functions, half a header
 * on its lanes.
 */
#include "arena.h"

#include "coll/group.h"
#include "ofi/objects.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct insider {
    weft_agent *agent;
};

static void nap_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL);
}

static weft_agent *open_agent(const arena *a, bool no_threads)
{
    weft_agent *agent = NULL;
    weft_error *error = NULL;
    weft_agent_options options = {.has_rank = true,
                                  .rank = WEFT_ANY_RANK,
                                  .world_size = SEATS,
                                  .elastic = true,
                                  .master_port = a->at->port,
                                  .secret = a->at->secret.bytes,
                                  .secret_size = a->at->secret.size,
                                  .death_timeout_ms = 30000,
                                  .no_threads = no_threads,
                                  .no_binding = true,
                                  .threads = 1};
    if (weft_agent_open(&options, &agent, &error))
        fail_msg("a member could not join: %s", weft_error_message(error));
    return agent;
}

void member_enter(arena *a)
{
    a->member = calloc(1, sizeof(*a->member));
    assert_non_null(a->member);
    a->member->agent = open_agent(a, false);
}

void member_leave(arena *a)
{
    weft_agent_stop(a->member->agent);
    free(a->member);
    a->member = NULL;
}

/* ---- Saying anything --------------------------------------------------------------------------------------------- */

typedef struct letter {
    uint8_t type;
    wfi_writer w;
    uint8_t bytes[INSIDE_MESSAGE_MAX];
} letter;

static void begin_letter(letter *one, uint8_t type)
{
    one->type = type;
    wfi_writer_init(&one->w, one->bytes, sizeof(one->bytes));
}

/* False: nothing was said. */
static bool post(weft_agent *agent, int to, const letter *one)
{
    wfi_net_lock(inside_net(agent));
    bool known = wfi_net_peer(inside_net(agent), to);
    wfi_net_unlock(inside_net(agent));
    return known && inside_send(agent, to, one->type, false, one->bytes, one->w.size) == WEFT_OK;
}

static void begin_call(letter *one, unsigned n, const char *function)
{
    begin_letter(one, INSIDE_CALL);
    wfi_write_u64(&one->w, UINT64_C(0x123456) << 40 | n);
    wfi_write_u8(&one->w, 0);
    wfi_write_u64(&one->w, n % 2 ? UINT64_MAX : 1000000000);
    wfi_write_u8(&one->w, (uint8_t)strlen(function));
    wfi_write_bytes(&one->w, function, strlen(function));
    wfi_write_blob(&one->w, "", 0);
}

static uint64_t any_number(void)
{
    uint64_t number;
    randombytes_buf(&number, sizeof(number));
    return number;
}

/* A body that is here: a list of one value, and `places` landing places. */
static void begin_meta(wfi_writer *meta, uint32_t count)
{
    wfi_writer_init_growing(meta);
    wfi_write_u32(meta, count);
}

static void end_meta(letter *one, wfi_writer *meta, bool place)
{
    wfi_write_u32(meta, place);
    if (place) { /* where nothing of ours is */
        inside_write_tensor_type(meta, WEFT_DTYPE_FLOAT32, WEFT_SHAPE(1000));
        wfi_write_u64(meta, any_number());
        wfi_write_u64(meta, any_number());
    }
    wfi_write_u8(&one->w, 0);
    wfi_write_blob(&one->w, meta->data, meta->size);
    wfi_writer_fini(meta);
}

/* ---- Attacks ----------------------------------------------------------------------------------------------------- */

static void wild_keys(arena *a, unsigned n)
{
    wfi_writer meta;
    letter one;
    begin_call(&one, n, n % 2 ? "echo" : "any");
    if (n % 3 == 0) {
        wfi_write_u8(&one.w, 1);
        wfi_write_u64(&one.w, any_number());
        wfi_write_u64(&one.w, any_number());
        wfi_write_u64(&one.w, 5000);
    } else {
        begin_meta(&meta, 1);
        wfi_write_u8(&meta, WEFT_TYPE_TENSOR);
        inside_write_tensor_type(&meta, WEFT_DTYPE_FLOAT32, WEFT_SHAPE(100, 100));
        wfi_write_u8(&meta, INSIDE_ENCODING_PULL);
        wfi_write_u64(&meta, any_number());
        wfi_write_u64(&meta, any_number());
        wfi_write_u8(&meta, 1); /* tcp */
        end_meta(&one, &meta, n % 3 == 1);
    }
    (void)post(a->member->agent, (int)(n % VICTIMS), &one);
}

static void wild_lengths(arena *a, unsigned n)
{
    static const uint64_t lengths[] = {UINT64_MAX,  (uint64_t)INT64_MAX, UINT32_MAX,
                                       0x80000000u, WEFT_MAX_CALL_BYTES, 65537};
    wfi_writer meta;
    letter one;
    begin_call(&one, n, "any");
    uint64_t length = lengths[n % 6];
    switch (n / 6 % 4) {
    case 0: /* metadata elsewhere */
        wfi_write_u8(&one.w, 1);
        wfi_write_u64(&one.w, any_number());
        wfi_write_u64(&one.w, any_number());
        wfi_write_u64(&one.w, length);
        break;
    case 1: /* metadata here */
        wfi_write_u8(&one.w, 0);
        wfi_write_u32(&one.w, (uint32_t)length);
        break;
    case 2: /* a string, or many tensors */
        begin_meta(&meta, 1);
        wfi_write_u8(&meta, n % 2 ? WEFT_TYPE_STRING : WEFT_TYPE_TENSORS);
        wfi_write_u32(&meta, (uint32_t)length);
        end_meta(&one, &meta, false);
        break;
    default: /* a tensor, elsewhere */
        begin_meta(&meta, 1);
        wfi_write_u8(&meta, WEFT_TYPE_TENSOR);
        wfi_write_u8(&meta, WEFT_DTYPE_FLOAT64);
        wfi_write_u8(&meta, 2);
        wfi_write_u64(&meta, length);
        wfi_write_u64(&meta, n % 2 ? 8 : 1);
        wfi_write_u8(&meta, INSIDE_ENCODING_PULL);
        wfi_write_u64(&meta, any_number());
        wfi_write_u64(&meta, any_number());
        wfi_write_u8(&meta, 1); /* tcp */
        end_meta(&one, &meta, false);
    }
    (void)post(a->member->agent, (int)(n % VICTIMS), &one);
}

static void deep_lists(arena *a, unsigned n)
{
    wfi_writer meta;
    letter one;
    begin_call(&one, n, "any");
    begin_meta(&meta, 1);
    for (unsigned depth = n % 700; depth > 0; depth--) {
        wfi_write_u8(&meta, WEFT_TYPE_LIST);
        wfi_write_u32(&meta, 1);
    }
    wfi_write_u8(&meta, WEFT_TYPE_NULL);
    end_meta(&one, &meta, false);
    (void)post(a->member->agent, (int)(n % VICTIMS), &one);
}

/* About calls that others made, or nobody. Ids of theirs are their incarnation and a count. */
static void calls_of_others(arena *a, unsigned n)
{
    static const uint8_t types[] = {INSIDE_REPLY, INSIDE_ITEM, INSIDE_TOOK, INSIDE_DONE, INSIDE_CANCEL};
    int to = (int)(n % VICTIMS), of = (to + (int)(n / 3 % 3)) % VICTIMS;
    uint64_t count = atomic_load(&a->at->victims[of].calls);
    for (uint64_t i = 0; i < 8; i++) {
        letter one;
        begin_letter(&one, types[(n + i) % 5]);
        wfi_write_u64(&one.w, (uint64_t)a->at->victims[of].member.incarnation << 40 | (count + i));
        wfi_write_u8(&one.w, (n + i) % 2 ? 2 : 0); /* a reply that wants DONE */
        wfi_write_u32(&one.w, 0);
        wfi_write_u8(&one.w, 0);
        wfi_write_blob(&one.w, "\0\0\0\0\0\0\0\0", 8);
        (void)post(a->member->agent, to, &one);
    }
}

/* Forks of values that are not there, and the end of references that others hold. */
static void references_of_others(arena *a, unsigned n)
{
    int to = (int)(n % VICTIMS), creator = (to + 2) % VICTIMS;
    for (uint64_t i = 0; i < 32; i++) {
        inside_name name = {.owner = (uint32_t)to,
                            .owner_incarnation = a->at->victims[to].member.incarnation,
                            .creator = (uint32_t)creator,
                            .creator_incarnation = a->at->victims[creator].member.incarnation,
                            .number = i % 8};
        letter one;
        begin_letter(&one, i % 3 ? INSIDE_DROP : INSIDE_FORK);
        inside_write_name(&one.w, &name);
        wfi_write_u64(&one.w, i % 3 ? i / 8 : any_number() >> (n % 64));
        wfi_write_u8(&one.w, i % 2);
        (void)post(a->member->agent, to, &one);
    }
}

static void weft_functions(arena *a, unsigned n)
{
    static const char *const names[] = {"weft:fetch",      "weft:made",  "weft:pass",      "weft:close",
                                        "weft:joined",     "weft:abort", "weft:recorded",  "weft:backward",
                                        "weft:forward",    "weft:step",  "weft:optimizer", "weft:norm",
                                        "weft:parameters", "weft:final", "weft:",          ""};
    static const char *const text[] = {"", "group", "%s%n", "\xff\xfe"};
    wfi_writer meta;
    letter one;
    begin_call(&one, n, names[n % (sizeof(names) / sizeof(*names))]);
    begin_meta(&meta, n % 9);
    for (unsigned i = 0; i < n % 9; i++) {
        if ((n + i) % 3 == 0) {
            wfi_write_u8(&meta, WEFT_TYPE_STRING);
            wfi_write_string(&meta, text[(n / 9 + i) % 4]);
        } else if ((n + i) % 3 == 1) {
            wfi_write_u8(&meta, WEFT_TYPE_I64);
            wfi_write_u64(&meta, any_number());
        } else {
            uint8_t bytes[40];
            randombytes_buf(bytes, sizeof(bytes));
            wfi_write_u8(&meta, WEFT_TYPE_BYTES);
            wfi_write_blob(&meta, bytes, n % 41);
        }
    }
    end_meta(&one, &meta, n % 5 == 0);
    (void)post(a->member->agent, (int)(n % VICTIMS), &one);
}

/* Data of groups that nobody makes: they are kept, in case somebody does. */
static void early_data(arena *a, unsigned n)
{
    static const uint8_t filling[3000];
    letter one;
    begin_letter(&one, WFI_RPC_GROUP);
    wfi_write_u8(&one.w, WFI_DATA);
    wfi_write_u64(&one.w, n); /* the group's key */
    wfi_write_u64(&one.w, any_number());
    wfi_write_u32(&one.w, 0);
    wfi_write_bytes(&one.w, filling, n * 37 % sizeof(filling));
    (void)post(a->member->agent, (int)(n % VICTIMS), &one);
}

/* ---- Below the messages ------------------------------------------------------------------------------------------ */

static bool leads_to(int fd, const wfofi_sockaddr *to)
{
    wfofi_sockaddr peer = {.size = sizeof(peer.storage)};
    return getpeername(fd, (struct sockaddr *)&peer.storage, &peer.size) == 0 && wfofi_address_equal(&peer, to);
}

/*
 * Into the sockets of our own lanes, behind libfabric's back: a message's header that stops, or one whose message does
 * not come whole. Then nothing, until the lane is given up for the next stroke. (Headers that make no sense are not
 * tried: libfabric's tcp trusts those that connected; docs/security.md.)
 */
static void half_headers_on_lanes(arena *a, unsigned n)
{
    int to = (int)(n % VICTIMS);
    wfi_net *net = inside_net(a->member->agent);
    letter one;
    wfofi_sockaddr address = {0};
    uint8_t words[200] = {3, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 15, 160}; /* a message of 4,000 bytes */
    const wfi_member *member = &a->at->victims[to].member;
    size_t size_there;
    const uint8_t *there = inside_address(member, &size_there);
    assert_int_equal(wfofi_address_decode(there, size_there, &address), WEFT_OK);
    begin_call(&one, n, "any");
    (void)post(a->member->agent, to, &one); /* so that there is a lane */
    nap_ms(5);
    for (int fd = 3; fd < 256; fd++)
        if (leads_to(fd, &address))
            (void)!send(fd, words, 1 + n * 7 % sizeof(words), MSG_NOSIGNAL | MSG_DONTWAIT);
    nap_ms(20);
    wfi_net_lock(net);
    wfi_conn *conn = inside_up(net, to, WFI_CONTROL);
    if (conn)
        wfi_conn_close(conn);
    wfi_net_unlock(net);
}

const attack members[] = {
    {"member: wild keys", wild_keys, 10, false, true},
    {"member: wild lengths", wild_lengths, 5, false, true},
    {"member: deep lists", deep_lists, 5, false, true},
    {"member: calls of others", calls_of_others, 5, false, true},
    {"member: references of others", references_of_others, 5, false, true},
    {"member: weft's own functions", weft_functions, 5, false, true},
    {"member: groups nobody makes", early_data, 5, false, true},
    {"member: half headers on its lanes", half_headers_on_lanes, 5, false, true},
};
const size_t member_count = sizeof(members) / sizeof(*members);

/* ---- One that takes no answers ----------------------------------------------------------------------------------- */

static bool is_up(wfi_net *net, int rank)
{
    wfi_net_lock(net);
    bool up = inside_up(net, rank, WFI_CONTROL);
    wfi_net_unlock(net);
    return up;
}

static void flood_one(weft_agent *agent, int to, const wfi_member *member, unsigned forks)
{
    wfi_net *net = inside_net(agent);
    letter one;
    uint64_t deadline = wfi_deadline(&wfi_clock_real, 10000);
    inside_name name = {.owner = (uint32_t)to,
                        .owner_incarnation = member->incarnation,
                        .creator = (uint32_t)weft_agent_rank(agent),
                        .creator_incarnation = inside_self(net)->incarnation};
    begin_call(&one, 1, "any");
    (void)post(agent, to, &one);
    while (wfi_now(&wfi_clock_real) < deadline && !is_up(net, to))
        (void)weft_agent_progress(agent, 10);
    for (unsigned i = 1; i <= forks; i++) {
        begin_letter(&one, INSIDE_FORK);
        name.number = i % 4;
        inside_write_name(&one.w, &name);
        wfi_write_u64(&one.w, i);
        if (!post(agent, to, &one))
            fail_msg("the flood ebbs at %u", i);
        if (i % 64 == 0)
            inside_push_out(net, to);
    }
    for (int i = 0; i < 200; i++) {
        inside_push_out(net, to);
        nap_ms(1);
    }
}

long member_flood(arena *a, unsigned forks)
{
    long before[VICTIMS], most = 0;
    weft_agent *agent = open_agent(a, true);
    for (int rank = 0; rank < VICTIMS; rank++) {
        before[rank] = arena_footprint(a, rank).anonymous_kb;
        flood_one(agent, rank, &a->at->victims[rank].member, forks);
    }
    for (int rank = 0; rank < VICTIMS; rank++) {
        long grown = arena_footprint(a, rank).anonymous_kb - before[rank];
        most = grown > most ? grown : most;
    }
    weft_agent_stop(agent);
    return most;
}
