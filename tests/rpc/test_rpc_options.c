/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_options.c - an agent's options: environment and defaults, every bad value with an error that names it,
 * the secret. */
#include "rpc/inside.h"
#include "topo/quota.h"
#include "unit.h"

#include <weft/job.h>
#include <weft/log.h>

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static const char *const variables[] = {"RANK",
                                        "WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "WEFT_NAME",
                                        "WEFT_FABRIC",
                                        "WEFT_IFACE",
                                        "WEFT_PORTS",
                                        "WEFT_THREADS",
                                        "WEFT_DEATH_MS",
                                        "WEFT_NO_BINDING",
                                        "WEFT_ELASTIC",
                                        "WEFT_TRACE",
                                        "WEFT_SECRET",
                                        "WEFT_SECRET_FILE",
                                        "WEFT_SECRET_FD",
                                        "WEFT_LOG",
                                        "WEFT_CPU_THREADS",
                                        "WEFT_RAISE_DESCRIPTOR_LIMIT",
                                        "WEFT_SLAB_KEEP_MB",
                                        "LOCAL_WORLD_SIZE",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS",
                                        "SLURM_STEP_NUM_TASKS",
                                        "WEFT_MEMORY_BUDGET",
                                        "WEFT_METRICS",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE"};

static int clear_environment(void **state)
{
    for (size_t i = 0; i < sizeof(variables) / sizeof(*variables); i++)
        unsetenv(variables[i]);
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "4", 1);
    setenv("MASTER_PORT", "12345", 1);
    return 0;
}

static const weft_agent_options *must_resolve(const weft_agent_options *given)
{
    return inside_resolve(given, NULL, NULL);
}

static void must_refuse_with(const weft_agent_options *given, weft_status wanted, const char *text, const char *value)
{
    weft_error *error = NULL;
    weft_status status;
    inside_resolve(given, &status, &error);
    const char *message = weft_error_message(error);
    if (status != wanted || !strstr(message, text) || !strstr(message, value))
        fail_msg("%s, \"%s\": not %s, or does not speak of \"%s\" and \"%s\"", weft_status_name(status), message,
                 weft_status_name(wanted), text, value);
    weft_error_unref(error);
}

static void must_refuse(const weft_agent_options *given, const char *text, const char *value)
{
    must_refuse_with(given, WEFT_ERR_INVALID, text, value);
}

static void test_defaults(void **state)
{
    const weft_agent_options *v = must_resolve(NULL);
    assert_int_equal(v->rank, 1);
    assert_int_equal(v->world_size, 4);
    assert_int_equal(v->master_port, 12345);
    assert_string_equal(v->name, "worker1");
    assert_string_equal(v->master_addr, "127.0.0.1");
    assert_string_equal(v->fabric, "auto");
    assert_false(v->elastic || v->no_binding || v->iface || v->ports || v->trace_file || v->secret || v->metrics_file);
    assert_int_equal(v->threads, 4);
    assert_int_equal(v->death_timeout_ms, 2000);
    assert_int_equal(v->call_timeout_ms, 60000);
    assert_int_equal(v->rendezvous_timeout_ms, 60000);
    assert_int_equal(v->memory_budget_bytes, wfi_quota_memory() / 2);
    inside_share(2);
    assert_int_equal(v->memory_budget_bytes, wfi_quota_memory() / 4);
}

static rlim_t descriptors(void)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    return limit.rlim_cur;
}

/* Lines of the log that say something of descriptors. */
static int warnings;
static char last_warning[1024];

static void keep_warning(weft_log_level level, const char *line, void *arg)
{
    (void)arg;
    if (level == WEFT_LOG_WARN && strstr(line, "file descriptors")) {
        warnings++;
        snprintf(last_warning, sizeof(last_warning), "%s", line);
    }
}

