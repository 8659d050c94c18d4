/* SPDX-License-Identifier: Apache-2.0 */
/* crew.c - the trainers of a job, as its rank 0 sees them. */
#include "crew.h"

#include "dismissal.h"
#include "ending.h"
#include "progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

weft_status crew_init(crew *c, const settings *set, int64_t updates)
{
    *c = (crew){.set = set, .updates = updates, .training = (int)set->trainers, .accuracy = -1};
    pthread_mutex_init(&c->lock, NULL);
    c->gone = calloc((size_t)set->job.world_size, sizeof *c->gone);
    return c->gone ? WEFT_OK : WEFT_ERR_MEMORY;
}

void crew_fini(crew *c)
{
    free(c->gone);
    pthread_mutex_destroy(&c->lock);
}

void crew_fail(crew *c, const char *format, ...)
{
    va_list args;
    if (*c->failure)
        return;
    va_start(args, format);
    vsnprintf(c->failure, sizeof c->failure, format, args);
    va_end(args);
    if (c->on_failure)
        c->on_failure(c);
}

static void go_on_without(crew *c, int rank)
{
    c->gone[rank] = true;
    c->training--;
    if (c->on_gone)
        c->on_gone(c, rank);
}

void crew_leave(crew *c, int rank, int64_t bytes_sent, int64_t bytes_copied)
{
    c->tally.bytes_sent += (uint64_t)bytes_sent;
    c->tally.bytes_copied += (uint64_t)bytes_copied;
    c->finished++;
    if (!c->gone[rank])
        go_on_without(c, rank);
}

void crew_measured(crew *c, double accuracy)
{
    c->accuracy = accuracy;
    *c->missing = '\0';
}

weft_status crew_give_up(weft_call *call, void *arg)
{
    crew *c = arg;
    pthread_mutex_lock(&c->lock);
    crew_fail(c, "%s", weft_call_string(call, 0));
    pthread_mutex_unlock(&c->lock);
    return WEFT_OK;
}

/* Steps that it made after others had measured are in the model. */
static void forget_accuracy(crew *c, int rank, const char *what)
{
    c->accuracy = -1;
    snprintf(c->missing, sizeof c->missing, "not measured: trainer %d %s before it had", rank, what);
}

void crew_on_news(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    crew *c = arg;
    (void)agent;
    pthread_mutex_lock(&c->lock);
    if ((event == WEFT_MEMBER_DEAD || event == WEFT_MEMBER_LEFT) && !c->gone[rank] && !*c->failure) {
        const char *what = event == WEFT_MEMBER_DEAD ? "is dead" : "left before its work was done";
        if (c->set->job.on_death == ON_DEATH_STOP)
            crew_fail(c, "trainer %d %s: %s", rank, what, why);
        else
            ending_note("trainer %d %s: %s; going on with %d", rank, what, why, c->training - 1);
        forget_accuracy(c, rank, event == WEFT_MEMBER_DEAD ? "died" : "left");
        c->lost++;
        go_on_without(c, rank);
        if (c->training == 0 && c->finished == 0)
            crew_fail(c, "no trainer is left");
    }
    pthread_mutex_unlock(&c->lock);
}

/* A trainer that computes has no call under way, so nobody would notice its death: this asks weft to watch it. */
static void watch_trainers(weft_agent *agent)
{
    for (int rank = 1; rank < weft_agent_world_size(agent); rank++) {
        weft_status gone = weft_agent_watch(agent, rank);
        (void)gone; /* then crew_on_news hears of it */
    }
}

/* Shows progress until there is nothing more to train, or a reason to end early. */
static void watch(crew *c, const weft_agent *agent)
{
    progress line;
    weft_stats stats;
    progress_init(&line, c->set->quiet ? NULL : stdout, c->updates, "images");
    for (bool over = false; !over;) {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        weft_agent_stats(agent, &stats);
        pthread_mutex_lock(&c->lock);
        if (ending_interrupted())
            crew_fail(c, "interrupted");
        over = c->training == 0 || *c->failure;
        progress_show(&line, &c->tally, stats.bytes_sent + stats.bytes_received, over);
        pthread_mutex_unlock(&c->lock);
    }
}

/* Prints the results. The trainers' agents wait in weft_agent_close meanwhile. */
static int conclude(crew *c, weft_agent *agent, const weft_module *model, crew_accuracy_fn accuracy)
{
    weft_error *error = NULL;
    weft_stats stats;
    weft_agent_stats(agent, &stats);
    report table = report_of(c->set, &c->tally, &stats);
    table.lost = c->lost;
    table.held_out_accuracy = c->accuracy;
    table.accuracy_missing = accuracy ? "" : c->missing;
    weft_status st = accuracy ? accuracy(c, &table.held_out_accuracy, &error) : WEFT_OK;
    if (!st)
        st = report_deliver(&table, c->set, model, &error);
    if (!st)
        st = weft_agent_close(agent);
    else
        weft_agent_stop(agent);
    return st ? ending_error(st, error) : 0;
}

static int run(crew *c, const weft_agent_options *options, weft_job *job, const weft_module *model,
               crew_accuracy_fn accuracy)
{
    weft_error *error = NULL;
    weft_agent *agent;
    weft_status st = weft_agent_open(options, &agent, &error);
    ending_with_children(false, NULL);
    if (st)
        return ending_error(st, error);
    ending_catch_signals();
    watch_trainers(agent);
    watch(c, agent);
    if (!*c->failure)
        return conclude(c, agent, model, accuracy);
    dismissal_send(agent, job, c->failure);
    return ending_fail("%s", c->failure);
}

int crew_serve(crew *c, const weft_function *functions, size_t count, const weft_module *model,
               crew_accuracy_fn accuracy)
{
    const launch *how = &c->set->job;
    weft_job *job = NULL;
    weft_error *error = NULL;
    weft_status st = WEFT_OK;
    ending_with_children(how->spawn, NULL);
    if (how->spawn)
        st = weft_job_open(&(weft_job_options){.count = (int)c->set->trainers}, &job, &error);
    ending_with_children(how->spawn, job);
    weft_agent_options options = launch_agent(how);
    options.job = job;
    options.functions = functions;
    options.function_count = count;
    options.on_membership = crew_on_news;
    options.membership_arg = c;
    int code = st ? ending_error(st, error) : run(c, &options, job, model, accuracy);
    if (weft_job_close(job, code ? 500 : 5000, NULL) && code == 0 && how->on_death == ON_DEATH_STOP)
        code = ending_fail("a trainer did not end well");
    return ending_interrupted() ? 130 : code;
}
