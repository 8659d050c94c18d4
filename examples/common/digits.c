/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digits.c - drawings of handwritten digits.
 *
 * The steps: the path of the pen (curves through displaced points), an affine map and an elastic distortion of the
 * path, ink along it, blur, noise. Coordinates are in pixels.
 */
#include "digits.h"

#include "random_stream.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#define SIDE DIGITS_SIDE
#define PATH_MAX 512  /* points of a path */
#define CURVE_MAX 16  /* points of one curve of a way */
#define CURVE_STEPS 8 /* pieces between two points */

/* ---- The ways to write each digit ------------------------------------------------------------------------------- */

/* Curves pass through the points (digits.h). */
#define LIFT STROKE_LIFT
#define CORNER STROKE_CORNER
#define END STROKE_END
#define WAY (const int8_t[])

/* clang-format off */
static const int8_t *const zero[] = {
    WAY{52,3, 24,16, 11,50, 24,84, 50,97, 77,82, 89,48, 76,15, 50,3, END},
    WAY{70,10, 40,4, 16,30, 12,66, 36,95, 68,88, 88,55, 80,22, 58,6, 38,10, END},
    WAY{38,8, 14,38, 16,76, 44,98, 76,84, 90,48, 78,14, 54,2, 30,14, END},
    NULL};
static const int8_t *const one[] = {
    WAY{50,2, 50,98, END},
    WAY{54,2, 49,50, 47,98, END},
    WAY{30,24, 52,3, CORNER, 51,50, 50,98, END},
    WAY{50,2, 51,50, 50,98, END},
    WAY{32,20, 52,3, CORNER, 52,97, LIFT, 26,97, 78,97, END},
    NULL};
static const int8_t *const two[] = {
    WAY{15,25, 30,6, 58,3, 80,18, 76,42, 52,68, 14,96, CORNER, 50,93, 88,95, END},
    WAY{18,22, 38,4, 68,8, 78,32, 60,64, 30,92, 14,88, 24,76, 48,84, 88,95, END},
    WAY{15,12, 50,4, 80,14, 74,40, 44,68, 14,95, CORNER, 88,93, END},
    WAY{22,30, 28,10, 54,3, 76,20, 68,48, 40,78, 12,90, 22,98, 46,86, 86,92, END},
    NULL};
static const int8_t *const three[] = {
    WAY{18,14, 42,3, 72,10, 74,32, 40,47, CORNER, 74,56, 82,78, 56,97, 14,88, END},
    WAY{16,5, 48,6, 82,5, CORNER, 44,42, CORNER, 78,56, 80,82, 50,98, 14,88, END},
    WAY{20,16, 46,3, 74,16, 66,40, 42,48, 56,50, 80,64, 78,88, 44,98, 16,86, END},
    WAY{24,10, 54,3, 76,18, 62,40, 36,46, CORNER, 66,50, 84,68, 70,92, 36,98, 12,82, END},
    NULL};
static const int8_t *const four[] = {
    WAY{30,4, 24,30, 16,56, CORNER, 50,57, 88,54, LIFT, 72,4, 66,50, 62,98, END},
    WAY{64,98, 64,50, 64,2, CORNER, 12,66, CORNER, 90,66, END},
    WAY{20,5, 16,38, 38,56, 72,48, LIFT, 78,4, 72,50, 68,98, END},
    WAY{34,2, 14,54, CORNER, 86,48, LIFT, 72,14, 58,98, END},
    WAY{24,8, 18,46, CORNER, 52,52, 76,44, LIFT, 80,2, 76,44, 74,98, END},
    NULL};
static const int8_t *const five[] = {
    WAY{80,4, 52,6, 24,6, CORNER, 20,44, CORNER, 50,36, 80,52, 80,82, 48,98, 12,88, END},
    WAY{28,6, 22,44, CORNER, 54,38, 82,60, 70,90, 38,98, 12,88, LIFT, 28,6, 56,6, 88,3, END},
    WAY{82,6, 46,6, 24,22, 34,42, 64,50, 80,70, 62,94, 16,94, END},
    WAY{84,5, 34,7, CORNER, 26,42, CORNER, 52,42, 74,58, 72,84, 46,97, 16,92, END},
    NULL};
static const int8_t *const six[] = {
    WAY{68,3, 36,28, 16,62, 26,92, 56,97, 80,78, 68,56, 40,56, 20,74, END},
    WAY{58,2, 30,36, 18,74, 38,97, 70,92, 78,66, 52,56, 26,68, END},
    WAY{38,2, 22,46, 20,80, 48,98, 78,84, 68,60, 38,60, 22,78, END},
    WAY{74,8, 44,14, 20,50, 20,84, 46,98, 74,88, 74,62, 48,54, 24,70, END},
    NULL};
