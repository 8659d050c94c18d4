/* SPDX-License-Identifier: Apache-2.0 */
/*
 * passes.c - a program of faults for contexts, backward passes and distributed optimizers. Trainers of each worker
 * compute random graphs over all workers (passes_graph.c), go back through them in every way, and compare each
 * gradient, on the worker that has it, with that of one local tape. Numbers are integers, so that the results are
 * exact in any order; or fractions, whose bits must be the same whenever the same graph runs again. In some jobs
 * queues, in others memory budgets are small.
 *
 * A failure needs a reason: the scene, a death, a stop, or a budget.
 */
#include "faults/passes.h"

#include "rpc/must.h"
#include "prng.h"

#include <math.h>
#include <stdio.h>

#define TRAINERS 2
#define GRAPHS_MOST 3
#define LIMIT_MS 30000
#define OWNERS_MOST 3
#define QUEUE_LIMIT (256 << 10)
#define BUDGET (6 << 20)
#ifdef __SANITIZE_ADDRESS__
#define LARGE 2000
#else
#define LARGE 12000
#endif

typedef enum scene_kind {
    SCENE_ONE,         /* weft_dist_backward */
    SCENE_ROOTS,       /* one pass from several roots */
    SCENE_SEVERAL,     /* several passes at once */
    SCENE_TWICE,       /* two passes over the same records */
    SCENE_REMOTE_ROOT, /* weft_rref_backward */
    SCENE_CANCEL,
    SCENE_LIMIT, /* a short one */
    SCENE_CLOSE, /* of the context while a pass runs */
    SCENE_BREAK, /* nodes whose gradient fails */
    SCENE_SAME_BITS,
    SCENE_STEP, /* distributed optimizers */
    SCENES
} scene_kind;
static const char *const scene_names[SCENES] = {"one",   "roots", "several", "twice",     "remote root", "cancel",
                                                "limit", "close", "break",   "same bits", "step"};

typedef struct passes_book {
    atomic_ulong gradients, given_up;       /* compared; scenes that a call's failure ended */
    atomic_ulong order_same, order_differs; /* fractions, compared with the bits of a local tape */
    atomic_ulong steps, closes;
} passes_book;
#define book ((passes_book *)board_book())

typedef struct session {
    faults_epoch e;
    scene_kind scene;
    uint64_t seed;
    graph graphs[GRAPHS_MOST];
    size_t count;
    weft_worker workers[SEATS_MOST];
    weft_tensor *parameters[SEATS_MOST * PARAMETERS]; /* of the oracle */
    weft_context *context;
    weft_context_id id;
    char where[120];
} session;

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

static bool is_excused(const session *s, const weft_error *error)
{
    bool calm = epoch_is_current(&s->e) && epoch_is_undisturbed(&s->e);
    weft_status status = weft_error_code(error);
    if (status == WEFT_ERR_PEER_DEAD) {
        int rank = weft_error_worker(error);
        epoch_says_dead(&s->e, rank, rank >= 0 && rank < SEATS_MOST ? s->workers[rank].incarnation : 0);
        weft_error_print(error, stderr);
    }
    if (status == WEFT_ERR_REMOTE)
        status = weft_error_handler_code(error);
    switch (status) {
    case WEFT_ERR_PEER_DEAD:
    case WEFT_ERR_BUSY: /* all threads of a worker may wait for others */
        return true;
    case WEFT_ERR_AGAIN: /* of functions that cannot wait for room */
        return board->job % 2 == 0;
    case WEFT_ERR_TOO_LARGE:
    case WEFT_ERR_MEMORY:
        return board->small_budget;
    case WEFT_ERR_PEER_LEFT:
    case WEFT_ERR_EVICTED:
    case WEFT_ERR_STORE_LOST:
    case WEFT_ERR_CLOSED:
    case WEFT_ERR_TIMEOUT:
    case WEFT_ERR_CANCELLED:
    case WEFT_ERR_UNREACHABLE:
    case WEFT_ERR_UNKNOWN:
        return !calm;
    case WEFT_ERR_NOT_FOUND: /* the news of a worker that joined reaches some workers later than others */
        return !calm || strstr(weft_error_message(error), "has not heard of a worker with that rank");
    case WEFT_ERR_STATE: /* of a context whose worker is gone */
        return !calm;
    default:
        return false;
    }
}

