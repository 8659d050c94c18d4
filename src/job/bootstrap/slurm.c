/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slurm.c - a step of Slurm without PMIx: all workers derive rank 0's host and port from its variables.
 *
 * Task 0 runs on the first node of the step. The port is MASTER_PORT, or follows from the numbers of job and step. If
 * another program listens there, rank 0 takes the next port. The others go to the next port when what answers cannot
 * prove that it belongs to the job (job/link/socket.c, has_several_ports). Without a secret of the user's that proof
 * rests on the job's name, which is no secret.
 *
 * Variables: srun(1), OUTPUT ENVIRONMENT VARIABLES.
 */
#include "job/bootstrap/bootstrap.h"

#include "base/env.h"
#include "base/error.h"
#include "base/socket.h"
#include "base/text/log.h"
#include "job/bootstrap/nodelist.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_PORT 20000
#define PORTS 10000
#define TRIED 32 /* ports, one after another */

static bool is_there(const wfi_bootstrap_ask *ask)
{
    (void)ask;
    return wfi_env_string("SLURM_JOB_ID") && wfi_env_string("SLURM_STEP_ID");
}

static int count_nodes(void)
{
    const char *text = wfi_env_string("SLURM_STEP_NUM_NODES");
    text = text ? text : wfi_env_string("SLURM_NNODES");
    long nodes = text ? strtol(text, NULL, 10) : 0;
    return nodes >= 1 && nodes <= 65536 ? (int)nodes : 0;
}

static int derived_port(void)
{
    unsigned long job = strtoul(wfi_env_string("SLURM_JOB_ID"), NULL, 10);
    unsigned long step = strtoul(wfi_env_string("SLURM_STEP_ID"), NULL, 10);
    return FIRST_PORT + (int)((job * 61 + step * TRIED) % PORTS);
}

/* Tells the stores of different jobs and steps apart. No secret. */
static void name_job(wfi_secret *secret)
{
    const char *cluster = wfi_env_string("SLURM_CLUSTER_NAME");
    secret->size =
        (size_t)snprintf((char *)secret->bytes, sizeof(secret->bytes), "weft, Slurm %.64s, job %.32s, step %.32s",
                         cluster ? cluster : "", wfi_env_string("SLURM_JOB_ID"), wfi_env_string("SLURM_STEP_ID"));
}

/* Rank 0: its address on the network that leads to another node of the step. */
static void own_address(const char *list, const char *own, int64_t timeout_ms, char *out, size_t room)
{
    char other[256];
    snprintf(out, room, "%s", own);
    if (wfi_nodelist_at(list, 1, other, sizeof(other)))
        (void)wfi_address_towards(other, wfi_deadline(&wfi_clock_real, timeout_ms), out, room);
}

static weft_status check_secret(const wfi_bootstrap_ask *ask, int nodes, wfi_bootstrap_answer *answer,
                                weft_error **error)
{
    bool insecure = false;
    if (answer->secret->size)
        return WEFT_OK;
    weft_status status = wfi_env_bool("WEFT_INSECURE", &insecure, error);
    if (status)
        return status;
    char count[32] = "an unknown number of";
    if (nodes)
        snprintf(count, sizeof(count), "%d", nodes);
    if (nodes != 1 && !insecure && ask->rank != 0)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "this job has %s nodes and no secret: rank 0 says what to do",
                              count);
    if (nodes != 1 && !insecure)
        return wfi_error_fail(error, WEFT_ERR_INVALID,
                              "this job has %s nodes and no secret: name a file of one with WEFT_SECRET_FILE, start it "
                              "with srun --mpi=pmix, or set WEFT_INSECURE=1 if nobody else can reach the nodes' ports",
                              count);
    if (nodes != 1 && ask->rank == 0)
        wfi_log_in(&(wfi_log_context){.rank = 0}, WEFT_LOG_WARN,
                   "WEFT_INSECURE is set: any process that reaches the ports of this job's %s nodes may join it",
                   count);
    name_job(answer->secret);
    return WEFT_OK;
}

static weft_status take_port(bool only_loopback, wfi_bootstrap_answer *answer, weft_error **error)
{
    weft_status status = WEFT_ERR_EXISTS;
    weft_error *refusal = NULL;
    for (int i = 0; i < answer->ports && status == WEFT_ERR_EXISTS; i++) {
        weft_error_unref(refusal);
        refusal = NULL;
        status = wfi_bootstrap_listen(only_loopback, answer->port + i, &answer->store_fd, &refusal);
    }
    if (status == WEFT_ERR_EXISTS && answer->ports > 1) { /* the user set no MASTER_PORT, which the refusal names */
        weft_error_unref(refusal);
        return wfi_error_fail(error, status,
                              "the ports %d to %d, which follow from the numbers of this job and step, are all in use "
                              "on this node: set MASTER_PORT to a free one",
                              answer->port, answer->port + answer->ports - 1);
    }
    if (error)
        *error = refusal;
    else
        weft_error_unref(refusal);
    if (status == WEFT_OK)
        answer->port = wfi_listening_port(answer->store_fd);
    return status;
}

static weft_status find(const wfi_bootstrap_ask *ask, wfi_bootstrap_answer *answer, weft_error **error)
{
    const char *list = wfi_env_string("SLURM_STEP_NODELIST"), *node = wfi_env_string("SLURM_NODEID");
    list = list ? list : wfi_env_string("SLURM_JOB_NODELIST");
    int nodes = count_nodes();
    char host[256] = "127.0.0.1";
    if (nodes != 1 && !wfi_nodelist_at(list, 0, host, sizeof(host)))
        return wfi_error_fail(
            error, WEFT_ERR_INVALID,
            "SLURM_STEP_NODELIST and SLURM_JOB_NODELIST name no node (\"%.100s\"): set MASTER_ADDR and "
            "MASTER_PORT",
            list ? list : "");
    if (ask->rank == 0 && node && strtol(node, NULL, 10) != 0)
        return wfi_error_fail(
            error, WEFT_ERR_INVALID,
            "rank 0 is on node %s of the step (SLURM_NODEID), and the others look for it on the first "
            "one, %s: set MASTER_ADDR and MASTER_PORT",
            node, host);
    weft_status status = check_secret(ask, nodes, answer, error);
    if (status)
        return status;
    answer->port = ask->port ? ask->port : derived_port();
    answer->ports = ask->port ? 1 : TRIED;
    snprintf(answer->address, sizeof(answer->address), "%s", ask->master_addr ? ask->master_addr : host);
    if (ask->rank != 0)
        return WEFT_OK;
    status = ask->master_addr ? wfi_bootstrap_check(ask->master_addr, error) : WEFT_OK;
    if (status)
        return status;
    if (nodes != 1 && !ask->master_addr)
        own_address(list, host, ask->timeout_ms, answer->address, sizeof(answer->address));
    return take_port(nodes == 1 && !ask->master_addr, answer, error);
}

const wfi_bootstrap wfi_bootstrap_slurm = {.name = "Slurm", .is_there = is_there, .nodes = count_nodes, .find = find};
