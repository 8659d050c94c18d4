/* SPDX-License-Identifier: Apache-2.0 */
/* setup.c - see setup.h. */
#include "run/setup.h"

#include "run/node.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

/* Whether another host gets this variable of weft-run's. */
static bool is_exported(const setup *of, const char *variable)
{
    static const char *const usual[] = {"WEFT_", "FI_", "OMP_", "OPENBLAS_", "PATH=", "LD_LIBRARY_PATH="};
    if (strncmp(variable, "WEFT_SECRET", 11) == 0 || strncmp(variable, "WEFT_SPAWNED=", 13) == 0)
        return false; /* WEFT_SPAWNED is about this process alone */
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (strncmp(variable, usual[i], strlen(usual[i])) == 0)
            return true;
    size_t length = strcspn(variable, "=");
    for (const char *at = of->o->exported; at && *at;) {
        size_t size = strcspn(at, ",");
        if (size == length && strncmp(at, variable, size) == 0)
            return true;
        at += size + (at[size] ? 1 : 0);
    }
    return false;
}

/* The hosts file may call the first host localhost, which the others cannot reach: then it is this machine's name. */
static const char *master_address(const setup *of, char *own, size_t room)
{
    if (of->o->master_addr)
        return of->o->master_addr;
    if (of->first->method != HOST_HERE)
        return host_address(of->first);
    if (of->is_alone)
        return "127.0.0.1";
    (void)gethostname(own, room - 1);
    return own;
}

static void add_variables(const setup *of, const host *to, buffer *out)
{
    char texts[5][320], own[300] = "";
    size_t count = 0, exported = 0;
    snprintf(texts[count++], sizeof *texts, "WORLD_SIZE=%lld", (long long)of->world_size);
    snprintf(texts[count++], sizeof *texts, "LOCAL_WORLD_SIZE=%lld", (long long)of->local_world_size);
    snprintf(texts[count++], sizeof *texts, "MASTER_ADDR=%.300s", master_address(of, own, sizeof own));
    snprintf(texts[count++], sizeof *texts, "MASTER_PORT=%lld", (long long)of->master_port);
    if (of->o->least)
        snprintf(texts[count++], sizeof *texts, "WEFT_ELASTIC=1");
    bool is_elsewhere = to->method == HOST_SSH;
    for (char **each = environ; is_elsewhere && *each; each++)
        exported += is_exported(of, *each);
    frame_number(out, (int64_t)(count + exported));
    for (size_t i = 0; i < count; i++)
        frame_text(out, texts[i]);
    for (char **each = environ; is_elsewhere && *each; each++)
        if (is_exported(of, *each))
            frame_text(out, *each);
}

void setup_send(const setup *of, const host *to, buffer *out)
{
    char *folder = getcwd(NULL, 0);
    size_t begun = frame_begin(out, TO_NODE_SETUP), words = 0;
    frame_number(out, of->o->grace_ms);
    frame_text(out, folder && to->method != HOST_HERE ? folder : "");
    frame_bytes(out, of->job_secret->bytes, of->job_secret->size);
    add_variables(of, to, out);
    while (of->o->argv[words])
        words++;
    frame_number(out, (int64_t)words);
    for (size_t i = 0; i < words; i++)
        frame_text(out, of->o->argv[i]);
    frame_end(out, begun);
    free(folder);
}