static const int8_t *const seven[] = {
    WAY{12,8, 48,6, 86,5, CORNER, 60,48, 42,98, END},
    WAY{12,8, 48,6, 86,5, CORNER, 60,48, 42,98, LIFT, 30,52, 78,48, END},
    WAY{14,24, 15,7, CORNER, 50,7, 86,5, CORNER, 62,46, 52,98, END},
    WAY{10,14, 30,5, 84,8, CORNER, 70,34, 52,64, 46,98, END},
    NULL};
static const int8_t *const eight[] = {
    WAY{74,14, 48,3, 24,16, 32,38, 62,54, 80,76, 60,97, 30,94, 20,74, 40,52, 68,36, 76,14, END},
    WAY{50,3, 28,12, 28,36, 50,47, 72,36, 72,12, 50,3, LIFT, 50,47, 22,62, 22,88, 50,98, 78,88, 78,62, 50,47, END},
    WAY{54,48, 28,32, 32,8, 58,3, 76,20, 62,42, 34,56, 20,78, 38,97, 68,94, 78,72, 54,48, END},
    WAY{78,8, 44,4, 22,22, 44,44, 74,64, 72,92, 40,98, 20,80, 40,56, 72,34, 84,10, END},
    NULL};
static const int8_t *const nine[] = {
    WAY{74,20, 52,4, 24,14, 20,40, 44,52, 70,38, 76,16, CORNER, 74,50, 66,98, END},
    WAY{76,26, 56,4, 26,12, 20,36, 42,50, 68,40, 78,18, CORNER, 80,56, 66,92, 28,96, END},
    WAY{72,10, 40,4, 18,26, 32,48, 60,42, 74,10, CORNER, 72,50, 70,98, END},
    WAY{80,12, 50,3, 22,22, 30,46, 58,44, 80,12, CORNER, 64,56, 46,98, END},
    NULL};
/* clang-format on */

const int8_t *const *const digits_ways[10] = {zero, one, two, three, four, five, six, seven, eight, nine};

/* ---- The path of the pen ---------------------------------------------------------------------------------------- */

typedef struct point {
    float x, y;
} point;

typedef struct path {
    size_t count;
    point at[PATH_MAX];
    bool lifted[PATH_MAX]; /* no ink from the point before to this one */
} path;

/* A displacement for each pixel, in pixels. */
typedef struct field {
    float dx[SIDE][SIDE], dy[SIDE][SIDE];
} field;

static void add_point(path *p, point at, bool lifted)
{
    if (p->count == PATH_MAX)
        return;
    p->lifted[p->count] = lifted;
    p->at[p->count++] = at;
}

/* Catmull and Rom's curve (1974) between b and c, at u in [0, 1]. */
static float between(float a, float b, float c, float d, float u)
{
    return b + 0.5f * u * (c - a + u * (2 * a - 5 * b + 4 * c - d + u * (3 * (b - c) + d - a)));
}

static void add_curve(path *p, const point *through, size_t count, bool lifted)
{
    add_point(p, through[0], lifted);
    for (size_t i = 0; i + 1 < count; i++) {
        point b = through[i], c = through[i + 1];
        point a = i > 0 ? through[i - 1] : b, d = i + 2 < count ? through[i + 2] : c;
        for (int step = 1; step <= CURVE_STEPS; step++) {
            float u = (float)step / CURVE_STEPS;
            add_point(p, (point){between(a.x, b.x, c.x, d.x, u), between(a.y, b.y, c.y, d.y, u)}, false);
        }
    }
}

/* The curves of `way` in the unit square around 0, with every control point displaced a little. */
static void trace(path *p, const int8_t *way, random_stream *random)
{
    point curve[CURVE_MAX];
    size_t count = 0;
    bool lifted = true;
    double unsteady = random_between(random, 0.01, 0.042);
    for (p->count = 0;; way++) {
        if (*way >= 0) {
            float x = (float)(way[0] / 100.0 - 0.5 + unsteady * random_normal(random));
            float y = (float)(way[1] / 100.0 - 0.5 + unsteady * random_normal(random));
            curve[count++] = (point){x, y};
            way++;
            continue;
        }
        add_curve(p, curve, count, lifted);
        if (*way == END)
            return;
        lifted = *way == LIFT;
        curve[0] = curve[count - 1];
        count = lifted ? 0 : 1;
    }
}

