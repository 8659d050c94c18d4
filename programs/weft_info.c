/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft_info.c - prints what weft finds on this machine, and what it would choose for this process: the first thing that
 * a bug report should have (docs/weft-info.md). It is linked with the static library, whose inside it calls.
 */
#include <weft/job.h>
#include <weft/log.h>

#include "base/launchers.h"
#include "base/text/variables.h"
#include "base/thread.h"
#include "cli.h"
#include "fabric.h"
#include "host/host.h"
#include "mem/backend.h"
#include "mem/cuda.h"
#include "net/channel/channel.h"
#include "out.h"
#include "rpc/agent/options.h"
#ifdef WEFT_INFO_PRODUCTS
#include "tensor/cpu/product/gemm_onednn.h"
#endif
#include "tensor/cuda/image.h"
#include "tensor/cuda/launch.h"
#include "topo/cgroup.h"
#include "topo/nics.h"
#include "topo/quota.h"

#include <errno.h>
#include <fcntl.h>
#include <rdma/fabric.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define NODES_MAX 64
#define FABRICS 9 /* that it shows */

extern char **environ;

typedef struct arguments {
    bool json;
    const char *topology, *cpus;
} arguments;

/* ---- Build, and the environment --------------------------------------------------------------------------------- */

static void put_build(out *to)
{
    uint32_t running = fi_version();
    out_section(to, "weft", false);
    out_text(to, "version", "%s", weft_version());
    out_text(to, "compiler", "%s", WEFT_INFO_COMPILER);
    out_text(to, "options", "%s", WEFT_INFO_OPTIONS);
    out_text(to, "cuda", "%s", wfi_cuda_image_built ? "kernels are built" : "no kernels are built");
    out_text(to, "libfabric_compiled", "%d.%d", FI_MAJOR_VERSION, FI_MINOR_VERSION);
    out_text(to, "libfabric_running", "%u.%u", FI_MAJOR(running), FI_MINOR(running));
}

/* Variables of the secret that were set. Reading the options removes them from the environment. */
typedef struct secret_variables {
    bool has_text;
    char fd[24]; /* the value of WEFT_SECRET_FD; "": it was not set */
} secret_variables;

static void note_secret(secret_variables *before)
{
    const char *fd = getenv("WEFT_SECRET_FD");
    before->has_text = getenv("WEFT_SECRET") != NULL;
    snprintf(before->fd, sizeof(before->fd), "%s", fd ? fd : "");
}

static void put_variables(out *to, const secret_variables *before)
{
    out_section(to, "variables", true);
    for (char **each = environ; each && *each; each++) {
        const char *meant = NULL, *value = strchr(*each, '=');
        char name[128];
        if (strncmp(*each, "WEFT_", 5) != 0 || !value)
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)(value - *each), *each);
        out_row(to, "name", name);
        out_text(to, "value", "%s", strcmp(name, "WEFT_SECRET") == 0 ? "(hidden)" : value + 1);
        if (!wfi_variable_is_known(*each, &meant))
            out_text(to, "problem", "not a variable of weft%s%s", meant ? ": did you mean " : "", meant ? meant : "");
    }
    if (before->has_text && !getenv("WEFT_SECRET")) {
        out_row(to, "name", "WEFT_SECRET");
        out_text(to, "value", "(hidden)");
    }
    if (before->fd[0] && !getenv("WEFT_SECRET_FD")) {
        out_row(to, "name", "WEFT_SECRET_FD");
        out_text(to, "value", "%s", before->fd);
    }
}

static void put_seen(out *to, const char *launcher, const char *variable)
{
    const char *value = getenv(variable);
    if (!value)
        return;
    out_row(to, "launcher", launcher);
    out_text(to, "variable", "%s=%s", variable, value);
}

static void put_launcher(out *to)
{
    static const char *const others[][2] = {{"weft_job_open", "WEFT_SPAWNED"}, {"torchrun", "TORCHELASTIC_RUN_ID"}};
    out_section(to, "launchers", true);
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
        put_seen(to, others[i][0], others[i][1]);
    for (const wfi_launcher *one = wfi_launchers; one->name; one++)
        if (one == wfi_launchers || strcmp(one->rank, one[-1].rank) != 0) /* MPICH and MVAPICH share one */
            put_seen(to, one == wfi_launchers ? "RANK and WORLD_SIZE" : one->name, one->rank);
}

/* ---- Limits ----------------------------------------------------------------------------------------------------- */

