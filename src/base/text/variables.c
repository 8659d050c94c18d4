/* SPDX-License-Identifier: Apache-2.0 */
/* variables.c - see variables.h. */
#include "base/text/variables.h"

#include "base/env.h"
#include "base/text/distance.h"
#include "base/text/log.h"
#include "base/utf8.h"

#include <string.h>
#include <unistd.h>

#define PREFIX "WEFT_"
#define NAME_MAX_BYTES WFI_DISTANCE_BYTES /* bytes of a name that are compared or quoted */

extern char **environ;

/* All of them; tests/project/variables.py compares the list with docs/environment.md and with the source. */
static const char *const known[] = {
    "WEFT_ALGORITHMS",
    "WEFT_CPU_THREADS",
    "WEFT_CUDA_PATH",
    "WEFT_DEATH_MS",
    "WEFT_DEVICE_MAPS",
    "WEFT_ELASTIC",
    "WEFT_FABRIC",
    "WEFT_GPU_TRANSPORT",
    "WEFT_IFACE",
    "WEFT_INSECURE",
    "WEFT_LIBRARY",
    "WEFT_LOG",
    "WEFT_MEMORY_BUDGET",
    "WEFT_METRICS",
    "WEFT_NAME",
    "WEFT_NO_BINDING",
    "WEFT_PORTS",
    "WEFT_PRODUCT",
    "WEFT_RAISE_DESCRIPTOR_LIMIT",
    "WEFT_SECRET",
    "WEFT_SECRET_FD",
    "WEFT_SECRET_FILE",
    "WEFT_SLAB_KEEP_MB",
    "WEFT_SPAWNED",
    "WEFT_THREADS",
    "WEFT_TRACE",
};
#define KNOWN (sizeof(known) / sizeof(*known))

/* The known name that is most similar to `name`; NULL: more than half of the letters after the prefix differ. */
static const char *nearest(const char *name, size_t size)
{
    const char *found = NULL;
    size_t least = SIZE_MAX;
    for (size_t i = 0; i < KNOWN; i++) {
        size_t far = wfi_distance(name, size, known[i], strlen(known[i]));
        if (far < least) {
            least = far;
            found = known[i];
        }
    }
    return least <= (size - strlen(PREFIX)) / 2 ? found : NULL;
}

static bool is_known(const char *name, size_t size)
{
    for (size_t i = 0; i < KNOWN; i++)
        if (strlen(known[i]) == size && memcmp(known[i], name, size) == 0)
            return true;
    return false;
}

bool wfi_variable_is_known(const char *setting, const char **meant)
{
    size_t size = strcspn(setting, "=");
    bool known_name = is_known(setting, size);
    *meant = !known_name && size <= NAME_MAX_BYTES ? nearest(setting, size) : NULL;
    return known_name;
}

static void check(const char *setting)
{
    size_t size = strcspn(setting, "=");
    const char *meant;
    if (strncmp(setting, PREFIX, strlen(PREFIX)) != 0 || wfi_variable_is_known(setting, &meant))
        return;
    int shown = wfi_utf8_fit(setting, size < NAME_MAX_BYTES ? (int)size : NAME_MAX_BYTES);
    if (meant)
        wfi_log(WEFT_LOG_WARN, "%.*s is not a variable of weft: did you mean %s? docs/environment.md lists them", shown,
                setting, meant);
    else
        wfi_log(WEFT_LOG_WARN, "%.*s is not a variable of weft: docs/environment.md lists them", shown, setting);
}

void wfi_variables_check(void)
{
    static atomic_bool checked;
    if (atomic_exchange(&checked, true) || wfi_env_string("WEFT_SPAWNED"))
        return;
    for (char **each = environ; each && *each; each++)
        check(*each);
}
