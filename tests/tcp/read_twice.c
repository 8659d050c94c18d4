/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read_twice.c - does libfabric's tcp provider give the record of a read out twice when the endpoint is closed in
 * the middle of the read? Needs libfabric alone: cc read_twice.c -lfabric. See
 * docs/upstream/libfabric-tcp-read-twice.md.
 *
 * An owner and a reader, in one process, on 127.0.0.1. The reader posts one large read, and its endpoint is closed
 * when the first bytes have come in. Then two small reads are posted on a second connection. All of that is done by
 * a child, as it may crash or hang; the parent says what became of it.
 */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define LARGE ((size_t)16 << 20)
#define SMALL 4096
#define CPU_S 2 /* for what takes milliseconds; it polls without sleeping */

enum { SOUND = 0, DEFECT = 1, UNDECIDED = 2 };

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        long ret_ = (long)(call);                                                                                      \
        if (ret_ != 0) {                                                                                               \
            fprintf(stderr, "read_twice: %s: %s\n", #call, fi_strerror((int)-ret_));                                   \
            exit(UNDECIDED);                                                                                           \
        }                                                                                                              \
    } while (0)

typedef struct side {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_eq *eq;
    struct fid_cq *cq;
    struct fid_ep *ep;
} side;

static void open_side(side *s)
{
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        exit(UNDECIDED);
    hints->caps = FI_MSG | FI_RMA;
    hints->ep_attr->type = FI_EP_MSG;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup("tcp");
    OK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "0", FI_SOURCE | FI_NUMERICHOST, hints, &s->info));
    OK(fi_fabric(s->info->fabric_attr, &s->fabric, NULL));
    OK(fi_domain(s->fabric, s->info, &s->domain, NULL));
    OK(fi_eq_open(s->fabric, &(struct fi_eq_attr){.wait_obj = FI_WAIT_FD}, &s->eq, NULL));
    OK(fi_cq_open(s->domain, &(struct fi_cq_attr){.format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_FD}, &s->cq,
                  NULL));
    fi_freeinfo(hints);
}

static void open_endpoint(side *s, struct fi_info *info)
{
    OK(fi_endpoint(s->domain, info, &s->ep, NULL));
    OK(fi_ep_bind(s->ep, &s->eq->fid, 0));
    OK(fi_ep_bind(s->ep, &s->cq->fid, FI_TRANSMIT | FI_RECV));
    OK(fi_enable(s->ep));
}

static bool event_of(side *s, uint32_t wanted, struct fi_eq_cm_entry *entry)
{
    uint32_t event = 0;
    return fi_eq_read(s->eq, &event, entry, sizeof(*entry), 0) > 0 && event == wanted;
}

static void connect_sides(side *reader, side *owner, struct fid_pep *door)
{
    struct sockaddr_storage address;
    struct fi_eq_cm_entry entry;
    size_t size = sizeof(address);
    bool reader_up = false, owner_up = false;
    OK(fi_getname(&door->fid, &address, &size));
    open_endpoint(reader, reader->info);
    OK(fi_connect(reader->ep, &address, NULL, 0));
    while (!event_of(owner, FI_CONNREQ, &entry))
        (void)event_of(reader, 0, &(struct fi_eq_cm_entry){0}); /* it sends the request */
    open_endpoint(owner, entry.info);
    OK(fi_accept(owner->ep, NULL, 0));
    while (!reader_up || !owner_up) {
        reader_up = reader_up || event_of(reader, FI_CONNECTED, &entry);
        owner_up = owner_up || event_of(owner, FI_CONNECTED, &entry);
    }
}

/* The context of one completion, or NULL; counts what failed. */
static char *completion(side *s, int *failed)
{
    struct fi_cq_entry entry = {0};
    struct fi_cq_err_entry error = {0};
    ssize_t count = fi_cq_read(s->cq, &entry, 1);
    if (count == 1)
        return entry.op_context;
    if (count == -FI_EAVAIL && fi_cq_readerr(s->cq, &error, 0) == 1)
        *failed += error.op_context != NULL;
    return NULL;
}

