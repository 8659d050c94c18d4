/* SPDX-License-Identifier: Apache-2.0 */
/* rdm_local_test.c - shm's files in /dev/shm: those of processes that have ended are removed, and no others. The memory
 * of an open endpoint's file is reserved. */
#include "ofi_rdm/rdm.h"

#include "unit.h"
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void path_of(const char *name, char out[512])
{
    snprintf(out, 512, "/dev/shm/%s", name);
}

static void make(const char *name)
{
    char path[512];
    path_of(name, path);
    int fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
}

static bool exists(const char *name)
{
    char path[512];
    path_of(name, path);
    return access(path, F_OK) == 0;
}

/* As if the mark had been made so long ago. */
static void age(const char *name, time_t seconds)
{
    char path[512];
    const struct timespec mark[2] = {{.tv_sec = 0}, {.tv_sec = time(NULL) - seconds}};
    path_of(name, path);
    assert_int_equal(utimensat(AT_FDCWD, path, mark, 0), 0);
}

static void drop(const char *name)
{
    char path[512];
    path_of(name, path);
    assert_int_equal(unlink(path), 0);
}

/* A name that a process of this machine had, which has ended. */
static void name_of_dead(char out[WFRDM_NAME_BYTES])
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t child = fork();
    if (child == 0) {
        char name[WFRDM_NAME_BYTES] = "";
        wfrdm_local_name(name);
        _exit(write(fds[1], name, sizeof name) != (ssize_t)sizeof name);
    }
    assert_int_equal(read(fds[0], out, WFRDM_NAME_BYTES), WFRDM_NAME_BYTES);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(fds[0]);
    close(fds[1]);
}

static void a_file_of_a_dead_process_is_removed_after_a_while(void **state)
{
    char name[WFRDM_NAME_BYTES];
    name_of_dead(name);
    make(name);
    wfrdm_local_sweep(); /* marks it */
    wfrdm_local_sweep();
    assert_true(exists(name));
    age(name, 30);
    wfrdm_local_sweep();
    assert_true(exists(name));
    age(name, 61);
    wfrdm_local_sweep();
    assert_false(exists(name));
}

static void a_file_of_a_living_process_stays(void **state)
{
    char name[WFRDM_NAME_BYTES];
    wfrdm_local_name(name);
    make(name);
    age(name, 1000);
    wfrdm_local_sweep();
    assert_true(exists(name));
    drop(name);
}

/* Names that are not weft's, or of another pid namespace, whose processes are not known here. */
static void a_file_of_others_stays(void **state)
{
    char dead[WFRDM_NAME_BYTES], names[4][WFRDM_NAME_BYTES + 8];
    name_of_dead(dead);
    snprintf(names[0], sizeof names[0], "x%s", dead);
    snprintf(names[1], sizeof names[1], "%sx", dead);
    snprintf(names[2], sizeof names[2], "weft-1%s", dead + strlen("weft-"));
    snprintf(names[3], sizeof names[3], "weft-%d", (int)getpid());
    for (int i = 0; i < 4; i++) {
        make(names[i]);
        age(names[i], 1000);
    }
    wfrdm_local_sweep();
    for (int i = 0; i < 4; i++) {
        assert_true(exists(names[i]));
        drop(names[i]);
    }
}

static void a_name_fits_an_address_and_is_used_once(void **state)
{
    char names[2][WFRDM_NAME_BYTES];
    wfrdm_local_name(names[0]);
    wfrdm_local_name(names[1]);
    assert_true(strlen(names[0]) <= WFRDM_PROVIDER_ADDRESS_MAX);
    assert_string_not_equal(names[0], names[1]);
    assert_true(wfrdm_local_where() != 0);
    assert_int_equal(wfrdm_local_where(), wfrdm_local_where());
}

/* ---- The file of an endpoint ------------------------------------------------------------------------------------- */

static weft_status open_shm(wfi_fabric **out, weft_error **error)
{
    return wfi_fabric_shm.open(&(wfi_fabric_options){.rank = -1}, out, error);
}

/* Otherwise the first use of a page after other programs have filled /dev/shm is a SIGBUS. */
static void the_memory_of_an_endpoint_is_reserved(void **state)
{
    wfi_fabric *fabric;
    char path[512];
    struct stat file;
    assert_int_equal(open_shm(&fabric, NULL), WEFT_OK);
    path_of((char *)((wfrdm *)(void *)fabric)->address + 16, path);
    assert_int_equal(stat(path, &file), 0);
    assert_true(file.st_size > 0 && file.st_blocks * 512 >= file.st_size);
    wfi_fabric_shm.close(fabric);
}

/* In a mount namespace of the child's own, /dev/shm has 4 MiB. */
static void too_little_memory_is_an_error(void **state)
{
    enum { CANNOT = 77 };
    int status;
    pid_t child = fork();
    if (child == 0) {
        const wfrdm_kind kind = {.ops = &wfi_fabric_shm, .advice = "add memory"};
        const wfrdm rdm = {.kind = &kind};
        weft_error *error = NULL;
        if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
            mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=4M"))
            _exit(CANNOT);
        make("weft-sparse");
        if (truncate("/dev/shm/weft-sparse", 16 << 20))
            _exit(2);
        bool refuses = wfrdm_local_reserve(&rdm, "weft-sparse", &error) == WEFT_ERR_FABRIC;
        const char *text = refuses ? weft_error_message(error) : "it is reserved";
        bool says = strcmp(text, "fabric 'shm': reserving the 16.0 MiB of its endpoint in /dev/shm: No space left on "
                                 "device (4.0 MiB are free): add memory") == 0;
        if (!says)
            fprintf(stderr, "%s\n", text);
        _exit(!says);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == CANNOT)
        skip(); /* only root can */
    assert_int_equal(WEXITSTATUS(status), 0);
}

UNIT_MAIN(a_file_of_a_dead_process_is_removed_after_a_while, a_file_of_a_living_process_stays, a_file_of_others_stays,
          a_name_fits_an_address_and_is_used_once, the_memory_of_an_endpoint_is_reserved, too_little_memory_is_an_error)
