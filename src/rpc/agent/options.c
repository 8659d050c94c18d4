/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - resolves an agent's options: the given ones, then the environment, then the defaults. */
#include "rpc/agent/options.h"

#include "base/descriptors.h"
#include "base/env.h"
#include "base/error.h"
#include "base/guarded.h"
#include "base/simulation.h"
#include "base/socket.h"
#include "base/text/log.h"
#include "base/text/variables.h"
#include "job/bootstrap/bootstrap.h"
#include "job/launch/launch.h"
#include "mem/slab.h"
#include "tensor/parallel.h"
#include "topo/quota.h"

#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNKNOWN_BUDGET ((uint64_t)1 << 30) /* if the amount of memory is unknown */
#define LEAST_BUDGET ((uint64_t)1 << 20)
/* A worker sends four heartbeats in a bound and dials a lost store every 10 ms. With a shorter bound, a worker whose
 * thread waited for a core would be declared dead. */
#define LEAST_DEATH_MS 100
#define OWN_DESCRIPTORS 64 /* descriptors of weft and the program, without those for peers */

WEFT_PRINTF(2, 3)
static weft_status invalid(weft_error **error, const char *format, ...)
{
    wfi_error_detail detail = {.code = WEFT_ERR_INVALID, .worker = -1};
    va_list args;
    va_start(args, format);
    *error = wfi_error_create_v(&detail, format, args);
    va_end(args);
    return WEFT_ERR_INVALID;
}

static weft_status check_rank(const weft_agent_options *values, weft_error **error)
{
    int lowest = values->elastic ? WEFT_ANY_RANK : 0;
    if (values->world_size >= 1 && values->world_size <= 65536 && values->rank >= lowest &&
        values->rank < values->world_size)
        return WEFT_OK;
    if (values->world_size < 1 || values->world_size > 65536)
        return invalid(error, "world size %d: a job has 1 to 65,536 ranks", values->world_size);
    bool any = values->rank == WEFT_ANY_RANK && !values->elastic;
    return invalid(error, "rank %d of world size %d: ranks count from 0 to world size - 1%s", values->rank,
                   values->world_size, any ? "; WEFT_ANY_RANK is for elastic jobs (elastic, WEFT_ELASTIC)" : "");
}

static weft_status resolve_rank(wfi_options *out, weft_error **error)
{
    weft_agent_options *values = &out->values;
    weft_status status = values->elastic ? WEFT_OK : wfi_env_bool("WEFT_ELASTIC", &values->elastic, error);
    wfi_handle_check(values->job, "weft_agent_options.job");
    if (!status && values->job) {
        values->rank = 0;
        values->world_size = wfi_job_world_size(values->job);
        values->master_port = wfi_job_port(values->job);
        out->store_fd = wfi_job_take_fd(values->job);
        out->processes = wfi_processes_of(values->job); /* if it fails, the processes are not watched */
    } else if (!status && !values->has_rank) {
        status = wfi_bootstrap_rank(values->elastic, &values->rank, &values->world_size, error);
    }
    if (!status)
        status = check_rank(values, error);
    values->has_rank = !status;
    return status;
}

static weft_status resolve_port(weft_agent_options *values, weft_error **error)
{
    int64_t port = values->master_port;
    weft_status status = port ? WEFT_OK : wfi_env_i64("MASTER_PORT", 1, 65535, &port, error);
    if (status)
        return status;
    if (port == WEFT_ANY_PORT && values->rank != 0)
        return invalid(
            error, "master_port is WEFT_ANY_PORT on a worker that is not rank 0: only rank 0 takes a free port; pass "
                   "the port that its weft_agent_store_port gave");
    if (port == WEFT_ANY_PORT) {
        values->master_port = values->sim ? 0 : WEFT_ANY_PORT;
        return WEFT_OK;
    }
    if (port < 0 || port > 65535)
        return invalid(error, "master_port is %lld: ports are 1 to 65535", (long long)port);
    values->master_port = (int)port;
    return WEFT_OK;
}

static weft_status check_death(int64_t death_ms, const char *source, weft_error **error)
{
    if (death_ms <= 0 || death_ms >= LEAST_DEATH_MS)
        return WEFT_OK;
    return invalid(error,
                   "%s is %lld ms, too short to tell the dead from the busy: %d at least, or "
                   "WEFT_FOREVER (-1): never",
                   source, (long long)death_ms, LEAST_DEATH_MS);
}