/* False: there is no limit. */
static bool put_limit(out *to, const char *key, int resource)
{
    struct rlimit limit;
    bool is_known = getrlimit((__rlimit_resource_t)resource, &limit) == 0;
    bool is_limited = is_known && limit.rlim_cur != RLIM_INFINITY;
    if (is_limited)
        out_number(to, key, (int64_t)limit.rlim_cur); /* perhaps 0 */
    else if (is_known)
        out_limit(to, key, 0);
    return is_limited;
}

static void put_yama(out *to)
{
    static const char *const meanings[] = {"0: any process of the user", "1: only descendants",
                                           "2: only with CAP_SYS_PTRACE", "3: no process"};
    FILE *file = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
    char line[16] = "";
    long scope = -1;
    if (file) {
        scope = fgets(line, sizeof(line), file) ? strtol(line, NULL, 10) : -1;
        fclose(file);
    }
    out_text(to, "yama_ptrace_scope", "%s", scope >= 0 && scope < 4 ? meanings[scope] : "not there");
}

static void put_limits(out *to)
{
    wfi_cgroup group;
    wfi_cgroup_read("", &group);
    out_section(to, "limits", false);
    if (put_limit(to, "memlock_bytes", RLIMIT_MEMLOCK))
        out_text(to, "memlock_advice", "verbs registers memory within this limit; \"ulimit -l unlimited\" raises it");
    put_limit(to, "descriptors", RLIMIT_NOFILE);
    if (put_limit(to, "file_bytes", RLIMIT_FSIZE))
        out_text(to, "file_advice",
                 "weft's files and shared memory end at this limit, with an error; \"ulimit -f unlimited\" raises it");
    put_yama(to);
    out_limit(to, "cgroup_quota_cores", group.quota);
    out_number(to, "cgroup_cores", group.cores > 0 ? group.cores : -1);
    out_limit(to, "cgroup_memory_bytes", (int64_t)group.memory);
    out_number(to, "share_cores", wfi_quota_cores());
    out_number(to, "share_memory_bytes", (int64_t)wfi_quota_memory());
}

/* ---- Fabrics ---------------------------------------------------------------------------------------------------- */

typedef struct opened { /* how the attempt to open a fabric for this process ended */
    const wfi_fabric_ops *ops;
    weft_status status;
    char why[512], iface[64], address[128];
} opened;

/* In the order of the rows. */
static const char *const fabric_names[FABRICS] = {"host", "tcp", "verbs", "shm", "rxm", "efa", "cxi", "psm3", "opx"};

/* Whether libfabric offers a provider; layered ones ("tcp;ofi_rxm") count for their base. */
static bool is_offered(const struct fi_info *all, const char *name)
{
    size_t size = strlen(name);
    for (; all; all = all->next) {
        const char *offered = all->fabric_attr->prov_name;
        if (offered && strncmp(offered, name, size) == 0 && (offered[size] == '\0' || offered[size] == ';'))
            return true;
    }
    return false;
}

static void try_fabric(opened *one, const weft_agent_options *options)
{
    uint8_t address[WFI_ADDRESS_MAX];
    wfi_fabric *fabric = NULL;
    weft_error *error = NULL;
    wfi_fabric_options how = {.iface = options->iface, .towards = options->master_addr};
    one->status = one->ops->open(&how, &fabric, &error);
    if (one->status) {
        snprintf(one->why, sizeof(one->why), "%s", error ? weft_error_message(error) : weft_status_text(one->status));
    } else {
        one->ops->address_text(address, one->ops->address(fabric, address), one->address, sizeof(one->address));
        snprintf(one->iface, sizeof(one->iface), "%s", one->ops->iface(fabric));
        one->ops->close(fabric);
    }
    weft_error_unref(error);
}

static void try_fabrics(opened fabrics[FABRICS], const weft_agent_options *options)
{
    for (size_t i = 0; i < FABRICS; i++) {
        fabrics[i].ops = wfi_fabric_find(fabric_names[i]);
        try_fabric(&fabrics[i], options);
    }
}

static void put_opened(out *to, const opened *one)
{
    out_text(to, "opens", "%s", one->status ? "no" : "yes");
    out_text(to, "why", "%s", one->why);
    if (one->iface[0])
        out_text(to, "interface", "%s", one->iface);
    if (!one->status)
        out_text(to, "address", "%s", one->address);
}

