/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/log.h - what weft says about itself, and where. Nothing prints unless the level asks for it (default: warn).
 *
 * A line on stderr: "weft: TIME LEVEL rank R call I: text". The time is UTC in microseconds (in the simulation: virtual
 * seconds); rank is of the agent that the line is about, and call the caller's number of the call it is about, each left out
 * where there is none. A sink gets the line from "rank" on.
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

/* The level of the process; it starts from WEFT_LOG (error, warn, info, debug, trace). Any thread. */
WEFT_API void weft_log_set_level(weft_log_level level);
WEFT_API weft_log_level weft_log_get_level(void);

/* Sends lines to `sink` instead of stderr; NULL restores stderr. `line` has no newline. Called from any thread.
 * Once this returns the former sink is not called any more. Not to be called from inside a sink, which should call nothing of
 * weft's at all: a line may be written while weft holds a lock. */
typedef void (*weft_log_sink)(weft_log_level level, const char *line, void *arg);
WEFT_API void weft_log_set_sink(weft_log_sink sink, void *arg);

WEFT_END_C
#endif