static weft_status resolve_times(weft_agent_options *values, weft_error **error)
{
    int64_t death = 2000;
    const struct {
        const char *name;
        int64_t value;
    } limits[] = {{"rendezvous_timeout_ms", values->rendezvous_timeout_ms},
                  {"call_timeout_ms", values->call_timeout_ms},
                  {"death_timeout_ms", values->death_timeout_ms}};
    for (size_t i = 0; i < sizeof(limits) / sizeof(*limits); i++)
        if (limits[i].value < WEFT_FOREVER)
            return invalid(error, "%s is %lld: 0 is the default, WEFT_FOREVER (-1) none", limits[i].name,
                           (long long)limits[i].value);
    weft_status status = WEFT_OK;
    if (!values->death_timeout_ms)
        status = wfi_env_i64("WEFT_DEATH_MS", WEFT_FOREVER, INT64_MAX, &death, error);
    if (!status)
        status = check_death(values->death_timeout_ms, "death_timeout_ms", error);
    if (!status)
        status = check_death(death, "WEFT_DEATH_MS", error);
    if (status)
        return status;
    values->death_timeout_ms = values->death_timeout_ms ? values->death_timeout_ms : death ? death : 2000;
    values->rendezvous_timeout_ms = values->rendezvous_timeout_ms ? values->rendezvous_timeout_ms : 60000;
    values->call_timeout_ms = values->call_timeout_ms ? values->call_timeout_ms : 60000;
    return WEFT_OK;
}

/* "4096", "512M", "1.5G": bytes, with K, M, G or T for powers of 1,024. */
static bool read_bytes(const char *text, size_t *out)
{
    static const char units[] = "KMGT";
    char *end;
    if (text[0] < '0' || text[0] > '9')
        return false;
    locale_t c = newlocale(LC_ALL_MASK, "C", NULL); /* so that the decimal point is "." */
    if (!c)
        return false;
    double value = strtod_l(text, &end, c);
    freelocale(c);
    const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;
    for (const char *at = units; unit && at <= unit; at++)
        value *= 1024;
    end += unit != NULL;
    if (*end || text[1] == 'x' || text[1] == 'X' || !(value >= 1 && value < 9e18))
        return false;
    *out = (size_t)value;
    return true;
}

static weft_status resolve_budget(wfi_options *out, weft_error **error)
{
    weft_agent_options *values = &out->values;
    const char *text = values->memory_budget_bytes ? NULL : wfi_env_string("WEFT_MEMORY_BUDGET");
    if (text && !read_bytes(text, &values->memory_budget_bytes))
        return invalid(error, "WEFT_MEMORY_BUDGET is \"%s\": a number of bytes, above 0, perhaps with K, M, G or T",
                       text);
    out->budget_is_ours = !values->memory_budget_bytes;
    wfi_options_share(out, 1);
    return WEFT_OK;
}

static weft_status resolve_numbers(wfi_options *out, weft_error **error)
{
    weft_agent_options *values = &out->values;
    int64_t threads = values->threads ? values->threads : 4;
    bool unbound = values->no_binding;
    weft_status status = values->threads ? WEFT_OK : wfi_env_i64("WEFT_THREADS", 1, 1024, &threads, error);
    if (!status)
        status = wfi_env_bool("WEFT_NO_BINDING", &unbound, error);
    if (status)
        return status;
    if (threads < 1 || threads > 1024)
        return invalid(error, "threads is %lld: 1 to 1024", (long long)threads);
    values->threads = (int)threads;
    values->no_binding = unbound || values->no_binding;
    values->queue_limit_bytes = values->queue_limit_bytes ? values->queue_limit_bytes : (size_t)64 << 20;
    status = resolve_times(values, error);
    return status ? status : resolve_budget(out, error);
}

static const char *given_address(const weft_agent_options *given)
{
    return given && given->master_addr ? given->master_addr : wfi_env_string("MASTER_ADDR");
}

static weft_status no_store(weft_error **error)
{
    const char *why;
    int size;
    (void)wfi_pmix_world_size(&size, &why); /* only for the reason */
    if (wfi_env_string("PMI_FD") && wfi_env_string("MPI_LOCALNRANKS"))
        return invalid(
            error,
            "no MASTER_PORT, and the connection to mpiexec (PMI_FD is \"%s\") belongs to MPI in this program, or is "
            "closed: pass weft_agent_options.bootstrap, or set MASTER_ADDR and MASTER_PORT to the address of rank 0 "
            "and a free port there",
            wfi_env_string("PMI_FD"));
    return invalid(
        error,
        "no MASTER_PORT, and %s: start the program with weft-run -n N, srun, or mpirun, or set MASTER_ADDR and "
        "MASTER_PORT to the address of rank 0 and a free port there. A program that uses MPI may pass "
        "weft_agent_options.bootstrap instead",
        why);
}