static void judge(const session *s, const weft_error *error, const char *what)
{
    if (!is_excused(s, error))
        fault(FAULT_WRONG, "%s: %s failed: %s(%s), rank %d: %s", s->where, what,
              weft_status_name(weft_error_code(error)), weft_status_name(weft_error_handler_code(error)),
              weft_error_worker(error), weft_error_message(error));
}

/* Of a function that gives no error but in the log. */
static void judge_status(const session *s, weft_status status, const char *what)
{
    weft_error *error = weft_error_create(status, "(a status)");
    if (status)
        judge(s, error, what);
    weft_error_unref(error);
}

/* ---- Calls without a graph --------------------------------------------------------------------------------------- */

static weft_values *ask(const session *s, int rank, const char *function, weft_args arguments, weft_tape *tape)
{
    weft_values *values = NULL;
    weft_error *error = NULL;
    faults_wait *wait = wait_begins(LIMIT_MS, "%s: %s at rank %d", s->where, function, rank);
    weft_status status =
        weft_rpc_sync(self.agent, weft_to_worker(s->workers[rank]), function, arguments,
                      &(weft_rpc_options){.tape = tape, .wait_for_room = true, .error = &error}, &values);
    wait_ends(wait);
    if (status && error)
        judge(s, error, function);
    weft_error_unref(error);
    return status ? NULL : values;
}

/* ---- The oracle -------------------------------------------------------------------------------------------------- */

static void make_oracle(session *s)
{
    for (int rank = 0; rank < SEATS_MOST; rank++)
        for (int k = 0; k < PARAMETERS; k++)
            s->parameters[rank * PARAMETERS + k] = graph_parameter(rank, k, s->graphs[0].fractions);
}

static void drop_oracle(session *s)
{
    for (int i = 0; i < SEATS_MOST * PARAMETERS; i++)
        weft_tensor_unref(s->parameters[i]);
}

/* A local tape with the gradients of all graphs; it has failed where their pass has to fail. */
static weft_tape *run_oracle(const session *s, int rank)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *sum = NULL;
    for (size_t i = 0; i < s->count; i++) {
        weft_tensor *loss = graph_run_locally(&s->graphs[i], rank, t, s->parameters);
        sum = sum ? weft_add(t, sum, loss) : loss;
    }
    weft_backward(t, sum);
    return t;
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * (fabs(a) + fabs(b)) + 1e-12;
}

static void compare(const session *s, int rank, int k, weft_tensor *is, const weft_tensor *wanted, double times)
{
    bool same = true;
    if (!is != !wanted) {
        fault(FAULT_WRONG, "%s: parameter %d of rank %d has %s gradient", s->where, k, rank, is ? "a" : "no");
        return;
    }
    for (int64_t i = 0; is && i < COLUMNS; i++) {
        double got = weft_tensor_get_f64(is, i), right = times * weft_tensor_get_f64(wanted, i);
        same = same && got == right;
        if (s->graphs[0].fractions ? !is_near(got, right) : got != right) {
            fault(FAULT_WRONG, "%s: the gradient of parameter %d of rank %d is %.17g instead of %.17g at %lld",
                  s->where, k, rank, got, right, (long long)i);
            break;
        }
    }
    atomic_fetch_add(&book->gradients, is != NULL);
    if (is && s->graphs[0].fractions)
        atomic_fetch_add(same ? &book->order_same : &book->order_differs, 1);
}

/* The gradient of a parameter, which its worker has. False: the worker cannot be asked any more. */
static bool fetch_gradient(const session *s, weft_tape *t, int rank, int k, weft_values **keep, weft_tensor **out)
{
    *out = NULL;
    *keep = ask(s, rank, "gradient", WEFT_VALUES(weft_of_i64(k), weft_of_bool(s->graphs[0].fractions)), t);
    if (!*keep)
        return false;
    if (weft_values_type(*keep, 0) == WEFT_TYPE_TENSOR)
        return !weft_values_get_tensor(*keep, 0, out);
    return true;
}

