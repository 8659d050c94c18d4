/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/log.h - which lines weft logs, and where they go.
 *
 * Weft writes lines of the level WEFT_LOG_WARN and worse to stderr, unless the program or the variable WEFT_LOG chooses
 * another level. If the reader of stderr has gone a line is lost, and no SIGPIPE is raised. A line looks like this:
 * "weft: TIME LEVEL rank R call I: text".
 *   - TIME is UTC, to the microsecond; in the simulation it is virtual seconds.
 *   - R is the rank of the agent that the line is about, I the number that the caller gave the call that it is
 *     about. Either is left out where the line is about no agent or no call.
 * A sink (weft_log_set_sink) gets the line from "rank" on.
 */
#ifndef WEFT_LOG_H
#define WEFT_LOG_H

#include <weft/base.h>

WEFT_BEGIN_C

typedef enum weft_log_level {
    WEFT_LOG_ERROR = 1,
    WEFT_LOG_WARN = 2,
    WEFT_LOG_INFO = 3,
    WEFT_LOG_DEBUG = 4,
    WEFT_LOG_TRACE = 5,
} weft_log_level;

/* The level of this process: lines of this level and of those above it in weft_log_level are written. It starts
 * with what the variable WEFT_LOG says (error, warn, info, debug, trace). Any thread. */
WEFT_API void weft_log_set_level(weft_log_level level);
WEFT_API weft_log_level weft_log_get_level(void);

/* Receives one line, which has no newline and is borrowed. It is called from any thread, possibly while weft
 * holds a lock: so a sink must not call any function of weft. */
typedef void (*weft_log_sink)(weft_log_level level, const char *line, void *arg);
/* Sends the lines to `sink` from now on; NULL sends them to stderr again. When it returns, the former sink is
 * not running and is not called any more, so its `arg` may be freed. Any thread, but not from inside a sink. */
WEFT_API void weft_log_set_sink(weft_log_sink sink, void *arg);

WEFT_END_C
#endif
