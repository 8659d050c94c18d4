/* SPDX-License-Identifier: Apache-2.0 */
/* settings.c - see settings.h. */
#include "perf/settings.h"

#include "cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define SIZE_MOST ((size_t)1 << 30)

const char *const measure_names[MEASURES + 1] = {"latency", "bandwidth",   "rate",   "incast",
                                                 "beside",  "collectives", "memory", NULL};

const char *fabric_name(const char *list, char out[32])
{
    snprintf(out, 32, "%s", list);
    for (char *at = out; *at; at++)
        if (*at == ',')
            *at = '+';
    return out;
}

size_t settings_sizes(const settings *o, const size_t *usual, size_t count, size_t out[SIZES_MAX])
{
    const size_t *from = o->size_count ? o->sizes : usual;
    count = o->size_count ? o->size_count : count;
    memcpy(out, from, count * sizeof *out);
    return count;
}

/* Copies the next item of a list with commas to `out`, and moves *at behind it. False: the list has ended. */
static bool next_item(const char **at, char *out, size_t room)
{
    if (!*at)
        return false;
    size_t length = strcspn(*at, ",");
    snprintf(out, room, "%.*s", (int)length, *at);
    *at = (*at)[length] ? *at + length + 1 : NULL;
    return true;
}

static int read_measures(const cli *program, const char *text, settings *o)
{
    char item[64];
    for (const char *at = text; next_item(&at, item, sizeof item);) {
        size_t i = 0;
        while (measure_names[i] && strcmp(measure_names[i], item) != 0)
            i++;
        if (!measure_names[i])
            return cli_error(program,
                             "--only names '%s': expected latency, bandwidth, rate, incast, beside, collectives or "
                             "memory",
                             item);
        o->wanted[i] = true;
    }
    return -1;
}

static int read_fabrics(const cli *program, const char *text, settings *o)
{
    char item[32];
    o->has_fabrics = true;
    for (const char *at = text; next_item(&at, item, sizeof item);) {
        if (!*item)
            return cli_error(program, "--fabric is '%s': a name is empty", text);
        if (o->fabric_count == FABRICS_MAX)
            return cli_error(program, "--fabric is '%s': at most %d fabrics", text, FABRICS_MAX);
        for (char *plus = item; *plus; plus++)
            if (*plus == '+')
                *plus = ',';
        for (size_t i = 0; i < o->fabric_count; i++)
            if (strcmp(o->fabrics[i], item) == 0)
                return cli_error(program, "--fabric names '%s' twice", item);
        snprintf(o->fabrics[o->fabric_count++], sizeof *o->fabrics, "%s", item);
    }
    return -1;
}

static int read_sizes(const cli *program, const char *text, settings *o)
{
    char item[32], *end;
    for (const char *at = text; next_item(&at, item, sizeof item);) {
        errno = 0;
        unsigned long long size = strtoull(item, &end, 10);
        unsigned shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
        bool is_digit = *item >= '0' && *item <= '9';
        if (!is_digit || errno || end[shift ? 1 : 0] || size == 0 || size > SIZE_MOST >> shift)
            return cli_error(program, "--sizes names '%s': expected bytes from 1 to 1G, such as 8, 64K or 1M", item);
        if (o->size_count == SIZES_MAX)
            return cli_error(program, "--sizes is '%s': at most %d sizes", text, SIZES_MAX);
        o->sizes[o->size_count++] = (size_t)size << shift;
    }
    return -1;
}

/* HOST, HOST:PORT, [IPV6]:PORT, or an IPv6 address alone. */
static int read_to(const cli *program, const char *text, settings *o)
{
    const char *host = text, *colon = strrchr(text, ':'), *bracket = strrchr(text, ']');
    size_t length = strlen(text);
    bool has_port = colon && (bracket ? colon == bracket + 1 : strchr(text, ':') == colon);
    o->to_port = SERVE_PORT;
    if (has_port) {
        char *end;
        o->to_port = strtol(colon + 1, &end, 10);
        if (end == colon + 1 || *end || o->to_port < 1 || o->to_port > 65535)
            return cli_error(program, "--to is '%s': '%s' is no port from 1 to 65535", text, colon + 1);
        length = (size_t)(colon - text);
    }
    if (*host == '[' && length > 2 && host[length - 1] == ']') {
        host++;
        length -= 2;
    }
    if (length == 0 || length >= sizeof o->to_host)
        return cli_error(program, "--to is '%s': expected HOST or HOST:PORT", text);
    snprintf(o->to_host, sizeof o->to_host, "%.*s", (int)length, host);
    return -1;
}

/* Options that exclude each other, or need another one. */
static int check(const cli *program, const settings *o)
{
    bool is_remote = o->serve || *o->to_host;
    if (o->serve && *o->to_host)
        return cli_error(program, "--serve and --to %s: one process is either side", o->to_host);
    if (o->from && (is_remote || o->peers))
        return cli_error(program, "--from %s measures nothing: neither --serve, --to nor --peers goes with it",
                         o->from);
    if (is_remote && o->peers)
        return cli_error(program, "--peers measures on this host only: neither --serve nor --to goes with it");
    if (o->address && !o->serve)
        return cli_error(program, "--address %s is for --serve", o->address);
    if (o->serve && (o->csv || o->json || o->svg || o->compare))
        return cli_error(program, "--serve has no results: they are at the side of --to");
    if (o->csv && o->json)
        return cli_error(program, "--csv and --json: the output has one form");
    return -1;
}

