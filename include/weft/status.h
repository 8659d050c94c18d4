/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/status.h - status codes, and errors with their detail.
 *
 * A function that can fail returns a weft_status: 0, or a negative code. The codes have three ranges, by what
 * failed:
 *   The call failed: try again, or correct the arguments.
 *   The peer failed: that worker is gone, or cannot be reached.
 *   The agent failed: this process no longer belongs to the job.
 *
 * A weft_error has more detail than a code: a message, the name of the function that failed, the worker where it
 * failed, and the workers through which the error came. It is reference-counted and never changes. A message has at
 * most 1,023 bytes, a chain at most 16 workers. There is no per-thread "last error": an error comes from the future
 * or tape that failed, or from the field `error` of the options.
 *
 *     int show(weft_future *reply)
 *     {
 *         if (weft_future_wait(reply, WEFT_FOREVER))
 *             weft_error_print(weft_future_error(reply), stderr);
 *         return weft_report(weft_future_wait(reply, 0)); // the exit code for main: 0 or 1
 *     }
 */
#ifndef WEFT_STATUS_H
#define WEFT_STATUS_H

#include <weft/base.h>

WEFT_BEGIN_C

/* The result of a function that can fail: WEFT_OK, or a negative code. */
typedef enum weft_status {
    WEFT_OK = 0,
    WEFT_DEFERRED = 1, /* returned by a handler whose call is answered later: weft_call_finish, weft_batch_finish */

    /* The call failed. */
    WEFT_ERR_INVALID = -1,      /* an argument is outside its domain */
    WEFT_ERR_TYPE = -2,         /* a value or tensor has the wrong type */
    WEFT_ERR_SHAPE = -3,        /* shapes do not match */
    WEFT_ERR_NOT_FOUND = -4,    /* no such function, worker, key or file */
    WEFT_ERR_EXISTS = -5,       /* the name or rank is taken */
    WEFT_ERR_TIMEOUT = -6,      /* the time limit passed */
    WEFT_ERR_CANCELLED = -7,    /* the operation was cancelled */
    WEFT_ERR_REMOTE = -8,       /* the handler itself failed; weft_error_handler_code has the handler's status */
    WEFT_ERR_BUSY = -9,         /* the receiver has no memory or no room; or references are left (leaks_fail) */
    WEFT_ERR_AGAIN = -10,       /* a queue is full: the same call may succeed later */
    WEFT_ERR_TOO_LARGE = -11,   /* a documented limit is exceeded */
    WEFT_ERR_UNSUPPORTED = -12, /* not available in this build or for these arguments */
    WEFT_ERR_STATE = -13,       /* not allowed in the object's current state */
    WEFT_ERR_DEADLOCK = -14,    /* this thread would wait for itself */
    WEFT_ERR_COMPLETED = -15,   /* the future or call is already complete */
    WEFT_ERR_MEMORY = -16,      /* out of memory */
    WEFT_ERR_IO = -17,          /* a file could not be read or written */
    WEFT_ERR_FORMAT = -18,      /* malformed data in a file or message */
    WEFT_ERR_UNKNOWN = -19,     /* unknown whether the call ran */

    /* The peer failed. */
    WEFT_ERR_PEER_DEAD = -64,   /* the store declared that worker dead */
    WEFT_ERR_PEER_LEFT = -65,   /* that worker closed its agent */
    WEFT_ERR_UNREACHABLE = -66, /* the worker is not dead, but cannot be reached from here (docs/failures.md) */
    WEFT_ERR_PROTOCOL = -67,    /* the peer has another protocol version, or sent malformed messages */

    /* The agent failed: this process does not belong to the job, or has ceased to. */
    WEFT_ERR_CLOSED = -128,     /* the agent is closed or closing */
    WEFT_ERR_EVICTED = -129,    /* the job declared this worker dead and continued without it */
    WEFT_ERR_STORE_LOST = -130, /* the store on rank 0 is gone: the job is over */
    WEFT_ERR_RENDEZVOUS = -131, /* not all workers joined in time */
    WEFT_ERR_FABRIC = -132,     /* libfabric failed */
    WEFT_ERR_SYSTEM = -133,     /* the operating system, or a GPU, failed */
    WEFT_ERR_JOB_ENDED = -134,  /* rank 0 ended the job (weft_agent_end_job) */
} weft_status;

/* Whether the handler of a call ran. Each attempt of a call runs at most once. */
typedef enum weft_ran {
    WEFT_RAN_NO = 0,    /* certainly not: the call may be made again */
    WEFT_RAN_MAYBE = 1, /* this worker cannot know */
    WEFT_RAN_YES = 2,   /* its handler ran and reported a failure */
} weft_ran;

/* The code's name without its prefix, for example "PEER_DEAD"; never NULL. Static. Any thread. */
WEFT_API const char *weft_status_name(weft_status status);

/* One sentence that explains the code; never NULL. Static. Any thread. */
WEFT_API const char *weft_status_text(weft_status status);

/*
 * Makes an error and gives the caller one reference. `format` and its arguments are as for printf. Never returns NULL:
 * if memory is out, it returns a static error with WEFT_ERR_MEMORY. Any thread.
 */
WEFT_API weft_error *weft_error_create(weft_status code, const char *format, ...) WEFT_PRINTF(2, 3);
WEFT_API weft_error *weft_error_ref(const weft_error *error);
WEFT_API void weft_error_unref(weft_error *error);

/* These functions read an error. Strings are borrowed from it. For `error` NULL they return WEFT_OK, "", -1 or 0. Any
 * thread. */
WEFT_API weft_status weft_error_code(const weft_error *error);
WEFT_API const char *weft_error_message(const weft_error *error);
WEFT_API size_t weft_error_hops(const weft_error *error); /* how many workers the error passed on its way here */
/* With WEFT_ERR_REMOTE: the status of the handler. With other codes: WEFT_OK. */
WEFT_API weft_status weft_error_handler_code(const weft_error *error);
/* Whether the handler of the failed call ran; with retries, in any attempt. Ask only about the error of a call: for
 * errors of groups, backward passes and operators the answer has no meaning. WEFT_RAN_MAYBE for NULL, and for errors
 * that name no function. */
WEFT_API weft_ran weft_error_ran(const weft_error *error);
/* The function or operator that failed; "" if none. If calls are nested, it is the function that failed first. If a
 * group (weft/group.h) failed, it is "group", and the message has the group's name. */
WEFT_API const char *weft_error_function(const weft_error *error);
/* The rank of the callee, or, if calls are nested, of the worker where the first failure occurred; -1: none. */
WEFT_API int weft_error_worker(const weft_error *error);
/* The rank of one of the workers that the error passed (weft_error_hops); index 0 is the nearest to the origin. */
WEFT_API int weft_error_hop(const weft_error *error, size_t index);

/* Prints one line about an error: code, function, worker, chain, message. Prints nothing if `error` is NULL. If the
 * reader of a pipe is gone, the line is lost and no SIGPIPE is raised. */
WEFT_API void weft_error_print(const weft_error *error, FILE *to);

/* Prints one line to stderr if `status` is a failure, and returns the exit code, 0 or 1: for the end of main. Prints
 * nothing if the calling thread has already logged the detail of a failure with that status, or printed it to stderr by
 * weft_error_print. */
WEFT_API int weft_report(weft_status status);

WEFT_END_C
#endif
