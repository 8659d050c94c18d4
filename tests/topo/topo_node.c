/* SPDX-License-Identifier: Apache-2.0 */
/* topo_node.c - see topo_node.h. Every object needs a gp_index of its own; cpusets are bits of the core numbers. */
#include "topo_node.h"

typedef struct node_writer {
    FILE *to;
    int cores;
    unsigned index;
} node_writer;

static unsigned long mask(const node_writer *w, int socket)
{
    return ((1ul << w->cores) - 1) << (socket * w->cores);
}

/* The sets that every object with cores has. */
static void write_sets(const node_writer *w, unsigned long cores, unsigned long nodes)
{
    fprintf(w->to, " cpuset=\"0x%08lx\" complete_cpuset=\"0x%08lx\" nodeset=\"0x%08lx\" complete_nodeset=\"0x%08lx\"",
            cores, cores, nodes, nodes);
}

static void write_core(node_writer *w, int socket, int core)
{
    unsigned long bit = 1ul << (socket * w->cores + core), node = 1ul << socket;
    fprintf(w->to, "<object type=\"Core\" os_index=\"%d\"", core);
    write_sets(w, bit, node);
    fprintf(w->to, " gp_index=\"%u\">\n<object type=\"PU\" os_index=\"%d\"", w->index, socket * w->cores + core);
    write_sets(w, bit, node);
    fprintf(w->to, " gp_index=\"%u\"/></object>\n", w->index + 1);
    w->index += 2;
}

static void write_device(node_writer *w, int bus, int slot, int class, const char *const *names, const int *types,
                         int number)
{
    fprintf(w->to,
            "<object type=\"PCIDev\" gp_index=\"%u\" pci_busid=\"0000:%02x:%02x.0\" pci_type=\"%04x [15b3:1017] "
            "[15b3:0001] "
            "00\" pci_link_speed=\"16.0\">\n",
            w->index++, bus, slot, class);
    for (int i = 0; i < 2; i++)
        fprintf(w->to, "<object type=\"OSDev\" gp_index=\"%u\" name=\"%s%d\" osdev_type=\"%d\"/>\n", w->index++,
                names[i], number, types[i]);
    fputs("</object>\n", w->to);
}

/* hwloc's numbers of device types: 1 GPU, 2 network, 3 OpenFabrics, 5 co-processor. */
static void write_devices(node_writer *w, int socket)
{
    int bus = 0x10 * (socket + 1);
    fprintf(
        w->to,
        "<object type=\"Bridge\" gp_index=\"%u\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[%02x-%02x]\">\n",
        w->index++, bus, bus);
    write_device(w, bus, 1, 0x0302, (const char *const[]){"cuda", "nvml"}, (const int[]){5, 1}, socket);
    write_device(w, bus, 2, 0x0207, (const char *const[]){"mlx5_", "ib"}, (const int[]){3, 2}, socket);
    fputs("</object>\n", w->to);
}

void topo_node_write(FILE *to, int sockets, int cores)
{
    node_writer w = {to, cores, 2};
    unsigned long all = 0, nodes = (1ul << sockets) - 1;
    for (int s = 0; s < sockets; s++)
        all |= mask(&w, s);
    fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology "
          "version=\"2.0\">\n<object type=\"Machine\" os_index=\"0\"",
          to);
    write_sets(&w, all, nodes);
    fprintf(to, " allowed_cpuset=\"0x%08lx\" allowed_nodeset=\"0x%08lx\" gp_index=\"1\">\n", all, nodes);
    for (int s = 0; s < sockets; s++) {
        fprintf(to, "<object type=\"Package\" os_index=\"%d\"", s);
        write_sets(&w, mask(&w, s), 1ul << s);
        fprintf(to, " gp_index=\"%u\">\n<object type=\"NUMANode\" os_index=\"%d\"", w.index, s);
        write_sets(&w, mask(&w, s), 1ul << s);
        fprintf(to, " gp_index=\"%u\" local_memory=\"1073741824\"/>\n", w.index + 1);
        w.index += 2;
        for (int c = 0; c < cores; c++)
            write_core(&w, s, c);
        write_devices(&w, s);
        fputs("</object>\n", to);
    }
    fputs("</object>\n</topology>\n", to);
}