static void print_more(void)
{
    printf(
        "\nLocally (no --serve, no --to) weft-perf starts its own workers. On two hosts, start weft-perf --serve on\n"
        "one; it prints what to type on the other. If WEFT_SECRET_FILE is set, both sides need the same secret.\n\n"
        "latency      time of one call: without arguments, with a tensor one way, and with the tensor back\n"
        "bandwidth    tensors one way and both ways, four calls in flight\n"
        "rate         calls without arguments a second, with 1 to 256 in flight\n"
        "incast       calls and tensors of all other workers to one (local only)\n"
        "beside       small calls alone, and beside 64 MiB to the same worker\n"
        "collectives  barrier, allreduce, broadcast, allgather, reduce_scatter, all_to_all; 2, 4 ... workers\n"
        "memory       what an agent, an idle peer and a peer with a bulk lane add (local only)\n\n"
        "Each result has its median, percentiles, samples, the fabric of both lanes, and the floor: what libfabric\n"
        "alone does (host: plain shared memory and process_vm_readv), in turns with weft. \"of floor\" is the speed\n"
        "as a part of the floor's. A fabric a+b is the list a,b of WEFT_FABRIC.\n"
        "Exit code: 0; 1 if something failed; 2 for a wrong option; 3 if --compare found something slower.\n"
        "docs/weft-perf.md explains the results.\n");
}

int settings_read(int argc, char **argv, settings *o)
{
    const char *only = NULL, *fabric = NULL, *sizes = NULL, *to = NULL;
    *o = (settings){.seconds = 0.4, .workers = 4, .idle_peers = 8, .port = SERVE_PORT, .bound = 1.5};
    const cli_option options[] = {
        {"only", CLI_TEXT, &only, 0, 0, NULL, "LIST", "these measurements, such as latency,rate", "all"},
        {"fabric", CLI_TEXT, &fabric, 0, 0, NULL, "LIST", "each of these fabrics: host,tcp,verbs", "those that open"},
        {"sizes", CLI_TEXT, &sizes, 0, 0, NULL, "LIST", "bytes of tensors, such as 8,64K,1M", "by measurement"},
        {"seconds", CLI_NUMBER, &o->seconds, 0.001, 60, NULL, "S", "time for one result, with its floor", "0.4"},
        {"workers", CLI_INT, &o->workers, 2, WORKERS_MAX, NULL, "N", "workers on this host, for incast and collectives",
         "4"},
        {"idle-peers", CLI_INT, &o->idle_peers, 2, 256, NULL, "N", "peers whose memory is measured", "8"},
        {"serve", CLI_FLAG, &o->serve, 0, 0, NULL, NULL, "wait for weft-perf --to on another host, and serve it", NULL},
        {"to", CLI_TEXT, &to, 0, 0, NULL, "HOST[:PORT]", "measure with the weft-perf --serve of that host", NULL},
        {"address", CLI_TEXT, &o->address, 0, 0, NULL, "ADDRESS", "with --serve: this host's address for the other",
         "the first interface's"},
        {"port", CLI_INT, &o->port, 0, 65535, NULL, "N", "with --serve: the port; 0: a free one", "29700"},
        {"no-floor", CLI_FLAG, &o->no_floor, 0, 0, NULL, NULL, "do not measure the floors", NULL},
        {"peers", CLI_FLAG, &o->peers, 0, 0, NULL, NULL,
         "measure fi_pingpong, ucx_perftest, PyTorch and Open MPI too, if they are installed", NULL},
        {"csv", CLI_FLAG, &o->csv, 0, 0, NULL, NULL, "print CSV instead of tables", NULL},
        {"json", CLI_FLAG, &o->json, 0, 0, NULL, NULL, "print one JSON object instead of tables", NULL},
        {"svg", CLI_TEXT, &o->svg, 0, 0, NULL, "FILE", "draw the results there as well", NULL},
        {"compare", CLI_TEXT, &o->compare, 0, 0, NULL, "OLD.json", "print the ratios to these results", NULL},
        {"bound", CLI_NUMBER, &o->bound, 1, 1000, NULL, "X", "with --compare: X times as slow as before is slower",
         "1.5"},
        {"from", CLI_TEXT, &o->from, 0, 0, NULL, "NEW.json", "take these results instead of measuring", NULL},
    };
    const cli program = {"weft-perf", "measures weft on this host, or between two",
                         "weft-perf --only latency --fabric host,tcp", options, COUNT(options)};
    int code = cli_parse(&program, argc, argv);
    if (code == 0)
        print_more();
    if (code < 0 && only)
        code = read_measures(&program, only, o);
    for (size_t i = 0; i < MEASURES && !only; i++)
        o->wanted[i] = true;
    if (code < 0 && fabric)
        code = read_fabrics(&program, fabric, o);
    if (code < 0 && sizes)
        code = read_sizes(&program, sizes, o);
    if (code < 0 && to)
        code = read_to(&program, to, o);
    return code < 0 ? check(&program, o) : code;
}
