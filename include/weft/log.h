/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/log.h - the log: its level and its destination.
 *
 * weft writes lines of level WEFT_LOG_WARN and more severe to stderr. The program or the variable WEFT_LOG may set
 * another level. If the reader of stderr is gone, a line is lost, and no SIGPIPE is raised. The format of a line is
 * "weft: TIME LEVEL rank R call I: text".
 *   TIME is UTC, to the microsecond. In the simulation, lines about an agent have virtual seconds.
 *   R is the rank of the agent that the line is about. Lines about no agent lack it.
 *   I is the id that the caller gave the call that the line is about. Lines about no call lack it.
 * A sink (weft_logging_set_sink) gets the line from "rank" on.
 */
#ifndef WEFT_LOG_H
#define WEFT_LOG_H

#include <weft/base.h>

WEFT_BEGIN_C

/* How severe a line of the log is. */
typedef enum weft_log_level {
    WEFT_LOG_ERROR = 1,
    WEFT_LOG_WARN = 2,
    WEFT_LOG_INFO = 3,
    WEFT_LOG_DEBUG = 4,
    WEFT_LOG_TRACE = 5,
} weft_log_level;

/* Sets or returns the level of this process: lines of this level and of more severe levels are written. The level is
 * at first the value of WEFT_LOG (error, warn, info, debug, trace). Any thread. */
WEFT_API void weft_logging_set_level(weft_log_level level);
WEFT_API weft_log_level weft_logging_get_level(void);

/* Receives one line, borrowed, without a newline. Any thread may call it, possibly while weft holds a lock, so a sink
 * must not call functions of weft. */
typedef void (*weft_log_sink)(weft_log_level level, const char *line, void *arg);
/* Sends lines to `sink` from now on; NULL: to stderr. When the function returns, the former sink is not running and is
 * never called again, so its `arg` may be freed. Any thread, but not from inside a sink. */
WEFT_API void weft_logging_set_sink(weft_log_sink sink, void *arg);

WEFT_END_C
#endif
