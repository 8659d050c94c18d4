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
#define LINES_MOST 65536
#define FILE_MOST (16 << 20)
#define NAME_MOST 255
#define RESOLVED_MOST 1024  /* names that are resolved */
#define RESOLVE_MS 5000     /* for all of them together */
#define RESOLVE_MANY_MS 500 /* the same, if they are more than LOOKUPS_MAX: a long list must not take seconds */
#define LOOKUPS_MAX 64

/* False: out of memory. */
static bool add_host(host_list *list, const char *name, host_method method, int slots)
{
    if (list->count == list->room) {
        size_t room = list->room ? 2 * list->room : 1;
        host *larger = realloc(list->items, room * sizeof(*larger));
        if (!larger)
            return false;
        list->items = larger;
        list->room = room;
    }
    host *added = &list->items[list->count];
    *added = (host){.name = strdup(name), .method = method, .slots = slots};
    list->count += added->name ? 1 : 0;
    return added->name;
}

void hosts_here(host_list *made, int slots)
{
    *made = (host_list){0};
    (void)add_host(made, "localhost", HOST_HERE, slots);
}

const char *host_address(const host *one)
{
    const char *at = strrchr(one->name, '@');
    return at ? at + 1 : one->name;
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
    bool is_text = strlen(name) <= NAME_MOST, has_comma = strchr(name, ',');
    for (const char *at = name; *at; at++)
        is_text = is_text && (unsigned char)*at > ' ' && *at != 0x7f;
    if (is_text && !has_comma && *name != '-' && !strchr(name, '='))
        return true;
    fprintf(stderr, "weft-run: %s:%d: '%s'%s\n", path, number, shown(name, text),
            has_comma ? ": write one host a line, without commas" : " is no name of a host");
    return false;
}

static bool read_line(host_list *list, char *line, const char *path, int number)
{
    char *rest = NULL;
    line[strcspn(line, "#")] = '\0';
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
    return add_host(list, name, HOST_SSH, slots);
}

/* Changes `text`, which ends with a NUL behind `size` bytes. */
static bool read_lines(host_list *made, char *text, size_t size, const char *path)
{
    bool has_mark = strncmp(text, "\xef\xbb\xbf", 3) == 0; /* of UTF-8 */
    char *line = text + (has_mark ? 3 : 0);
    for (int number = 1; line < text + size; number++) {
        size_t length = strcspn(line, "\n");
        bool is_zero = line[length] == '\0' && line + length < text + size;
        if (is_zero || number > LINES_MOST) {
            fprintf(stderr, "weft-run: %s:%d: no hosts file: ", path, number);
            fprintf(stderr, is_zero ? "a zero byte\n" : "more than %d lines\n", LINES_MOST);
            return false;
        }
        line[length] = '\0';
        if (!read_line(made, line, path, number))
            return false;
        line += length + 1;
    }
    return true;
}

bool hosts_read(host_list *made, const char *path)
{
    FILE *file = fopen(path, "re");
    char *text = malloc(FILE_MOST + 1);
    size_t size = file && text ? fread(text, 1, FILE_MOST, file) : 0;
    bool ok = file && text && !ferror(file);
    *made = (host_list){0};
    if (!ok) {
        fprintf(stderr, "weft-run: --hosts: %s: %s\n", path, strerror(errno));
    } else {
        text[size] = '\0';
        ok = read_lines(made, text, size, path);
    }
    if (ok && (made->count == 0 || size == FILE_MOST)) {
        fprintf(stderr, "weft-run: --hosts: %s %s\n", path, made->count ? "is too large" : "names no host");
        ok = false;
    }
    if (file)
        fclose(file);
    free(text);
    return ok;
}

/* ---- Two names of one machine ----------------------------------------------------------------------------------- */

/* A name or an address of a host. Two hosts that share one are one machine. */
typedef struct key {
    const char *name;
    const struct addrinfo *address; /* NULL: it is a name */
    size_t index;
} key;

static int compare(const key *a, const key *b)
{
    if (!a->address || !b->address)
        return a->address ? 1 : b->address ? -1 : strcasecmp(a->name, b->name);
    if (a->address->ai_addrlen != b->address->ai_addrlen)
        return a->address->ai_addrlen < b->address->ai_addrlen ? -1 : 1;
    return memcmp(a->address->ai_addr, b->address->ai_addr, a->address->ai_addrlen);
}

static int compare_keys(const void *a, const void *b)
{
    const key *one = a, *other = b;
    int order = compare(one, other);
    return order ? order : one->index < other->index ? -1 : one->index > other->index;
}

