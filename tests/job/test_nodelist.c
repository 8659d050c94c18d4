/* SPDX-License-Identifier: Apache-2.0 */
/* test_nodelist.c - Slurm's lists of nodes. */
#include "unit.h"

#include "job/bootstrap/nodelist.h"

static void lists_are_read_as_scontrol_does(void **state)
{
    static const struct {
        const char *list, *names[8];
    } lists[] = {
        {"vm", {"vm"}},
        {"a,b,c", {"a", "b", "c"}},
        {"node[01-03,7]", {"node01", "node02", "node03", "node7"}},
        {"login,n[098-101]x,z", {"login", "n098x", "n099x", "n100x", "n101x", "z"}},
        {"r[1-2]n[0-2]", {"r1n0", "r1n1", "r1n2", "r2n0", "r2n1", "r2n2"}},
        {"a[5]", {"a5"}},
        {"[1-2]", {"1", "2"}},
    };
    char name[64];
    for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++) {
        size_t count = 0;
        for (; count < 8 && lists[i].names[count]; count++) {
            assert_true(wfi_nodelist_at(lists[i].list, count, name, sizeof(name)));
            assert_string_equal(name, lists[i].names[count]);
        }
        assert_false(wfi_nodelist_at(lists[i].list, count, name, sizeof(name)));
    }
    assert_true(wfi_nodelist_at("n[0-9999]r[00-99]", 999999, name, sizeof(name)));
    assert_string_equal(name, "n9999r99");
}

static void malformed_lists_are_refused(void **state)
{
    static const char *const lists[] = {"",      ",",      "n[",   "n[]",   "n[1",   "n[1-",
                                        "n[1-]", "n[2-1]", "n[x]", "n[1,]", "n[-1]", "n[1-2"};
    char name[64];
    for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++)
        assert_false(wfi_nodelist_at(lists[i], 0, name, sizeof(name)));
    assert_false(wfi_nodelist_at(NULL, 0, name, sizeof(name)));
    assert_false(wfi_nodelist_at("a-rather-long-name", 0, name, 8));
    assert_false(wfi_nodelist_at("node[100-200]", 0, name, 7));
}

UNIT_MAIN(lists_are_read_as_scontrol_does, malformed_lists_are_refused)