/* Runs in a child. Its memory is read by another child: two workers are not each other's parents either. */
static void wait_for_end(int pipe)
{
    char nothing;
    while (read(pipe, &nothing, 1) > 0) {}
    _exit(0);
}

/* Runs in a child, too. The exit code is an errno value. */
static void read_from(pid_t owner, uint64_t *token)
{
    uint64_t got = ~*token; /* both children have the same pages, so the address is the owner's too */
    struct iovec to = {&got, sizeof(got)}, from = {token, sizeof(*token)};
    ssize_t size = process_vm_readv(owner, &to, 1, &from, 1, 0);
    _exit(size < 0 ? errno : size == sizeof(got) && got == *token ? 0 : EFAULT);
}

/* Whether one process of this user can read the memory of another: 0, or an errno value. *tried: false if the two
 * processes or the pipe cannot be made, for which the result is the reason. */
static int probe_reads(bool *tried)
{
    static uint64_t token = 0x7765667400000001;
    int ends[2], status = 0;
    *tried = false;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return errno;
    void (*before)(int) = signal(SIGCHLD, SIG_DFL); /* inherited as ignored, no exit code of a child would be left */
    pid_t owner = fork();
    if (owner == 0) {
        close(ends[1]);
        wait_for_end(ends[0]);
    }
    pid_t reader = owner > 0 ? fork() : -1;
    if (reader == 0)
        read_from(owner, &token);
    *tried = reader > 0;
    int failed =
        reader > 0 && waitpid(reader, &status, 0) == reader && WIFEXITED(status) ? WEXITSTATUS(status) : EAGAIN;
    close(ends[0]);
    close(ends[1]);
    if (owner > 0)
        (void)waitpid(owner, &status, 0);
    signal(SIGCHLD, before);
    return failed;
}

/* Messages of host work without such reads, large tensors do not. */
static void put_host(out *to)
{
    char limit[WFI_THREAD_STRERROR];
    bool tried;
    int refusal = probe_reads(&tried);
    out_text(to, "over", "shared memory, between workers of one machine");
    out_text(to, "large_tensors", "%s",
             !tried    ? "not known"
             : refusal ? "take the next fabric of the list"
                       : "are read from the other worker");
    if (!tried)
        out_text(to, "large_tensors_why", "two processes could not be made: %s",
                 refusal == EAGAIN ? wfi_thread_strerror(refusal, limit) : strerror(refusal));
    else if (refusal)
        out_text(to, "large_tensors_why", "%s: %s", wfi_host_refusal_text(refusal), strerror(refusal));
}

static void put_fabrics(out *to, const opened fabrics[FABRICS])
{
    struct fi_info *all = NULL;
    if (fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, NULL, &all) != 0)
        all = NULL;
    out_section(to, "fabrics", true);
    for (size_t i = 0; i < FABRICS; i++) {
        const char *name = fabric_names[i];
        out_row(to, "name", name);
        if (fabrics[i].ops == &wfi_fabric_host)
            put_host(to);
        else
            out_text(to, "libfabric", "%s",
                     is_offered(all, strcmp(name, "rxm") ? name : "tcp;ofi_rxm") ? "offers it" : "does not offer it");
        put_opened(to, &fabrics[i]);
    }
    fi_freeinfo(all);
}

/* ---- GPUs that CUDA offers to this process --------------------------------------------------------------------- */

static const char *name_of(const wfi_nic *nic)
{
    return nic->verbs[0] ? nic->verbs : nic->iface[0] ? nic->iface : nic->pci;
}

/* The NUMA node of a GPU, and the network device that a process which uses the GPU would choose. */
static void put_near(out *to, const wfi_topology *topology, const wfi_place *place, const char *pci, int node)
{
    wfi_nic *nics;
    wfi_place with_gpu = {.cores = place->cores, .gpu = pci, .rank = place->rank};
    size_t count = wfi_nics_list(topology, &with_gpu, &nics);
    out_number(to, "node", node);
    out_text(to, "nic", "%s", count > 0 ? name_of(&nics[0]) : "");
    out_text(to, "nic_reason", "%s", count > 0 ? wfi_nic_reach_text(nics[0].reach) : "");
    free(nics);
}

static int node_of(const wfi_topology *topology, const char *pci)
{
    wfi_gpu *gpus;
    int node = -1;
    size_t count = wfi_gpus_list(topology, &gpus);
    for (size_t i = 0; i < count; i++)
        if (strcasecmp(gpus[i].pci, pci) == 0)
            node = gpus[i].node;
    free(gpus);
    return node;
}