/* Rank 0's address or port is not known: whatever started the workers is asked. */
static weft_status find_rank_0(const weft_agent_options *given, wfi_options *out, weft_error **error)
{
    weft_agent_options *values = &out->values;
    const wfi_bootstrap_ask ask = {.rank = values->rank,
                                   .functions = values->bootstrap,
                                   .master_addr = given_address(given) ? values->master_addr : NULL,
                                   .port = values->master_port,
                                   .iface = values->iface,
                                   .timeout_ms = values->rendezvous_timeout_ms};
    wfi_bootstrap_answer answer = {.secret = out->secret};
    const wfi_bootstrap *method = wfi_bootstrap_choose(&ask);
    if (values->world_size == 1 && !values->elastic && !values->bootstrap) {
        values->master_port = WEFT_ANY_PORT; /* nobody looks for it */
        return WEFT_OK;
    }
    if (!method)
        return no_store(error);
    weft_status status = wfi_bootstrap_find(method, &ask, &answer, error);
    if (status)
        return status;
    out->store_fd = answer.store_fd;
    out->port_count = answer.ports;
    values->master_port = answer.port;
    memcpy(out->master_addr, answer.address, sizeof(out->master_addr));
    return WEFT_OK;
}

/* There is a port. Without MASTER_ADDR rank 0 is on this machine. If the launcher says that there are several machines,
 * it is asked for the address. */
static weft_status find_address(const weft_agent_options *given, wfi_options *out, weft_error **error)
{
    const weft_agent_options *values = &out->values;
    const char *launcher;
    bool by_hand = (given && given->has_rank) || wfi_env_string("RANK");
    if (by_hand || given_address(given) || values->sim || values->job)
        return WEFT_OK;
    int nodes = wfi_bootstrap_nodes(&launcher);
    if (nodes < 2)
        return WEFT_OK;
    if (wfi_bootstrap_choose(&(wfi_bootstrap_ask){.functions = values->bootstrap}))
        return find_rank_0(given, out, error);
    return invalid(
        error,
        "MASTER_PORT is set (%d), MASTER_ADDR is not, and %s started this job on several nodes: set MASTER_ADDR to "
        "the address of rank 0, or neither of them",
        values->master_port, launcher);
}

