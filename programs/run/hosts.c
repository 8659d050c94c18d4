/* SPDX-License-Identifier: Apache-2.0 */
/* hosts.c - see hosts.h. */
#include "run/hosts.h"

#include "base/clock.h"
#include "base/launchers.h"
#include "base/resolve.h"
#include "job/bootstrap/nodelist.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define SLOTS_MOST 65536
#define LINE_BYTES 4096
#define LINES_MOST 65536
#define RESOLVE_MS 5000 /* for all names together */
#define LOOKUPS_MAX 64

/* The room doubles when the count is a power of two. NULL: out of memory. */
static host *add_host(host_list *list, const char *name, host_method method)
{
    if ((list->count & (list->count - 1)) == 0) {
        host *larger = realloc(list->items, (list->count ? 2 * list->count : 1) * sizeof *larger);
        if (!larger)
            return NULL;
        list->items = larger;
    }
    host *added = &list->items[list->count];
    *added = (host){.name = strdup(name), .method = method};
    list->count += added->name ? 1 : 0;
    return added->name ? added : NULL;
}

/* The host of that name, which is added if it is new. NULL: out of memory. */
static host *host_named(host_list *list, const char *name, host_method method)
{
    for (size_t i = list->count; i-- > 0;) /* equal names often follow one another */
        if (strcasecmp(list->items[i].name, name) == 0)
            return &list->items[i];
    return add_host(list, name, method);
}

void hosts_here(host_list *made, int slots)
{
    *made = (host_list){0};
    host *one = add_host(made, "localhost", HOST_HERE);
    if (one)
        one->slots = slots;
}

const char *host_address(const host *one)
{
    const char *at = strrchr(one->name, '@');
    return at ? at + 1 : one->name;
}

/* Whether the resolver, usually /etc/hosts, has this full name for this machine, whose own name lacks a domain. */
static bool is_full_name(const char *name, const char *own)
{
    struct addrinfo *found = NULL;
    bool is_same = wfi_resolve(own, 0, AI_CANONNAME, wfi_deadline(&wfi_clock_real, RESOLVE_MS), &found) == 0 &&
                   found->ai_canonname && strcasecmp(found->ai_canonname, name) == 0;
    if (found)
        freeaddrinfo(found);
    return is_same;
}

/* Also "node1" for "node1.some.domain", and the reverse. Another domain is another machine. */
static bool is_this_machine(const char *name)
{
    static const char *const loopback[] = {"localhost", "127.0.0.1", "::1"};
    char own[HOST_NAME_MAX + 1] = "";
    for (size_t i = 0; i < sizeof loopback / sizeof *loopback; i++)
        if (strcasecmp(name, loopback[i]) == 0)
            return true;
    (void)gethostname(own, sizeof own - 1);
    size_t short_own = strcspn(own, "."), short_name = strcspn(name, ".");
    if (short_own != short_name || strncasecmp(name, own, short_own) != 0)
        return false;
    return strcasecmp(name, own) == 0 || !name[short_name] || (!own[short_own] && is_full_name(name, own));
}

/* ---- Files ------------------------------------------------------------------------------------------------------ */

/* A word of a file that may be no text: other bytes as \xNN, and at most 60 characters. */
static const char *shown(const char *word, char out[64])
{
    size_t used = 0;
    for (; *word && used < 56; word++) {
        bool is_plain = (unsigned char)*word >= ' ' && (unsigned char)*word < 0x7f;
        used += (size_t)snprintf(out + used, 64 - used, is_plain ? "%c" : "\\x%02x", (unsigned char)*word);
    }
    snprintf(out + used, 64 - used, "%s", *word ? "..." : "");
    return out;
}

/* Returns K of slots=K, -1 for max_slots (ignored), 0 for anything else. */
static int slots_of(const char *word)
{
    char *end;
    long slots = 0;
    if (strncmp(word, "slots=", 6) == 0)
        slots = strtol(word + 6, &end, 10);
    else
        return strncmp(word, "max_slots=", 10) == 0 || strncmp(word, "max-slots=", 10) == 0 ? -1 : 0;
    return end != word + 6 && !*end && slots > 0 && slots <= SLOTS_MOST ? (int)slots : 0;
}

