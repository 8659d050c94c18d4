/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fuzz_replay.c - every file of the corpus through its decoder: what fuzzing found once must not come back.
 *
 * usage: test_fuzz_replay CORPUS   (the folder that has one folder a decoder)
 */
#include "fuzz/fuzz_targets.h"

#include <weft/log.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

static int replay_file(const fuzz_target *target, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return 0;
    uint8_t *bytes = malloc(1 << 20);
    size_t size = bytes ? fread(bytes, 1, 1 << 20, file) : 0;
    fclose(file);
    uint8_t *exact = malloc(size + 1); /* so that a read past the end is seen */
    for (size_t i = 0; exact && i < size; i++)
        exact[i + 1] = bytes[i];
    if (exact)
        target->run(exact + 1, size);
    for (size_t cut = 0; exact && cut < size && cut < 300; cut++) /* and each beginning of it */
        target->run(exact + 1, cut);
    free(exact);
    free(bytes);
    return 1;
}

static int replay_folder(const fuzz_target *target, const char *corpus)
{
    char folder[1024], path[2048];
    int count = 0;
    snprintf(folder, sizeof folder, "%s/%s", corpus, target->name);
    DIR *entries = opendir(folder);
    if (!entries)
        return 0;
    for (struct dirent *entry; (entry = readdir(entries));) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] != '.')
            count += replay_file(target, path);
    }
    closedir(entries);
    return count;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_fuzz_replay CORPUS\n");
        return 2;
    }
    weft_log_set_level(WEFT_LOG_ERROR);
    for (const fuzz_target *target = fuzz_targets; target->name; target++) {
        int count = replay_folder(target, argv[1]);
        printf("%s: %d files\n", target->name, count);
        if (count == 0)
            return 1;
    }
    return 0;
}
