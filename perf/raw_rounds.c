/* SPDX-License-Identifier: Apache-2.0 */
/* raw_rounds.c - the floor of perf/cartpole: blocking TCP clients and a server that only answers, microseconds a round of all. */
#include "common/measure.h"
#include "common/raw_answer.h"

#include "cli.h"

#define SLICES 5

/* The best of a few slices: neighbours only ever add. */
static bool measure(raw_answer *raw, int clients, bool batched, int rounds, double *best_us)
{
    for (int i = 0; i < SLICES; i++) {
        double us;
        if (raw_answer_slice(raw, clients, batched, rounds, &us))
            return false;
        us /= rounds;
        *best_us = i && *best_us < us ? *best_us : us;
    }
    return true;
}

int main(int argc, char **argv)
{
    int64_t clients = 8, rounds = 1000, bytes = 64;
    const char *json = NULL;
    const cli_option options[] = {
        {"clients", CLI_INT, &clients, 1, RAW_ANSWER_CLIENTS_MAX, NULL, "N", "processes that ask", "8"},
        {"rounds", CLI_INT, &rounds, 1, 1e6, NULL, "N", "requests of each in a slice; the best of five slices counts",
         "1000"},
        {"bytes", CLI_INT, &bytes, 16, 4096, NULL, "N", "of a request; an answer has 16", "64"},
        {"json", CLI_TEXT, &json, 0, 0, NULL, "FILE", "write the numbers there", NULL},
    };
    const cli program = {"raw_rounds", "a round of blocking TCP clients with a server that only answers",
                         "raw_rounds --clients 8", options, sizeof options / sizeof *options};
    raw_answer *raw = NULL;
    report to;
    double batched = 0, each = 0;
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    if (!report_open(&to, json))
        return 1;
    bool ok = !raw_answer_open((int)clients, (int)bytes, &raw) &&
              measure(raw, (int)clients, true, (int)rounds, &batched) &&
              measure(raw, (int)clients, false, (int)rounds, &each);
    raw_answer_close(raw);
    if (ok)
        printf("%d clients: %.1f us a round if all are read before all are answered, %.1f us if each is answered as it "
               "comes\n",
               (int)clients, batched, each);
    report_number(&to, batched, "batched_us");
    report_number(&to, each, "each_us");
    return report_close(&to) && ok ? 0 : 1;
}
