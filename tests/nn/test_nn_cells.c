/* SPDX-License-Identifier: Apache-2.0 */
/* test_nn_cells.c - modules that several threads train: steps beside records and forward passes, rows, running
 * statistics. */
#include <weft/optim.h>
#include <weft/weft.h>

#include "mem/mem.h"
#include "oracle/formula.h"
#include "tensor/tensor.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define CHANNELS 3
#define CLASSES 5

static weft_module *make_net(void)
{
    weft_module *parts[] = {
        conv2d_create(&(weft_conv2d_layer){.in_channels = 1, .out_channels = CHANNELS, .kernel = {3, 3}, .seed = 1},
                      NULL),
        batch_norm2d_create(CHANNELS, 0, 0, NULL),
        relu_create(),
        flatten_create(1),
        linear_create((int64_t)CHANNELS * 36, CLASSES, false, 2, NULL),
        log_softmax_create(1)};
    return sequential_create(parts, sizeof(parts) / sizeof(parts[0]), NULL);
}

static weft_optimizer *optimizer_of(const weft_module *net, weft_update update)
{
    weft_optimizer_spec spec = {
        .type = &weft_sgd_type, .update = update, .lr = 0.1, .sgd = {.momentum = 0.9, .weight_decay = 0.01}};
    weft_error *error = NULL;
    weft_optimizer *o = optimizer_create(weft_module_parameters(net), &spec, &error);
    assert_null(error);
    return o;
}

typedef struct batch {
    weft_tensor *x, *target;
} batch;

static batch make_batch(int seed)
{
    return (batch){formula_tensor(WEFT_SHAPE(4, 1, 8, 8), WEFT_DTYPE_FLOAT32, seed),
                   tensor_zeros(WEFT_SHAPE(4), WEFT_DTYPE_INT64)};
}

static void drop_batch(batch b)
{
    weft_tensor_unref(b.x);
    weft_tensor_unref(b.target);
}

static weft_tensor *loss_of(weft_tape *t, weft_module *net, batch b)
{
    return weft_nll_loss(t, weft_module_forward(t, net, b.x), b.target);
}

static weft_tape *recording(void)
{
    return weft_tape_open(&(weft_tape_options){.record = true});
}

static bool same_bits(const weft_tensor *a, const weft_tensor *b)
{
    return a && b && memcmp(weft_tensor_data(a), weft_tensor_data(b), weft_tensor_nbytes(a)) == 0;
}

/* ---- A step while another thread's record lives ---- */

typedef struct stepping {
    weft_optimizer *optimizer;
    weft_gradients gradients;
    int steps;
    weft_status status;
} stepping;

static void *step_often(void *arg)
{
    stepping *s = arg;
    for (int i = 0; i < s->steps && s->status == WEFT_OK; i++)
        s->status = weft_optimizer_apply(s->optimizer, s->gradients);
    return NULL;
}

/* Backward passes over one record, before and while another thread steps by the first one's gradients. */
static void step_while_a_record_lives(weft_update update)
{
    weft_module *net = make_net();
    weft_optimizer *sgd = optimizer_of(net, update);
    weft_tensors parameters = weft_module_parameters(net);
    batch b = make_batch(3);
    weft_tape *first = recording(), *t = recording();
    weft_backward(first, loss_of(first, net, b));
    weft_tensor *loss = loss_of(t, net, b);
    double before = weft_tensor_get_f64(parameters.items[0], 0);
    stepping s = {.optimizer = sgd, .gradients = weft_tape_gradients(first, parameters), .steps = 50};
    pthread_t stepper;
    assert_int_equal(pthread_create(&stepper, NULL, step_often, &s), 0);
    weft_backward(t, loss);
    assert_int_equal(pthread_join(stepper, NULL), 0);
    assert_int_equal(s.status, WEFT_OK);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_true(weft_tensor_get_f64(parameters.items[0], 0) != before);
    for (size_t i = 0; i < parameters.count; i++)
        assert_true(same_bits(weft_tape_grad(t, parameters.items[i]), weft_tape_grad(first, parameters.items[i])));
    weft_tape_close(t);
    weft_tape_close(first);
    drop_batch(b);
    weft_optimizer_unref(sgd);
    weft_module_unref(net);
}

