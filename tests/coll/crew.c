/* SPDX-License-Identifier: Apache-2.0 */
/* crew.c - see crew.h. */
#include "coll/crew.h"

#include <signal.h>
#include <unistd.h>

child crew[CREW_MOST];
static bool is_playing; /* a part that has not ended */

/* ---- In a worker ------------------------------------------------------------------------------------------------- */

int crew_work(const child_role *parts, size_t count)
{
    char line[64], members[8], port[8], part[16];
    while (child_read_line(line, sizeof(line))) {
        MUST(sscanf(line, "%7s %7s %15s", members, port, part) == 3);
        setenv("WORLD_SIZE", members, 1);
        setenv("MASTER_PORT", port, 1);
        size_t i = 0;
        while (i < count && strcmp(parts[i].name, part) != 0)
            i++;
        MUST(i < count && parts[i].run() == 0);
        while (crew_memory(NULL) > 0) /* last messages may hold a group for a moment */
            usleep(1000);
        child_say('e');
    }
    return 0;
}

weft_agent *crew_open(int death_ms)
{
    weft_error *error = NULL;
    weft_agent *agent;
    weft_status status = weft_agent_open(
        &(weft_agent_options){.rendezvous_timeout_ms = 30000, .death_timeout_ms = death_ms, .no_binding = true}, &agent,
        &error);
    weft_error_print(error, stderr);
    MUST_OK(status);
    return agent;
}

weft_group *crew_group(weft_agent *agent, const char *name, const char *rules)
{
    weft_group *group;
    weft_error *error = NULL;
    weft_status status = weft_group_open(agent, name, NULL, 0, 0, &group, &error);
    weft_error_print(error, stderr);
    MUST_OK(status);
    if (rules)
        MUST_OK(weft_group_set_algorithms(group, rules));
    return group;
}

/* A member that does not answer in about 1 s, on a busy machine, leaves the group without: then another one is
 * opened. */
weft_group *crew_shared(weft_agent *agent, const char *name)
{
    enum { WARM = 6 };
    for (;;) {
        weft_group *group = crew_group(agent, name, NULL);
        for (int i = 0; i < WARM; i++)
            MUST_OK(weft_group_barrier(group, 40000));
        if (coll_everywhere(group, crew_memory(NULL) > 0))
            return group;
        weft_group_close(group);
        while (crew_memory(NULL) > 0) /* last messages may hold it for a moment */
            usleep(1000);
    }
}

size_t crew_memory(char **start)
{
    char line[512];
    size_t bytes = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    MUST(maps);
    while (fgets(line, sizeof(line), maps)) {
        unsigned long begin, end;
        if (!strstr(line, "/memfd:weft-group") || sscanf(line, "%lx-%lx", &begin, &end) != 2)
            continue;
        if (start)
            *start = (char *)begin;
        bytes += end - begin;
    }
    MUST(fclose(maps) == 0);
    return bytes;
}

void crew_meet(weft_agent *agent)
{
    weft_group *group = crew_group(agent, "meet", "barrier * * dissemination");
    MUST_OK(weft_group_barrier(group, 40000));
    weft_group_close(group);
}

/* ---- In the parent ----------------------------------------------------------------------------------------------- */

void crew_start(int count, const char *part)
{
    char line[64];
    for (int rank = 0; rank < CREW_MOST && is_playing; rank++)
        if (crew[rank].pid) {
            child_signal(&crew[rank], SIGKILL);
            (void)child_end(&crew[rank]);
        }
    is_playing = true;
    snprintf(line, sizeof(line), "%d %d %s\n", count, world_free_port(), part);
    for (int rank = 0; rank < count; rank++) {
        if (!crew[rank].pid)
            crew[rank] = child_start(rank, CREW_MOST, 1, "parts");
        child_write_line(&crew[rank], line);
    }
}

void crew_hear(int count, char what)
{
    for (int rank = 0; rank < count; rank++)
        if (crew[rank].pid)
            child_hear(&crew[rank], what);
    is_playing = is_playing && what != 'e';
}

void crew_play(int count, const char *part)
{
    crew_start(count, part);
    crew_hear(count, 'e');
}

int crew_dismiss(void **state)
{
    int bad = 0;
    for (int rank = 0; rank < CREW_MOST; rank++)
        if (crew[rank].pid) {
            child_dismiss(&crew[rank]);
            bad += child_end(&crew[rank]) != 0;
        }
    return bad;
}
