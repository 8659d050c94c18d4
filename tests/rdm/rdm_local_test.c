/* SPDX-License-Identifier: Apache-2.0 */
/* rdm_local_test.c - shm's files in /dev/shm: their names, and that the memory of an open endpoint's file is
 * reserved. */
#include "children.h"
#include "ofi_rdm/rdm.h"

#include "unit.h"
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
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

static void a_name_fits_an_address_and_is_used_once(void **state)
{
    char names[2][WFRDM_NAME_BYTES];
    wfrdm_local_name(names[0]);
    wfrdm_local_name(names[1]);
    assert_true(strlen(names[0]) <= WFRDM_PROVIDER_ADDRESS_MAX);
    assert_string_not_equal(names[0], names[1]);
    assert_true(wfrdm_local_scope() != 0);
    assert_int_equal(wfrdm_local_scope(), wfrdm_local_scope());
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
    child one = child_fork("little memory");
    if (!one.pid) {
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
    int status = child_end(&one);
    if (WIFEXITED(status) && WEXITSTATUS(status) == CANNOT)
        skip(); /* only root can */
    assert_int_equal(status, 0);
}

UNIT_MAIN(a_name_fits_an_address_and_is_used_once, the_memory_of_an_endpoint_is_reserved, too_little_memory_is_an_error)
