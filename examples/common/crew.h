/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crew.h - the trainers of a job, as its rank 0 sees them: who trains, who has gone, what they told, and why it ends early.
 *
 * A program embeds a crew, and says what else is to be done when one is gone, or all is over. Handlers run on several threads: `lock`
 * covers all of it, and what the program adds.
 */
#ifndef EXAMPLES_CREW_H
#define EXAMPLES_CREW_H

#include <weft/rpc.h>
#include <weft/job.h>

#include "report.h"
#include "settings.h"
#include "tally.h"

#include <pthread.h>

typedef struct crew crew;
struct crew {
    const settings *set;
    int64_t updates; /* in all */
    pthread_mutex_t lock;
    bool *gone;   /* by rank: it has done its work, or died */
    int training; /* trainers that are not gone */
    int lost;     /* that died, or left before their work was done */
    int finished; /* of those gone: with their work done */
    tally tally;
    char failure[256]; /* why the job ends early; "" */
    double accuracy;   /* on what was held out, as trainers measured it, 0 to 1; < 0: there is none, or: */
    char missing[256]; /* why the accuracy of the model as it is now was not measured; "" */

    /* With the lock; NULL: nothing is to be done. */
    void (*on_gone)(crew *c, int rank); /* a trainer takes no part any more: `training` does not count it now */
    void (*on_failure)(crew *c);
};

WEFT_NODISCARD weft_status crew_init(crew *c, const settings *settings, int64_t updates);
void crew_fini(crew *c);

/* Ends the job early, unless it ends already. With the lock. */
void crew_fail(crew *c, const char *format, ...) WEFT_PRINTF(2, 3);

/* A trainer has done its work, and takes no part any more: it sent so many bytes, of which weft copied some. With the lock. */
void crew_leave(crew *c, int rank, int64_t bytes_sent, int64_t bytes_copied);

/* A trainer measured the accuracy of the model when it had trained: the last one's is the result, unless another dies after it. */
void crew_measured(crew *c, double accuracy); /* with the lock */

/* Serves a call of a trainer that tells, in a text, why training cannot go on for anybody; `crew` is the crew. */
weft_status crew_give_up(weft_call *call, void *crew);

/* For weft_agent_options.on_membership; `arg` is the crew. */
void crew_on_news(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg);

/*
 * Opens the agent (`functions` are the server's), shows progress until there is nothing more to train, or a reason to end early, and ends the
 * job: with a table and the model (--report, --save) or with a message. `accuracy`, if not NULL, finds it when training is over. Returns
 * the exit code.
 */
typedef weft_status (*crew_accuracy_fn)(crew *c, double *out, weft_error **error);
int crew_serve(crew *c, const weft_function *functions, size_t count, const weft_module *model,
               crew_accuracy_fn accuracy);

#endif