/* Other launchers write "node1:4". An IPv6 address has more colons. */
static bool has_count(const char *name)
{
    const char *colon = strchr(name, ':');
    return colon && colon != name && colon[1] && strspn(colon + 1, "0123456789") == strlen(colon + 1);
}

static bool check_name(const char *name, const char *path, int number)
{
    char text[64];
    if (has_count(name)) {
        size_t length = strcspn(name, ":");
        fprintf(stderr, "weft-run: %s:%d: '%s': write '%.*s slots=%s'\n", path, number, shown(name, text),
                (int)(length < 200 ? length : 200), name, name + length + 1);
        return false;
    }
    if (strchr(name, ','))
        fprintf(stderr, "weft-run: %s:%d: '%s': write one host a line, without commas\n", path, number,
                shown(name, text));
    if (strchr(name, ','))
        return false;
    bool is_text = true;
    for (const char *at = name; *at; at++)
        is_text = is_text && (unsigned char)*at > ' ' && *at != 0x7f;
    if (is_text && *name != '-' && !strchr(name, '='))
        return true;
    fprintf(stderr, "weft-run: %s:%d: '%s' is no name of a host\n", path, number, shown(name, text));
    return false;
}

static bool read_line(host_list *list, char *line, const char *path, int number)
{
    char *rest = NULL;
    line[strcspn(line, "#\n")] = '\0';
    const char *name = strtok_r(line, " \t\r", &rest);
    int slots = 1;
    if (!name)
        return true;
    if (!check_name(name, path, number))
        return false;
    for (const char *word; (word = strtok_r(NULL, " \t\r", &rest));) {
        int given = slots_of(word);
        if (!given) {
            char text[64];
            fprintf(stderr, "weft-run: %s:%d: '%s': expected slots=K, with K from 1 to %d\n", path, number,
                    shown(word, text), SLOTS_MOST);
            return false;
        }
        slots = given > 0 ? given : slots;
    }
    host *one = host_named(list, name, is_this_machine(name) ? HOST_HERE : HOST_SSH);
    if (one)
        one->slots += one->slots < SLOTS_MOST ? slots : 0;
    return one != NULL;
}

/* ---- Two names of one machine ----------------------------------------------------------------------------------- */

/* Resolves the names of all hosts, LOOKUPS_MAX at a time. NULL: no address of that host is known. */
static void resolve_all(const host_list *list, struct addrinfo **addresses)
{
    wfi_lookup *lookups[LOOKUPS_MAX];
    uint64_t deadline_ns = wfi_deadline(&wfi_clock_real, RESOLVE_MS);
    for (size_t from = 0; from < list->count && wfi_now(&wfi_clock_real) < deadline_ns; from += LOOKUPS_MAX) {
        size_t count = list->count - from < LOOKUPS_MAX ? list->count - from : LOOKUPS_MAX;
        for (size_t i = 0; i < count; i++) {
            const host *one = &list->items[from + i];
            char own[HOST_NAME_MAX + 1] = "";
            (void)gethostname(own, sizeof own - 1);
            lookups[i] = wfi_lookup_begin(one->method == HOST_HERE ? own : host_address(one), 0, 0);
        }
        for (size_t i = 0; i < count; i++)
            (void)wfi_lookup_end(lookups[i], deadline_ns, &addresses[from + i]);
    }
}

static bool share_address(const struct addrinfo *a, const struct addrinfo *b)
{
    for (const struct addrinfo *x = a; x; x = x->ai_next)
        for (const struct addrinfo *y = b; y; y = y->ai_next)
            if (x->ai_addrlen == y->ai_addrlen && memcmp(x->ai_addr, y->ai_addr, x->ai_addrlen) == 0)
                return true;
    return false;
}

static bool have_one_user(const host *a, const host *b)
{
    size_t of_a = (size_t)(host_address(a) - a->name), of_b = (size_t)(host_address(b) - b->name);
    return of_a == of_b && memcmp(a->name, b->name, of_a) == 0;
}

