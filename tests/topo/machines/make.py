#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make.py [FOLDER] - writes the machines of test_topo_nics as hwloc's XML (default: beside this file).

A machine is a list of packages, each a list of NUMA nodes; a node has cores and the PCI devices of one host bridge. A device is
(class, model, names); a list of devices is a PCI switch. Devices of `anywhere` are below the machine itself.
"""
import os
import sys

CORES = 2  # of each node
NETWORK, OPENFABRICS = 2, 3  # hwloc's kinds of devices
MLX, GPU = "15b3:1021", "10de:20b0"


def nic(*names):
    return ("0207" if names and names[0].startswith("mlx5") else "0200", MLX, names)


def gpu():
    return ("0302", GPU, ())


def ether(name):
    return ("0200", "8086:1521", (name,))


class Writer:
    def __init__(self, packages, allowed):
        self.lines, self.index, self.bus = [], 0, 0
        self.allowed = allowed  # cores
        self.nodes = sum(len(package) for package in packages)

    def put(self, text, closes="/"):
        self.index += 1
        self.lines.append('<object %s gp_index="%d"%s>' % (text, self.index, closes))

    def close(self):
        self.lines.append("</object>")

    def sets(self, nodes):
        cores = sum(((1 << CORES) - 1) << (CORES * node) for node in nodes)
        return self.set_text(cores, sum(1 << node for node in nodes))

    def set_text(self, cores, nodes):
        kept = sum(1 << n for n in range(self.nodes) if nodes >> n & 1 and self.node_is_allowed(n))
        return 'cpuset="0x%08x" complete_cpuset="0x%08x" nodeset="0x%08x" complete_nodeset="0x%08x"' % (
            cores & self.allowed, cores, kept, nodes)

    def node_is_allowed(self, node):
        return self.allowed >> (CORES * node) & ((1 << CORES) - 1) != 0

    def device(self, kind, model, names):
        self.bus += 1
        self.put('type="PCIDev" pci_busid="0000:%02x:00.0" pci_type="%s [%s] [0000:0000] 00"' % (self.bus, kind, model), "")
        for name in names:
            osdev = OPENFABRICS if name.startswith("mlx5") else NETWORK
            self.put('type="OSDev" name="%s" osdev_type="%d"' % (name, osdev))
        self.close()

    def bridge(self, kind, depth, devices):
        first = self.bus + 1
        upstream = ' pci_busid="0000:%02x:01.0" pci_type="0604 [10b5:8796] [0000:0000] 00"' % first if kind == "1-1" else ""
        self.put('type="Bridge" bridge_type="%s" depth="%d" bridge_pci="0000:[%02x-ff]"%s' % (kind, depth, first, upstream), "")
        self.devices(devices, depth + 1)
        self.close()

    def devices(self, devices, depth):
        for one in devices:
            if isinstance(one, list):
                self.bridge("1-1", depth, one)
            else:
                self.device(*one)

    def node(self, node, devices):
        if self.node_is_allowed(node):
            self.put('type="NUMANode" os_index="%d" %s local_memory="1073741824"' % (node, self.sets([node])))
        for core in range(CORES * node, CORES * node + CORES):
            if self.allowed >> core & 1:
                sets = self.set_text(1 << core, 1 << node)
                self.put('type="Core" os_index="%d" %s' % (core, sets), "")
                self.put('type="PU" os_index="%d" %s' % (core, sets))
                self.close()
        if devices:
            self.bridge("0-1", 0, devices)

    def machine(self, packages, anywhere):
        every = range(self.nodes)
        self.put('type="Machine" os_index="0" %s allowed_cpuset="0x%08x" allowed_nodeset="0x%08x"' % (
            self.sets(every), self.allowed, sum(1 << n for n in every if self.node_is_allowed(n))), "")
        node = 0
        for number, package in enumerate(packages):
            mine = list(range(node, node + len(package)))
            self.put('type="Package" os_index="%d" %s' % (number, self.sets(mine)), "")
            for at, devices in zip(mine, package):
                if len(package) > 1:
                    self.put('type="Group" %s' % self.sets([at]), "")
                self.node(at, devices)
                if len(package) > 1:
                    self.close()
            self.close()
            node += len(package)
        if anywhere:
            self.bridge("0-1", 0, anywhere)
        self.close()
        head = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology version="2.0">\n'
        return head + "\n".join(self.lines) + "\n</topology>\n"


def write(folder, name, packages, anywhere=(), allowed=None):
    every = (1 << (CORES * sum(len(package) for package in packages))) - 1
    with open(os.path.join(folder, name + ".xml"), "w", encoding="utf-8") as file:
        file.write(Writer(packages, every if allowed is None else allowed).machine(packages, anywhere))


def dgx_node(node):
    """A PCI switch with two GPUs and two NICs; the first node also has a network for management, and a display."""
    switch = [gpu(), nic("mlx5_%d" % (2 * node), "ib%d" % (2 * node)), gpu(), nic("mlx5_%d" % (2 * node + 1), "ib%d" % (2 * node + 1))]
    return [switch] + ([ether("eth0"), ("0300", "1a03:2000", ())] if node == 0 else [])


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    dgx = [[dgx_node(0), dgx_node(1)], [dgx_node(2), dgx_node(3)]]
    write(folder, "dgx", dgx)
    write(folder, "container", dgx, allowed=0b1100)  # the second node of the first package
    flat = [ether("eth0")] + [one for i in range(2) for one in (gpu(), nic("mlx5_%d" % i, "ib%d" % i))]
    write(folder, "vm", [[flat]])
    write(folder, "laptop", [[[("0300", "8086:9a49", ()), ("0280", "8086:a0f0", ("wlan0",)), ("0c03", "8086:a0ed", ("enx0",))]]])
    write(folder, "unplaced", [[[]], [[]]], anywhere=[ether("eth0"), nic("mlx5_0", "ib0"), nic("mlx5_1", "ib1"), nic()])
    write(folder, "no_nic", [[[]]])
    write(folder, "nested", [[[[[nic("mlx5_0")], [gpu(), nic("mlx5_1")]]]]])


if __name__ == "__main__":
    main()
