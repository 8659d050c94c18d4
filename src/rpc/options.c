/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - what an agent was asked for: its options, then the environment, then the defaults. */
#include "rpc/options.h"

#include "base/env.h"
#include "base/error.h"
#include "net/spawn.h"

#include <stdio.h>
#include <string.h>

/* Ranks as launchers name them, where RANK and WORLD_SIZE are not set: Open MPI, PMI (MPICH, Hydra), Slurm. */
static const char *const launchers[][2] = {
    {"RANK", "WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"PMI_RANK", "PMI_SIZE"},
    {"SLURM_PROCID", "SLURM_NTASKS"},
};

static weft_status invalid(weft_error **error, const char *what, const char *value, const char *hint)
{
    *error = weft_error_create(WEFT_ERR_INVALID, "%s is \"%s\": %s", what, value, hint);
    return WEFT_ERR_INVALID;
}

/* Takes `option`, else the variable, else the default (which may be NULL: stays empty). */
static weft_status take_text(const char *option, const char *variable, const char *fallback, char *out, size_t room,
                             weft_error **error)
{
    const char *text = option ? option : wfi_env_string(variable);
    if (!text)
        text = fallback ? fallback : "";
    if (strlen(text) >= room)
        return invalid(error, variable, text, "too long");
    memcpy(out, text, strlen(text) + 1);
    return WEFT_OK;
}

static weft_status rank_from_launcher(weft_agent_options *values, weft_error **error)
{
    int64_t rank = -1, size = -1;
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        weft_status st = wfi_env_i64(launchers[i][0], 0, 65535, &rank, error);
        if (!st)
            st = wfi_env_i64(launchers[i][1], 1, 65536, &size, error);
        if (st)
            return st;
        if (rank >= 0 && size >= 1)
            break;
        rank = size = -1;
    }
    if (rank < 0) {
        *error = weft_error_create(WEFT_ERR_INVALID, "neither options (has_rank) nor the environment (RANK and "
                                                     "WORLD_SIZE) say which worker this is");
        return WEFT_ERR_INVALID;
    }
    values->rank = (int)rank;
    values->world_size = (int)size;
    return WEFT_OK;
}

static weft_status resolve_rank(wfi_options *out, weft_error **error)
{
    weft_agent_options *values = &out->values;
    weft_status st = WEFT_OK;
    if (values->job) {
        values->rank = 0;
        values->world_size = wfi_job_world_size(values->job);
        values->master_port = wfi_job_port(values->job);
        out->store_fd = wfi_job_take_fd(values->job);
    } else if (!values->has_rank) {
        st = rank_from_launcher(values, error);
    }
    if (st)
        return st;
    if (values->world_size < 1 || values->world_size > 65536 || values->rank < 0 ||
        values->rank >= values->world_size) {
        *error = weft_error_create(WEFT_ERR_INVALID, "rank %d of world size %d: ranks count from 0 to world size - 1",
                                   values->rank, values->world_size);
        return WEFT_ERR_INVALID;
    }
    values->has_rank = true;
    return WEFT_OK;
}

static weft_status resolve_port(weft_agent_options *values, weft_error **error)
{
    int64_t port = values->master_port;
    weft_status st = port ? WEFT_OK : wfi_env_i64("MASTER_PORT", 1, 65535, &port, error);
    if (st)
        return st;
    if (!port && !values->sim) {
        *error = weft_error_create(WEFT_ERR_INVALID, "no MASTER_PORT: name the port on which rank 0 serves the store");
        return WEFT_ERR_INVALID;
    }
    if (port < 0 || port > 65535) {
        *error = weft_error_create(WEFT_ERR_INVALID, "master_port is %lld: ports are 1 to 65535", (long long)port);
        return WEFT_ERR_INVALID;
    }
    values->master_port = (int)port;
    return WEFT_OK;
}