/* Names that resolve to one address are one host, so that the ranks of its workers on the machine are right. */
static bool merge_names(host_list *list, const char *path)
{
    size_t count = list->count, kept = 0;
    size_t *of = calloc(count, sizeof *of); /* the place in `addresses` of each kept host */
    struct addrinfo **addresses = calloc(count, sizeof(struct addrinfo *));
    bool ok = of && addresses;
    if (ok && count > 1)
        resolve_all(list, addresses);
    for (size_t i = 0; i < count && of && addresses; i++) {
        host *one = &list->items[i], *same = NULL;
        for (size_t k = 0; k < kept && !same; k++)
            if ((one->method == HOST_HERE && list->items[k].method == HOST_HERE) ||
                share_address(addresses[of[k]], addresses[i]))
                same = &list->items[k];
        if (same && !have_one_user(same, one)) {
            fprintf(stderr, "weft-run: --hosts: %s: '%s' and '%s' are one machine: name it with one user\n", path,
                    same->name, one->name);
            ok = false;
        }
        if (same) {
            same->slots += one->slots < SLOTS_MOST - same->slots ? one->slots : SLOTS_MOST - same->slots;
            free(one->name);
            continue;
        }
        of[kept] = i;
        list->items[kept++] = *one;
    }
    list->count = of && addresses ? kept : count;
    for (size_t i = 0; i < count && addresses; i++)
        if (addresses[i])
            freeaddrinfo(addresses[i]);
    free(addresses);
    free(of);
    return ok;
}

/* ---- The file --------------------------------------------------------------------------------------------------- */

/* False: the file is too long, or no text. */
static bool read_lines(host_list *made, FILE *file, const char *path)
{
    char line[LINE_BYTES];
    bool ok = true;
    for (int number = 1; ok && fgets(line, sizeof line, file); number++) {
        bool is_whole = strchr(line, '\n') || feof(file);
        if (number > LINES_MOST || !is_whole) {
            fprintf(stderr, "weft-run: %s:%d: no hosts file: more than %d lines, a line of %d bytes, or a zero byte\n",
                    path, number, LINES_MOST, LINE_BYTES);
            return false;
        }
        bool has_mark = number == 1 && strncmp(line, "\xef\xbb\xbf", 3) == 0; /* of UTF-8 */
        ok = read_line(made, line + (has_mark ? 3 : 0), path, number);
    }
    return ok;
}

bool hosts_read(host_list *made, const char *path)
{
    FILE *file = fopen(path, "re");
    *made = (host_list){0};
    if (!file) {
        fprintf(stderr, "weft-run: --hosts: %s: %s\n", path, strerror(errno));
        return false;
    }
    bool ok = read_lines(made, file, path);
    if (ok && ferror(file))
        fprintf(stderr, "weft-run: --hosts: %s: %s\n", path, strerror(errno));
    else if (ok && made->count == 0)
        fprintf(stderr, "weft-run: --hosts: %s names no host\n", path);
    ok = ok && !ferror(file) && made->count > 0 && merge_names(made, path);
    fclose(file);
    if (!ok)
        hosts_free(made);
    return ok;
}

/* ---- Slurm ------------------------------------------------------------------------------------------------------ */

bool hosts_of_slurm(host_list *made)
{
    const char *names = getenv("SLURM_JOB_NODELIST"), *nodes = getenv("SLURM_JOB_NUM_NODES");
    char name[256];
    *made = (host_list){0};
    if (!names || !nodes || strtol(nodes, NULL, 10) < 2)
        return true;
    for (size_t i = 0; wfi_nodelist_at(names, i, name, sizeof name); i++) {
        long slots = wfi_launcher_slurm_number(getenv("SLURM_TASKS_PER_NODE"), i, SLOTS_MOST);
        host *one = i < SLOTS_MOST ? add_host(made, name, HOST_SRUN) : NULL; /* Slurm names a node once */
        if (!one) {
            fprintf(stderr, "weft-run: SLURM_JOB_NODELIST names more than %zu nodes: at most %d\n", i, SLOTS_MOST);
            hosts_free(made);
            return false;
        }
        one->slots = slots > 0 ? (int)slots : 1;
        one->cpus = (int)wfi_launcher_slurm_number(getenv("SLURM_JOB_CPUS_PER_NODE"), i, SLOTS_MOST);
    }
    return true;
}

int hosts_slots(const host_list *list)
{
    int64_t slots = 0;
    for (size_t i = 0; i < list->count; i++)
        slots += list->items[i].slots;
    return slots < SLOTS_MOST ? (int)slots : SLOTS_MOST;
}

void hosts_free(host_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i].name);
    free(list->items);
    *list = (host_list){0};
}