/* Both reads must end well, each once, with what the owner has. */
static int read_two(side *reader, side *owner, const char *theirs, uint64_t base, uint64_t key)
{
    char *ours = calloc(2, SMALL);
    int ended[2] = {0, 0}, failed = 0;
    if (!ours)
        exit(UNDECIDED);
    for (int i = 0; i < 2; i++)
        OK(fi_read(reader->ep, ours + (ptrdiff_t)i * SMALL, SMALL, NULL, FI_ADDR_UNSPEC, base + (uint64_t)i * SMALL,
                   key, &ended[i]));
    while (!failed && (!ended[0] || !ended[1])) {
        int *context = (int *)(void *)completion(reader, &failed);
        if (context)
            ++*context;
        (void)completion(owner, &failed);
    }
    bool sound = !failed && ended[0] == 1 && ended[1] == 1 && memcmp(ours, theirs, (size_t)2 * SMALL) == 0;
    free(ours);
    return sound ? SOUND : DEFECT;
}

/* `whole`: the read ends before its endpoint is closed, and all must be well: a control. */
static int run(bool whole)
{
    side reader = {0}, owner = {0};
    struct fid_pep *door;
    struct fid_mr *mr;
    int failed = 0;
    char *theirs = malloc(LARGE), *ours = calloc(1, LARGE);
    if (!theirs || !ours)
        return UNDECIDED;
    memset(theirs, 'x', LARGE);
    open_side(&reader);
    open_side(&owner);
    free(reader.info->src_addr);
    reader.info->src_addr = NULL;
    reader.info->src_addrlen = 0;
    OK(fi_passive_ep(owner.fabric, owner.info, &door, NULL));
    OK(fi_pep_bind(door, &owner.eq->fid, 0));
    OK(fi_listen(door));
    OK(fi_mr_reg(owner.domain, theirs, LARGE, FI_REMOTE_READ, 0, 1, 0, &mr, NULL));
    uint64_t base = owner.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)theirs : 0;

    connect_sides(&reader, &owner, door);
    OK(fi_read(reader.ep, ours, LARGE, NULL, FI_ADDR_UNSPEC, base, fi_mr_key(mr), ours));
    char *ended = NULL;
    while (whole ? !ended : *(volatile char *)ours != 'x') {
        (void)completion(&owner, &failed);
        ended = completion(&reader, &failed);
        if (failed || (ended && !whole))
            return UNDECIDED; /* it ended before it could be cut off */
    }
    OK(fi_close(&reader.ep->fid));
    while (!whole && (completion(&reader, &failed) || !failed))
        ; /* the read's: cancelled */
    failed = 0;
    OK(fi_close(&owner.ep->fid));
    connect_sides(&reader, &owner, door);
    return read_two(&reader, &owner, theirs, base, fi_mr_key(mr));
}

static int decide(bool whole)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        (void)setrlimit(RLIMIT_CPU, &(struct rlimit){.rlim_cur = CPU_S, .rlim_max = CPU_S});
        _exit(run(whole));
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return UNDECIDED;
    if (WIFSIGNALED(status))
        printf("the child ended by signal %d (%s)\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
    return WIFEXITED(status) ? WEXITSTATUS(status) : DEFECT;
}

int main(int argc, char **argv)
{
    static const char *const verdicts[] = {[SOUND] = "two reads after it were right",
                                           [DEFECT] = "a read's record was given out twice",
                                           [UNDECIDED] = "could not be tried"};
    bool whole = argc == 2 && strcmp(argv[1], "--whole") == 0;
    if (argc > 1 && !whole) {
        printf("usage: read_twice [--whole]\n\nCloses an endpoint of libfabric's tcp provider in the middle of a read, "
               "and "
               "says whether reads afterwards are right.\n--whole: after the read has ended, which must harm nothing.\n"
               "Exit status: 0 if that could be tried, whatever came of it; else 2. With --whole 1 if a read was not "
               "right.\n");
        return strcmp(argv[1], "--help") == 0 ? 0 : 2;
    }
    int verdict = decide(whole);
    printf("libfabric %u.%u, tcp: an endpoint was closed %s a read: %s\n", FI_MAJOR(fi_version()),
           FI_MINOR(fi_version()), whole ? "after" : "in the middle of",
           verdicts[verdict > UNDECIDED ? UNDECIDED : verdict]);
    return verdict == DEFECT && !whole ? 0 : verdict;
}