static void put_device(out *to, int device, const wfi_topology *topology, const wfi_place *place)
{
    char name[24], text[WFI_CUDA_NAME], address[WFI_CUDA_ADDRESS];
    size_t room = 0, total = 0;
    weft_error *error = NULL;
    snprintf(name, sizeof(name), "cuda:%d", device);
    weft_status status = wfi_launch_try(device, &error);
    out_row(to, "name", name);
    out_text(to, "usable", "%s", status ? "no" : "yes");
    if (status)
        out_text(to, "why", "%s", error ? weft_error_message(error) : weft_status_text(status));
    out_text(to, "gpu", "%s", wfi_cuda_name(device, text));
    out_text(to, "pci", "%s", wfi_cuda_address(device, address));
    put_near(to, topology, place, address, node_of(topology, address));
    out_number(to, "memory_bytes", (int64_t)wfi_cuda_bytes(device));
    if (!status && wfi_cuda_memory_info(device, &room, &total))
        out_number(to, "free_bytes", (int64_t)room);
    weft_error_unref(error);
}

static void put_cuda(out *to, const wfi_topology *topology, const wfi_place *place)
{
    const char *why;
    bool is_found = wfi_cuda_is_found(&why);
    out_section(to, "cuda", true);
    out_row(to, "name", "libcuda.so.1");
    out_text(to, "found", "%s", is_found ? "yes" : "no");
    out_number(to, "devices", wfi_cuda_count());
    if (why)
        out_text(to, "why", "%s", why);
    for (int device = 0; device < wfi_cuda_count(); device++)
        put_device(to, device, topology, place);
}

/* ---- The machine, and the choice -------------------------------------------------------------------------------- */

static void put_nodes(out *to, const wfi_topology *topology)
{
    wfi_numa_node nodes[NODES_MAX];
    size_t count = wfi_topology_nodes(topology, nodes, NODES_MAX);
    out_section(to, "numa_nodes", true);
    for (size_t i = 0; i < count && i < NODES_MAX; i++) {
        char name[16];
        snprintf(name, sizeof(name), "%d", nodes[i].node);
        out_row(to, "node", name);
        out_text(to, "cores", "%s", nodes[i].cores);
        out_number(to, "memory_bytes", (int64_t)nodes[i].memory);
    }
}

static void put_nics(out *to, const wfi_nic *nics, size_t count)
{
    out_section(to, "nics", true);
    for (size_t i = 0; i < count; i++) {
        out_row(to, "name", name_of(&nics[i]));
        out_text(to, "interface", "%s", nics[i].iface);
        out_text(to, "verbs", "%s", nics[i].verbs);
        out_text(to, "pci", "%s", nics[i].pci);
        out_text(to, "model", "%s", nics[i].model);
        out_number(to, "node", nics[i].node);
        out_text(to, "reach", "%s", wfi_nic_reach_text(nics[i].reach));
    }
}

static void put_gpus(out *to, const wfi_topology *topology, const wfi_place *place)
{
    wfi_gpu *gpus;
    size_t count = wfi_gpus_list(topology, &gpus);
    out_section(to, "gpus", true);
    for (size_t i = 0; i < count; i++) {
        out_row(to, "pci", gpus[i].pci);
        out_text(to, "model", "%s", gpus[i].model);
        put_near(to, topology, place, gpus[i].pci, gpus[i].node);
    }
    free(gpus);
}

static void put_choice(out *to, const wfi_topology *topology, const wfi_place *place, const wfi_nic *first)
{
    char text[256];
    wfi_cores *near = first ? wfi_nic_cores(topology, place->cores, name_of(first)) : NULL;
    wfi_cores_text(place->cores, text, sizeof(text));
    out_text(to, "cores", "%s", text);
    out_number(to, "local_rank", place->rank);
    out_text(to, "nearest_nic", "%s", first ? name_of(first) : "none");
    if (first)
        out_text(to, "nearest_nic_reason", "%s", wfi_nic_reach_text(first->reach));
    wfi_cores_text(near, text, sizeof(text));
    out_text(to, "binding", "%s%s", near ? "cores near the nic: " : "not bound", text);
    wfi_cores_destroy(near);
}

/* Writes to `text` the fabrics of the option that open, in its order: weft uses the first one that both workers have.
 * False: weft_agent_open fails, because none opens, an option is wrong for one, or no network leads to the store;
 * `text` has the reason. */
