/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/status.h - status codes, and errors with their detail.
 *
 * A function that can fail returns a weft_status: 0, or a negative code. The codes are grouped by the largest thing that
 * broke, so that a caller knows what to rebuild: the call (try again, or mend the arguments), the peer (that worker is
 * gone), the agent (this process is out of the job).
 *
 * There is no "last error". Where more is known than a code, it is a weft_error: a counted, immutable object with a
 * message, the function, the worker where it arose and the chain of workers that it passed. A message has up to 1,023 bytes
 * and a chain up to 16 workers: what is longer is cut, at its end.
 */
#ifndef WEFT_STATUS_H
#define WEFT_STATUS_H

#include <weft/base.h>

WEFT_BEGIN_C

typedef enum weft_status {
    WEFT_OK = 0,
    WEFT_DEFERRED = 1, /* returned by a handler only: it will call weft_call_finish later */

    /* The call broke. */
    WEFT_ERR_INVALID = -1,      /* an argument is outside its domain */
    WEFT_ERR_TYPE = -2,         /* a value or tensor is of another type than asked for */
    WEFT_ERR_SHAPE = -3,        /* shapes do not fit */
    WEFT_ERR_NOT_FOUND = -4,    /* no such function, worker, key or file */
    WEFT_ERR_EXISTS = -5,       /* that name or rank is taken */
    WEFT_ERR_TIMEOUT = -6,      /* the deadline passed */
    WEFT_ERR_CANCELLED = -7,    /* somebody cancelled it */
    WEFT_ERR_REMOTE = -8,       /* the handler itself failed; weft_error_remote_code has its status */
    WEFT_ERR_BUSY = -9,         /* the receiver refused for want of memory or room */
    WEFT_ERR_AGAIN = -10,       /* a queue is full: the same call may succeed later */
    WEFT_ERR_TOO_LARGE = -11,   /* over a stated limit */
    WEFT_ERR_UNSUPPORTED = -12, /* not offered here */
    WEFT_ERR_STATE = -13,       /* not legal in the object's present state */
    WEFT_ERR_DEADLOCK = -14,    /* waiting here could never end */
    WEFT_ERR_COMPLETED = -15,   /* the future or call was completed before */
    WEFT_ERR_MEMORY = -16,      /* out of memory */
    WEFT_ERR_IO = -17,          /* a file could not be read or written */
    WEFT_ERR_FORMAT = -18,      /* malformed data in a file or message */
    WEFT_ERR_UNKNOWN = -19,     /* whether the call ran cannot be known */

    /* The peer broke. */
    WEFT_ERR_PEER_DEAD = -64,   /* the store declared that worker dead */
    WEFT_ERR_PEER_LEFT = -65,   /* that worker closed its agent */
    WEFT_ERR_UNREACHABLE = -66, /* alive, but silent for three bounds, or no lane for large payloads came up for one */
    WEFT_ERR_PROTOCOL = -67,    /* it speaks another version, or nonsense */

    /* The agent broke: this process is not, or no longer, part of a job. */
    WEFT_ERR_CLOSED = -128,     /* the agent is closed or closing */
    WEFT_ERR_EVICTED = -129,    /* the job declared this worker dead and went on without it */
    WEFT_ERR_STORE_LOST = -130, /* the store on rank 0 is gone: the job is over */
    WEFT_ERR_RENDEZVOUS = -131, /* the workers did not all come together in time */
    WEFT_ERR_FABRIC = -132,     /* libfabric failed */
    WEFT_ERR_SYSTEM = -133,     /* the operating system failed */
} weft_status;

/* The code's name without prefix, as "PEER_DEAD"; never NULL. Static. Any thread. */
WEFT_API const char *weft_status_name(weft_status status);

/* One sentence on what the code means; never NULL. Static. Any thread. */
WEFT_API const char *weft_status_text(weft_status status);

/*
 * A new error with one reference; `format` as printf. Returns a static, immortal error if memory is out, never NULL.
 * Any thread.
 */
WEFT_API weft_error *weft_error_create(weft_status code, const char *format, ...) WEFT_PRINTF(2, 3);
WEFT_API weft_error *weft_error_ref(const weft_error *error);
WEFT_API void weft_error_unref(weft_error *error);

/* All borrowed from `error`. An accessor of NULL answers as for no error: WEFT_OK, "", -1, 0. Any thread. */
WEFT_API weft_status weft_error_code(const weft_error *error);
WEFT_API weft_status weft_error_remote_code(const weft_error *error); /* with WEFT_ERR_REMOTE: the handler's status */
WEFT_API const char *weft_error_message(const weft_error *error);
WEFT_API const char *weft_error_function(const weft_error *error);  /* the RPC function or operator; "" if none */
WEFT_API int weft_error_worker(const weft_error *error);            /* rank where it arose; -1 if local */
WEFT_API size_t weft_error_hops(const weft_error *error);           /* workers it passed on its way here */
WEFT_API int weft_error_hop(const weft_error *error, size_t index); /* rank of hop `index`, nearest origin first */

/* One line: code, function, worker, chain, message. `error` NULL prints nothing. */
WEFT_API void weft_error_print(const weft_error *error, FILE *to);

/* Prints one line to stderr if `status` is a failure; returns a process exit code, 0 or 1. For the end of main. */
WEFT_API int weft_report(weft_status status);

WEFT_END_C
#endif