static void step_beside_changes_no_bit_of_a_live_record(void **state)
{
    step_while_a_record_lives(WEFT_UPDATE_DEFAULT);
    step_while_a_record_lives(WEFT_UPDATE_BESIDE);
}

static void step_in_place_makes_a_live_record_stale(void **state)
{
    weft_module *net = make_net();
    weft_optimizer *sgd = optimizer_of(net, WEFT_UPDATE_IN_PLACE);
    weft_tensor *weight = weft_module_find(net, "4.weight");
    void *address = weft_tensor_data(weight);
    batch b = make_batch(3);
    weft_tape *first = recording(), *t = recording();
    weft_backward(first, loss_of(first, net, b));
    weft_tensor *loss = loss_of(t, net, b);
    assert_int_equal(weft_optimizer_apply(sgd, weft_tape_gradients(first, weft_module_parameters(net))), WEFT_OK);
    assert_ptr_equal(weft_tensor_data(weight), address);
    weft_backward(t, loss);
    assert_int_equal(weft_tape_status(t), WEFT_ERR_STATE);
    weft_tape_close(t);
    weft_tape_close(first);
    drop_batch(b);
    weft_optimizer_unref(sgd);
    weft_module_unref(net);
}

static void all_ways_to_step_give_the_same_bits(void **state)
{
    weft_module *nets[3] = {make_net(), make_net(), make_net()};
    weft_optimizer *optimizers[3] = {optimizer_of(nets[0], WEFT_UPDATE_IN_PLACE),
                                     optimizer_of(nets[1], WEFT_UPDATE_BESIDE),
                                     optimizer_of(nets[2], WEFT_UPDATE_DEFAULT)};
    for (int i = 0; i < 8; i++) {
        batch b = make_batch(i);
        for (int k = 0; k < 3; k++) {
            weft_tape *t = recording();
            weft_backward(t, loss_of(t, nets[k], b));
            weft_gradients g = weft_tape_gradients(t, weft_module_parameters(nets[k]));
            assert_int_equal(weft_optimizer_apply(optimizers[k], g), WEFT_OK);
            weft_tape_close(t);
        }
        drop_batch(b);
    }
    for (size_t i = 0; i < weft_module_parameters(nets[0]).count; i++)
        for (int k = 1; k < 3; k++)
            assert_true(same_bits(weft_module_parameters(nets[0]).items[i], weft_module_parameters(nets[k]).items[i]));
    for (int k = 0; k < 3; k++) {
        weft_optimizer_unref(optimizers[k]);
        weft_module_unref(nets[k]);
    }
}

static void plain_tensors_are_not_stepped_beside(void **state)
{
    weft_tensor *plain = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    weft_optimizer_spec spec = {.type = &weft_sgd_type, .update = WEFT_UPDATE_BESIDE, .lr = 1};
    weft_error *error = NULL;
    assert_null(optimizer_create((weft_tensors){&plain, 1}, &spec, &error));
    assert_int_equal(weft_error_code(error), WEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(weft_error_message(error), "parameter 0 is a plain tensor"));
    weft_error_unref(error);
    weft_tensor_unref(plain);
}

/* ---- Many trainers, one optimizer ---- */

#define TRAINERS 4
#define ROUNDS 12

typedef struct school {
    weft_module *net;
    weft_optimizer *optimizer;
    pthread_mutex_t stepping; /* one thread at a time uses an optimizer */
    atomic_int next;
} school;