static bool list_opened(const wfi_fabric_list *list, const opened fabrics[FABRICS], char *text, size_t room)
{
    const char *why = "none of its fabrics opens";
    size_t used = 0;
    bool is_wrong = false;
    text[0] = '\0';
    for (size_t i = 0; i < list->count; i++) {
        for (size_t k = 0; k < FABRICS; k++) {
            const opened *one = &fabrics[k];
            if (one->ops != list->ops[i])
                continue;
            bool is_fatal = one->status == WEFT_ERR_INVALID || one->status == WEFT_ERR_UNREACHABLE;
            if (one->status && !is_wrong && (is_fatal || list->count == 1))
                why = one->why;
            is_wrong = is_wrong || is_fatal;
            if (!one->status && used < room)
                used += (size_t)snprintf(text + used, room - used, "%s%s", used ? ", " : "", list->ops[i]->name);
        }
    }
    if (used && !is_wrong)
        return true;
    snprintf(text, room, "%s", why);
    return false;
}

/* Opens an agent, alone in its job: only that shows whether threads, descriptors and memory suffice. False: `text` has
 * the reason. */
static bool try_agent(char *text, size_t room)
{
    static const char *const kept_out[] = {"WEFT_TRACE", "WEFT_METRICS"}; /* a report writes no files */
    enum { COUNT = sizeof(kept_out) / sizeof(*kept_out) };
    char *values[COUNT];
    weft_agent *agent = NULL;
    weft_error *error = NULL;
    for (size_t i = 0; i < COUNT; i++) {
        const char *value = getenv(kept_out[i]);
        values[i] = value ? strdup(value) : NULL;
        (void)unsetenv(kept_out[i]);
    }
    weft_agent_options alone = {
        .has_rank = true, .world_size = 1, .master_addr = "127.0.0.1", .master_port = WEFT_ANY_PORT};
    weft_status status = weft_agent_open(&alone, &agent, &error);
    if (status)
        snprintf(text, room, "%s", error ? weft_error_message(error) : weft_status_text(status));
    else
        (void)!weft_agent_close(agent, WEFT_FOREVER);
    for (size_t i = 0; i < COUNT; i++) {
        if (values[i])
            (void)setenv(kept_out[i], values[i], 1);
        free(values[i]);
    }
    weft_error_unref(error);
    return !status;
}

/* With `options` NULL, what would be chosen on the machine of a file, or `problem` says why the options cannot be read.
 * `used`: the fabrics that open; NULL: none. */
static void put_machine(out *to, const wfi_topology *topology, const wfi_cores *cores, const wfi_options *options,
                        const char *problem, const char *used)
{
    wfi_nic *nics;
    wfi_place place = {.cores = cores, .rank = wfi_quota_local_rank()};
    size_t count = wfi_nics_list(topology, &place, &nics);
    bool is_usable = count > 0 && nics[0].reach <= WFI_NIC_UNKNOWN;
    put_nodes(to, topology);
    put_nics(to, nics, count);
    put_gpus(to, topology, &place);
    out_section(to, "chosen", false);
    if (problem)
        out_text(to, "problem", "%s", problem);
    if (options) {
        out_text(to, "fabric", "%s", options->fabric);
        out_text(to, "fabrics_used", "%s", used ? used : "none: weft_agent_open fails");
        out_number(to, "threads", options->values.threads);
        out_number(to, "memory_budget_bytes", (int64_t)options->values.memory_budget_bytes);
#ifdef WEFT_INFO_PRODUCTS
        out_text(to, "float32_products", "%s", wfi_products_by_onednn() ? "oneDNN" : "CBLAS (OpenBLAS)");
#endif
    }
    put_choice(to, topology, &place, is_usable ? &nics[0] : NULL);
    free(nics);
}

/* ---- The program ------------------------------------------------------------------------------------------------ */

static int refuse(const char *what, const char *value)
{
    fprintf(stderr, "weft-info: %s \"%s\": weft-info --help lists the options\n", what, value);
    return 2;
}

