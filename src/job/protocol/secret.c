/* SPDX-License-Identifier: Apache-2.0 */
/* secret.c - see secret.h. */
#include "job/protocol/secret.h"

#include "base/error.h"
#include "base/guarded.h"
#include "base/sealed.h"
#include "base/text/log.h"
#include "base/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHOWN_PATH 256 /* bytes of the file's name that an error text shows */

/* The secret from a source that can be read only once. Guarded by kept_lock. */
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static wfi_secret *kept; /* guarded; NULL: nothing */

__attribute__((destructor)) static void forget_kept(void)
{
    wfi_secret_wipe(kept);
}

static weft_status secret_fail(weft_error **error, weft_status code, const char *source, const char *problem)
{
    return wfi_error_fail(error, code, "the job's secret (%s) %s", source, problem);
}

static weft_status fail_read(const char *source, int errnum, weft_error **error)
{
    return wfi_error_fail(error, WEFT_ERR_IO, "the job's secret (%s): %s", source, strerrordesc_np(errnum));
}

static weft_status fail_empty(const char *source, weft_error **error)
{
    return secret_fail(error, WEFT_ERR_INVALID, source, "is empty: give 16 to 4,096 bytes, or unset the variable");
}

static weft_status take_bytes(const void *bytes, size_t size, const char *source, wfi_secret *out, weft_error **error)
{
    if (size < WFI_SECRET_MIN || size > WFI_SECRET_MAX)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "the job's secret (%s) has %s%zu bytes: give 16 to 4,096",
                              source, size > WFI_SECRET_MAX ? "more than " : "",
                              size > WFI_SECRET_MAX ? (size_t)WFI_SECRET_MAX : size);
    memcpy(out->bytes, bytes, size);
    out->size = size;
    return WEFT_OK;
}

/*
 * Reads from the beginning, because an inherited descriptor's position is shared. Removes one line break at the end
 * if `is_text`. Reads one byte beyond the limit, to notice a secret that is too long.
 */
static weft_status read_descriptor(int fd, bool is_text, const char *source, wfi_secret *out, weft_error **error)
{
    uint8_t bytes[WFI_SECRET_MAX + 2];
    size_t have = 0;
    ssize_t got = 1;
    while (got != 0 && have < sizeof(bytes)) {
        got = pread(fd, bytes + have, sizeof(bytes) - have, (off_t)have);
        if (got < 0 && errno == ESPIPE)
            got = read(fd, bytes + have, sizeof(bytes) - have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            sodium_memzero(bytes, sizeof(bytes));
            return fail_read(source, errno, error);
        }
        have += (size_t)got;
    }
    out->size = 0;
    if (have > 0 && bytes[have - 1] == '\n' && is_text)
        have--;
    weft_status status = have ? take_bytes(bytes, have, source, out, error) : fail_empty(source, error);
    sodium_memzero(bytes, sizeof(bytes));
    return status;
}