/* Two passes over a record, others' steps between them: they find the same bits. */
static bool is_steady(school *s, weft_tape *t, weft_tensor *loss, weft_tensor *one)
{
    const weft_backward_options retain = {.retain = true};
    weft_tensor *weight = weft_module_find(s->net, "4.weight");
    weft_backward_with(t, (weft_tensors){&loss, 1}, (weft_tensors){&one, 1}, &retain);
    weft_tensor *g = weft_tape_grad(t, weight), *single = !g ? NULL : tensor_clone(g);
    pthread_mutex_lock(&s->stepping);
    weft_status status = weft_optimizer_apply(s->optimizer, weft_tape_gradients(t, weft_module_parameters(s->net)));
    pthread_mutex_unlock(&s->stepping);
    weft_backward_with(t, (weft_tensors){&loss, 1}, (weft_tensors){&one, 1}, NULL); /* is added to the first one */
    g = weft_tape_grad(t, weight);
    bool steady = status == WEFT_OK && single && g;
    for (int64_t i = 0; steady && i < g->numel; i++)
        steady = weft_tensor_get_f64(g, i) == 2 * weft_tensor_get_f64(single, i);
    weft_tensor_unref(single);
    return steady;
}

static void *train(void *arg)
{
    school *s = arg;
    uintptr_t wrong = 0;
    weft_tensor *one = tensor_full(WEFT_SCALAR, WEFT_DTYPE_FLOAT32, 1);
    for (int i = 0; i < ROUNDS; i++) {
        batch b = make_batch(atomic_fetch_add(&s->next, 1));
        weft_tape *t = recording();
        weft_tensor *loss = loss_of(t, s->net, b);
        wrong += !loss || !is_steady(s, t, loss, one);
        weft_tape_close(t);
        drop_batch(b);
    }
    weft_tensor_unref(one);
    return (void *)wrong;
}

static void join_all(pthread_t *threads, int count)
{
    for (int i = 0; i < count; i++) {
        void *wrong;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
}

static void share_a_module(weft_update update)
{
    school s = {.net = make_net(), .stepping = PTHREAD_MUTEX_INITIALIZER};
    s.optimizer = optimizer_of(s.net, update);
    pthread_t threads[TRAINERS];
    for (int i = 0; i < TRAINERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, train, &s), 0);
    join_all(threads, TRAINERS);
    assert_int_equal(weft_tensor_get_i64(weft_module_find(s.net, "1.num_batches_tracked"), 0), TRAINERS * ROUNDS);
    weft_optimizer_unref(s.optimizer);
    weft_module_unref(s.net);
}

static void trainers_share_a_module_and_an_optimizer(void **state)
{
    share_a_module(WEFT_UPDATE_DEFAULT);
    share_a_module(WEFT_UPDATE_BESIDE);
}

/* ---- Running statistics: all batches are alike, so the moves add up in any order ---- */

typedef struct statistics {
    weft_module *norm;
    weft_tensor *x;
    atomic_bool ended;
} statistics;

static void *move_often(void *arg)
{
    statistics *s = arg;
    uintptr_t wrong = 0;
    for (int i = 0; i < ROUNDS; i++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.record = false});
        wrong += !weft_module_forward(t, s->norm, s->x);
        weft_tape_close(t);
    }
    return (void *)wrong;
}

/* Both channels have the same values. */
static void *look_often(void *arg)
{
    statistics *s = arg;
    uintptr_t torn = 0;
    weft_tensor *mean = weft_module_find(s->norm, "running_mean");
    while (!atomic_load(&s->ended)) {
        weft_tensor *now = tensor_clone(mean);
        torn += weft_tensor_get_f64(now, 0) != weft_tensor_get_f64(now, 1);
        weft_tensor_unref(now);
    }
    return (void *)torn;
}

