/* SPDX-License-Identifier: Apache-2.0 */
/* settings.c - see settings.h. */
#include "perf/settings.h"

#include "cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/base.h>

#define COUNT(array) (sizeof(array) / sizeof(*(array)))
#define SIZE_MOST ((size_t)1 << 30)

const char *const measure_names[MEASURES + 1] = {"latency",     "bandwidth", "rate",   "incast", "beside",
                                                 "collectives", "device",    "memory", NULL};

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
    memcpy(out, from, count * sizeof(*out));
    return count;
}

bool settings_has_size(const settings *o, int64_t bytes)
{
    bool is_size = !o->size_count || bytes == 0;
    for (size_t i = 0; i < o->size_count; i++)
        is_size = is_size || (int64_t)o->sizes[i] == bytes;
    return is_size;
}

bool settings_choose(const settings *o, const char *measure, const char *fabric, int64_t bytes)
{
    char name[32];
    bool ok = !o->has_only, is_fabric = !o->has_fabrics;
    for (size_t i = 0; i < MEASURES; i++)
        ok = ok || (o->wanted[i] && strcmp(measure, measure_names[i]) == 0);
    for (size_t i = 0; i < o->fabric_count; i++)
        is_fabric = is_fabric || strcmp(fabric_name(o->fabrics[i], name), fabric) == 0;
    return ok && is_fabric && settings_has_size(o, bytes);
}

bool next_item(const char **at, char *out, size_t room)
{
    if (!*at)
        return false;
    size_t length = strcspn(*at, ",");
    snprintf(out, room, "%.*s", (int)length, *at);
    *at = (*at)[length] ? *at + length + 1 : NULL;
    return true;
}

bool list_has(const char *list, const char *name)
{
    char item[64];
    for (const char *at = list; next_item(&at, item, sizeof(item));)
        if (strcmp(item, name) == 0)
            return true;
    return false;
}

static int read_device(const cli *program, const char *text, settings *o)
{
    char *end = NULL;
    long index = strncmp(text, "cuda:", 5) == 0 && text[5] >= '0' && text[5] <= '9' ? strtol(text + 5, &end, 10) : -1;
    if (index < 0 || index > 63 || *end)
        return cli_error(program, "--device is '%s': expected cuda:0 to cuda:63", text);
    o->has_device = true;
    o->device = (weft_device){WEFT_DEVICE_CUDA, (int)index};
    return -1;
}

static int read_measures(const cli *program, const char *text, settings *o)
{
    char item[64];
    o->has_only = true;
    for (const char *at = text; next_item(&at, item, sizeof(item));) {
        size_t i = 0;
        while (measure_names[i] && strcmp(measure_names[i], item) != 0)
            i++;
        if (!measure_names[i])
            return cli_error(program,
                             "--only names '%s': expected latency, bandwidth, rate, incast, beside, collectives, "
                             "device or memory",
                             item);
        o->wanted[i] = true;
    }
    return -1;
}

static int read_fabrics(const cli *program, const char *text, settings *o)
{
    char item[64];
    o->has_fabrics = true;
    for (const char *at = text; next_item(&at, item, sizeof(item));) {
        if (!*item)
            return cli_error(program, "--fabric is '%s': a name is empty", text);
        if (strlen(item) >= sizeof(*o->fabrics))
            return cli_error(program, "--fabric is '%s': an item is longer than %zu characters", text,
                             sizeof(*o->fabrics) - 1);
        if (o->fabric_count == FABRICS_MAX)
            return cli_error(program, "--fabric is '%s': at most %d fabrics", text, FABRICS_MAX);
        for (char *plus = item; *plus; plus++)
            if (*plus == '+')
                *plus = ',';
        for (size_t i = 0; i < o->fabric_count; i++)
            if (strcmp(o->fabrics[i], item) == 0)
                return cli_error(program, "--fabric names '%s' twice", item);
        memcpy(o->fabrics[o->fabric_count++], item, strlen(item) + 1);
    }
    return -1;
}

/* WEFT_FABRIC is measured as one list: that is what the user's programs have. */
static int read_fabric_variable(const cli *program, settings *o)
{
    const char *text = getenv("WEFT_FABRIC");
    if (!text || !*text || strcmp(text, "auto") == 0)
        return -1;
    if (strlen(text) >= sizeof(*o->fabrics))
        return cli_error(program, "WEFT_FABRIC is '%s': weft-perf takes at most %zu characters; use --fabric", text,
                         sizeof(*o->fabrics) - 1);
    o->has_fabrics = true;
    snprintf(o->fabrics[o->fabric_count++], sizeof(*o->fabrics), "%s", text);
    return -1;
}