/* ---- Distortions ------------------------------------------------------------------------------------------------ */

/* Scales, slants and turns the path, and moves it near the middle of the image. */
static void place(path *p, random_stream *random)
{
    double height = random_between(random, 16, 20.5), width = height * random_between(random, 0.55, 0.92);
    double shear = 0.13 + 0.2 * random_normal(random), angle = 0.11 * random_normal(random);
    double c = cos(angle), s = sin(angle);
    double right = SIDE / 2.0 + 0.8 * random_normal(random), down = SIDE / 2.0 + 0.8 * random_normal(random);
    for (size_t i = 0; i < p->count; i++) {
        double x = width * p->at[i].x - shear * height * p->at[i].y, y = height * p->at[i].y;
        p->at[i] = (point){(float)(c * x - s * y + right), (float)(s * x + c * y + down)};
    }
}

/* Weights of a Gaussian, from the middle outwards. The weights of both sides sum to 1. */
static int gaussian(float *weights, int radius_max, double sigma)
{
    int radius = (int)(3 * sigma + 0.5);
    if (radius > radius_max)
        radius = radius_max;
    double sum = 0;
    for (int k = 0; k <= radius; k++)
        sum += (k ? 2 : 1) * exp(-0.5 * k * k / (sigma * sigma));
    for (int k = 0; k <= radius; k++)
        weights[k] = (float)(exp(-0.5 * k * k / (sigma * sigma)) / sum);
    return radius;
}

/* Blurs the rows, then the columns. Pixels outside the image count as 0. */
static void smooth(float image[SIDE][SIDE], double sigma)
{
    float weights[SIDE], rows[SIDE][SIDE];
    int radius = gaussian(weights, SIDE - 1, sigma);
    memset(rows, 0, sizeof rows);
    for (int y = 0; y < SIDE; y++)
        for (int k = -radius; k <= radius; k++)
            for (int x = k < 0 ? -k : 0; x < (k > 0 ? SIDE - k : SIDE); x++)
                rows[y][x] += weights[k < 0 ? -k : k] * image[y][x + k];
    memset(image, 0, sizeof rows);
    for (int k = -radius; k <= radius; k++)
        for (int y = k < 0 ? -k : 0; y < (k > 0 ? SIDE - k : SIDE); y++)
            for (int x = 0; x < SIDE; x++)
                image[y][x] += weights[k < 0 ? -k : k] * rows[y + k][x];
}

static float sample(float image[SIDE][SIDE], point at)
{
    float x = fminf(fmaxf(at.x - 0.5f, 0), SIDE - 1.001f), y = fminf(fmaxf(at.y - 0.5f, 0), SIDE - 1.001f);
    int i = (int)x, j = (int)y;
    float u = x - (float)i, v = y - (float)j;
    return (1 - v) * ((1 - u) * image[j][i] + u * image[j][i + 1]) +
           v * ((1 - u) * image[j + 1][i] + u * image[j + 1][i + 1]);
}

/*
 * Elastic distortion (Simard, Steinkraus, Platt: Best practices for convolutional neural networks, ICDAR 2003): a field
 * of uniform random displacements, smoothed by a Gaussian and scaled. `strength` is the typical displacement in pixels.
 */
static void bend(path *p, random_stream *random)
{
    field f;
    double sigma = random_between(random, 3.5, 5.5), strength = random_between(random, 0.3, 1.3);
    for (int i = 0; i < SIDE * SIDE; i++) {
        uint64_t bits = random_u64(random);
        f.dx[i / SIDE][i % SIDE] = (float)((double)(bits >> 32) * 0x1p-31 - 1);
        f.dy[i / SIDE][i % SIDE] = (float)((double)(uint32_t)bits * 0x1p-31 - 1);
    }
    smooth(f.dx, sigma);
    smooth(f.dy, sigma);
    /* Smoothing white noise of variance 1/3 leaves a deviation of 1 / (sqrt(3) 2 sqrt(pi) sigma). */
    float scale = (float)(strength * sqrt(3) * 2 * sqrt(3.14159265) * sigma);
    for (size_t i = 0; i < p->count; i++) {
        point at = p->at[i];
        p->at[i] = (point){at.x + scale * sample(f.dx, at), at.y + scale * sample(f.dy, at)};
    }
}

/* ---- Ink -------------------------------------------------------------------------------------------------------- */