static weft_status resolve_numbers(weft_agent_options *values, weft_error **error)
{
    int64_t workers = values->workers ? values->workers : 4;
    int64_t death = 2000;
    bool unbound = values->no_binding;
    weft_status st = values->workers ? WEFT_OK : wfi_env_i64("WEFT_WORKERS", 1, 1024, &workers, error);
    if (!st && !values->death_timeout_ms)
        st = wfi_env_i64("WEFT_DEATH_MS", -1, INT64_MAX / 1000000, &death, error);
    if (!st)
        st = wfi_env_bool("WEFT_NO_BINDING", &unbound, error);
    if (st)
        return st;
    if (workers < 1 || workers > 1024) {
        *error = weft_error_create(WEFT_ERR_INVALID, "workers is %lld: 1 to 1024", (long long)workers);
        return WEFT_ERR_INVALID;
    }
    values->workers = (int)workers;
    values->no_binding = unbound || values->no_binding;
    values->death_timeout_ms = values->death_timeout_ms ? values->death_timeout_ms : death;
    values->rendezvous_timeout_ms = values->rendezvous_timeout_ms ? values->rendezvous_timeout_ms : 60000;
    values->call_timeout_ms = values->call_timeout_ms ? values->call_timeout_ms : 60000;
    values->queue_limit_bytes = values->queue_limit_bytes ? values->queue_limit_bytes : (size_t)64 << 20;
    return WEFT_OK;
}

static weft_status resolve_metrics_port(weft_agent_options *values, weft_error **error)
{
    int64_t port = values->metrics_port;
    weft_status st = port ? WEFT_OK : wfi_env_i64("WEFT_METRICS_PORT", -1, 65535, &port, error);
    if (!st && (port < -1 || port > 65535)) {
        *error = weft_error_create(WEFT_ERR_INVALID, "metrics_port is %lld: 1 to 65535, or -1 for any free one",
                                   (long long)port);
        st = WEFT_ERR_INVALID;
    }
    values->metrics_port = st ? 0 : (int)port;
    return st;
}

static bool is_worker_name(const char *name)
{
    static const char legal[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_:";
    return name[0] && strspn(name, legal) == strlen(name);
}

static weft_status resolve_texts(wfi_options *out, weft_error **error)
{
    weft_agent_options *values = &out->values;
    char fallback[32];
    snprintf(fallback, sizeof fallback, "worker%d", values->rank);
    weft_status st = take_text(values->name, "WEFT_NAME", fallback, out->name, sizeof out->name, error);
    if (!st)
        st = take_text(values->master_addr, "MASTER_ADDR", "127.0.0.1", out->master_addr, sizeof out->master_addr,
                       error);
    if (!st)
        st = take_text(values->fabric, "WEFT_FABRIC", values->sim ? "sim" : "tcp", out->fabric, sizeof out->fabric,
                       error);
    if (!st)
        st = take_text(values->iface, "WEFT_IFACE", NULL, out->iface, sizeof out->iface, error);
    if (!st)
        st = take_text(values->ports, "WEFT_PORTS", NULL, out->ports, sizeof out->ports, error);
    if (!st)
        st = take_text(values->trace_file, "WEFT_TRACE", NULL, out->trace_file, sizeof out->trace_file, error);
    if (st)
        return st;
    if (!is_worker_name(out->name))
        return invalid(error, "the worker's name", out->name, "1 to 127 of [A-Za-z0-9-_:]");
    values->name = out->name;
    values->master_addr = out->master_addr;
    values->fabric = out->fabric;
    values->iface = out->iface[0] ? out->iface : NULL;
    values->ports = out->ports[0] ? out->ports : NULL;
    values->trace_file = out->trace_file[0] ? out->trace_file : NULL;
    if ((strcmp(out->fabric, "sim") == 0) != (values->sim != NULL))
        return invalid(error, "fabric", out->fabric, "\"sim\" and a simulated world (.sim) go together");
    return WEFT_OK;
}

weft_status wfi_options_resolve(const weft_agent_options *given, wfi_options *out, weft_error **error)
{
    memset(out, 0, sizeof *out);
    out->store_fd = -1;
    if (given)
        out->values = *given;
    weft_status st = resolve_rank(out, error);
    if (!st)
        st = resolve_port(&out->values, error);
    if (!st)
        st = resolve_numbers(&out->values, error);
    if (!st)
        st = resolve_metrics_port(&out->values, error);
    if (!st)
        st = resolve_texts(out, error);
    return st;
}
