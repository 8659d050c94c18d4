/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous_socket.c - the link to the store over TCP, with a thread of its own or pumped.
 *
 * The caller of open connects (again and again: rank 0 may come later), joins and reads the answer. Then the link belongs
 * to its thread, or to the pump: reading, ticks, upcalls. Others only append to `output`, under the lock.
 */
#include "net/rendezvous_link.h"
#include "net/store_server.h"

#include "base/list.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_MS 1000000ull
#define RETRY_FIRST_MS 2
#define RETRY_LAST_MS 100
#define ANSWER_GRACE_MS 2000      /* past our patience: the store's answer says who is missing, ours cannot */
#define FAREWELL_MS 1000          /* to hand over the goodbye */
#define PENDING_RETRY_NS 1000000u /* pumped: unsent bytes are tried again */

typedef struct socket_link {
    wfi_rendezvous base;
    int fd, wake_fd;
    bool threaded;
    pthread_t thread;
    atomic_bool released, stopping; /* open has returned; close has begun */
    wfi_store_server *server;       /* rank 0 */
    uint8_t *input;
    size_t input_size, input_capacity, input_limit;
    /* Under base.lock. */
    uint8_t output[WFI_STORE_SMALL_MAX * 16];
    size_t output_size;
    bool output_overflowed;
} socket_link;

static socket_link *of(wfi_rendezvous *link)
{
    return wfi_container_of(link, socket_link, base);
}

static void wake(socket_link *link)
{
    uint64_t one = 1;
    if (link->wake_fd >= 0)
        (void)!write(link->wake_fd, &one, sizeof one);
}

/* ---- Output ---------------------------------------------------------------------------------------------------- */

/* What the kernel takes of it. An error is left to the reading side, which may first find the store's last words. */
static size_t write_some(int fd, const uint8_t *data, size_t size)
{
    ssize_t wrote;
    do
        wrote = send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (wrote < 0 && errno == EINTR);
    if (wrote >= 0)
        return (size_t)wrote;
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : size;
}

static void flush_output(socket_link *link)
{
    wfi_assert_held(&link->base.lock);
    if (link->output_size == 0)
        return;
    size_t done = write_some(link->fd, link->output, link->output_size);
    memmove(link->output, link->output + done, link->output_size - done);
    link->output_size -= done;
}

static void socket_send(wfi_rendezvous *base, const uint8_t *frame, size_t size)
{
    socket_link *link = of(base);
    flush_output(link);
    size_t done = link->output_size == 0 ? write_some(link->fd, frame, size) : 0;
    if (done == size)
        return;
    if (link->output_size + size - done > sizeof link->output) {
        link->output_overflowed = true; /* the link's own flow of control gives the store up */
    } else {
        memcpy(link->output + link->output_size, frame + done, size - done);
        link->output_size += size - done;
    }
    wake(link);
}

/* ---- Input ----------------------------------------------------------------------------------------------------- */

static bool make_room(socket_link *link)
{
    if (link->input_capacity - link->input_size >= WFI_STORE_SMALL_MAX)
        return true;
    size_t capacity = link->input_capacity ? link->input_capacity * 2 : 4096;
    uint8_t *input = realloc(link->input, capacity);
    if (!input)
        return false;
    link->input = input;
    link->input_capacity = capacity;
    return true;
}

/* 1: read some; 0: nothing there now; negative: the connection is over, *why says how. */
static int read_some(socket_link *link, const char **why)
{
    if (!make_room(link)) {
        *why = "out of memory for the store's messages";
        return -1;
    }
    ssize_t got = recv(link->fd, link->input + link->input_size, link->input_capacity - link->input_size, MSG_DONTWAIT);
    if (got > 0) {
        link->input_size += (size_t)got;
        return 1;
    }
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return 0;
    *why = got == 0 ? "the store closed the connection" : "the connection to the store broke";
    return -1;
}

/* Takes one whole frame from the front, if there is one: its size; 0 if not; or -1 for bytes that are no frame. */
static int64_t next_frame(const socket_link *link)
{
    size_t size;
    if (wfi_store_frame_size(link->input, link->input_size, link->input_limit, &size))
        return -1;
    return size && size <= link->input_size ? (int64_t)size : 0;
}