static int read_sizes(const cli *program, const char *text, settings *o)
{
    static const char *const units[][2] = {{"", "B"}, {"K", "KiB"}, {"M", "MiB"}, {"G", "GiB"}};
    char item[32], *end;
    for (const char *at = text; next_item(&at, item, sizeof(item));) {
        unsigned unit = 0;
        errno = 0;
        unsigned long long size = strtoull(item, &end, 10);
        bool is_digit = *item >= '0' && *item <= '9';
        end += *end == ' '; /* as the tables have it: "1 MiB" */
        while (unit < COUNT(units) && strcmp(end, units[unit][0]) != 0 && strcmp(end, units[unit][1]) != 0)
            unit++;
        if (!is_digit || errno || unit == COUNT(units) || size == 0 || size > SIZE_MOST >> (10 * unit))
            return cli_error(program, "--sizes names '%s': expected 1 byte to 1 GiB, such as 8, 64K, 1MiB or '1 MiB'",
                             item);
        if (o->size_count == SIZES_MAX)
            return cli_error(program, "--sizes is '%s': at most %d sizes", text, SIZES_MAX);
        o->sizes[o->size_count++] = (size_t)size << (10 * unit);
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
    if (length == 0 || length >= sizeof(o->to_host))
        return cli_error(program, "--to is '%s': expected HOST or HOST:PORT", text);
    snprintf(o->to_host, sizeof(o->to_host), "%.*s", (int)length, host);
    return -1;
}

/* An option that would have no effect. */
static int check_effects(const cli *program, const settings *o)
{
    const bool *w = o->wanted;
    bool is_local = !o->serve && !*o->to_host, measures = !o->serve && !o->from;
    bool has_sizes = w[LATENCY] || w[BANDWIDTH] || w[INCAST] || w[BESIDE] || w[COLLECTIVES] || w[DEVICE] || o->peers;
    const struct {
        bool is_given, has_effect;
        const char *name, *needs;
    } options[] = {
        {o->address, o->serve, "--address", "--serve"},
        {o->port >= 0, o->serve, "--port", "--serve; the port of the other side is part of --to HOST:PORT"},
        {o->bound > 0, o->compare, "--bound", "--compare"},
        {o->workers > 0, is_local && measures, "--workers", "measurements on this host"},
        {o->idle_peers > 0, is_local && measures && w[MEMORY], "--idle-peers", "the measurement memory, on this host"},
        {o->seconds > 0, measures, "--seconds", "measurements"},
        {o->no_floor, measures, "--no-floor", "measurements"},
        {o->has_only, !o->serve, "--only", "the side of --to"},
        {o->has_device, measures && w[DEVICE], "--device", "the measurement device"},
        {o->size_count > 0, !o->serve && has_sizes, "--sizes", "measurements with tensors"},
    };
    for (size_t i = 0; i < COUNT(options); i++)
        if (options[i].is_given && !options[i].has_effect)
            return cli_error(program, "%s has no effect here: it is for %s", options[i].name, options[i].needs);
    return -1;
}

/* A measurement that is named and cannot be done. */
static int check_measures(const cli *program, const settings *o)
{
    if (o->from || o->serve)
        return -1;
    if (*o->to_host && o->has_only && (o->wanted[INCAST] || o->wanted[MEMORY]))
        return cli_error(program, "--only names %s: it is measured on one host only, without --to",
                         o->wanted[INCAST] ? "incast" : "memory");
    if (!*o->to_host && o->wanted[INCAST] && o->workers == 2)
        return cli_error(program, "--workers is 2: incast needs two senders, so 3 workers; or leave it out with "
                                  "--only");
    if (o->wanted[DEVICE] && !o->has_device)
        return cli_error(program, "--only names device: --device says which, such as cuda:0");
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
    if (o->serve && (o->json || o->svg || o->compare))
        return cli_error(program, "--serve has no results: they are at the side of --to");
    int code = check_effects(program, o);
    return code < 0 ? check_measures(program, o) : code;
}

static void take_defaults(settings *o)
{
    o->seconds = o->seconds > 0 ? o->seconds : 0.4;
    o->workers = o->workers > 0 ? o->workers : 4;
    o->idle_peers = o->idle_peers > 0 ? o->idle_peers : 8;
    o->port = o->port >= 0 ? o->port : SERVE_PORT;
    o->bound = o->bound > 0 ? o->bound : 1.5;
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
        "collectives  all operations of groups; 2, 4 ... workers\n"
        "device       echoes of tensors of a GPU, in turns with page-locked memory; small calls beside (--device)\n"
        "memory       what an agent, an idle peer and a peer with a bulk lane add (local only)\n\n"
        "Each result has its median, percentiles, samples, the fabric of both lanes, and the floor: what libfabric\n"
        "alone does (host: plain shared memory and process_vm_readv), in turns with weft. \"of floor\" is the speed\n"
        "of weft divided by that of the floor, and \"of weft\" the speed of a peer divided by that of weft. A fabric\n"
        "a+b is the list a,b of WEFT_FABRIC.\n"
        "Exit code: 0; 1 if something failed; 2 for a wrong option, file or variable; 3 if --compare found something\n"
        "slower; 130 after Ctrl-C.\n"
        "docs/weft-perf.md explains the results.\n");
}