static void compare_all(const session *s, int root, double times)
{
    bool remote = root != self.rank;
    weft_tape *local = run_oracle(s, root), *t = weft_context_tape(s->context, NULL);
    for (int rank = 0; rank < board->size; rank++)
        for (int k = 0; k < PARAMETERS && s->graphs[0].ranks >> rank & 1; k++) {
            weft_values *keep;
            weft_tensor *gradient;
            if (!fetch_gradient(s, t, rank, k, &keep, &gradient))
                break;
            const weft_tensor *wanted = weft_tape_grad(local, s->parameters[rank * PARAMETERS + k]);
            if (!remote || gradient ||
                !epoch_was_disturbed(&s->e, root)) /* the death of a remote root takes them away */
                compare(s, rank, k, gradient, wanted, times);
            weft_values_unref(keep);
        }
    weft_tape_close(local);
    weft_tape_close(t);
}

/* A pass that failed leaves no gradients; this worker has heard of it. */
static void check_no_gradients(const session *s)
{
    for (int k = 0; k < PARAMETERS; k++) {
        weft_tensor *gradient = weft_context_ref_grad(s->context, graph_own(k, s->graphs[0].fractions));
        if (gradient)
            fault(FAULT_WRONG, "%s: a pass that failed left a gradient", s->where);
        weft_tensor_unref(gradient);
    }
}

/* ---- The forward and the backward way ---------------------------------------------------------------------------- */

static bool open_context(session *s)
{
    weft_status status = weft_context_open(self.agent, &s->context, NULL);
    if (status)
        judge_status(s, status, "weft_context_open");
    s->id = status ? (weft_context_id){0} : weft_context_get_id(s->context);
    return !status;
}

/* No worker that lives may hold the context when the future of its end is complete. */
static void check_nobody_holds(const session *s)
{
    for (int rank = 0; rank < board->size; rank++) {
        bool holds = false;
        if (!(s->graphs[0].ranks >> rank & 1))
            continue;
        weft_values *values =
            ask(s, rank, "holds", WEFT_VALUES(weft_of_i64(s->id.rank), weft_of_i64((int64_t)s->id.number)), NULL);
        if (!values)
            continue;
        if (!weft_values_get_bool(values, 0, &holds) && holds && epoch_is_undisturbed(&s->e))
            fault(FAULT_WRONG, "%s: rank %d holds the context after the future of weft_context_close", s->where, rank);
        weft_values_unref(values);
    }
}

static void close_context(session *s)
{
    weft_future *future = NULL;
    bool asked = prng_mix(s->seed + 3) % 3 == 0;
    weft_context_close(s->context, asked ? &future : NULL);
    s->context = NULL;
    if (!asked || !future)
        return;
    faults_wait *wait = wait_begins(LIMIT_MS, "%s: the future of weft_context_close", s->where);
    weft_status status = weft_future_wait(future, WEFT_FOREVER);
    wait_ends(wait);
    judge_status(s, status, "the future of weft_context_close");
    weft_future_unref(future);
    atomic_fetch_add(&book->closes, 1);
    if (!status)
        check_nobody_holds(s);
}

/* All graphs, on one tape; the losses have references. False: a call failed. */
static bool run_graphs(session *s, weft_tape *t, weft_tensor *losses[GRAPHS_MOST])
{
    weft_error *error = NULL;
    bool well = true;
    for (size_t i = 0; i < s->count && well; i++) {
        losses[i] = weft_tensor_ref(graph_run(&s->graphs[i], t, &error));
        well = losses[i] && !error;
    }
    if (well)
        return true;
    atomic_fetch_add(&book->given_up, 1);
    if (error || weft_tape_error(t))
        judge(s, error ? error : weft_tape_error(t), "the forward way");
    else
        judge_status(s, WEFT_ERR_CANCELLED, "the forward way");
    weft_error_unref(error);
    for (size_t i = 0; i < s->count; i++)
        weft_tensor_unref(losses[i]);
    return false;
}