/* -1: go on; otherwise the exit code. */
static int read_arguments(int argc, char **argv, arguments *given)
{
    for (int i = 1; i < argc; i++) {
        bool is_file = strcmp(argv[i], "--topology") == 0;
        if (strcmp(argv[i], "--help") == 0) {
            printf("weft-info - what weft finds on this machine, and what it would choose for this process\n\n"
                   "usage: weft-info [--json] [--topology FILE.xml] [--cpus LIST]\n"
                   "  --json               one JSON object instead of text\n"
                   "  --topology FILE.xml  what would be chosen on that machine (hwloc's XML, by lstopo FILE.xml)\n"
                   "  --cpus LIST          as if the process were bound to these cores: 0-3,8\n"
                   "  --version            the version of weft\n"
                   "  --help               this text\n\n"
                   "The environment counts as in a program: WEFT_FABRIC, WEFT_IFACE and the other variables.\n"
                   "Exit code: 0; 1 if weft_agent_open would fail here; 2 for a wrong option or file.\n");
            return 0;
        }
        if (strcmp(argv[i], "--version") == 0) {
            printf("weft-info %s\n", weft_version());
            return 0;
        }
        if (strcmp(argv[i], "--json") == 0)
            given->json = true;
        else if (!is_file && strcmp(argv[i], "--cpus") != 0)
            return refuse("unknown option", argv[i]);
        else if (i + 1 == argc)
            return refuse("no value for the option", argv[i]);
        else
            *(is_file ? &given->topology : &given->cpus) = argv[++i];
    }
    return -1;
}

static void drop_line(weft_log_level level, const char *line, void *arg) /* what counts is in the report */
{
    (void)level, (void)line, (void)arg;
}

/* False: weft_agent_open fails here. */
static bool put_process(out *to, const wfi_topology *topology, const wfi_cores *cores)
{
    static opened fabrics[FABRICS];
    wfi_options options;
    weft_error *error = NULL;
    wfi_fabric_list list = {0};
    char text[600];
    bool has_rank = !weft_job_is_launched(NULL, NULL);
    secret_variables secret;
    note_secret(&secret);
    /* Without a launcher, as the only worker of a job; the port is not used. */
    weft_agent_options given = {.has_rank = has_rank, .world_size = has_rank, .master_port = !getenv("MASTER_PORT")};
    weft_status status = wfi_options_resolve(&given, &options, &error); /* removes the secret's variables */
    if (!status)
        status = wfi_net_fabric_list_read(options.fabric, &list, &error);
    if (status && !error)
        error = weft_error_create(status, "the options could not be read: %s", weft_status_text(status));
    try_fabrics(fabrics, &options.values);
    bool opens = !error && list_opened(&list, fabrics, text, sizeof(text)) && try_agent(text, sizeof(text));
    if (error)
        snprintf(text, sizeof(text), "%s", weft_error_message(error));
    out_verdict(to, "%s%s", opens ? "an agent opens here: " : "no agent opens here: ", text);
    put_build(to);
    put_variables(to, &secret);
    put_launcher(to);
    put_limits(to);
    put_fabrics(to, fabrics);
    put_cuda(to, topology, &(wfi_place){.cores = cores, .rank = wfi_quota_local_rank()});
    put_machine(to, topology, cores, error ? NULL : &options, opens ? NULL : text, opens ? text : NULL);
    wfi_options_wipe(&options);
    weft_error_unref(error);
    return opens;
}

int main(int argc, char **argv)
{
    arguments given = {0};
    out to;
    wfi_topology *described = NULL;
    weft_error *error = NULL;
    signal(SIGXFSZ, SIG_IGN); /* output over the limit of files is an error */
    int code = read_arguments(argc, argv, &given);
    if (code >= 0)
        return cli_flush("weft-info", code);
    weft_logging_set_sink(drop_line, NULL);
    if (given.topology && wfi_topology_open_file(given.topology, &described, &error) != WEFT_OK) {
        fprintf(stderr, "weft-info: %s\n", error ? weft_error_message(error) : "out of memory");
        weft_error_unref(error);
        return 2;
    }
    const wfi_topology *topology = described ? described : wfi_topology_here();
    wfi_cores *cores = given.cpus ? wfi_cores_parse(topology, given.cpus) : wfi_cores_allowed(topology);
    if (given.cpus && !cores) {
        wfi_topology_close(described);
        return refuse("--cpus has no core of the machine:", given.cpus);
    }
    out_open(&to, stdout, given.json);
    bool opens = true;
    if (described)
        put_machine(&to, topology, cores, NULL, NULL, NULL);
    else
        opens = put_process(&to, topology, cores);
    out_close(&to);
    wfi_cores_destroy(cores);
    wfi_topology_close(described);
    return cli_flush("weft-info", !opens);
}
