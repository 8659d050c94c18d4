/* SPDX-License-Identifier: Apache-2.0 */
/*
 * learned_field.c - a solver in C, whose steps a worker in Python learns with PyTorch (learned_field.py).
 *
 *     weft-run -n 2 sh -c 'if [ $RANK = 0 ]; then exec ./learned_field; else exec python3 learned_field.py; fi'
 *
 * The field is a wave in a periodic square: heights and speeds. While the solver computes a step, the worker learns
 * from the last two fields, and predicts the field that is being computed.
 */
#include <math.h>
#include <weft/rpc.h>

enum { N = 64, STEPS = 2000, REPORT = 250 };

typedef struct wave {
    float height[N][N], speed[N][N];
} wave;
enum { VALUES = sizeof(wave) / sizeof(float) };

static wave waves[3]; /* in turns: the last two are sent while the next is written */

static void advance(const wave *now, wave *next)
{
    for (int y = 0; y < N; y++) {
        const float *here = now->height[y], *above = now->height[(y + N - 1) % N], *below = now->height[(y + 1) % N];
        for (int x = 0; x < N; x++) {
            float around = above[x] + below[x] + here[(x + N - 1) % N] + here[(x + 1) % N];
            next->speed[y][x] = now->speed[y][x] + 0.2f * (around - 4 * here[x]);
            next->height[y][x] = here[x] + next->speed[y][x];
        }
    }
}

static double squares(const void *a, const void *b) /* the sum of the squared differences of two waves */
{
    const float *p = a, *q = b;
    double sum = 0;
    for (int i = 0; i < VALUES; i++)
        sum += (double)(p[i] - q[i]) * (p[i] - q[i]);
    return sum;
}

static weft_status solve(weft_agent *agent, weft_tensor *const *fields)
{
    double error = 0, change = 0; /* squared: of the prediction; of the wave in a step */
    weft_status status = WEFT_OK;
    for (int n = 1; n < STEPS && !status; n++) {
        int before = (n + 2) % 3, now = n % 3, next = (n + 1) % 3;
        weft_args last_two = WEFT_VALUES(weft_of_tensor(fields[before]), weft_of_tensor(fields[now]));
        weft_future *reply = NULL;
        status = weft_rpc_async(agent, weft_to_rank(1), "learn", last_two, NULL, &reply);
        advance(&waves[now], &waves[next]);
        if (!status)
            status = weft_future_wait(reply, WEFT_FOREVER);
        weft_tensor *predicted = weft_future_tensor(reply, 0);
        if (!status &&
            (!weft_tensor_same_shape(predicted, fields[0]) || weft_tensor_dtype(predicted) != WEFT_DTYPE_FLOAT32))
            status = WEFT_ERR_SHAPE;
        if (status) {
            weft_error_print(weft_future_error(reply), stderr);
        } else {
            error += squares(weft_tensor_data(predicted), &waves[next]);
            change += squares(&waves[now], &waves[next]);
        }
        if ((n + 1) % REPORT == 0 && !status) {
            printf("step %4d: the error of the prediction is %.4f of the change\n", n + 1, sqrt(error / change));
            error = change = 0;
        }
        weft_future_unref(reply);
    }
    return status;
}

int main(void)
{
    weft_agent *agent = NULL;
    weft_tensor *fields[3] = {NULL};
    weft_status status = weft_agent_open(&(weft_agent_options){0}, &agent, NULL);
    for (int i = 0; i < 3 && !status; i++) /* the solver's own memory, not copied */
        status =
            weft_tensor_wrap(WEFT_SHAPE(2, N, N), WEFT_DTYPE_FLOAT32, &waves[i], NULL, NULL, NULL, &fields[i], NULL);
    for (int i = 0; i < 64; i++)
        waves[0].height[28 + i / 8][20 + i % 8] = 1;
    advance(&waves[0], &waves[1]);
    if (!status)
        status = solve(agent, fields);
    for (int i = 0; i < 3; i++)
        weft_tensor_unref(fields[i]);
    weft_status closed = weft_agent_close(agent, WEFT_FOREVER);
    return weft_report(status ? status : closed);
}