static void drop_frame(socket_link *link, size_t size)
{
    memmove(link->input, link->input + size, link->input_size - size);
    link->input_size -= size;
}

static void handle_frames(socket_link *link)
{
    int64_t size = 0;
    while (!wfi_link_is_out(&link->base) && link->input_size && (size = next_frame(link)) > 0) {
        uint8_t frame[WFI_STORE_SMALL_MAX]; /* apart: an upcall may take long, the buffer moves */
        memcpy(frame, link->input, (size_t)size);
        drop_frame(link, (size_t)size);
        wfi_link_received(&link->base, frame, (size_t)size);
    }
    if (size < 0)
        wfi_link_lost(&link->base, "the store sent malformed bytes");
}

/* Everything there is: mail comes before the clock, so that a worker that was stopped learns the true reason. */
static void read_all(socket_link *link)
{
    const char *why = NULL;
    int got;
    handle_frames(link);
    while (!wfi_link_is_out(&link->base) && (got = read_some(link, &why)) != 0) {
        handle_frames(link);
        if (got < 0)
            wfi_link_lost(&link->base, why);
    }
}

/* One round but for the sleep. Returns when the next is due; *pending: bytes wait for the kernel. */
static uint64_t serve(socket_link *link, bool *pending)
{
    read_all(link);
    uint64_t due_ns = wfi_link_tick(&link->base);
    wfi_mutex_lock(&link->base.lock);
    flush_output(link);
    *pending = link->output_size > 0;
    bool overflowed = link->output_overflowed;
    wfi_mutex_unlock(&link->base.lock);
    if (overflowed)
        wfi_link_lost(&link->base, "the store does not read");
    return due_ns;
}

static void *run(void *arg)
{
    socket_link *link = arg;
    uint64_t counted;
    struct pollfd waits[2] = {{.fd = link->wake_fd, .events = POLLIN}, {.fd = link->fd}};
    while (!atomic_load(&link->released) && !atomic_load(&link->stopping))
        (void)poll(waits, 1, -1);
    while (!atomic_load(&link->stopping) && !wfi_link_is_out(&link->base)) {
        bool pending;
        (void)!read(link->wake_fd, &counted, sizeof counted);
        uint64_t due_ns = serve(link, &pending);
        waits[1].events = (short)(POLLIN | (pending ? POLLOUT : 0));
        if (!wfi_link_is_out(&link->base))
            (void)poll(waits, 2, wfi_poll_timeout(wfi_now(link->base.clock), due_ns));
    }
    return NULL;
}

static int socket_pump(wfi_rendezvous *base, uint64_t *due_ns)
{
    socket_link *link = of(base);
    bool pending;
    *due_ns = serve(link, &pending);
    uint64_t retry_ns = wfi_now(base->clock) + PENDING_RETRY_NS;
    if (pending && retry_ns < *due_ns)
        *due_ns = retry_ns;
    if (!wfi_link_is_out(base))
        return link->fd;
    *due_ns = WFI_NEVER;
    return -1;
}

/* ---- The end --------------------------------------------------------------------------------------------------- */

/* Hands over the goodbye: closing with unread mail would reset the connection, and the goodbye might be lost with it. */
static void say_farewell(socket_link *link)
{
    uint64_t deadline_ns = wfi_deadline(&wfi_clock_real, FAREWELL_MS), now_ns;
    struct pollfd wait = {.fd = link->fd};
    bool shut = false;
    ssize_t got = 1;
    while (got != 0 && (now_ns = wfi_now(&wfi_clock_real)) < deadline_ns) {
        wfi_mutex_lock(&link->base.lock);
        flush_output(link);
        bool pending = link->output_size > 0;
        wfi_mutex_unlock(&link->base.lock);
        if (!pending && !shut)
            shut = shutdown(link->fd, SHUT_WR) == 0;
        wait.events = (short)(POLLIN | (pending ? POLLOUT : 0));
        if (poll(&wait, 1, wfi_poll_timeout(now_ns, deadline_ns)) < 0)
            continue;
        char waste[1024];
        got = recv(link->fd, waste, sizeof waste, MSG_DONTWAIT);
        if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
            return;
    }
}

