/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hostile_leaks.c - where the job's secret and the keys made of it must not show: logs at every level, command
 * lines and environments, metrics, dumps, trace files. As bytes, in hexadecimal, in base64.
 */
#include "arena.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FORMS 5
#define FORM_MAX (2 * WFI_SECRET_MAX + 1)

typedef struct needle { /* something secret, as it might be written down */
    const char *name;
    char text[FORMS][FORM_MAX];
    size_t size[FORMS];
} needle;

static void make_needle(needle *n, const char *name, const uint8_t *bytes, size_t size)
{
    n->name = name;
    memcpy(n->text[0], bytes, size);
    n->size[0] = size;
    sodium_bin2hex(n->text[1], FORM_MAX, bytes, size);
    for (size_t i = 0; n->text[1][i]; i++) /* upper case */
        n->text[2][i] = n->text[1][i] >= 'a' ? (char)(n->text[1][i] - 'a' + 'A') : n->text[1][i];
    sodium_bin2base64(n->text[3], FORM_MAX, bytes, size, sodium_base64_VARIANT_ORIGINAL_NO_PADDING);
    for (size_t i = 0; i < size; i++) /* as a word of the machine would be printed: the last byte first */
        sodium_bin2hex(n->text[4] + 2 * i, 3, bytes + size - 1 - i, 1);
    for (int form = 1; form < FORMS; form++)
        n->size[form] = strlen(n->text[form]);
}

/* The first 8 bytes of it are enough to tell. */
static bool shows(const needle *n, const char *text, size_t size)
{
    for (int form = 0; form < FORMS; form++) {
        size_t want = form == 0 ? 8 : 12; /* base64: without the end, which depends on what follows */
        size_t have = n->size[form] < want ? n->size[form] : want;
        const char *tail = n->text[form] + (form == 4 ? n->size[form] - 16 : 0);
        if (memmem(text, size, form == 4 ? tail : n->text[form], form == 4 ? 16 : have))
            return true;
    }
    return false;
}

static void must_not_show(const needle *needles, const char *where, const char *text, size_t size)
{
    for (int i = 0; i < 2; i++)
        if (shows(&needles[i], text, size))
            fail_msg("%s shows in %s", needles[i].name, where);
}

static char *read_all(int fd, size_t *size)
{
    size_t capacity = 1 << 16;
    char *text = malloc(capacity);
    ssize_t got = 1;
    *size = 0;
    while (text && fd >= 0 && got > 0) {
        if (*size == capacity)
            text = realloc(text, capacity *= 2);
        assert_non_null(text);
        got = read(fd, text + *size, capacity - *size);
        *size += got > 0 ? (size_t)got : 0;
    }
    if (fd >= 0)
        close(fd);
    return text;
}

static size_t check_file(const needle *needles, const char *path)
{
    size_t size;
    char *text = read_all(open(path, O_RDONLY | O_CLOEXEC), &size);
    must_not_show(needles, path, text, size);
    free(text);
    return size;
}

static void check_process(const needle *needles, pid_t pid)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
    assert_true(check_file(needles, path) > 0);
    snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
    assert_true(check_file(needles, path) > 0);
}

/* A file of metrics, or a dump, that was written after this moment: the victims write them every few seconds. */
static void check_metrics(const needle *needles, const char *folder, int rank, const char *ending, const char *part)
{
    char path[400];
    size_t size;
    snprintf(path, sizeof(path), "%s/metrics.%d%s", folder, rank, ending);
    assert_int_equal(unlink(path), 0);
    while (access(path, F_OK) != 0)
        usleep(10000);
    char *text = read_all(open(path, O_RDONLY | O_CLOEXEC), &size);
    assert_non_null(memmem(text, size, part, strlen(part)));
    must_not_show(needles, path, text, size);
    free(text);
}

/* Some of every attack, so that refusals, too, are in the log. */
static void be_refused(arena *a)
{
    for (unsigned n = 0; n < 4; n++)
        for (size_t i = 0; i < stranger_count; i++)
            strangers[i].stroke(a, n);
    arena_drop_connections(a);
    member_enter(a);
    for (unsigned n = 0; n < 4; n++)
        for (size_t i = 0; i < member_count; i++)
            members[i].stroke(a, n);
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    member_leave(a);
}

/* The folder's files are checked and removed. */
static void check_traces(const needle *needles, const char *folder, int expected)
{
    DIR *dir = opendir(folder);
    int count = 0;
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[400];
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] == '.')
            continue;
        count += check_file(needles, path) > 0;
        unlink(path);
    }
    closedir(dir);
    rmdir(folder);
    assert_int_equal(count, expected);
}

static void nothing_secret_shows_anywhere(void **state)
{
    char folder[] = "/tmp/weft-hostile-XXXXXX", trace[64], metrics[64];
    arena *a = calloc(1, sizeof(*a));
    needle *needles = calloc(2, sizeof(*needles));
    size_t size;
    assert_non_null(a);
    assert_non_null(needles);
    assert_non_null(mkdtemp(folder));
    snprintf(trace, sizeof(trace), "%s/trace-%%r", folder);
    snprintf(metrics, sizeof(metrics), "%s/metrics.%%r", folder);
    arena_begin(a, "trace", trace, metrics);
    make_needle(&needles[0], "the secret", a->at->secret.bytes, a->at->secret.size);
    make_needle(&needles[1], "the job's key", a->at->job_key, sizeof(a->at->job_key));
    be_refused(a);
    for (int rank = 0; rank < VICTIMS; rank++) {
        const victim *v = &a->at->victims[rank];
        check_process(needles, atomic_load(&v->ready));
        check_metrics(needles, folder, rank, "", "weft_unauthenticated_refused_total");
        check_metrics(needles, folder, rank, ".json", "\"rank\"");
    }
    char *log = arena_log(a, &size);
    must_not_show(needles, "the log", log, size);
    assert_non_null(strstr(log, "refused"));
    free(log);
    arena_end(a);
    check_traces(needles, folder, VICTIMS);
    free(needles);
    free(a);
}

/* The finder finds: or all of the above would prove nothing. */
static void what_shows_is_found(void **state)
{
    static const uint8_t bytes[16] = "\x80\x91\xa2\xb3\xc4\xd5\xe6\xf7\x08\x19\x2a\x3b\x4c\x5d\x6e\x7f";
    static const char *const texts[] = {"key 8091a2b3c4d5e6f708192a3b4c5d6e7f", "8091A2B3C4D5E6F7",
                                        "gJGis8TV5vcIGSo7TF1ufw", "0xf7e6d5c4b3a29180"};
    needle *n = calloc(1, sizeof(*n));
    assert_non_null(n);
    make_needle(n, "a key", bytes, sizeof(bytes));
    assert_true(shows(n, (const char *)bytes, sizeof(bytes)));
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
        assert_true(shows(n, texts[i], strlen(texts[i])));
    assert_false(shows(n, "8091a2", 6));
    free(n);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "victim") == 0)
        return be_victim();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_shows_is_found),
        cmocka_unit_test(nothing_secret_shows_anywhere),
    };
    if (sodium_init() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