/* Waits for a pass. OK, `planned`, or a failure that has a reason. */
static weft_status end_pass(const session *s, weft_future *future, int64_t limit_ms, weft_status planned)
{
    faults_wait *wait = wait_begins(limit_ms, "%s: a pass", s->where);
    weft_status status = weft_future_wait(future, WEFT_FOREVER);
    wait_ends(wait);
    board_count((int)s->scene, status);
    weft_status inner = status == WEFT_ERR_REMOTE ? weft_error_handler_code(weft_future_error(future)) : status;
    if (status && inner != planned)
        judge(s, weft_future_error(future), "a pass");
    weft_future_unref(future);
    return status;
}

static weft_pass_options options_of(const session *s)
{
    return (weft_pass_options){.unordered = !s->graphs[0].fractions && s->seed >> 20 & 1,
                               .timeout_ms = s->seed >> 21 & 7 ? LIMIT_MS : WEFT_FOREVER};
}

/* ---- Scenes of passes -------------------------------------------------------------------------------------------- */

/* weft_dist_backward from the sum of the losses. */
static void play_one(session *s, weft_tape *t, weft_tensor **losses)
{
    weft_pass_options options = options_of(s);
    weft_tensor *sum = losses[0];
    for (size_t i = 1; i < s->count; i++)
        sum = weft_add(t, sum, losses[i]);
    options.retain = s->scene == SCENE_TWICE;
    int times = options.retain ? 2 : 1;
    for (int i = 0; i < times && !weft_tape_status(t); i++) {
        faults_wait *wait = wait_begins(LIMIT_MS, "%s: weft_dist_backward", s->where);
        weft_dist_backward(t, sum, &options);
        wait_ends(wait);
        board_count((int)s->scene, weft_tape_status(t));
    }
    if (s->scene == SCENE_BREAK) {
        weft_tape *local = run_oracle(s, self.rank);
        weft_status wanted = weft_tape_status(local), status = weft_tape_status(t);
        if (wanted && !status)
            fault(FAULT_WRONG, "%s: a pass succeeded though an operator of it fails", s->where);
        if (status && status != wanted)
            judge(s, weft_tape_error(t), "a pass");
        if (status)
            check_no_gradients(s);
        weft_tape_close(local);
    } else if (weft_tape_status(t)) {
        judge(s, weft_tape_error(t), "weft_dist_backward");
        if (times == 1)
            check_no_gradients(s);
        return;
    }
    if (!weft_tape_status(t))
        compare_all(s, self.rank, times);
}

/* Passes of weft_context_backward: one, or one a root. */
static void play_async(session *s, weft_tensor **losses)
{
    weft_future *futures[GRAPHS_MOST] = {NULL}, *closed = NULL;
    weft_pass_options options = options_of(s);
    bool each = s->scene == SCENE_SEVERAL, failed = false;
    size_t passes = each ? s->count : 1;
    weft_status planned = WEFT_OK;
    if (s->scene == SCENE_LIMIT) {
        options.timeout_ms = 1 + (int64_t)(s->seed >> 30 & 31);
        planned = WEFT_ERR_TIMEOUT;
    }
    options.retain = each;
    for (size_t i = 0; i < passes; i++) {
        weft_status status =
            weft_context_backward(s->context, (weft_tensors){losses + i, each ? 1 : s->count}, &options, &futures[i]);
        judge_status(s, status, "weft_context_backward");
        failed = failed || status;
    }
    if (s->scene == SCENE_CANCEL || s->scene == SCENE_CLOSE) {
        planned = WEFT_ERR_CANCELLED;
        if (s->seed >> 36 & 1)
            sleep_ms(s->seed >> 37 & 7);
        if (s->scene == SCENE_CLOSE) {
            weft_context_close(s->context, &closed);
            s->context = NULL;
        } else if (futures[0]) {
            (void)!weft_future_cancel(futures[0]);
        }
    }
    for (size_t i = 0; i < passes; i++)
        failed = (futures[i] && end_pass(s, futures[i], options.timeout_ms, planned)) || failed;
    if (closed) {
        faults_wait *wait = wait_begins(LIMIT_MS, "%s: the future of weft_context_close", s->where);
        weft_status status = weft_future_wait(closed, WEFT_FOREVER);
        wait_ends(wait);
        weft_future_unref(closed);
        judge_status(s, status, "the future of weft_context_close");
        if (!status)
            check_nobody_holds(s);
    }
    if (!s->context)
        return;
    if (!failed)
        compare_all(s, self.rank, 1);
    else if (!each)
        check_no_gradients(s);
}