/* Resolves the names of the first RESOLVED_MOST hosts, LOOKUPS_MAX at a time. Returns the number of addresses. */
static size_t resolve_all(const host_list *list)
{
    wfi_lookup *lookups[LOOKUPS_MAX];
    size_t last = list->count < RESOLVED_MOST ? list->count : RESOLVED_MOST, found = 0;
    uint64_t deadline_ns = wfi_deadline(&wfi_clock_real, last > LOOKUPS_MAX ? RESOLVE_MANY_MS : RESOLVE_MS);
    for (size_t from = 0; from < last && wfi_now(&wfi_clock_real) < deadline_ns; from += LOOKUPS_MAX) {
        host *batch = list->items + from;
        size_t count = last - from < LOOKUPS_MAX ? last - from : LOOKUPS_MAX;
        for (size_t i = 0; i < count; i++)
            lookups[i] = wfi_lookup_begin(host_address(&batch[i]), 0, 0);
        for (size_t i = 0; i < count; i++) {
            (void)wfi_lookup_end(lookups[i], deadline_ns, &batch[i].addresses);
            for (const struct addrinfo *each = batch[i].addresses; each; each = each->ai_next)
                found++;
        }
    }
    return found;
}

/* The first host that is one machine with this one. */
static size_t first_of(const host_list *list, size_t index)
{
    while (list->items[index].first != index)
        index = list->items[index].first;
    return index;
}

/* Sets `first` of each host. The last host of the list is this machine, which has more names. */
static bool find_same(const host_list *list)
{
    static const char *const own[] = {"localhost", "127.0.0.1", "::1"};
    size_t count = 0;
    key *keys = calloc(list->count + resolve_all(list) + 3, sizeof(*keys));
    if (!keys)
        return false;
    for (size_t i = 0; i < 3; i++)
        keys[count++] = (key){.name = own[i], .index = list->count - 1};
    for (size_t i = 0; i < list->count; i++) {
        list->items[i].first = i;
        keys[count++] = (key){.name = host_address(&list->items[i]), .index = i};
        for (const struct addrinfo *each = list->items[i].addresses; each; each = each->ai_next)
            keys[count++] = (key){.address = each, .index = i};
    }
    qsort(keys, count, sizeof(*keys), compare_keys);
    for (size_t i = 1; i < count; i++) {
        size_t a = first_of(list, keys[i - 1].index), b = first_of(list, keys[i].index);
        if (compare(&keys[i - 1], &keys[i]) == 0)
            list->items[a < b ? b : a].first = a < b ? a : b;
    }
    free(keys);
    return true;
}

/* Moves the slots of `one` to `first`. A name with a user needs ssh on this machine too. */
static bool merge(host *first, host *one, const char *path)
{
    size_t user = (size_t)(host_address(first) - first->name);
    bool has_same_user = strncmp(first->name, one->name, user) == 0 && host_address(one) == one->name + user;
    if (one->method == HOST_HERE && user == 0)
        first->method = HOST_HERE;
    if (one->method != HOST_HERE && !has_same_user) {
        fprintf(stderr, "weft-run: --hosts: %s: '%s' and '%s' are one machine: name it with one user\n", path,
                first->name, one->name);
        return false;
    }
    first->slots += one->slots < SLOTS_MOST - first->slots ? one->slots : SLOTS_MOST - first->slots;
    one->slots = 0;
    return true;
}

static void free_host(host *done)
{
    if (done->addresses)
        freeaddrinfo(done->addresses);
    free(done->name);
}

bool hosts_merge(host_list *list, int wanted, const char *path)
{
    char own[HOST_NAME_MAX + 1] = "";
    size_t count = 0, kept = 0;
    for (int64_t slots = 0; count < list->count && slots < wanted; count++)
        slots += list->items[count].slots;
    while (list->count > count)
        free_host(&list->items[--list->count]);
    (void)gethostname(own, sizeof(own) - 1);
    if (!add_host(list, own, HOST_HERE, 0) || !find_same(list)) {
        fprintf(stderr, "weft-run: --hosts: %s: %s\n", path, strerror(ENOMEM));
        return false;
    }
    for (size_t i = 0; i < list->count; i++) {
        size_t first = first_of(list, i);
        if (first != i && !merge(&list->items[first], &list->items[i], path))
            return false;
    }
    for (size_t i = 0; i < list->count; i++) {
        if (list->items[i].slots > 0)
            list->items[kept++] = list->items[i];
        else
            free_host(&list->items[i]);
    }
    list->count = kept;
    return true;
}

/* ---- Slurm ------------------------------------------------------------------------------------------------------ */

bool hosts_of_slurm(host_list *made)
{
    const char *names = getenv("SLURM_JOB_NODELIST"), *nodes = getenv("SLURM_JOB_NUM_NODES");
    char name[256];
    *made = (host_list){0};
    if (!names || !nodes || strtol(nodes, NULL, 10) < 2)
        return true;
    for (size_t i = 0; wfi_nodelist_at(names, i, name, sizeof(name)); i++) {
        long slots = wfi_launcher_slurm_number(getenv("SLURM_TASKS_PER_NODE"), i, SLOTS_MOST);
        if (i >= SLOTS_MOST || !add_host(made, name, HOST_SRUN, slots > 0 ? (int)slots : 1)) {
            fprintf(stderr, "weft-run: SLURM_JOB_NODELIST names more than %zu nodes: at most %d\n", i, SLOTS_MOST);
            return false;
        }
        made->items[i].cpus = (int)wfi_launcher_slurm_number(getenv("SLURM_JOB_CPUS_PER_NODE"), i, SLOTS_MOST);
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
        free_host(&list->items[i]);
    free(list->items);
    *list = (host_list){0};
}