static float distance_to(point a, point b, float x, float y)
{
    float dx = b.x - a.x, dy = b.y - a.y, square = dx * dx + dy * dy;
    float u = square > 0 ? ((x - a.x) * dx + (y - a.y) * dy) / square : 0;
    u = fminf(fmaxf(u, 0), 1);
    return hypotf(x - a.x - u * dx, y - a.y - u * dy);
}

static int clamp_pixel(float x)
{
    return x < 0 ? 0 : x > SIDE - 1 ? SIDE - 1 : (int)x;
}

/* Full ink within `radius` of the line, decreasing to none over one more pixel. */
static void ink_line(float image[SIDE][SIDE], point a, point b, float radius)
{
    int left = clamp_pixel(fminf(a.x, b.x) - radius - 1), right = clamp_pixel(fmaxf(a.x, b.x) + radius + 1);
    int top = clamp_pixel(fminf(a.y, b.y) - radius - 1), bottom = clamp_pixel(fmaxf(a.y, b.y) + radius + 1);
    for (int y = top; y <= bottom; y++) {
        for (int x = left; x <= right; x++) {
            float d = distance_to(a, b, (float)x + 0.5f, (float)y + 0.5f);
            image[y][x] = fmaxf(image[y][x], fminf(fmaxf(radius + 0.5f - d, 0), 1));
        }
    }
}

static void ink(float image[SIDE][SIDE], const path *p, random_stream *random)
{
    float radius = (float)random_between(random, 0.55, 1.45);
    memset(image, 0, sizeof(float[SIDE][SIDE]));
    for (size_t i = 1; i < p->count; i++)
        if (!p->lifted[i])
            ink_line(image, p->at[i - 1], p->at[i], radius);
}

/* Blurs the ink, and scales it to the darkness of the pen, with noise. */
static void develop(float image[SIDE][SIDE], uint8_t *pixels, random_stream *random)
{
    double dark = random_between(random, 215, 275), noise = random_between(random, 0, 10);
    smooth(image, random_between(random, 0.4, 0.75));
    for (int i = 0; i < SIDE * SIDE; i++) {
        double shade = image[i / SIDE][i % SIDE] * dark;
        /* The sum of two uniform numbers: near enough to normal noise, and cheap. */
        shade += noise * (random_unit(random) + random_unit(random) - 1);
        pixels[i] = shade < 4 ? 0 : shade > 255 ? 255 : (uint8_t)shade;
    }
}

/* ---- Images ----------------------------------------------------------------------------------------------------- */

/* Every ten consecutive images contain each digit once, in a random order. */
static int label_of(uint64_t seed, uint64_t index)
{
    random_stream random = {random_key(random_key(seed, 0x6c6162656c), index / 10)};
    int order[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    for (uint32_t i = 9; i > 0; i--) {
        uint32_t j = random_below(&random, i + 1);
        int swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    return order[index % 10];
}

int digits_draw(uint64_t seed, uint64_t index, uint8_t *pixels)
{
    random_stream random = {random_key(seed, index)};
    int label = label_of(seed, index);
    const int8_t *const *ways = digits_ways[label];
    uint32_t count = 0;
    while (ways[count])
        count++;
    path p;
    float image[SIDE][SIDE];
    trace(&p, ways[random_below(&random, count)], &random);
    place(&p, &random);
    bend(&p, &random);
    ink(image, &p, &random);
    develop(image, pixels, &random);
    return label;
}

typedef struct drawing {
    uint64_t seed, first;
    size_t count;
    uint8_t *pixels, *labels;
    atomic_size_t next;
} drawing;

static void *draw_some(void *arg)
{
    drawing *d = arg;
    for (size_t i; (i = atomic_fetch_add(&d->next, 1)) < d->count;)
        d->labels[i] = (uint8_t)digits_draw(d->seed, d->first + i, d->pixels + i * DIGITS_PIXELS);
    return NULL;
}

void digits_draw_many(uint64_t seed, uint64_t first, size_t count, uint8_t *pixels, uint8_t *labels)
{
    drawing d = {.seed = seed, .first = first, .count = count, .pixels = pixels, .labels = labels};
    pthread_t helpers[15];
    size_t started = 0, cores = (size_t)sysconf(_SC_NPROCESSORS_ONLN);
    while (started < sizeof helpers / sizeof *helpers && started + 1 < cores &&
           pthread_create(&helpers[started], NULL, draw_some, &d) == 0)
        started++;
    draw_some(&d);
    while (started > 0)
        pthread_join(helpers[--started], NULL);
}