/* Another worker computes the loss, keeps it, and begins the pass. */
static void play_remote_root(session *s, weft_tape *t)
{
    int to = s->e.ranks[(s->seed >> 24) % s->e.count];
    snprintf(s->where + strlen(s->where), sizeof(s->where) - strlen(s->where), ", at rank %d", to);
    weft_value arguments[6];
    weft_tensor *input = graph_input(&s->graphs[0]);
    weft_rref *root = NULL;
    weft_future *future = NULL;
    weft_error *error = NULL;
    graph_loss_arguments(&s->graphs[0], input, arguments);
    s->count = 1;
    weft_status status = weft_rpc_remote(self.agent, weft_to_worker(s->workers[to]), "loss", (weft_args){arguments, 6},
                                         &(weft_rpc_options){.tape = t, .wait_for_room = true, .error = &error}, &root);
    if (status)
        judge(s, error, "weft_rpc_remote");
    weft_error_unref(error);
    if (!status) {
        weft_pass_options options = options_of(s);
        status = weft_rref_backward(root, s->context, &options, &future);
        if (status != WEFT_ERR_REMOTE && status != WEFT_ERR_AGAIN) /* no loss was made; or the queue is full */
            judge_status(s, status, "weft_rref_backward");
    }
    if (!status && !end_pass(s, future, LIMIT_MS, WEFT_OK))
        compare_all(s, to, 1);
    weft_rref_unref(root);
    weft_tensor_unref(input);
}

/* ---- The same bits ----------------------------------------------------------------------------------------------- */

#define BITS_MOST (SEATS_MOST * PARAMETERS * COLUMNS)

/* One graph of fractions in a context of its own; the gradients of all workers. */
static bool gradients_of_graph(session *s, double out[BITS_MOST])
{
    weft_tensor *losses[GRAPHS_MOST] = {NULL};
    bool well = false;
    memset(out, 0, BITS_MOST * sizeof(*out));
    if (!open_context(s))
        return false;
    weft_tape *t = weft_context_tape(s->context, NULL);
    if (run_graphs(s, t, losses)) {
        faults_wait *wait = wait_begins(LIMIT_MS, "%s: weft_dist_backward", s->where);
        weft_dist_backward(t, losses[0], &(weft_pass_options){.timeout_ms = LIMIT_MS});
        wait_ends(wait);
        board_count((int)s->scene, weft_tape_status(t));
        well = !weft_tape_status(t);
        if (!well)
            judge(s, weft_tape_error(t), "weft_dist_backward");
        weft_tensor_unref(losses[0]);
    }
    for (int rank = 0; rank < board->size; rank++)
        for (int k = 0; k < PARAMETERS && well && s->graphs[0].ranks >> rank & 1; k++) {
            weft_values *keep;
            weft_tensor *gradient;
            well = fetch_gradient(s, t, rank, k, &keep, &gradient);
            for (int i = 0; well && gradient && i < COLUMNS; i++)
                out[(rank * PARAMETERS + k) * COLUMNS + i] = weft_tensor_get_f64(gradient, i);
            weft_values_unref(well ? keep : NULL);
        }
    if (well)
        compare_all(s, self.rank, 1);
    weft_tape_close(t);
    close_context(s);
    return well;
}