static weft_status read_path(const char *path, wfi_secret *out, weft_error **error)
{
    struct stat about;
    char source[SHOWN_PATH + 32];
    snprintf(source, sizeof(source), "WEFT_SECRET_FILE=\"%.*s\"", wfi_utf8_fit(path, SHOWN_PATH), path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return fail_read(source, errno, error);
    if (fstat(fd, &about) == 0 && (about.st_mode & 077) != 0)
        wfi_log(WEFT_LOG_WARN, "the job's secret (%s) can be read by others than its owner: chmod 600", source);
    weft_status status = read_descriptor(fd, true, source, out, error);
    close(fd);
    return status;
}

/* The descriptor's number; -1 if the variable is not set, -2 if it is not a number. */
static int inherited_fd(void)
{
    const char *text = getenv("WEFT_SECRET_FD");
    char *end;
    if (!text)
        return -1;
    errno = 0;
    long number = strtol(text, &end, 10);
    bool is_open = !errno && !*end && number > 2 && number < 1 << 24 && fcntl((int)number, F_GETFD) >= 0;
    return is_open ? (int)number : -2;
}

static weft_status keep_secret(const wfi_secret *secret, const char *source, weft_error **error)
{
    if (!kept && !(kept = wfi_guarded_calloc(sizeof(*kept))))
        return secret_fail(error, WEFT_ERR_MEMORY, source, "cannot be kept: out of memory");
    (void)sodium_mlock(kept, sizeof(*kept)); /* best effort: the limit may forbid it */
    *kept = *secret;
    return WEFT_OK;
}

static weft_status take_inherited(int fd, wfi_secret *out, weft_error **error)
{
    (void)unsetenv("WEFT_SECRET_FD");
    if (fd < 0)
        return secret_fail(error, WEFT_ERR_INVALID, "WEFT_SECRET_FD",
                           "names no open descriptor: a program between weft-run and this one has closed it; do "
                           "not start another launcher (mpirun, srun) in a worker of weft-run");
    weft_status status = read_descriptor(fd, false, "WEFT_SECRET_FD", out, error);
    close(fd);
    return status ? status : keep_secret(out, "WEFT_SECRET_FD", error);
}

/* `value` points into the environment block, so it is overwritten: a dump would show it. */
static weft_status take_variable(char *value, wfi_secret *out, weft_error **error)
{
    size_t size = strlen(value);
    weft_status status = take_bytes(value, size, "WEFT_SECRET", out, error);
    sodium_memzero(value, size);
    (void)unsetenv("WEFT_SECRET");
    return status ? status : keep_secret(out, "WEFT_SECRET", error);
}

/*
 * WEFT_SECRET_FILE, then WEFT_SECRET; out->size stays 0 if neither is set. An empty variable was meant to give a
 * secret, perhaps from a launcher's variable that was not set. So it is an error: no job opens without the secret.
 */
static weft_status from_variables(wfi_secret *out, weft_error **error)
{
    const char *path = getenv("WEFT_SECRET_FILE");
    char *value = getenv("WEFT_SECRET");
    if (path && *path)
        return read_path(path, out, error);
    if (value && *value)
        return take_variable(value, out, error);
    return path || value ? fail_empty(path ? "WEFT_SECRET_FILE" : "WEFT_SECRET", error) : WEFT_OK;
}

/* In the order of secret.h, without what the program passed. */
static weft_status find_around(wfi_secret *out, weft_error **error)
{
    int fd = inherited_fd();
    if (fd != -1)
        return take_inherited(fd, out, error);
    weft_status status = from_variables(out, error);
    if (!status && !out->size && kept)
        *out = *kept;
    return status;
}

weft_status wfi_secret_given(wfi_secret *out, weft_error **error)
{
    out->size = 0;
    pthread_mutex_lock(&kept_lock);
    weft_status status = from_variables(out, error);
    pthread_mutex_unlock(&kept_lock);
    if (status)
        wfi_secret_wipe(out);
    return status;
}

weft_status wfi_secret_find(const void *given, size_t given_size, wfi_secret *out, weft_error **error)
{
    out->size = 0;
    if (sodium_init() < 0)
        return secret_fail(error, WEFT_ERR_SYSTEM, "libsodium", "cannot be kept: it does not start");
    if (!given && given_size)
        return secret_fail(error, WEFT_ERR_INVALID, "weft_agent_options.secret", "is NULL with a secret_size");
    pthread_mutex_lock(&kept_lock);
    weft_status status =
        given ? take_bytes(given, given_size, "weft_agent_options.secret", out, error) : find_around(out, error);
    pthread_mutex_unlock(&kept_lock);
    wfi_secret_hide();
    if (status)
        wfi_secret_wipe(out);
    return status;
}

void wfi_secret_hide(void)
{
    wfi_secret scratch;
    pthread_mutex_lock(&kept_lock);
    char *value = getenv("WEFT_SECRET");
    if (value && *value) /* an empty one hides nothing, and the next attempt must fail too */
        (void)take_variable(value, &scratch, NULL);
    pthread_mutex_unlock(&kept_lock);
    wfi_secret_wipe(&scratch);
}

void wfi_secret_wipe(wfi_secret *secret)
{
    if (secret)
        sodium_memzero(secret, sizeof(*secret));
}

weft_status wfi_secret_random(wfi_secret *out)
{
    if (sodium_init() < 0)
        return WEFT_ERR_SYSTEM;
    randombytes_buf(out->bytes, WFI_SECRET_RANDOM);
    out->size = WFI_SECRET_RANDOM;
    return WEFT_OK;
}

int wfi_secret_memory_file(const wfi_secret *secret)
{
    return wfi_sealed_file("weft-secret", secret->bytes, secret->size);
}

void wfi_secret_guard_inherited(void)
{
    int fd = inherited_fd();
    if (fd >= 0)
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
}