static void test_descriptors(void **state)
{
    struct rlimit before, few;
    rlim_t most;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    most = before.rlim_max < 1 << 20 ? before.rlim_max : 1 << 20;
    few = before;
    few.rlim_cur = 64;
    weft_logging_set_sink(keep_warning, NULL);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    must_resolve(NULL); /* four workers: 64 + 2 * 3 */
    assert_int_equal(descriptors(), 64);
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(last_warning, "is 64, and a job of 4 workers may need about 70"));
    assert_non_null(strstr(last_warning, "ulimit -n 70"));
    must_resolve(&(weft_agent_options){.raise_descriptor_limit = true});
    assert_int_equal(descriptors(), most);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    setenv("WEFT_RAISE_DESCRIPTOR_LIMIT", "yes", 1);
    must_resolve(NULL);
    assert_int_equal(descriptors(), most);
    unsetenv("WEFT_RAISE_DESCRIPTOR_LIMIT");
    assert_int_equal(warnings, 1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    weft_logging_set_sink(NULL, NULL);
}

static void test_environment(void **state)
{
    static const struct {
        const char *text;
        size_t bytes;
    } budgets[] = {{"4096", 4096},          {"512K", 512u << 10},      {"512k", 512u << 10},    {"3M", 3u << 20},
                   {"2G", (size_t)2 << 30}, {"1.5G", (size_t)3 << 29}, {"1T", (size_t)1 << 40}, {"1", 1}};
    const weft_agent_options *out;
    setenv("WEFT_THREADS", "7", 1);
    setenv("WEFT_DEATH_MS", "-1", 1);
    setenv("WEFT_NO_BINDING", "yes", 1);
    setenv("WEFT_METRICS", "/tmp/%r.prom", 1);
    setenv("WEFT_TRACE", "/tmp/trace-%r.json", 1);
    setenv("WEFT_NAME", "trainer", 1);
    out = must_resolve(NULL);
    assert_int_equal(out->threads, 7);
    assert_int_equal(out->death_timeout_ms, WEFT_FOREVER);
    assert_true(out->no_binding);
    assert_string_equal(out->metrics_file, "/tmp/%r.prom");
    assert_string_equal(out->trace_file, "/tmp/trace-%r.json");
    assert_string_equal(out->name, "trainer");
    for (size_t i = 0; i < sizeof(budgets) / sizeof(*budgets); i++) {
        setenv("WEFT_MEMORY_BUDGET", budgets[i].text, 1);
        out = must_resolve(NULL);
        assert_int_equal(out->memory_budget_bytes, budgets[i].bytes);
    }
    /* The option wins. */
    weft_agent_options given = {.threads = 2,
                                .memory_budget_bytes = 5,
                                .death_timeout_ms = 900,
                                .metrics_file = "mine.prom",
                                .name = "mine",
                                .trace_file = "mine.json"};
    out = must_resolve(&given);
    assert_int_equal(out->threads, 2);
    assert_int_equal(out->memory_budget_bytes, 5);
    inside_share(2); /* changes what nobody has chosen */
    assert_int_equal(out->memory_budget_bytes, 5);
    assert_int_equal(out->death_timeout_ms, 900);
    assert_string_equal(out->metrics_file, "mine.prom");
    assert_string_equal(out->name, "mine");
    assert_string_equal(out->trace_file, "mine.json");
}

/* A step of an allocation may have fewer tasks than the allocation. */
static void test_slurm(void **state)
{
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    setenv("SLURM_PROCID", "1", 1);
    setenv("SLURM_NTASKS", "8", 1);
    assert_int_equal(must_resolve(NULL)->world_size, 8);
    setenv("SLURM_STEP_NUM_TASKS", "2", 1);
    assert_int_equal(must_resolve(NULL)->world_size, 2);
    unsetenv("SLURM_NTASKS");
    const weft_agent_options *v = must_resolve(NULL);
    assert_int_equal(v->world_size, 2);
    assert_int_equal(v->rank, 1);
}