static void play_same_bits(session *s)
{
    double first[BITS_MOST], again[BITS_MOST];
    s->count = 1;
    if (!gradients_of_graph(s, first) || !gradients_of_graph(s, again))
        return;
    for (int i = 0; i < BITS_MOST; i++)
        if (first[i] != again[i]) {
            fault(FAULT_WRONG,
                  "%s: parameter %d of rank %d has gradient %.17g, and %.17g the second time (%d nested, seed %llu)",
                  s->where, i / COLUMNS % PARAMETERS, i / COLUMNS / PARAMETERS, first[i], again[i], s->graphs[0].depth,
                  (unsigned long long)s->graphs[0].seed);
            return;
        }
}

/* ---- Distributed optimizers -------------------------------------------------------------------------------------- */

typedef struct owned {
    int rank;
    weft_rref *handle;
    weft_tensor *copy; /* of the oracle */
} owned;

/* The sum of what the owners make of the input; the same on a local tape. NULL: a call failed. */
static weft_tensor *apply_all(session *s, weft_tape *t, owned *o, size_t count, weft_tape *local,
                              weft_tensor **local_loss)
{
    weft_tensor *input = graph_input(&s->graphs[0]), *loss = NULL;
    weft_tape_take(t, weft_tensor_ref(input));
    weft_tape_take(local, input);
    for (size_t i = 0; i < count; i++) {
        weft_future *future = NULL;
        weft_error *error = NULL;
        weft_tensor *y = NULL;
        weft_status status =
            weft_rref_rpc_async(o[i].handle, "apply", WEFT_VALUES(weft_of_tensor(input)),
                                &(weft_rpc_options){.tape = t, .wait_for_room = true, .error = &error}, &future);
        if (!status) {
            faults_wait *wait = wait_begins(LIMIT_MS, "%s: apply", s->where);
            status = weft_future_wait(future, WEFT_FOREVER);
            wait_ends(wait);
            y = weft_tape_take(t, weft_tensor_ref(weft_future_tensor(future, 0)));
        }
        if (status)
            judge(s, error ? error : weft_future_error(future), "apply");
        weft_error_unref(error);
        weft_future_unref(future);
        if (!y)
            return NULL;
        loss = loss ? weft_add(t, loss, weft_sum(t, y)) : weft_sum(t, y);
        weft_tensor *z = weft_sum(local, weft_add(local, weft_mul(local, input, o[i].copy), input));
        *local_loss = i ? weft_add(local, *local_loss, z) : z;
    }
    return loss;
}

/* One step by the gradients of one context. False: it failed, and where it was done is not known. */
static bool step(session *s, weft_dist_optimizer *optimizer, owned *o, size_t count, double lr, unsigned number)
{
    bool along = prng_mix(s->seed + number) % 2, well = false;
    if (!open_context(s))
        return false;
    weft_tape *t = weft_context_tape(s->context, NULL), *local = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *local_loss = NULL, *loss = apply_all(s, t, o, count, local, &local_loss);
    if (loss) {
        faults_wait *wait = wait_begins(LIMIT_MS, "%s: weft_dist_backward with a step", s->where);
        weft_dist_backward(t, loss, &(weft_pass_options){.timeout_ms = LIMIT_MS, .step = along ? optimizer : NULL});
        wait_ends(wait);
        board_count((int)s->scene, weft_tape_status(t));
        well = !weft_tape_status(t);
        if (!well)
            judge(s, weft_tape_error(t), "weft_dist_backward");
    }
    if (well && !along) {
        weft_error *error = NULL;
        faults_wait *wait = wait_begins(LIMIT_MS, "%s: weft_dist_optimizer_step", s->where);
        weft_status status = weft_dist_optimizer_step(
            optimizer, &s->context, 1, &(weft_dist_step_options){.timeout_ms = LIMIT_MS, .error = &error});
        wait_ends(wait);
        well = !status;
        if (status && error)
            judge(s, error, "weft_dist_optimizer_step");
        weft_error_unref(error);
    }
    if (well) {
        weft_backward(local, local_loss);
        for (size_t i = 0; i < count; i++) {
            double *p = weft_tensor_data(o[i].copy);
            const double *g = weft_tensor_data(weft_tape_grad(local, o[i].copy));
            for (int c = 0; c < COLUMNS; c++)
                p[c] -= lr * g[c];
        }
        atomic_fetch_add(&book->steps, 1);
    }
    weft_tape_close(local);
    weft_tape_close(t);
    close_context(s);
    return well;
}

