/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h - the options of the command line. */
#ifndef WEFT_PERF_SETTINGS_H
#define WEFT_PERF_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <weft/tensor.h>

#define FABRICS_MAX 4
#define SIZES_MAX 32
#define MEASURES 8
#define SERVE_PORT 29700
#define WORKERS_MAX 64

/* The measurements, in the order in which they run. */
enum { LATENCY, BANDWIDTH, RATE, INCAST, BESIDE, COLLECTIVES, DEVICE, MEMORY };
extern const char *const measure_names[MEASURES + 1]; /* ends with NULL */

typedef struct settings {
    bool wanted[MEASURES];
    bool has_only;                 /* --only names them */
    char fabrics[FABRICS_MAX][32]; /* each a list for weft_agent_options.fabric: "tcp", "host,tcp" */
    size_t fabric_count;
    bool has_fabrics; /* --fabric or WEFT_FABRIC names them; otherwise those that open are measured */
    size_t sizes[SIZES_MAX];
    size_t size_count; /* 0: each measurement takes its own sizes */
    double seconds;    /* of one result, the floor included */
    int64_t workers, idle_peers, port;
    bool serve, no_floor, peers, json;
    bool has_device;
    weft_device device; /* of the measurement device */
    char to_host[256];  /* "": local */
    int64_t to_port;
    const char *address, *svg, *compare, *from;
    double bound; /* --compare: a result that takes more times as long as before counts as slower */
} settings;

/* Reads the command line. Returns -1 if the program should run, otherwise its exit code. */
int settings_read(int argc, char **argv, settings *out);
/* Whether --sizes names this size, is not given, or `bytes` is 0. */
bool settings_has_size(const settings *o, int64_t bytes);
/* The options that choose results, for a run whose results come from a file (--from). */
bool settings_choose(const settings *o, const char *measure, const char *fabric, int64_t bytes);
/* Copies the sizes to measure to `out`: those of --sizes, or `usual`. Returns their number. */
size_t settings_sizes(const settings *o, const size_t *usual, size_t count, size_t out[SIZES_MAX]);
/* Copies the next item of a list with commas to `out`, and moves *at behind it: NULL after the last one. False: *at is
 * NULL. */
bool next_item(const char **at, char *out, size_t room);
bool list_has(const char *list, const char *name); /* whether a list with commas has this item */
/* The name of a fabric's list for people: "host+tcp". In `out`; returns it. */
const char *fabric_name(const char *list, char out[32]);

#endif