static void test_brackets(void **state)
{
    setenv("MASTER_ADDR", "[::1]", 1);
    setenv("WEFT_IFACE", "[fe80::1%lo]", 1);
    const weft_agent_options *v = must_resolve(NULL);
    assert_string_equal(v->master_addr, "::1");
    assert_string_equal(v->iface, "fe80::1%lo");
    assert_string_equal(must_resolve(&(weft_agent_options){.master_addr = "[fd00::2]"})->master_addr, "fd00::2");
    assert_string_equal(must_resolve(&(weft_agent_options){.master_addr = "[]"})->master_addr, "[]");
}

static void test_least_death_bound(void **state)
{
    const weft_agent_options *out;
    setenv("WEFT_DEATH_MS", "100", 1);
    out = must_resolve(NULL);
    assert_int_equal(out->death_timeout_ms, 100);
    setenv("WEFT_DEATH_MS", "1", 1); /* counts for nothing where an option is given */
    out = must_resolve(&(weft_agent_options){.death_timeout_ms = 100});
    assert_int_equal(out->death_timeout_ms, 100);
}

/* What is refused, and what its message says besides the name and the value. */
static void test_bad_variables(void **state)
{
    static const struct {
        const char *name, *value, *allowed;
    } bad[] = {{"RANK", "one", ""},
               {"RANK", "-1", ""}, /* any rank is for elastic jobs */
               {"RANK", "70000", ""},
               {"WORLD_SIZE", "0", ""},
               {"WORLD_SIZE", "99999999999999999999", ""},
               {"MASTER_PORT", "0", ""},
               {"MASTER_PORT", "65536", ""},
               {"MASTER_PORT", "http", "1 to 65535"},
               {"MASTER_ADDR", "10.0.0.1 ", "has no spaces"},
               {"WEFT_THREADS", "0", ""},
               {"WEFT_THREADS", "1025", ""},
               {"WEFT_THREADS", "many", "1 to 1024"},
               {"WEFT_THREADS", "2000", "1 to 1024"},
               {"WEFT_DEATH_MS", "-2", ""},
               {"WEFT_DEATH_MS", "2s", "-1 to "},
               {"WEFT_DEATH_MS", "1", "100 at least"},
               {"WEFT_DEATH_MS", "99", ""},
               {"WEFT_NO_BINDING", "maybe", "no (false, off, 0)"},
               {"WEFT_ELASTIC", "rubber", "yes (true, on, 1)"},
               {"WEFT_MEMORY_BUDGET", "lots", "K, M, G or T"},
               {"WEFT_MEMORY_BUDGET", "0", ""},
               {"WEFT_MEMORY_BUDGET", "-5", ""},
               {"WEFT_MEMORY_BUDGET", "3X", ""},
               {"WEFT_MEMORY_BUDGET", "3MB", ""},
               {"WEFT_MEMORY_BUDGET", "0x10", ""},
               {"WEFT_MEMORY_BUDGET", "1e30", ""},
               {"WEFT_MEMORY_BUDGET", "nan", ""},
               {"WEFT_SECRET_FD", "no", NULL}, /* might be a part of the secret: it is not told */
               {"WEFT_LOG", "chatty", ""},
               {"WEFT_LOG", "WARN", ""},
               {"WEFT_LOG", "loud", "error, warn, info, debug, trace"},
               {"WEFT_CPU_THREADS", "0", ""},
               {"WEFT_CPU_THREADS", "all", "1 to "},
               {"WEFT_RAISE_DESCRIPTOR_LIMIT", "maybe", ""},
               {"WEFT_SLAB_KEEP_MB", "-1", ""},
               {"WEFT_SLAB_KEEP_MB", "1G", ""},
               {"WEFT_SLAB_KEEP_MB", "lots", "0 to "},
               {"LOCAL_WORLD_SIZE", "x", ""},
               {"LOCAL_WORLD_SIZE", "4x", ""},
               {"LOCAL_WORLD_SIZE", "0", ""},
               {"LOCAL_WORLD_SIZE", "-2", ""},
               {"LOCAL_WORLD_SIZE", "65537", ""},
               {"LOCAL_WORLD_SIZE", "all", "1 to 65536"}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        clear_environment(NULL);
        setenv(bad[i].name, bad[i].value, 1);
        must_refuse(NULL, bad[i].name, bad[i].allowed ? bad[i].value : "");
        setenv(bad[i].name, bad[i].value, 1); /* some are taken out as they are read */
        must_refuse(NULL, bad[i].name, bad[i].allowed ? bad[i].allowed : "");
    }
    clear_environment(NULL);
    setenv("WEFT_NAME", "two words", 1);
    must_refuse(NULL, "name", "two words");
    clear_environment(NULL);
    setenv("WEFT_SECRET_FD", "65535", 1); /* a launcher in between has closed it */
    must_refuse(NULL, "WEFT_SECRET_FD", "do not start another launcher (mpirun, srun) in a worker of weft-run");
    clear_environment(NULL);
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("MPI_LOCALNRANKS", "2", 1);
    unsetenv("MASTER_PORT");
    setenv("PMI_FD", "65535", 1);
    must_refuse(NULL, "PMI_FD is \"65535\"", "or is closed");
    unsetenv("MPI_LOCALNRANKS");
    unsetenv("PMI_FD");
    clear_environment(NULL);
}