static void compare_parameters(const session *s, const owned *o, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        weft_values *values = NULL;
        weft_tensor *is;
        faults_wait *wait = wait_begins(LIMIT_MS, "%s: weft_rref_to_here", s->where);
        weft_status status = weft_rref_to_here(o[i].handle, LIMIT_MS, &values, NULL);
        for (; status == WEFT_ERR_AGAIN && goes_on(); sleep_ms(5)) /* the queue is full */
            status = weft_rref_to_here(o[i].handle, LIMIT_MS, &values, NULL);
        wait_ends(wait);
        if (status == WEFT_ERR_AGAIN)
            return;
        judge_status(s, status, "weft_rref_to_here");
        if (status || weft_values_get_tensor(values, 0, &is))
            continue;
        for (int c = 0; c < COLUMNS; c++)
            if (weft_tensor_get_f64(is, c) != weft_tensor_get_f64(o[i].copy, c)) {
                fault(FAULT_WRONG, "%s: a parameter at rank %d is %.17g instead of %.17g after its steps", s->where,
                      o[i].rank, weft_tensor_get_f64(is, c), weft_tensor_get_f64(o[i].copy, c));
                break;
            }
        weft_values_unref(values);
    }
}

static void play_steps(session *s)
{
    owned o[OWNERS_MOST] = {{0}};
    weft_value handles[OWNERS_MOST];
    size_t count = 1 + s->seed % OWNERS_MOST;
    double lr = s->seed >> 8 & 1 ? 0.5 : 1;
    weft_error *error = NULL;
    weft_dist_optimizer *optimizer = NULL;
    weft_status status = WEFT_OK;
    s->graphs[0].rows = s->graphs[0].rows % 50 + 1;
    for (size_t i = 0; i < count && !status; i++) {
        int64_t seed = (int64_t)(prng_mix(s->seed + i) % 1000);
        o[i].rank = s->e.ranks[prng_mix(s->seed + 50 + i) % s->e.count];
        status =
            weft_rpc_remote(self.agent, weft_to_worker(s->workers[o[i].rank]), "make", WEFT_VALUES(weft_of_i64(seed)),
                            &(weft_rpc_options){.wait_for_room = true, .error = &error}, &o[i].handle);
        if (status)
            judge(s, error, "weft_rpc_remote");
        weft_error_unref(error);
        error = NULL;
        o[i].copy = graph_parameter((int)(seed % 97), 0, false);
        handles[i] = weft_of_rref(o[i].handle);
    }
    weft_optimizer_spec spec = {.type = &weft_sgd_type, .lr = lr};
    if (!status) {
        faults_wait *wait = wait_begins(LIMIT_MS, "%s: weft_dist_optimizer_create", s->where);
        status = weft_dist_optimizer_create(self.agent, (weft_args){handles, count}, &spec, &optimizer, &error);
        wait_ends(wait);
        if (status)
            judge(s, error, "weft_dist_optimizer_create");
        weft_error_unref(error);
    }
    bool well = !status;
    for (unsigned i = 0; i < 3 && well; i++)
        well = step(s, optimizer, o, count, lr, i);
    if (well)
        compare_parameters(s, o, count);
    weft_dist_optimizer_unref(optimizer);
    for (size_t i = 0; i < count; i++) {
        weft_rref_unref(o[i].handle);
        weft_tensor_unref(o[i].copy);
    }
}

/* ---- Trainers ---------------------------------------------------------------------------------------------------- */