static void threads_move_running_statistics_and_lose_none(void **state)
{
    statistics s = {.norm = batch_norm2d_create(2, 0.1, 0, NULL),
                    .x = tensor_zeros(WEFT_SHAPE(2, 2, 1, 1), WEFT_DTYPE_FLOAT32)};
    memcpy(weft_tensor_data(s.x), (float[]){1, 1, 3, 3}, 4 * sizeof(float));
    pthread_t threads[TRAINERS], reader;
    assert_int_equal(pthread_create(&reader, NULL, look_often, &s), 0);
    for (int i = 0; i < TRAINERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, move_often, &s), 0);
    join_all(threads, TRAINERS);
    atomic_store(&s.ended, true);
    join_all(&reader, 1);
    double kept = pow(0.9, TRAINERS * ROUNDS);
    for (int c = 0; c < 2; c++) {
        assert_true(fabs(weft_tensor_get_f64(weft_module_find(s.norm, "running_mean"), c) - 2 * (1 - kept)) < 1e-5);
        assert_true(fabs(weft_tensor_get_f64(weft_module_find(s.norm, "running_var"), c) - (kept + 2 * (1 - kept))) <
                    1e-5);
    }
    assert_int_equal(weft_tensor_get_i64(weft_module_find(s.norm, "num_batches_tracked"), 0), TRAINERS * ROUNDS);
    weft_tensor_unref(s.x);
    weft_module_unref(s.norm);
}

/* ---- Rows ---- */

#define ROWS 16
#define WIDTH 8

typedef struct rows {
    weft_module *table;
    weft_optimizer *optimizer;
    weft_tensor *index;
    weft_gradient gradient;
    atomic_bool ended;
} rows;

/* Each step takes 1 off every element of rows 1 and 3. */
static rows make_rows(void)
{
    rows r = {.table = embedding_create(&(weft_embedding_layer){.rows = ROWS, .width = WIDTH, .seed = 1}, NULL)};
    weft_tensor *weight = weft_module_find(r.table, "weight");
    weft_tensor_fill(weight, 0);
    r.index = tensor_copy_of(WEFT_SHAPE(2), WEFT_DTYPE_INT64, (int64_t[]){3, 1});
    r.gradient = (weft_gradient){tensor_full(WEFT_SHAPE(2, WIDTH), WEFT_DTYPE_FLOAT32, 1), weft_tensor_ref(r.index)};
    weft_optimizer_spec spec = {.type = &weft_sgd_type, .update = WEFT_UPDATE_BESIDE, .lr = 1};
    r.optimizer = optimizer_create(weft_module_parameters(r.table), &spec, NULL);
    assert_non_null(r.optimizer);
    return r;
}

static void drop_rows(rows *r)
{
    weft_tensor_unref(r->gradient.values);
    weft_tensor_unref(r->gradient.rows);
    weft_tensor_unref(r->index);
    weft_optimizer_unref(r->optimizer);
    weft_module_unref(r->table);
}

static void step_rows(rows *r)
{
    assert_int_equal(weft_optimizer_apply(r->optimizer, (weft_gradients){&r->gradient, 1}), WEFT_OK);
}

static void rows_are_stepped_in_place_unless_somebody_has_the_table(void **state)
{
    rows r = make_rows();
    weft_tensor *weight = weft_module_find(r.table, "weight");
    void *address = weft_tensor_data(weight);
    weft_tape *t = recording();
    assert_non_null(weft_module_forward(t, r.table, r.index)); /* its record has no need of the table */
    step_rows(&r);
    assert_ptr_equal(weft_tensor_data(weight), address);
    weft_tensor *held = tensor_contiguous(weight);
    step_rows(&r);
    assert_ptr_not_equal(weft_tensor_data(weight), address);
    assert_true(weft_tensor_get_f64(held, 3 * WIDTH) == -1 && weft_tensor_get_f64(weight, 3 * WIDTH) == -2);
    assert_true(weft_tensor_get_f64(weight, 2 * WIDTH) == 0);
    weft_tensor_unref(held);
    address = weft_tensor_data(weight);
    step_rows(&r);
    assert_ptr_equal(weft_tensor_data(weight), address);
    weft_tape_close(t);
    drop_rows(&r);
}

static void *gather_often(void *arg)
{
    rows *r = arg;
    uintptr_t torn = 0;
    while (!atomic_load(&r->ended)) {
        weft_tape *t = recording();
        weft_tensor *y = weft_module_forward(t, r->table, r->index);
        for (int64_t i = 1; y && i < y->numel; i++)
            torn += weft_tensor_get_f64(y, i) != weft_tensor_get_f64(y, 0);
        torn += !y;
        weft_tape_close(t);
    }
    return (void *)torn;
}

