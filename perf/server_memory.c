/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_memory.c - private dirty memory of a process with an agent: idle, per idle peer, per peer with a bulk lane.
 *
 * Rank 0 is measured: it serves the store as well. What libfabric itself takes when it is opened is measured in a process of
 * its own (--libraries) and shown apart. Private dirty pages as /proc/self/smaps_rollup counts them.
 */
#include "common/measure.h"
#include "common/raw_endpoint.h"
#include "common/workers.h"

#include "cli.h"

#include <rdma/fabric.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define ROUNDS 3

static weft_status echo(weft_call *call, void *user)
{
    (void)user;
    if (weft_call_count(call) > 0)
        weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 0))));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "echo", .takes = {WEFT_TYPE_REST}, .gives = {WEFT_TYPE_REST}, .run = echo}};

/* KiB; -1 if this kernel does not tell. */
static long private_dirty(void)
{
    char line[256];
    long kib = -1;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, "Private_Dirty:", 14) == 0)
            kib = strtol(line + 14, NULL, 10);
    }
    if (file)
        fclose(file);
    return kib;
}

/* A domain and an endpoint that never connects: what libfabric and its providers make dirty by themselves. */
static int libraries(void)
{
    long before = private_dirty();
    raw_endpoint e;
    if (raw_endpoint_open(&e, "tcp", 4096))
        return 1;
    printf("%ld\n", private_dirty() - before);
    raw_endpoint_close(&e);
    return 0;
}

static long ask_libraries(void)
{
    char self[4096], command[4200];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0)
        return -1;
    self[length] = 0;
    snprintf(command, sizeof command, "'%s' --libraries", self);
    FILE *child = popen(command, "r");
    long kib = -1;
    if (child && fscanf(child, "%ld", &kib) != 1)
        kib = -1;
    if (child)
        pclose(child);
    return kib;
}

/* Calls to ranks first..last, with a tensor there and back if `there` is one. */
static bool call_all(weft_agent *agent, int first, int last, weft_tensor *there, weft_tensor **back)
{
    weft_args none = WEFT_NO_VALUES, one = WEFT_VALUES(weft_of_tensor(there));
    weft_rpc_options options = {.land = {back, 1}};
    for (int round = 0; round < ROUNDS; round++) {
        for (int rank = first; rank <= last; rank++) {
            weft_status status =
                weft_rpc_sync(agent, weft_to_rank(rank), "echo", there ? one : none, there ? &options : NULL, NULL);
            if (status != WEFT_OK)
                return workers_complain("echo", status, NULL);
        }
    }
    usleep(100000);
    return true;
}

static void show(report *json, const char *name, const char *what, double kib, double aim_kib)
{
    printf("| %-44s | %9.0f |", what, kib);
    if (aim_kib > 0)
        printf(" %9.0f |\n", aim_kib);
    else
        printf("           |\n");
    report_number(json, kib, "%s_kib", name);
}

static bool measure(int peers, long libraries_kib, report *json)
{
    workers w;
    weft_tensor *there = weft_tensor_full(WEFT_SHAPE((int64_t)MIB), WEFT_DTYPE_UINT8, 1);
    weft_tensor *back = weft_tensor_full(WEFT_SHAPE((int64_t)MIB), WEFT_DTYPE_UINT8, 0);
    long start = private_dirty();
    if (!there || !back || start < 0 || !workers_open(functions, 1, peers, &w)) {
        fprintf(stderr, "server_memory: nothing to measure\n");
        return false;
    }
    long opened = private_dirty();
    bool ok = call_all(w.agent, 1, 1, NULL, NULL); /* what the first call alone needs is the agent's */
    long first = private_dirty();
    ok = ok && call_all(w.agent, 2, peers, NULL, NULL);
    long idle = private_dirty();
    ok = ok && call_all(w.agent, 1, 1, there, &back);
    long first_active = private_dirty();
    ok = ok && call_all(w.agent, 2, peers, there, &back);
    long active = private_dirty();
    ok = workers_close(&w) && ok;
    weft_tensor_unref(there);
    weft_tensor_unref(back);
    printf("Private dirty memory of rank 0 with the store and %d peers, KiB\n\n", peers);
    printf("| %-44s | %9s | %9s |\n|----------------------------------------------|-----------|-----------|\n", "",
           "measured", "aim");
    show(json, "before", "process before the agent opens", (double)start, 0);
    show(json, "libraries", "libfabric's own share (another process)", (double)libraries_kib, 0);
    show(json, "agent", "agent open and idle adds, libfabric's included", (double)(opened - start), 10240);
    show(json, "first_call", "the first call adds (pools, its peer)", (double)(first - opened), 0);
    show(json, "idle_peer", "each further idle peer adds", (double)(idle - first) / (peers - 1), 64);
    show(json, "first_tensor", "the first tensor adds (its peer included)", (double)(first_active - idle), 0);
    show(json, "active_peer", "each further peer with a bulk lane adds", (double)(active - first_active) / (peers - 1),
         256);
    return ok;
}

int main(int argc, char **argv)
{
    int64_t peers = 12;
    bool only_libraries = false, quick = false;
    const char *json_path = NULL;
    const cli_option options[] = {
        {"peers", CLI_INT, &peers, 2, 256, NULL, "N", "workers beside rank 0, as processes", "12"},
        {"libraries", CLI_FLAG, &only_libraries, 0, 0, NULL, NULL, "only libfabric's own share, in KiB", NULL},
        {"json", CLI_TEXT, &json_path, 0, 0, NULL, "FILE", "write the numbers there", NULL},
        {"quick", CLI_FLAG, &quick, 0, 0, NULL, NULL, "4 peers", NULL},
    };
    const cli program = {"server_memory", "memory of an agent and of each of its peers", "server_memory --peers 32",
                         options, sizeof options / sizeof *options};
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    if (only_libraries)
        return libraries();
    if (workers_is_child())
        return workers_serve(functions, 1);
    report json;
    if (!report_open(&json, json_path))
        return 1;
    bool ok = measure(quick ? 4 : (int)peers, ask_libraries(), &json);
    return report_close(&json) && ok ? 0 : 1;
}