static void test_bad_fields(void **state)
{
    static char too_long[80];
#define BAD(...)                                                                                                       \
    {                                                                                                                  \
        .has_rank = true, .world_size = 2, __VA_ARGS__                                                                 \
    }
    static const struct {
        const char *text, *value;
        weft_agent_options given;
    } bad[] = {{"world size 70000", "", {.has_rank = true, .world_size = 70000}},
               {"rank 2", "world size 2", BAD(.rank = 2)},
               {"rank -1", "elastic", BAD(.rank = WEFT_ANY_RANK)},
               {"rank -2", "", BAD(.rank = -2, .elastic = true)},
               {"master_port", "65536", BAD(.master_port = 65536)},
               {"master_port", "-3", BAD(.master_port = -3)},
               {"threads", "2000", BAD(.threads = 2000)},
               {"death_timeout_ms", "-7", BAD(.death_timeout_ms = -7)},
               {"death_timeout_ms is 99", "100 at least", BAD(.death_timeout_ms = 99)},
               {"call_timeout_ms", "-8", BAD(.call_timeout_ms = -8)},
               {"rendezvous_timeout_ms", "-9", BAD(.rendezvous_timeout_ms = -9)},
               {"name", "\"\"", BAD(.name = "")},
               {"secret", "16", BAD(.secret = "short", .secret_size = 5)},
               {"secret", "16", BAD(.secret = too_long, .secret_size = 5000)},
               {"WEFT_FABRIC", "too long", BAD(.fabric = too_long)}};
#undef BAD
    memset(too_long, 'f', sizeof(too_long) - 1);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        must_refuse(&bad[i].given, bad[i].text, bad[i].value);
}

/* A launcher's half of the pair, and what is missing, are named. */
static void test_half_a_rank(void **state)
{
    unsetenv("WORLD_SIZE");
    must_refuse(NULL, "RANK is set (\"1\")", "WORLD_SIZE is not");
    setenv("WEFT_ELASTIC", "1", 1);
    must_refuse(NULL, "RANK is set (\"1\")", "WORLD_SIZE is not");
    clear_environment(NULL);
    unsetenv("RANK");
    must_refuse(NULL, "WORLD_SIZE is set (\"4\")", "RANK is not");
    unsetenv("WORLD_SIZE");
    setenv("SLURM_PROCID", "7", 1);
    must_refuse(NULL, "SLURM_PROCID is set (\"7\")", "SLURM_NTASKS is not");
}