static void threads_gather_while_rows_are_stepped(void **state)
{
    rows r = make_rows();
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, gather_often, &r), 0);
    for (int i = 0; i < 300; i++) {
        weft_tensor *held = i % 7 == 0 ? tensor_contiguous(weft_module_find(r.table, "weight")) : NULL;
        step_rows(&r);
        weft_tensor_unref(held);
    }
    atomic_store(&r.ended, true);
    join_all(threads, 2);
    assert_true(weft_tensor_get_f64(weft_module_find(r.table, "weight"), WIDTH) == -300);
    drop_rows(&r);
}

/* ---- Memory: two slabs a parameter, and one more for each value that is held ---- */

static size_t live_bytes(void)
{
    wfi_slab_stats stats;
    wfi_slab_stats_read(&stats);
    return stats.bytes_live;
}

static void step_and_count(weft_update update)
{
    size_t before = live_bytes();
    weft_module *net = linear_create(512, 512, true, 1, NULL);
    size_t one = live_bytes() - before;
    assert_true(one >= (size_t)512 * 512 * 4);
    weft_tensor *g = tensor_full(WEFT_SHAPE(512, 512), WEFT_DTYPE_FLOAT32, 1);
    weft_optimizer_spec spec = {.type = &weft_sgd_type, .update = update, .lr = 1};
    weft_optimizer *sgd = optimizer_create(weft_module_parameters(net), &spec, NULL);
    weft_gradients gradients = {&(weft_gradient){.values = g}, 1};
    size_t alone = live_bytes(), second = update == WEFT_UPDATE_BESIDE ? one : 0;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(weft_optimizer_apply(sgd, gradients), WEFT_OK);
        assert_int_equal(live_bytes(), alone + second);
    }
    weft_tensor *held = tensor_contiguous(weft_module_find(net, "weight"));
    for (int i = 0; i < 5; i++)
        assert_int_equal(weft_optimizer_apply(sgd, gradients), WEFT_OK);
    assert_int_equal(live_bytes(), alone + second + one);
    weft_tensor_unref(held);
    assert_int_equal(live_bytes(), alone + one); /* kept for a later step */
    weft_tensor_unref(g);
    weft_optimizer_unref(sgd);
    weft_module_unref(net);
    assert_int_equal(live_bytes(), before);
}

/* WEFT_UPDATE_DEFAULT takes the second one only when somebody holds the value. */
static void steps_beside_take_two_slabs_and_what_is_held(void **state)
{
    step_and_count(WEFT_UPDATE_BESIDE);
    step_and_count(WEFT_UPDATE_DEFAULT);
}

/* ---- Lists of tensors are read likewise ---- */

static void joined_parameters_have_gradients_and_keep_their_values(void **state)
{
    weft_module *a = linear_create(2, 2, true, 1, NULL), *b = linear_create(2, 2, true, 2, NULL);
    weft_tensor *both[] = {weft_module_find(a, "weight"), weft_module_find(b, "weight")};
    weft_tape *t = recording();
    weft_tensor *joined = weft_concat(t, (weft_tensors){both, 2}, 0);
    double last = weft_tensor_get_f64(both[1], 3);
    weft_backward(t, weft_sum(t, weft_mul(t, joined, joined)));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_true(weft_tensor_get_f64(joined, 7) == last);
    assert_true(weft_tensor_get_f64(weft_tape_grad(t, both[1]), 3) == (double)(float)(2 * last));
    weft_tape_close(t);
    weft_module_unref(a);
    weft_module_unref(b);
}

UNIT_MAIN(step_beside_changes_no_bit_of_a_live_record, step_in_place_makes_a_live_record_stale,
          all_ways_to_step_give_the_same_bits, plain_tensors_are_not_stepped_beside,
          trainers_share_a_module_and_an_optimizer, threads_move_running_statistics_and_lose_none,
          rows_are_stepped_in_place_unless_somebody_has_the_table, threads_gather_while_rows_are_stepped,
          steps_beside_take_two_slabs_and_what_is_held, joined_parameters_have_gradients_and_keep_their_values)
