/* SPDX-License-Identifier: Apache-2.0 */
/* member.c - see member.h. */
#include "data_parallel/member.h"

weft_group *make_group(weft_agent *agent)
{
    weft_group *group;
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &group, NULL));
    return group;
}

void must_say(const weft_error *error, const char *words)
{
    if (!error || !strstr(weft_error_message(error), words))
        fprintf(stderr, "\"%s\", not \"%s\"\n", error ? weft_error_message(error) : "", words);
    MUST(error && strstr(weft_error_message(error), words));
}
