/* SPDX-License-Identifier: Apache-2.0 */
/* progress.c - initializes and frees a wfi_progress, and adds its sources. */
#include "progress/progress.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

void wfi_progress_init(wfi_progress *progress, const wfi_progress_options *options)
{
    *progress = (wfi_progress){.clock = options->clock,
                               .executor = options->executor,
                               .cores = options->cores,
                               .fibers = options->fibers,
                               .group = options->group,
                               .no_threads = options->no_threads,
                               .driver = {.drive = wfi_drive, .is_simulated = options->fibers != NULL},
                               .events_fd = -1};
    wfi_mutex_init(&progress->lock);
    wfi_mutex_bar_devices(&progress->lock);
    wfi_mutex_init(&progress->hooks_lock);
    wfi_list_init(&progress->hooks);
    for (int kind = 0; kind < WFI_DONE_KINDS; kind++)
        wfi_list_init(&progress->done[kind]);
    for (int kind = 0; kind < WFI_DEFER_KINDS; kind++)
        wfi_list_init(&progress->deferred[kind]);
    atomic_init(&progress->next_deadline_ns, WFI_NEVER);
    progress->token.unpark_fd = progress->token.load_fd = -1;
    for (int sleeper = 0; sleeper < WFI_SLEEPERS; sleeper++)
        progress->token.sleeper_fds[sleeper] = -1;
}

weft_status wfi_progress_open(wfi_progress *progress)
{
    if (progress->fibers)
        return WEFT_OK;
    wfi_token *token = &progress->token;
    progress->events_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    token->unpark_fd = eventfd(0, EFD_CLOEXEC);
    bool failed = progress->events_fd < 0 || token->unpark_fd < 0;
    for (int sleeper = 0; sleeper < WFI_SLEEPERS && !failed; sleeper++) {
        token->sleeper_fds[sleeper] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        failed = token->sleeper_fds[sleeper] < 0;
    }
    if (failed)
        return WEFT_ERR_SYSTEM;
    wfi_spin_init(progress);
    return WEFT_OK;
}

static void close_if_open(int fd)
{
    if (fd >= 0)
        close(fd);
}

void wfi_progress_fini(wfi_progress *progress)
{
    close_if_open(progress->events_fd);
    close_if_open(progress->token.unpark_fd);
    close_if_open(progress->token.load_fd);
    for (int sleeper = 0; sleeper < WFI_SLEEPERS; sleeper++)
        close_if_open(progress->token.sleeper_fds[sleeper]);
    free(progress->heap);
    wfi_mutex_fini(&progress->hooks_lock);
    wfi_mutex_fini(&progress->lock);
}

void wfi_progress_forked(wfi_progress *progress)
{
    wfi_mutex_init(&progress->lock);
    wfi_mutex_bar_devices(&progress->lock);
    wfi_mutex_init(&progress->hooks_lock);
    wfi_list_init(&progress->hooks);
    atomic_store(&progress->hook_count, 0);
    for (int kind = 0; kind < WFI_DONE_KINDS; kind++) /* the parent handles these; a list may also be inconsistent */
        wfi_list_init(&progress->done[kind]);
    for (int kind = 0; kind < WFI_DEFER_KINDS; kind++)
        wfi_list_init(&progress->deferred[kind]);
    progress->forked = true;
}

void wfi_progress_add(wfi_progress *progress, wfi_source *source)
{
    assert(progress->source_count < WFI_SOURCES);
    progress->sources[progress->source_count++] = source;
}

void wfi_progress_remove(wfi_progress *progress, const wfi_source *source)
{
    if (progress->source_count && progress->sources[progress->source_count - 1] == source)
        progress->source_count--;
}

size_t wfi_progress_outstanding(wfi_progress *progress)
{
    size_t count = 0;
    for (size_t i = 0; i < progress->source_count; i++)
        count += progress->sources[i]->ops->outstanding(progress->sources[i]);
    return count;
}

uint64_t wfi_progress_now(wfi_progress *progress)
{
    wfi_assert_held(&progress->lock);
    if (!progress->has_now)
        progress->now_ns = wfi_now(progress->clock);
    progress->has_now = true;
    return progress->now_ns;
}