static void choose(session *s)
{
    unsigned ranks = 0;
    for (size_t i = 0; i < s->e.count; i++)
        ranks |= 1U << s->e.ranks[i];
    s->scene = board->scene >= 0 ? (scene_kind)board->scene : (scene_kind)(s->seed % SCENES);
    s->count = 1 + (s->seed >> 8) % GRAPHS_MOST;
    bool fractions = s->scene == SCENE_SAME_BITS || (s->scene == SCENE_ONE && s->seed >> 9 & 1);
    for (size_t i = 0; i < GRAPHS_MOST; i++) {
        uint64_t chance = prng_mix(s->seed + 100 + i);
        s->graphs[i] = (graph){.seed = prng_mix(chance),
                               .fractions = fractions,
                               .ranks = ranks | (s->scene == SCENE_BREAK ? 1U << BREAKS : 0),
                               .depth = 1 + (int)(chance >> 8 & 1) + (int)((chance >> 9 & 7) == 0)};
        s->graphs[i].rows = chance >> 16 & 7 ? 1 + (int64_t)(chance >> 20 & 63) : 1 + (int64_t)(chance >> 20) % LARGE;
    }
    for (int rank = 0; rank < board->size; rank++)
        s->workers[rank] = weft_agent_worker(self.agent, rank);
    snprintf(s->where, sizeof(s->where), "%s, seed %llu, epoch %u, workers %x", scene_names[s->scene],
             (unsigned long long)s->seed, s->e.number, ranks);
}

static void play_graphs(session *s)
{
    weft_tensor *losses[GRAPHS_MOST] = {NULL};
    if (!open_context(s))
        return;
    weft_tape *t = weft_context_tape(s->context, NULL);
    bool on_tape = s->scene == SCENE_ONE || s->scene == SCENE_TWICE || s->scene == SCENE_BREAK;
    if (s->scene == SCENE_REMOTE_ROOT) {
        play_remote_root(s, t);
    } else if (run_graphs(s, t, losses)) {
        if (on_tape) {
            play_one(s, t, losses);
        } else {
            weft_tape_close(t); /* what it recorded can be seen by passes from now on */
            t = NULL;
            play_async(s, losses);
        }
        for (size_t i = 0; i < s->count; i++)
            weft_tensor_unref(losses[i]);
    }
    if (s->seed >> 40 & 1) {
        weft_tape_close(t);
        t = NULL;
    }
    if (s->context)
        close_context(s);
    weft_tape_close(t);
}

static void train(int number)
{
    while (goes_on()) {
        session s = {.seed = chance_below(UINT64_C(1) << 50)};
        sleep_ms(chance_below(8));
        if (!epoch_read(&s.e) || !s.e.ours || s.e.count < 2)
            continue;
        choose(&s);
        make_oracle(&s);
        if (s.scene == SCENE_SAME_BITS)
            play_same_bits(&s);
        else if (s.scene == SCENE_STEP)
            play_steps(&s);
        else
            play_graphs(&s);
        drop_oracle(&s);
    }
}

static void adjust(weft_agent_options *options)
{
    static bool made; /* others may call functions before the agent is open here */
    if (!made)
        graph_begin();
    made = true;
    options->threads = 6;
    options->call_timeout_ms = LIMIT_MS;
    if (board->job % 2 == 0)
        options->queue_limit_bytes = QUEUE_LIMIT;
}

static void table(void) /* in the driver */
{
    printf(
        "%lu gradients compared, %lu steps, %lu ends of contexts waited for, %lu graphs given up; of %lu gradients of "
        "fractions %lu have the bits of a local tape\n",
        atomic_load(&book->gradients), atomic_load(&book->steps), atomic_load(&book->closes),
        atomic_load(&book->given_up), atomic_load(&book->order_same) + atomic_load(&book->order_differs),
        atomic_load(&book->order_same));
}

int main(int argc, char **argv)
{
    const faults_program program = {
        .name = "faults_passes",
        .about =
            "Contexts, backward passes and distributed optimizers under attack, with the gradients of one local tape.",
        .book_bytes = sizeof(passes_book),
        .workers = 4,
        .scenes = scene_names,
        .scene_count = SCENES,
        .operations = "passes",
        .kinds = scene_names,
        .kind_count = SCENES,
        .budget_bytes = BUDGET,
        .threads = TRAINERS,
        .run = train,
        .functions = passes_functions,
        .function_count = &passes_function_count,
        .adjust = adjust,
        .closed = graph_end,
        .table = table,
    };
    return faults_main(&program, argc, argv);
}
