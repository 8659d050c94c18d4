/* SPDX-License-Identifier: Apache-2.0 */
/* said.h - the last line that a function logged, for tests of what it refuses. */
#ifndef TESTS_SAID_H
#define TESTS_SAID_H

#include <weft/log.h>

#include <stdio.h>
#include <string.h>

static char said_line[600];

static void said_sink(weft_log_level level, const char *line, void *arg)
{
    (void)level, (void)arg;
    snprintf(said_line, sizeof(said_line), "%s", line);
}

/* The expression has this value and logs a line that contains `words`; NULL: it logs nothing. */
#define REFUSES(expression, value, words)                                                                              \
    do {                                                                                                               \
        const char *words_ = words;                                                                                    \
        said_line[0] = 0;                                                                                              \
        weft_logging_set_sink(said_sink, NULL);                                                                        \
        assert_int_equal((intptr_t)(expression), (intptr_t)(value));                                                   \
        weft_logging_set_sink(NULL, NULL);                                                                             \
        if (words_ ? !strstr(said_line, words_) : said_line[0] != 0)                                                   \
            fail_msg("the log has \"%s\", not \"%s\"", said_line, words_ ? words_ : "");                               \
    } while (0)

#endif
