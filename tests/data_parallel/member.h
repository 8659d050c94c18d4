/* SPDX-License-Identifier: Apache-2.0 */
/* member.h - what the members of these tests' groups do alike. */
#ifndef TESTS_DATA_PARALLEL_MEMBER_H
#define TESTS_DATA_PARALLEL_MEMBER_H

#include "rpc/world.h"

weft_group *make_group(weft_agent *agent); /* of all */
/* The error is there, and its message has these words. */
void must_say(const weft_error *error, const char *words);

#endif
