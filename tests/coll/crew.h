/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crew.h - a test of groups that is its own workers. A worker plays one part after another, each in a job of its own,
 * because starting a process and libfabric in it takes most of the time of a short job.
 */
#ifndef TESTS_COLL_CREW_H
#define TESTS_COLL_CREW_H

#include "children.h"
#include "coll/coll.h"

enum { CREW_MOST = 8 };

/* ---- In a worker ---- */

/* Plays the parts that the parent names, until the parent dismisses it. */
int crew_work(const child_role *parts, size_t count);
weft_agent *crew_open(int death_ms);
weft_group *crew_group(weft_agent *agent, const char *name, const char *rules);
/* The same; and from then on its small operations are in shared memory. */
weft_group *crew_shared(weft_agent *agent, const char *name);
/* The bytes that groups have mapped here, and where the last of it begins. `start` may be NULL. */
size_t crew_memory(char **start);
/*
 * Returns when all members have ended the operations before it. Without it a member could end a group, by a
 * cancellation for example, whose last barrier another member has not noticed yet.
 */
void crew_meet(weft_agent *agent);

/* ---- In the parent ---- */

extern child crew[CREW_MOST];

/* The first `count` workers begin to play that part in the role "parts". Workers of a test that failed are killed. */
void crew_start(int count, const char *part);
/* From all of them that live. 'e': the part has ended. */
void crew_hear(int count, char what);
void crew_play(int count, const char *part); /* from the start to the end */
int crew_dismiss(void **state);              /* 0 if all ended well */

#endif