/* RANK and WORLD_SIZE of the environment, and mpirun: the error names both. */
static void test_two_launchers(void **state)
{
    setenv("OMPI_COMM_WORLD_RANK", "2", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "5", 1);
    must_refuse(NULL, "RANK is 1 and WORLD_SIZE 4", "mpirun started this process as rank 2 of 5 (OMPI_COMM_WORLD_RANK");
    setenv("OMPI_COMM_WORLD_SIZE", "4", 1); /* as many: the user may have numbered them otherwise */
    assert_int_equal(must_resolve(NULL)->rank, 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1); /* each of the two starts two workers */
    assert_int_equal(must_resolve(NULL)->rank, 1);
    clear_environment(NULL);
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_NTASKS", "9", 1); /* of a batch script */
    assert_int_equal(must_resolve(NULL)->rank, 1);
}

static void must_be_launched(bool launched, int rank, int world_size)
{
    int one = 77, all = 77;
    assert_int_equal(weft_job_is_launched(NULL, NULL), launched);
    assert_int_equal(weft_job_is_launched(&one, &all), launched);
    assert_int_equal(one, rank);
    assert_int_equal(all, world_size);
}

static void test_is_launched(void **state)
{
    must_be_launched(true, 1, 4);
    unsetenv("RANK");
    must_be_launched(true, -1, -1); /* weft_agent_open says that RANK lacks */
    unsetenv("WORLD_SIZE");
    must_be_launched(false, -1, -1);
    setenv("PMI_RANK", "2", 1);
    must_be_launched(true, -1, -1);
    setenv("PMI_SIZE", "3", 1);
    must_be_launched(true, 2, 3);
    setenv("PMI_RANK", "x", 1);
    must_be_launched(true, -1, -1);
    setenv("PMI_RANK", "", 1);
    must_be_launched(false, -1, -1);
}

/* Without RANK, an elastic job's worker takes any; its name then is the store's to give. */
static void test_elastic(void **state)
{
    const weft_agent_options *out;
    setenv("WEFT_ELASTIC", "1", 1);
    out = must_resolve(NULL);
    assert_true(out->elastic && out->rank == 1);
    unsetenv("RANK");
    out = must_resolve(NULL);
    assert_int_equal(out->rank, WEFT_ANY_RANK);
    assert_int_equal(out->world_size, 4);
    assert_string_equal(out->name, "");
    inside_set_identity(3, "worker3");
    assert_int_equal(out->rank, 3);
    assert_string_equal(out->name, "worker3");
    setenv("RANK", "-1", 1);
    out = must_resolve(&(weft_agent_options){.name = "mine"});
    assert_int_equal(out->rank, WEFT_ANY_RANK);
    assert_string_equal(out->name, "mine");
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    must_refuse(NULL, "WORLD_SIZE", "ranks");
    setenv("SLURM_PROCID", "2", 1);
    setenv("SLURM_NTASKS", "3", 1);
    out = must_resolve(NULL);
    assert_true(out->rank == 2 && out->world_size == 3);
    unsetenv("WEFT_ELASTIC");
    unsetenv("SLURM_PROCID");
    must_refuse(NULL, "RANK", "WORLD_SIZE");
}

static void test_secret(void **state)
{
    static const char secret[] = "a secret of twenty-six bytes";
    weft_agent_options given = {.secret = secret, .secret_size = strlen(secret)};
    const weft_agent_options *out;
    out = must_resolve(&given);
    assert_ptr_not_equal(out->secret, secret); /* a copy, which is wiped */
    assert_int_equal(out->secret_size, strlen(secret));
    assert_memory_equal(out->secret, secret, strlen(secret));
    inside_wipe();
    assert_null(out->secret);
    assert_int_equal(out->secret_size, 0);
    inside_wipe(); /* once is enough */
}

static int warnings;

