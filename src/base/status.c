/* SPDX-License-Identifier: Apache-2.0 */
/* status.c - names and texts of the status codes. */
#include <weft/status.h>

#include "base/error.h"
#include "base/nosignal.h"

static const struct {
    weft_status code;
    const char *name, *text;
} table[] = {
    {WEFT_OK, "OK", "no error"},
    {WEFT_DEFERRED, "DEFERRED", "the handler will finish the call later"},
    {WEFT_ERR_INVALID, "INVALID", "an argument is outside its domain"},
    {WEFT_ERR_TYPE, "TYPE", "a value or tensor is of another type than asked for"},
    {WEFT_ERR_SHAPE, "SHAPE", "shapes do not fit"},
    {WEFT_ERR_NOT_FOUND, "NOT_FOUND", "no such function, worker, key or file"},
    {WEFT_ERR_EXISTS, "EXISTS", "that name or rank is taken"},
    {WEFT_ERR_TIMEOUT, "TIMEOUT", "the deadline passed"},
    {WEFT_ERR_CANCELLED, "CANCELLED", "it was cancelled"},
    {WEFT_ERR_REMOTE, "REMOTE", "the remote handler failed"},
    {WEFT_ERR_BUSY, "BUSY", "the receiver lacks memory or room, or something is still in use"},
    {WEFT_ERR_AGAIN, "AGAIN", "a queue is full; the same call may succeed later"},
    {WEFT_ERR_TOO_LARGE, "TOO_LARGE", "over a stated limit"},
    {WEFT_ERR_UNSUPPORTED, "UNSUPPORTED", "not offered here"},
    {WEFT_ERR_STATE, "STATE", "not legal in the object's present state"},
    {WEFT_ERR_DEADLOCK, "DEADLOCK", "waiting here could never end"},
    {WEFT_ERR_COMPLETED, "COMPLETED", "it was completed before"},
    {WEFT_ERR_MEMORY, "MEMORY", "out of memory"},
    {WEFT_ERR_IO, "IO", "a file could not be read or written"},
    {WEFT_ERR_FORMAT, "FORMAT", "malformed data in a file or message"},
    {WEFT_ERR_UNKNOWN, "UNKNOWN", "whether the call ran cannot be known"},
    {WEFT_ERR_PEER_DEAD, "PEER_DEAD", "that worker was declared dead"},
    {WEFT_ERR_PEER_LEFT, "PEER_LEFT", "that worker closed its agent"},
    {WEFT_ERR_UNREACHABLE, "UNREACHABLE", "no connection to that worker can be made"},
    {WEFT_ERR_PROTOCOL, "PROTOCOL", "that worker uses another version, or sent malformed data"},
    {WEFT_ERR_CLOSED, "CLOSED", "the agent is closed or closing"},
    {WEFT_ERR_EVICTED, "EVICTED", "the job declared this worker dead and went on without it"},
    {WEFT_ERR_STORE_LOST, "STORE_LOST", "the store on rank 0 is gone: the job is over"},
    {WEFT_ERR_JOB_ENDED, "JOB_ENDED", "rank 0 ended the job"},
    {WEFT_ERR_RENDEZVOUS, "RENDEZVOUS", "the workers did not all come together in time"},
    {WEFT_ERR_FABRIC, "FABRIC", "libfabric failed"},
    {WEFT_ERR_SYSTEM, "SYSTEM", "the operating system failed"},
};

#define TABLE_SIZE (sizeof(table) / sizeof(table[0]))

static size_t find(int status)
{
    size_t i;
    for (i = 0; i < TABLE_SIZE && (int)table[i].code != status; i++)
        continue;
    return i;
}

bool wfi_status_is_known(int status)
{
    return find(status) < TABLE_SIZE;
}

const char *weft_status_name(weft_status status)
{
    size_t i = find(status);
    return i < TABLE_SIZE ? table[i].name : "UNLISTED";
}

const char *weft_status_text(weft_status status)
{
    size_t i = find(status);
    return i < TABLE_SIZE ? table[i].text : "a code that weft does not define";
}

_Static_assert(TABLE_SIZE <= 64, "`logged` has a bit for each status");
/* The failures whose detail was logged or printed since the last report: a bit for each place in the table. A program
 * may report a failure after it has closed other things, which may fail too. */
static _Thread_local uint64_t logged;

void wfi_status_logged(weft_status status)
{
    size_t place = find(status);
    if (status == WEFT_OK)
        logged = 0;
    else if (place < TABLE_SIZE)
        logged |= UINT64_C(1) << place;
}

int weft_report(weft_status status)
{
    if (status >= 0)
        return 0;
    size_t place = find(status);
    bool was_logged = place < TABLE_SIZE && logged >> place & 1;
    logged = 0;
    if (was_logged)
        return 1;
    wfi_nosignal saved;
    wfi_nosignal_begin(&saved);
    fprintf(stderr, "weft: %s (%d): %s\n", weft_status_name(status), status, weft_status_text(status));
    wfi_nosignal_end(&saved);
    return 1;
}
