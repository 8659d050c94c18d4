/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fuzz_replay.c - every file of the corpus through its decoder: what fuzzing found once must not come back.
 *
 * A file whose name begins with bad- must be refused; any other must be taken: the formats move, and seeds that are
 * refused at the doorbell would still pass, and show nothing.
 *
 * usage: test_fuzz_replay CORPUS   (the folder that has one folder a decoder)
 */
#include "fuzz/inside.h"

#include <weft/log.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool replay_file(const fuzz_target *target, const char *path, bool is_bad)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return false;
    uint8_t *bytes = malloc(1 << 20);
    size_t size = bytes ? fread(bytes, 1, 1 << 20, file) : 0;
    fclose(file);
    uint8_t *exact = malloc(size + 1); /* so that a read past the end is seen */
    for (size_t i = 0; exact && i < size; i++)
        exact[i + 1] = bytes[i];
    bool taken = exact && target->run(exact + 1, size);
    for (size_t cut = 0; exact && cut < size && cut < 300; cut++) /* and each beginning of it */
        target->run(exact + 1, cut);
    free(exact);
    free(bytes);
    if (taken == is_bad)
        fprintf(stderr, "%s: %s\n", path, taken ? "is taken, though named bad-" : "is not taken: it has grown old");
    return taken != is_bad;
}

/* Whether there were files, and each went as its name says. */
static bool replay_folder(const fuzz_target *target, const char *corpus)
{
    char folder[1024], path[2048];
    int good = 0, wrong = 0;
    snprintf(folder, sizeof(folder), "%s/%s", corpus, target->name);
    DIR *entries = opendir(folder);
    if (!entries)
        return false;
    for (struct dirent *entry; (entry = readdir(entries));) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        *(replay_file(target, path, strncmp(entry->d_name, "bad-", 4) == 0) ? &good : &wrong) += 1;
    }
    closedir(entries);
    printf("%s: %d files, %d not as named\n", target->name, good + wrong, wrong);
    return good && !wrong;
}

int main(int argc, char **argv)
{
    bool good = true;
    if (argc != 2) {
        fprintf(stderr, "usage: test_fuzz_replay CORPUS\n");
        return 2;
    }
    weft_logging_set_level(WEFT_LOG_ERROR);
    for (const fuzz_target *target = fuzz_targets; target->name; target++)
        good &= replay_folder(target, argv[1]);
    return good ? 0 : 1;
}
