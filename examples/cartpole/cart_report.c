/* SPDX-License-Identifier: Apache-2.0 */
/* cart_report.c - the rewards of episodes, and the report. */
#include "cart_report.h"

#include "cart_observer.h" /* CART_SELECT_ACTION */
#include "cartpole.h"
#include "common/report.h"

#include <stdlib.h>

bool cart_report_open(cart_report *r)
{
    size_t room = (size_t)r->set->episodes + 1;
    r->rewards = calloc(room, sizeof *r->rewards);
    r->running = calloc(room, sizeof *r->running);
    r->lost = calloc((size_t)r->set->job.world_size, sizeof *r->lost);
    return r->rewards && r->running && r->lost;
}

void cart_report_close(cart_report *r)
{
    free(r->lost);
    free(r->running);
    free(r->rewards);
}

void cart_report_episode(cart_report *r, double reward)
{
    double share = r->set->share, before = r->episodes ? r->running[r->episodes - 1] : 0;
    double running = share * reward + (1 - share) * before;
    r->rewards[r->episodes] = reward;
    r->running[r->episodes] = running;
    if (!r->set->quiet) {
        printf("Episode %lld\tLast reward: %.2f\tAverage reward: %.2f\n", (long long)r->episodes, reward, running);
        fflush(stdout);
    }
    r->episodes++;
    r->solved = r->set->solve && running > CARTPOLE_SOLVED;
}

void cart_report_lost(cart_report *r, int rank)
{
    r->lost[r->lost_count++] = rank;
}

static long long observers(const cart_report *r)
{
    return (long long)r->set->job.world_size - 1;
}

static double us_per_step(const cart_report *r)
{
    int64_t steps = r->episodes * r->set->steps;
    return steps ? (r->ended - r->began) * 1e6 / (double)steps : 0;
}

static void print_summary(const cart_report *r, const cart_learner *learner)
{
    const cart_settings *set = r->set;
    const char *how = set->manual ? "batched by hand" : set->batch ? "batched" : "not batched";
    char left[48] = "";
    if (r->lost_count)
        snprintf(left, sizeof left, " (%lld at the end)", observers(r) - r->lost_count);
    printf("%lld episodes of %lld steps, %lld observers%s with %lld poles each, %s: %.2f s, %.0f us a step, the policy "
           "was "
           "evaluated %llu times\n",
           (long long)r->episodes, (long long)set->steps, observers(r), left, (long long)set->envs, how,
           r->ended - r->began, us_per_step(r), (unsigned long long)cart_learner_evaluations(learner));
    if (r->solved)
        printf("solved after %lld episodes, %.2f s\n", (long long)r->episodes, r->ended - r->began);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

static bool add_number(cJSON *json, const char *name, double value)
{
    return cJSON_AddNumberToObject(json, name, value);
}

static bool add_list(cJSON *json, const char *name, const double *values, int64_t count)
{
    cJSON *list = cJSON_AddArrayToObject(json, name);
    bool good = list;
    for (int64_t i = 0; i < count && good; i++) {
        cJSON *number = cJSON_CreateNumber(values[i]);
        good = number && cJSON_AddItemToArray(list, number);
    }
    return good;
}

static bool add_observers(cJSON *json, const cart_report *r)
{
    cJSON *lost = cJSON_CreateIntArray(r->lost, r->lost_count);
    return cJSON_AddItemToObject(json, "lost_observers", lost) && add_number(json, "observers", (double)observers(r)) &&
           add_number(json, "observers_left", (double)(observers(r) - r->lost_count));
}

static bool add_settings(cJSON *json, const cart_settings *s)
{
    return cJSON_AddStringToObject(json, "mode",
                                   s->manual  ? "manual"
                                   : s->batch ? "batch"
                                              : "no-batch") &&
           add_number(json, "world_size", (double)s->job.world_size) && add_number(json, "envs", (double)s->envs) &&
           add_number(json, "hidden", (double)s->hidden) && add_number(json, "steps", (double)s->steps) &&
           add_number(json, "seed", (double)s->seed) && add_number(json, "gamma", s->gamma) &&
           cJSON_AddStringToObject(json, "device", s->device_text ? s->device_text : "cpu");
}

/* Adds the statistics of batches; nothing if select_action is not batched. */
static bool add_batches(cJSON *json, const weft_agent *agent)
{
    weft_batch_stats stats;
    if (weft_batch_stats_read(agent, CART_SELECT_ACTION, &stats))
        return true;
    return add_number(json, "batches", (double)stats.batches) && add_number(json, "batch_mean", stats.mean_size) &&
           add_number(json, "batch_wait_us_p50", (double)stats.wait_p50_ns / 1e3);
}

static cJSON *to_json(const cart_report *r, const weft_agent *agent, const cart_learner *learner)
{
    cJSON *json = cJSON_CreateObject();
    bool whole =
        add_settings(json, r->set) && add_observers(json, r) && add_number(json, "episodes", (double)r->episodes) &&
        add_number(json, "seconds", r->ended - r->began) && add_number(json, "us_per_step", us_per_step(r)) &&
        add_number(json, "policy_evaluations", (double)cart_learner_evaluations(learner)) && add_batches(json, agent) &&
        cJSON_AddBoolToObject(json, "solved", r->solved) &&
        cJSON_AddBoolToObject(json, "interrupted", r->interrupted) &&
        add_list(json, "rewards", r->rewards, r->episodes) && add_list(json, "running", r->running, r->episodes);
    if (whole)
        return json;
    cJSON_Delete(json);
    return NULL;
}

weft_status cart_report_deliver(const cart_report *r, const weft_agent *agent, const cart_learner *learner,
                                weft_error **error)
{
    const cart_settings *set = r->set;
    weft_status st = set->save ? weft_module_save(cart_learner_policy(learner), set->save, error) : WEFT_OK;
    if (!st && set->report)
        st = json_file_write(set->report, to_json(r, agent, learner), error);
    if (!st && !set->quiet)
        print_summary(r, learner);
    return st;
}