int settings_read(int argc, char **argv, settings *o)
{
    const char *only = NULL, *fabric = NULL, *sizes = NULL, *to = NULL, *device = NULL;
    bool version = false;
    *o = (settings){.port = -1}; /* 0 and -1: not given */
    const cli_option options[] = {
        {"only", CLI_TEXT, &only, 0, 0, NULL, "LIST", "these measurements, such as latency,rate", "all"},
        {"fabric", CLI_TEXT, &fabric, 0, 0, NULL, "LIST", "each of these fabrics: host,tcp,verbs",
         "WEFT_FABRIC, else those that open"},
        {"sizes", CLI_TEXT, &sizes, 0, 0, NULL, "LIST", "bytes of tensors, such as 8,64K,1MiB", "by measurement"},
        {"seconds", CLI_NUMBER, &o->seconds, 0.001, 60, NULL, "S", "time for one result, with its floor", "0.4"},
        {"workers", CLI_INT, &o->workers, 2, WORKERS_MAX, NULL, "N", "workers on this host, for incast and collectives",
         "4"},
        {"idle-peers", CLI_INT, &o->idle_peers, 2, 256, NULL, "N", "peers whose memory is measured", "8"},
        {"serve", CLI_FLAG, &o->serve, 0, 0, NULL, NULL, "wait for weft-perf --to on another host, and serve it", NULL},
        {"to", CLI_TEXT, &to, 0, 0, NULL, "HOST[:PORT]", "measure with the weft-perf --serve of that host", NULL},
        {"device", CLI_TEXT, &device, 0, 0, NULL, "cuda:N", "the GPU of the measurement device", NULL},
        {"address", CLI_TEXT, &o->address, 0, 0, NULL, "ADDRESS", "with --serve: this host's address for the other",
         "the first interface's"},
        {"port", CLI_INT, &o->port, 0, 65535, NULL, "N", "with --serve: the port; 0: a free one", "29700"},
        {"no-floor", CLI_FLAG, &o->no_floor, 0, 0, NULL, NULL, "do not measure the floors", NULL},
        {"peers", CLI_FLAG, &o->peers, 0, 0, NULL, NULL,
         "measure PyTorch, Gloo and Open MPI in turns with weft, if they are installed", NULL},
        {"json", CLI_FLAG, &o->json, 0, 0, NULL, NULL, "print one JSON object instead of tables", NULL},
        {"svg", CLI_TEXT, &o->svg, 0, 0, NULL, "FILE", "draw the results there as well, a plot for each operation",
         NULL},
        {"compare", CLI_TEXT, &o->compare, 0, 0, NULL, "OLD.json", "print the ratios to these results", NULL},
        {"bound", CLI_NUMBER, &o->bound, 1, 1000, NULL, "X", "with --compare: X times as slow as before is slower",
         "1.5"},
        {"from", CLI_TEXT, &o->from, 0, 0, NULL, "NEW.json",
         "take these results instead of measuring; --only, --fabric and --sizes choose among them", NULL},
        {"version", CLI_FLAG, &version, 0, 0, NULL, NULL, "the version of weft", NULL},
    };
    const cli program = {.program = "weft-perf",
                         .purpose = "measures weft on this host, or between two",
                         .example = "weft-perf --only latency --fabric host,tcp",
                         .options = options,
                         .count = COUNT(options)};
    int code = cli_parse(&program, argc, argv);
    if (code == 0)
        print_more();
    if (code < 0 && version) {
        printf("weft-perf %s\n", weft_version());
        return 0;
    }
    if (code < 0 && only)
        code = read_measures(&program, only, o);
    for (size_t i = 0; i < MEASURES && !only; i++)
        o->wanted[i] = i != DEVICE || device;
    if (code < 0 && device)
        code = read_device(&program, device, o);
    if (code < 0 && fabric)
        code = read_fabrics(&program, fabric, o);
    else if (code < 0 && !o->from)
        code = read_fabric_variable(&program, o);
    if (code < 0 && sizes)
        code = read_sizes(&program, sizes, o);
    if (code < 0 && to)
        code = read_to(&program, to, o);
    if (code < 0)
        code = check(&program, o);
    take_defaults(o);
    return code;
}
