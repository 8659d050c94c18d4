/* SPDX-License-Identifier: Apache-2.0 */
/* raw_fabric.c - the floor under all benchmarks: what libfabric does on this machine without weft. */
#include "common/raw_floor.h"

#include <getopt.h>
#include <stdlib.h>

static void usage(FILE *to)
{
    fprintf(to, "usage: raw_fabric [--provider NAME] [--rounds N] [--repeat-ms N] [--json FILE]\n"
                "Round trips and remote read and write rates of two processes on loopback, directly on libfabric.\n"
                "  --provider NAME  libfabric's provider with connected endpoints (tcp)\n"
                "  --rounds N       round trips of each size (2000)\n"
                "  --repeat-ms N    time spent on each rate (100)\n"
                "  --json FILE      write the numbers there as JSON as well\n");
}

static int save(const raw_floor *floor, const char *path)
{
    FILE *file = fopen(path, "w");
    if (!file) {
        perror(path);
        return -1;
    }
    raw_floor_json(floor, file);
    if (fclose(file) == 0)
        return 0;
    perror(path);
    return -1;
}

int main(int argc, char **argv)
{
    static const struct option known[] = {{"provider", required_argument, NULL, 'p'},
                                          {"rounds", required_argument, NULL, 'r'},
                                          {"repeat-ms", required_argument, NULL, 'm'},
                                          {"json", required_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    raw_floor_options options = {0};
    const char *json = NULL;
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (option) {
        case 'p':
            options.provider = optarg;
            break;
        case 'r':
            options.rounds = atoi(optarg);
            break;
        case 'm':
            options.repeat_ms = atoi(optarg);
            break;
        case 'j':
            json = optarg;
            break;
        default:
            usage(option == 'h' ? stdout : stderr);
            return option == 'h' ? 0 : 2;
        }
    }
    raw_floor floor;
    if (raw_floor_measure(&options, &floor) != 0)
        return 1;
    raw_floor_print(&floor, stdout);
    return json && save(&floor, json) != 0;
}