static void count_warnings(weft_log_level level, const char *line, void *arg)
{
    warnings += level == WEFT_LOG_WARN && strstr(line, "no secret") != NULL;
}

/* 0x7f000001 is an address that only its resolving shows to be 127.0.0.1, as with a name in /etc/hosts. */
static void test_no_secret_is_said_where_others_reach_us(void **state)
{
    static const struct {
        const char *master_addr;
        int warnings;
    } cases[] = {{"0x7f000001", 0}, {"127.0.0.1", 0}, {"localhost", 0},
                 {"::1", 0},        {"192.0.2.1", 1}, {"0x0a000001", 1}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        setenv("MASTER_ADDR", cases[i].master_addr, 1);
        warnings = 0;
        weft_logging_set_sink(count_warnings, NULL);
        must_resolve(NULL);
        weft_logging_set_sink(NULL, NULL);
        if (warnings != cases[i].warnings)
            fail_msg("%d warnings for %s", warnings, cases[i].master_addr);
    }
}

/* Whatever else is wrong, and whichever secret is used. */
static void test_secret_leaves_the_environment(void **state)
{
    static const char secret[] = "twenty-seven bytes of secret";
    static const char *const troubles[] = {"WEFT_LOG", "RANK", "MASTER_PORT", "WEFT_THREADS", "WEFT_NAME"};
    const weft_agent_options *out;
    for (size_t i = 0; i < sizeof(troubles) / sizeof(*troubles); i++) {
        clear_environment(NULL);
        setenv("WEFT_SECRET", secret, 1);
        const char *where = getenv("WEFT_SECRET");
        setenv(troubles[i], "not this!", 1);
        must_refuse(NULL, "not this!", "");
        assert_null(getenv("WEFT_SECRET"));
        assert_true(where[0] == 0 && where[sizeof(secret) - 2] == 0);
        clear_environment(NULL); /* the next try still has it */
        out = must_resolve(NULL);
        assert_int_equal(out->secret_size, strlen(secret));
        assert_memory_equal(out->secret, secret, strlen(secret));
    }
    setenv("WEFT_SECRET", "short", 1);
    must_refuse(NULL, "WEFT_SECRET", "16");
    assert_null(getenv("WEFT_SECRET"));
    setenv("WEFT_SECRET", secret, 1);
    out = must_resolve(&(weft_agent_options){.secret = "another one of 25 bytes..", .secret_size = 25});
    assert_int_equal(out->secret_size, 25);
    assert_null(getenv("WEFT_SECRET"));
    setenv("WEFT_SECRET", secret, 1);
    setenv("WEFT_SECRET_FILE", "/nowhere/at/all", 1);
    must_refuse_with(NULL, WEFT_ERR_IO, "", "");
    assert_null(getenv("WEFT_SECRET"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_defaults, clear_environment),
        cmocka_unit_test_setup(test_descriptors, clear_environment),
        cmocka_unit_test_setup(test_environment, clear_environment),
        cmocka_unit_test_setup(test_slurm, clear_environment),
        cmocka_unit_test_setup(test_brackets, clear_environment),
        cmocka_unit_test_setup(test_least_death_bound, clear_environment),
        cmocka_unit_test_setup(test_bad_variables, clear_environment),
        cmocka_unit_test_setup(test_bad_fields, clear_environment),
        cmocka_unit_test_setup(test_half_a_rank, clear_environment),
        cmocka_unit_test_setup(test_two_launchers, clear_environment),
        cmocka_unit_test_setup(test_is_launched, clear_environment),
        cmocka_unit_test_setup(test_elastic, clear_environment),
        cmocka_unit_test_setup(test_no_secret_is_said_where_others_reach_us,
                               clear_environment), /* before one is kept */
        cmocka_unit_test_setup(test_secret, clear_environment),
        cmocka_unit_test_setup(test_secret_leaves_the_environment, clear_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
