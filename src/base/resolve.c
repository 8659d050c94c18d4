/* SPDX-License-Identifier: Apache-2.0 */
/* resolve.c - see resolve.h. */
#include "base/resolve.h"

#include "base/clock.h"
#include "base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#define NS_PER_S UINT64_C(1000000000)
#define PROMPT_NS NS_PER_S /* EAI_AGAIN within this time came from a name server; later, none answered */

struct wfi_lookup {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool is_done;           /* under the lock: the answer is there */
    bool is_abandoned;      /* under the lock: nobody waits; the thread frees the lookup */
    int errnum;             /* the answer: an errno value */
    struct addrinfo *found; /* the answer */
    struct addrinfo hints;
    char service[16];
    char host[];
};

bool wfi_hostname_says_loopback(const char *host)
{
    static const char *const names[] = {"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback", "::1"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (strcasecmp(host, names[i]) == 0)
            return true;
    return strncmp(host, "127.", 4) == 0;
}

static int errnum_of(int failed, int errnum, uint64_t took_ns)
{
    if (failed == EAI_SYSTEM && errnum)
        return errnum;
    if (failed == EAI_MEMORY)
        return ENOMEM;
    return failed == EAI_AGAIN && took_ns >= PROMPT_NS ? ETIMEDOUT : EHOSTUNREACH;
}

static void look_up(wfi_lookup *lookup)
{
    uint64_t from_ns = wfi_now(&wfi_clock_real);
    int failed = getaddrinfo(lookup->host, lookup->service, &lookup->hints, &lookup->found);
    int errnum = errno;
    lookup->errnum = failed ? errnum_of(failed, errnum, wfi_now(&wfi_clock_real) - from_ns) : 0;
}

static void free_lookup(wfi_lookup *lookup)
{
    if (lookup->found)
        freeaddrinfo(lookup->found);
    pthread_cond_destroy(&lookup->ended);
    pthread_mutex_destroy(&lookup->lock);
    free(lookup);
}

static void *run_lookup(void *arg)
{
    wfi_lookup *lookup = arg;
    look_up(lookup);
    pthread_mutex_lock(&lookup->lock);
    lookup->is_done = true;
    bool is_abandoned = lookup->is_abandoned;
    pthread_cond_signal(&lookup->ended);
    pthread_mutex_unlock(&lookup->lock);
    if (is_abandoned)
        free_lookup(lookup);
    return NULL;
}

wfi_lookup *wfi_lookup_begin(const char *host, int port, int flags)
{
    size_t size = strlen(host) + 1;
    wfi_lookup *lookup = calloc(1, sizeof(*lookup) + size);
    pthread_t thread;
    if (!lookup)
        return NULL;
    pthread_mutex_init(&lookup->lock, NULL);
    pthread_cond_init(&lookup->ended, NULL);
    lookup->hints = (struct addrinfo){
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV | AI_NUMERICHOST};
    memcpy(lookup->host, host, size);
    snprintf(lookup->service, sizeof(lookup->service), "%d", port);
    look_up(lookup);
    lookup->is_done = !lookup->errnum || flags & AI_NUMERICHOST;
    if (lookup->is_done)
        return lookup;
    lookup->hints.ai_flags = flags | AI_NUMERICSERV;
    if (!wfi_hostname_says_loopback(host) && wfi_thread_start(&thread, run_lookup, lookup, "weft-resolve") == 0) {
        pthread_detach(thread);
        return lookup;
    }
    look_up(lookup);
    lookup->is_done = true;
    return lookup;
}

int wfi_lookup_end(wfi_lookup *lookup, uint64_t deadline_ns, struct addrinfo **out)
{
    if (!lookup)
        return ENOMEM;
    const struct timespec until = {.tv_sec = (time_t)(deadline_ns / NS_PER_S),
                                   .tv_nsec = (long)(deadline_ns % NS_PER_S)};
    int errnum = 0;
    pthread_mutex_lock(&lookup->lock);
    while (!lookup->is_done && errnum != ETIMEDOUT)
        errnum = pthread_cond_clockwait(&lookup->ended, &lookup->lock, CLOCK_MONOTONIC, &until);
    bool is_done = lookup->is_done;
    lookup->is_abandoned = !is_done;
    pthread_mutex_unlock(&lookup->lock);
    if (!is_done)
        return ETIMEDOUT;
    errnum = lookup->errnum;
    if (!errnum) {
        *out = lookup->found;
        lookup->found = NULL;
    }
    free_lookup(lookup);
    return errnum;
}

int wfi_resolve(const char *host, int port, int flags, uint64_t deadline_ns, struct addrinfo **out)
{
    return wfi_lookup_end(wfi_lookup_begin(host, port, flags), deadline_ns, out);
}
