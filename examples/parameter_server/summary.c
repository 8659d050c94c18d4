/* SPDX-License-Identifier: Apache-2.0 */
/* summary.c - the final table of a training run. */
#include "summary.h"

#include "common/report.h"

#include <sys/resource.h>

summary summary_of(const settings *set, const tally *t, const weft_stats *stats)
{
    return (summary){
        .model = settings_model_name(set),
        .device = set->device_text ? set->device_text : "cpu",
        .seed = set->seed,
        .trainers = (int)set->trainers,
        .iterations = t->updates,
        .seconds = tally_seconds(t),
        .images = t->images,
        .loss = t->loss,
        .first_loss = t->first_loss,
        .held_out_accuracy = -1,
        .accuracy_missing = "",
        .communication_share = tally_communication(t),
        .bytes_sent = t->bytes_sent + stats->bytes_sent,
        .bytes_copied_by_weft = t->bytes_copied + stats->bytes_copied,
    };
}

static uint64_t peak_rss_bytes(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_maxrss * 1024 : 0;
}

static double images_per_s(const summary *r)
{
    return r->seconds > 0 ? (double)r->images / r->seconds : 0;
}

static void print_table(const summary *r, FILE *to)
{
    char sent[16], copied[16], peak[16];
    fprintf(to, "\n  model                %s, seed %lld\n", r->model, (long long)r->seed);
    fprintf(to, "  device               %s\n", r->device);
    fprintf(to, "  trainers             %d", r->trainers);
    if (r->lost)
        fprintf(to, ", of whom %d died or left", r->lost);
    fputc('\n', to);
    fprintf(to, "  iterations           %lld in %.1f s\n", (long long)r->iterations, r->seconds);
    fprintf(to, "  images/s             %.0f\n", images_per_s(r));
    fprintf(to, "  loss                 %.4f (at first %.4f)\n", r->loss, r->first_loss);
    if (r->held_out_accuracy >= 0)
        fprintf(to, "  held-out accuracy    %.2f %%\n", 100 * r->held_out_accuracy);
    else if (*r->accuracy_missing)
        fprintf(to, "  held-out accuracy    %s\n", r->accuracy_missing);
    fprintf(to, "  in calls             %.1f %% of the trainers' time\n", 100 * r->communication_share);
    fprintf(to, "  sent                 %s, of which weft copied %s\n", bytes_text(r->bytes_sent, sent),
            bytes_text(r->bytes_copied_by_weft, copied));
    fprintf(to, "  server's peak memory %s\n", bytes_text(peak_rss_bytes(), peak));
}

/* NULL: no memory. */
static cJSON *to_json(const summary *r)
{
    cJSON *json = cJSON_CreateObject();
    bool whole =
        cJSON_AddStringToObject(json, "model", r->model) && cJSON_AddStringToObject(json, "device", r->device) &&
        cJSON_AddNumberToObject(json, "seed", (double)r->seed) &&
        cJSON_AddNumberToObject(json, "trainers", r->trainers) && cJSON_AddNumberToObject(json, "lost", r->lost) &&
        cJSON_AddNumberToObject(json, "iterations", (double)r->iterations) &&
        cJSON_AddNumberToObject(json, "seconds", r->seconds) &&
        cJSON_AddNumberToObject(json, "images_per_s", images_per_s(r)) &&
        cJSON_AddNumberToObject(json, "iterations_per_s", r->seconds > 0 ? (double)r->iterations / r->seconds : 0) &&
        cJSON_AddNumberToObject(json, "loss", r->loss) && cJSON_AddNumberToObject(json, "first_loss", r->first_loss) &&
        (r->held_out_accuracy < 0 ? cJSON_AddNullToObject(json, "held_out_accuracy")
                                  : cJSON_AddNumberToObject(json, "held_out_accuracy", r->held_out_accuracy)) &&
        (!*r->accuracy_missing || cJSON_AddStringToObject(json, "held_out_accuracy_missing", r->accuracy_missing)) &&
        cJSON_AddNumberToObject(json, "communication_share", r->communication_share) &&
        cJSON_AddNumberToObject(json, "bytes_sent", (double)r->bytes_sent) &&
        cJSON_AddNumberToObject(json, "bytes_copied_by_weft", (double)r->bytes_copied_by_weft) &&
        cJSON_AddNumberToObject(json, "server_peak_rss_bytes", (double)peak_rss_bytes());
    if (whole)
        return json;
    cJSON_Delete(json);
    return NULL;
}

weft_status summary_deliver(const summary *r, const settings *set, const weft_module *model, weft_error **error)
{
    weft_status st = set->save ? weft_module_save(model, set->save, error) : WEFT_OK;
    if (!st && set->report)
        st = json_file_write(set->report, to_json(r), error);
    if (!st && !set->quiet)
        print_table(r, stdout);
    return st;
}
