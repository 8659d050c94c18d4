/* SPDX-License-Identifier: Apache-2.0 */
/*
 * devices.c - see devices.h. The kernel lists the devices in /sys/class/infiniband. Each has a node in /dev/infiniband,
 * which a container or the permissions may hide, and connections need the node rdma_cm too.
 */
#include "verbs/devices.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAMES_MAX 192

typedef struct names { /* a list such as "mlx5_0, mlx5_1" */
    char text[NAMES_MAX];
    size_t used;
} names;

static void add_name(names *list, const char *name)
{
    size_t size = strlen(name);
    if (list->used + size + 3 > sizeof(list->text))
        return;
    list->used += (size_t)snprintf(list->text + list->used, sizeof(list->text) - list->used, "%s%s",
                                   list->used ? ", " : "", name);
}

/* The names in a folder, except hidden ones. */
static void list_folder(const char *root, const char *folder, names *out)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s%s", root, folder);
    DIR *dir = opendir(path);
    out->text[0] = '\0';
    out->used = 0;
    for (const struct dirent *entry; dir && (entry = readdir(dir));)
        if (entry->d_name[0] != '.')
            add_name(out, entry->d_name);
    if (dir)
        closedir(dir);
}

/* Tries to open a node of /dev/infiniband. Returns 0 or an errno value. */
static int open_node(const char *root, const char *node)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/dev/infiniband/%s", root, node);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return errno;
    close(fd);
    return 0;
}

/* Writes the name of the first node that this process cannot open. False: it can open all. */
static bool find_closed_node(const char *root, char name[NAME_MAX + 1], int *errnum)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/sys/class/infiniband_verbs", root);
    snprintf(name, NAME_MAX + 1, "rdma_cm");
    *errnum = open_node(root, name);
    if (*errnum)
        return true;
    DIR *dir = opendir(path);
    for (const struct dirent *entry; dir && !*errnum && (entry = readdir(dir));) {
        if (strncmp(entry->d_name, "uverbs", 6) != 0)
            continue;
        *errnum = open_node(root, entry->d_name);
        snprintf(name, NAME_MAX + 1, "%s", entry->d_name);
    }
    if (dir)
        closedir(dir);
    return *errnum != 0;
}

void wfi_verbs_explain_below(const char *root, const wfofi_sockaddr *local, char *out, size_t room)
{
    const char *asked = getenv("FI_PROVIDER");
    char node[NAME_MAX + 1];
    names devices;
    int errnum = 0;
    list_folder(root, "/sys/class/infiniband", &devices);
    if (devices.used == 0)
        snprintf(out, room,
                 "this machine has no RDMA device (/sys/class/infiniband is empty): load its driver, or set "
                 "WEFT_FABRIC=host,tcp");
    else if (find_closed_node(root, node, &errnum))
        snprintf(out, room,
                 "this process cannot open /dev/infiniband/%s of device %s (%s): load the module rdma_ucm, change the "
                 "permissions, or pass /dev/infiniband to the container",
                 node, devices.text, strerror(errnum));
    else if (asked && !strstr(asked, "verbs"))
        snprintf(out, room, "FI_PROVIDER is \"%s\": add verbs to it, or unset it", asked);
    else if (local)
        snprintf(
            out, room,
            "the interface (WEFT_IFACE) is none of device %s: name one of the device's (\"rdma link\" lists them), "
            "or none",
            devices.text);
    else
        snprintf(out, room,
                 "device %s has no IP address on an active port, which connections need: give its interface one "
                 "(\"rdma link\" names the interface; ip addr add)",
                 devices.text);
}

void wfi_verbs_explain(const wfofi_sockaddr *local, char *out, size_t room)
{
    wfi_verbs_explain_below("", local, out, room);
}
