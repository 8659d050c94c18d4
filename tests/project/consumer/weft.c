/* SPDX-License-Identifier: Apache-2.0 */
/* weft.c - the five-line program that tests/project builds against an installed weft. */
#include <stdio.h>
#include <weft/agent.h>
#include <weft/tape.h>

int main(int argc, char **argv)
{
    weft_agent *agent = NULL; /* opened only with an argument: the test is that all of the library links */
    if (argc > 1)
        printf("%s: %s\n", argv[0], weft_status_name(weft_agent_open(NULL, &agent, NULL)));
    weft_tape_close(NULL);
    return puts(weft_status_name(WEFT_ERR_PEER_DEAD)) < 0;
}
