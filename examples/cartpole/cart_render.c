/* SPDX-License-Identifier: Apache-2.0 */
/* cart_render.c - shows the policy in the terminal. */
#include "cart_render.h"

#include "cartpole.h"
#include "common/worker.h"

#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WIDTH 61 /* columns for -2.4 m to 2.4 m */
#define HEIGHT 7 /* rows of the pole */
#define FRAME_NS 20000000
#define SELDOM 25 /* steps between two lines, if the output is not a terminal */
#define DEGREES (180 / 3.14159265358979323846)

typedef struct canvas {
    char rows[HEIGHT + 2][WIDTH + 1];
} canvas;

static void put(canvas *c, int row, double column, const char *text)
{
    int at = (int)lround(column) - (int)strlen(text) / 2;
    for (int i = 0; text[i]; i++)
        if (at + i >= 0 && at + i < WIDTH)
            c->rows[row][at + i] = text[i];
}

static void draw(canvas *c, const cartpole *pole)
{
    double column = (pole->x + 2.4) / 4.8 * (WIDTH - 1), lean = sin(pole->angle);
    memset(c, 0, sizeof *c);
    for (int row = 0; row < HEIGHT + 2; row++)
        memset(c->rows[row], row == HEIGHT + 1 ? '=' : ' ', WIDTH);
    for (int up = 1; up <= HEIGHT; up++) /* a row is as high as two columns are wide */
        put(c, HEIGHT - up, column + 2 * up * lean, lean > 0.1 ? "/" : lean < -0.1 ? "\\" : "|");
    put(c, HEIGHT, column, "[ooo]");
}

static void show(FILE *to, bool live, const cartpole *pole)
{
    if (!live && pole->steps % SELDOM)
        return;
    if (live) {
        canvas c;
        draw(&c, pole);
        for (int row = 0; row < HEIGHT + 2; row++)
            fprintf(to, "%s\n", c.rows[row]);
    }
    fprintf(to, "step %3d  cart %+.2f m  pole %+5.1f degrees\n", pole->steps, pole->x, DEGREES * pole->angle);
    if (live) {
        fprintf(to, "\033[%dA", HEIGHT + 3);
        fflush(to);
        nanosleep(&(struct timespec){.tv_nsec = FRAME_NS}, NULL);
    }
}

static weft_status choose(weft_module *policy, const cartpole *pole, int *action, weft_error **error)
{
    float state[CARTPOLE_STATE];
    cartpole_observe(pole, state);
    const weft_device device = weft_tensor_device(weft_module_parameters(policy).items[0]);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = device});
    weft_tensor *x = weft_tensor_wrap(WEFT_SHAPE(1, CARTPOLE_STATE), WEFT_DTYPE_FLOAT32, state, NULL, NULL, NULL);
    weft_tensor *there = weft_tape_take(t, weft_tensor_to_device(x, device));
    weft_tensor *best = weft_argmax(t, weft_module_forward(t, policy, there), 1);
    weft_tensor_unref(x);
    weft_status st = weft_tape_status(t);
    if (st)
        *error = weft_error_ref(weft_tape_error(t));
    else
        *action = (int)weft_tensor_get_i64(best, 0);
    weft_tape_close(t);
    return st;
}

weft_status cart_render(weft_module *policy, uint64_t seed, FILE *to, weft_error **error)
{
    bool live = isatty(fileno(to));
    cartpole pole;
    cartpole_end end = CARTPOLE_GOES_ON;
    int action = 0;
    weft_status st = WEFT_OK;
    for (cartpole_reset(&pole, seed); end == CARTPOLE_GOES_ON && !st && !worker_interrupted();) {
        show(to, live, &pole);
        st = choose(policy, &pole, &action, error);
        if (!st)
            end = cartpole_step(&pole, action);
    }
    if (live)
        fprintf(to, "\033[%dB", HEIGHT + 3);
    if (!st && end != CARTPOLE_GOES_ON)
        fprintf(to, end == CARTPOLE_CUT ? "it stands after %d steps\n" : "it stood for %d steps\n", pole.steps);
    return st;
}