static void free_link(socket_link *link)
{
    if (link->fd >= 0)
        close(link->fd);
    if (link->wake_fd >= 0)
        close(link->wake_fd);
    free(link->input);
    wfi_link_fini(&link->base);
    free(link);
}

static void end_thread(socket_link *link)
{
    if (!link->threaded)
        return;
    atomic_store(&link->stopping, true);
    wake(link);
    pthread_join(link->thread, NULL);
    link->threaded = false;
}

static void socket_close(wfi_rendezvous *base)
{
    socket_link *link = of(base);
    bool was_member = wfi_link_say_goodbye(base);
    end_thread(link);
    if (was_member)
        say_farewell(link);
    wfi_store_server_end(link->server, wfi_link_grace_ms(base));
    free_link(link);
}

static const wfi_link_shell socket_shell = {.send = socket_send, .close = socket_close, .pump = socket_pump};

/* ---- Joining --------------------------------------------------------------------------------------------------- */

typedef struct attempt {
    const wfi_rendezvous_options *options;
    wfi_endpoint endpoint; /* rank 0: where its own store listens */
    uint64_t deadline_ns;
    int trouble;  /* of the last connect */
    bool reached; /* connected at least once */
} attempt;

static int64_t patience_ms(const attempt *at)
{
    if (at->deadline_ns == WFI_NEVER)
        return -1;
    uint64_t now_ns = wfi_now(&wfi_clock_real);
    return at->deadline_ns > now_ns ? (int64_t)((at->deadline_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS) : 0;
}

static bool send_join(socket_link *link, const attempt *at)
{
    uint8_t frame[WFI_STORE_SMALL_MAX];
    size_t size = wfi_link_join_frame(at->options, patience_ms(at), frame);
    return send(link->fd, frame, size, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size; /* the buffer is empty */
}

/* Reads until there is a whole answer. False: the connection went first, or the time. */
static bool await_answer(socket_link *link, uint64_t deadline_ns)
{
    struct pollfd wait = {.fd = link->fd, .events = POLLIN};
    const char *why;
    int got = 1;
    uint64_t now_ns;
    while (got >= 0 && (now_ns = wfi_now(&wfi_clock_real)) < deadline_ns) {
        int64_t size = link->input_size ? next_frame(link) : 0;
        if (size < 0) {
            static const uint8_t nonsense[1];
            return wfi_link_join_answered(&link->base, nonsense, sizeof nonsense);
        }
        if (size > 0) {
            bool answered = wfi_link_join_answered(&link->base, link->input, (size_t)size);
            drop_frame(link, (size_t)size);
            return answered;
        }
        if (poll(&wait, 1, wfi_poll_timeout(now_ns, deadline_ns)) > 0)
            got = read_some(link, &why);
    }
    return false;
}

static bool attempt_once(socket_link *link, attempt *at)
{
    const wfi_rendezvous_options *options = at->options;
    at->trouble = options->rank == 0
                      ? wfi_connect_endpoint(&at->endpoint, at->deadline_ns, &link->fd)
                      : wfi_connect_to(options->master_addr, options->master_port, at->deadline_ns, &link->fd);
    if (at->trouble)
        return false;
    at->reached = true;
    uint64_t answer_ns = at->deadline_ns;
    if (answer_ns < WFI_NEVER - ANSWER_GRACE_MS * NS_PER_MS)
        answer_ns += ANSWER_GRACE_MS * NS_PER_MS;
    link->input_size = 0;
    if (send_join(link, at) && await_answer(link, answer_ns))
        return true;
    close(link->fd);
    link->fd = -1;
    return false;
}

static weft_status join_failed(const attempt *at, weft_error **error)
{
    wfi_error_detail detail = {.code = WEFT_ERR_RENDEZVOUS, .worker = -1};
    const wfi_rendezvous_options *options = at->options;
    const char *host = options->master_addr ? options->master_addr : "this machine";
    if (at->reached)
        wfi_error_give(error, wfi_error_create(&detail, "the store on %s port %d did not answer within %lld ms", host,
                                               options->master_port, (long long)options->join_timeout_ms));
    else
        wfi_error_give(error,
                       wfi_error_create(&detail, "rank 0's store on %s port %d could not be reached within %lld ms: %s",
                                        host, options->master_port, (long long)options->join_timeout_ms,
                                        strerrordesc_np(at->trouble)));
    return detail.code;
}

/* A store that closes without an answer belongs to a job that ends, or is not one: try again until the time is over. */
static weft_status join(socket_link *link, attempt *at, weft_error **error)
{
    int64_t pause_ms = RETRY_FIRST_MS;
    while (!attempt_once(link, at)) {
        int64_t left_ms = patience_ms(at);
        if (left_ms == 0)
            return join_failed(at, error);
        if (left_ms > 0 && left_ms < pause_ms)
            pause_ms = left_ms;
        nanosleep(&(struct timespec){.tv_nsec = (long)pause_ms * (long)NS_PER_MS}, NULL);
        pause_ms = pause_ms * 2 > RETRY_LAST_MS ? RETRY_LAST_MS : pause_ms * 2;
    }
    return link->base.refusal ? wfi_link_refused(&link->base, error) : WEFT_OK;
}

static weft_status start_store(socket_link *link, attempt *at, weft_error **error)
{
    const wfi_rendezvous_options *options = at->options;
    wfi_store_server_options server = {.listen_fd = options->store_fd,
                                       .world_size = options->world_size,
                                       .elastic = options->elastic,
                                       .death_timeout_ms = options->death_timeout_ms};
    weft_status status = WEFT_OK;
    if (options->store_fd < 0)
        status = wfi_listen_at(options->master_addr, options->master_port, &server.listen_fd, error);
    if (status)
        return status;
    if (wfi_listens_at(server.listen_fd, &at->endpoint)) {
        close(server.listen_fd);
        wfi_error_detail detail = {.code = WEFT_ERR_INVALID, .worker = -1};
        wfi_error_give(error, wfi_error_create(&detail, "the store's descriptor is no listening socket"));
        return detail.code;
    }
    return wfi_store_server_start(&server, &link->server, error);
}

static weft_status start_thread(socket_link *link, weft_error **error)
{
    link->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int trouble = link->wake_fd < 0 ? errno : wfi_start_quiet_thread(&link->thread, run, link, "weft-link");
    if (!trouble) {
        link->threaded = true;
        return WEFT_OK;
    }
    wfi_error_detail detail = {.code = WEFT_ERR_SYSTEM, .worker = -1};
    wfi_error_give(error,
                   wfi_error_create(&detail, "cannot start the link to the store: %s", strerrordesc_np(trouble)));
    return detail.code;
}

static weft_status no_memory(const wfi_rendezvous_options *options, weft_error **error)
{
    wfi_error_detail detail = {.code = WEFT_ERR_MEMORY, .worker = -1};
    if (options->store_fd >= 0)
        close(options->store_fd);
    wfi_error_give(error, wfi_error_create(&detail, "out of memory for the link to the store"));
    return detail.code;
}

weft_status wfi_link_open_socket(const wfi_rendezvous_options *options, wfi_rendezvous **out, weft_error **error)
{
    socket_link *link = calloc(1, sizeof *link);
    if (!link)
        return no_memory(options, error);
    attempt at = {.options = options, .deadline_ns = wfi_deadline(&wfi_clock_real, options->join_timeout_ms)};
    wfi_link_init(&link->base, options, &socket_shell);
    if (!link->base.clock)
        link->base.clock = &wfi_clock_real;
    link->fd = link->wake_fd = -1;
    link->input_limit = WFI_STORE_WORLD_MAX;
    weft_status status = options->rank == 0 ? start_store(link, &at, error) : WEFT_OK;
    if (status)
        goto free_link;
    status = join(link, &at, error);
    link->input_limit = WFI_STORE_SMALL_MAX;
    if (!status && !options->no_threads)
        status = start_thread(link, error);
    if (status)
        goto end_store;
    *out = &link->base; /* before the first upcall */
    atomic_store(&link->released, true);
    wake(link);
    return WEFT_OK;

end_store:
    wfi_store_server_end(link->server, 0);
free_link:
    free_link(link);
    return status;
}
