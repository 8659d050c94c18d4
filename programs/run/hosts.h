/* SPDX-License-Identifier: Apache-2.0 */
/* hosts.h - the machines on which the workers start. */
#ifndef WEFT_RUN_HOSTS_H
#define WEFT_RUN_HOSTS_H

#include <stdbool.h>
#include <stddef.h>

struct addrinfo;

typedef enum host_method {
    HOST_HERE, /* this machine */
    HOST_SSH,
    HOST_SRUN, /* a node of the Slurm allocation that this process is in */
} host_method;

typedef struct host {
    char *name; /* for ssh: perhaps with a user, "me@node1" */
    host_method method;
    int slots;                  /* workers that it takes */
    int cpus;                   /* of Slurm: of the allocation on this node; otherwise 0 */
    struct addrinfo *addresses; /* NULL: not known */
    size_t first;               /* the first host of the list that is the same machine */
    int workers;                /* of the job, here */
    int starting;               /* of these, processes that do not answer yet */
} host;

typedef struct host_list {
    host *items;
    size_t count, room;
} host_list;

/* This machine, with that many slots. */
void hosts_here(host_list *made, int slots);
/*
 * A file in the form of Open MPI's host files: a name a line, perhaps with slots=K (1 without); "#" begins a comment;
 * max_slots=K is ignored. False: the error was printed.
 */
bool hosts_read(host_list *made, const char *path);
/*
 * Keeps only the first hosts, which have `wanted` slots. The slots of repeated names are added up, and names that
 * resolve to one address are one host, which has the first name. Finds the host that is this machine. False: the error
 * was printed; `path` is for it.
 */
bool hosts_merge(host_list *list, int wanted, const char *path);
/* The nodes of a Slurm allocation (sbatch, salloc) of several nodes, slots by its tasks. Without an allocation the list
 * is empty. False: the error was printed. */
bool hosts_of_slurm(host_list *made);
int hosts_slots(const host_list *list);
void hosts_free(host_list *list);

/* The name without the user. */
const char *host_address(const host *one);

#endif
