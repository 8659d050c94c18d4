/* SPDX-License-Identifier: Apache-2.0 */
/* test_topo_memory.c - the wish for a NUMA node. The first one counts in a process: each fact has a child of its
 * own. */
#include "children.h"
#include "topo/memory.h"
#include "unit.h"

#include <weft/log.h>

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/mempolicy.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SIZE ((size_t)1 << 20)

static int lines; /* that mbind was refused */

static void count_line(weft_log_level level, const char *line, void *arg)
{
    lines += strstr(line, "mbind") && level == WEFT_LOG_DEBUG;
}

static void in_child(void (*check)(char *data))
{
    child one = child_fork("check");
    if (!one.pid) {
        weft_logging_set_level(WEFT_LOG_DEBUG);
        weft_logging_set_sink(count_line, NULL);
        char *data = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        check(data);
        memset(data, 1, SIZE); /* whatever the wish was */
        _exit(0);
    }
    child_must_end_well(&one, 1);
}

/* The policy of the pages at `data`; -1: the kernel has none. */
static int policy_of(char *data, unsigned long *nodes)
{
    int policy = -1;
    unsigned long set[16] = {0};
    if (syscall(SYS_get_mempolicy, &policy, set, 1024ul, data, MPOL_F_ADDR) != 0)
        return -1;
    *nodes = set[0];
    return policy;
}

static void check_wish(char *data)
{
    unsigned long nodes = 0;
    if (policy_of(data, &nodes) < 0)
        _exit(0);
    wfi_numa_place(data, SIZE);
    if (policy_of(data, &nodes) != MPOL_DEFAULT)
        _exit(1); /* no wish yet */
    wfi_numa_set_preferred(-1);
    wfi_numa_set_preferred(0);
    wfi_numa_set_preferred(1); /* the first counts */
    wfi_numa_place(data, SIZE);
    if (lines == 0 && (policy_of(data, &nodes) != MPOL_PREFERRED || nodes != 1))
        _exit(2);
}

static void pages_are_wished_from_the_first_named_node(void **state)
{
    in_child(check_wish);
}

static void check_refused(char *data)
{
    struct sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                                 BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mbind, 0, 1),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog filter = {sizeof(code) / sizeof(*code), code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        _exit(0); /* no such filters here */
    wfi_numa_set_preferred(0);
    for (int i = 0; i < 3; i++)
        wfi_numa_place(data, SIZE);
    if (lines != 1)
        _exit(3);
}

static void a_refusal_is_one_debug_line(void **state)
{
    in_child(check_refused);
}

UNIT_MAIN(pages_are_wished_from_the_first_named_node, a_refusal_is_one_debug_line)