static bool is_worker_name(const char *name)
{
    static const char legal[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_:";
    return name[0] && strspn(name, legal) == strlen(name);
}

/* Removes the brackets of an address: "[::1]", as in a URL, is ::1. */
static void strip_brackets(char *host)
{
    size_t size = strlen(host);
    if (size < 3 || host[0] != '[' || host[size - 1] != ']')
        return;
    memmove(host, host + 1, size - 2);
    host[size - 2] = '\0';
}

static weft_status resolve_texts(wfi_options *out, weft_error **error)
{
    weft_agent_options *values = &out->values;
    char fallback_name[32] = ""; /* empty if the store gives the rank: then it gives the name too */
    if (values->rank >= 0)
        snprintf(fallback_name, sizeof(fallback_name), "worker%d", values->rank);
    const struct {
        const char *option, *variable, *fallback; /* the first that is set is used */
        char *to;
        size_t room;
    } texts[] = {
        {values->name, "WEFT_NAME", fallback_name, out->name, sizeof(out->name)},
        {values->master_addr, "MASTER_ADDR", "127.0.0.1", out->master_addr, sizeof(out->master_addr)},
        {values->fabric, "WEFT_FABRIC", values->sim ? "sim" : "auto", out->fabric, sizeof(out->fabric)},
        {values->iface, "WEFT_IFACE", "", out->iface, sizeof(out->iface)},
        {values->ports, "WEFT_PORTS", "", out->ports, sizeof(out->ports)},
        {values->trace_file, "WEFT_TRACE", "", out->trace_file, sizeof(out->trace_file)},
        {values->metrics_file, "WEFT_METRICS", "", out->metrics_file, sizeof(out->metrics_file)},
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        const char *text = texts[i].option ? texts[i].option : wfi_env_string(texts[i].variable);
        text = text ? text : texts[i].fallback;
        if (strlen(text) >= texts[i].room)
            return invalid(error, "%s (or its option) is \"%s\": too long: %zu bytes, at most %zu", texts[i].variable,
                           text, strlen(text), texts[i].room - 1);
        memcpy(texts[i].to, text, strlen(text) + 1);
    }
    strip_brackets(out->master_addr);
    strip_brackets(out->iface);
    if (out->master_addr[strcspn(out->master_addr, " \t\r\n")])
        return invalid(error, "MASTER_ADDR is \"%s\": a name or address of a host has no spaces", out->master_addr);
    if (strncasecmp(out->master_addr, "fe80:", 5) == 0 && !strchr(out->master_addr, '%'))
        return invalid(error, "MASTER_ADDR is \"%s\": a link-local address needs its interface behind it: %s%%eth0",
                       out->master_addr, out->master_addr);
    bool is_named = values->name || out->name[0] || values->rank >= 0;
    if (is_named && !is_worker_name(out->name))
        return invalid(error, "the worker's name is \"%s\": 1 to 127 of [A-Za-z0-9-_:]", out->name);
    values->name = out->name;
    values->master_addr = out->master_addr;
    values->fabric = out->fabric;
    values->iface = out->iface[0] ? out->iface : NULL;
    values->ports = out->ports[0] ? out->ports : NULL;
    values->trace_file = out->trace_file[0] ? out->trace_file : NULL;
    values->metrics_file = out->metrics_file[0] ? out->metrics_file : NULL;
    for (const char *name = out->fabric; name; name = strchr(name, ',')) {
        name += *name == ',';
        bool is_empty = !*name || *name == ',';                                   /* refused where the list is read */
        if (!is_empty && (strncmp(name, "sim", 3) == 0) != (values->sim != NULL)) /* also "sim-reads" and the like */
            return invalid(error,
                           "fabric (WEFT_FABRIC) is \"%s\": simulated fabrics and a simulated world (.sim, of "
                           "libweft_sim) go together",
                           out->fabric);
    }
    return WEFT_OK;
}

static weft_status resolve_secret(wfi_options *out, weft_error **error)
{
    weft_agent_options *values = &out->values;
    if (values->job && values->secret)
        return invalid(error, "secret: a job of weft_job_open has a secret of its own");
    out->secret = wfi_guarded_calloc(sizeof(*out->secret));
    if (!out->secret)
        return WEFT_ERR_MEMORY;
    if (values->job)
        *out->secret = *wfi_job_secret(values->job);
    weft_status status =
        values->job ? WEFT_OK : wfi_secret_find(values->secret, values->secret_size, out->secret, error);
    return status;
}

/* Waits until a name server has answered, so that a silent one costs the time limit once, not once for each use of the
 * name. A name that does not exist is reported, or tried again, where it is used. */
static weft_status check_name_server(const weft_agent_options *values, weft_error **error)
{
    struct addrinfo *found = NULL;
    uint64_t from_ns = wfi_now(&wfi_clock_real);
    uint64_t deadline_ns = wfi_deadline_after(from_ns, values->rendezvous_timeout_ms);
    do {
        int errnum = wfi_resolve(values->master_addr, 0, 0, deadline_ns, &found);
        if (found)
            freeaddrinfo(found);
        if (errnum != ETIMEDOUT)
            return WEFT_OK;
    } while (wfi_now(&wfi_clock_real) < deadline_ns);
    return wfi_error_fail(error, WEFT_ERR_RENDEZVOUS,
                          "MASTER_ADDR \"%s\" was not resolved within %llu ms: no name server answers "
                          "(/etc/resolv.conf): set a numeric address, or add the name to /etc/hosts",
                          values->master_addr, (unsigned long long)(wfi_now(&wfi_clock_real) - from_ns) / 1000000);
}

/* Where rank 0 is: its address and port, which may come with a secret. */
static weft_status resolve_store(const weft_agent_options *given, wfi_options *out, weft_error **error)
{
    weft_agent_options *values = &out->values;
    bool insecure = false;
    weft_status status = values->sim ? WEFT_OK : check_name_server(values, error);
    if (!status)
        status = values->master_port || values->sim ? find_address(given, out, error) : find_rank_0(given, out, error);
    values->secret = !status && out->secret->size ? out->secret->bytes : NULL;
    values->secret_size = values->secret ? out->secret->size : 0;
    if (!status)
        status = wfi_env_bool("WEFT_INSECURE", &insecure, error);
    if (status || values->secret)
        return status;
    uint64_t deadline_ns = wfi_deadline(&wfi_clock_real, values->rendezvous_timeout_ms);
    bool is_exposed = !insecure && !values->sim && !wfi_hostname_is_loopback(out->master_addr, deadline_ns);
    wfi_log_in(&(wfi_log_context){.rank = values->rank}, is_exposed ? WEFT_LOG_WARN : WEFT_LOG_INFO,
               "\"%s\": the job has no secret (WEFT_SECRET_FILE): any process that reaches its ports may join",
               out->name);
    return status;
}

/* Checks variables that the process reads when they are first needed: a bad value could not be reported there. */
static weft_status check_process(weft_error **error)
{
    int64_t number;
    int level;
    weft_status status = wfi_log_setting(&level, error);
    if (!status)
        status = wfi_cpu_threads_setting(&number, error);
    if (!status)
        status = wfi_quota_setting(&number, error);
    return status ? status : wfi_slab_setting(&number, error);
}

/* Rank 0 with WEFT_ANY_PORT: the store's socket is bound here, so that its port is known before the job is joined. */
static weft_status take_any_port(wfi_options *out, weft_error **error)
{
    weft_agent_options *values = &out->values;
    int fd;
    if (values->master_port != WEFT_ANY_PORT)
        return WEFT_OK;
    weft_status status = wfi_listen_at(values->master_addr, 0, &fd, error);
    if (status)
        return status;
    out->store_fd = fd;
    values->master_port = wfi_listening_port(fd);
    return WEFT_OK;
}

/* Reports a limit on descriptors that is too low now: otherwise a connection would fail in the middle of the job. The
 * number of workers of an elastic job is not known. */
static void check_descriptors(const weft_agent_options *values)
{
    unsigned long long workers = (unsigned long long)values->world_size, limit = wfi_descriptors_limit();
    unsigned long long needed = OWN_DESCRIPTORS + 2 * (workers - 1) + (values->rank == 0 ? workers : 0);
    if (values->elastic || limit >= needed)
        return;
    wfi_log_in(&(wfi_log_context){.rank = values->rank}, WEFT_LOG_WARN,
               "the limit of file descriptors is %llu, and a job of %d workers may need about %llu here: raise it "
               "(ulimit -n %llu, or LimitNOFILE= of systemd), or let weft raise it to the hard limit, %llu "
               "(raise_descriptor_limit, or WEFT_RAISE_DESCRIPTOR_LIMIT=1)",
               limit, values->world_size, needed, needed, wfi_descriptors_hard_limit());
}

static weft_status resolve_descriptors(weft_agent_options *values, weft_error **error)
{
    bool raise = false;
    weft_status status = wfi_env_bool("WEFT_RAISE_DESCRIPTOR_LIMIT", &raise, error);
    values->raise_descriptor_limit = raise || values->raise_descriptor_limit;
    if (status || values->sim)
        return status;
    if (values->raise_descriptor_limit)
        wfi_descriptors_raise();
    check_descriptors(values);
    return WEFT_OK;
}

weft_status wfi_options_resolve(const weft_agent_options *given, wfi_options *out, weft_error **error)
{
    memset(out, 0, sizeof(*out));
    out->store_fd = -1;
    if (given)
        out->values = *given;
    if (out->values.sim && !wfi_simulation)
        return wfi_error_fail(error, WEFT_ERR_UNSUPPORTED,
                              "a simulated world (.sim) needs libweft_sim, and this process uses libweft: link "
                              "libweft_sim instead of libweft, or before it");
    if (out->values.sim && out->values.no_threads)
        return invalid(error, "no_threads: it cannot be combined with a simulated world (.sim), whose fibers take the "
                              "place of threads");
    wfi_variables_check();
    weft_status status = check_process(error);
    if (!status)
        status = resolve_rank(out, error);
    if (!status)
        out->is_spawned = wfi_spawn_joined() && !(given && given->has_rank);
    if (!status)
        status = resolve_port(&out->values, error);
    if (!status)
        status = resolve_numbers(out, error);
    if (!status)
        status = resolve_texts(out, error);
    if (!status)
        status = resolve_secret(out, error);
    if (!status)
        status = resolve_store(given, out, error);
    if (!status)
        status = resolve_descriptors(&out->values, error);
    if (!status)
        status = take_any_port(out, error);
    wfi_secret_hide(); /* even if the options do not use it, or resolving failed: the next attempt may use it */
    return status;
}

void wfi_options_set_identity(wfi_options *options, int rank, const char *name)
{
    options->values.rank = rank;
    snprintf(options->name, sizeof(options->name), "%s", name);
}

void wfi_options_share(wfi_options *options, int agents)
{
    uint64_t share = wfi_quota_memory() / (uint64_t)agents;
    if (!options->budget_is_ours)
        return;
    uint64_t half = share > 0 ? share / 2 : UNKNOWN_BUDGET;
    options->values.memory_budget_bytes = half > LEAST_BUDGET ? half : LEAST_BUDGET;
}

void wfi_options_wipe(wfi_options *options)
{
    free(options->processes);
    options->processes = NULL;
    wfi_guarded_free(options->secret);
    options->secret = NULL;
    options->values.secret = NULL;
    options->values.secret_size = 0;
}
