/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw_floor.h - what libfabric itself can do on this machine, measured in the same run as whatever is compared with it.
 *
 * Two processes over loopback, each with one connected endpoint (FI_EP_MSG) of the provider and a completion queue that it
 * polls without pause: the round trip of a message, and the rate of remote reads and writes cut into chunks with a small
 * window of them under way. Nothing of weft is in the way.
 */
#ifndef PERF_RAW_FLOOR_H
#define PERF_RAW_FLOOR_H

#include <stddef.h>
#include <stdio.h>

#define RAW_FLOOR_SIZES_MAX 16

typedef struct raw_floor_trip {
    size_t bytes;
    double min_us, p50_us, p99_us; /* there and back */
} raw_floor_trip;

typedef struct raw_floor_rate {
    size_t bytes;
    double read_gb_s, write_gb_s; /* 1e9 bytes a second; the best repetition */
    size_t read_chunk, write_chunk;
} raw_floor_rate;

typedef struct raw_floor {
    char provider[32], version[16];
    raw_floor_trip trips[RAW_FLOOR_SIZES_MAX];
    raw_floor_rate rates[RAW_FLOOR_SIZES_MAX];
    size_t trip_count, rate_count;
} raw_floor;

typedef struct raw_floor_options {
    const char *provider; /* NULL: tcp */
    int rounds;           /* round trips of a size; 0: 2000 */
    int repeat_ms;        /* how long each rate is repeated; 0: 100 */
    size_t bytes_max;     /* largest transfer; 0: 64 MiB */
} raw_floor_options;

/* 0, or -1 with a line on stderr. Forks: call it before there are threads. */
int raw_floor_measure(const raw_floor_options *options, raw_floor *out);
void raw_floor_print(const raw_floor *floor, FILE *to);
void raw_floor_json(const raw_floor *floor, FILE *to); /* one object */

#endif
