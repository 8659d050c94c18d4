/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digits.c - drawing digits. Everything happens to the pen's path, in pixels; only then is there an image: path (curves
 * through moved points) -> affine map -> elastic distortion -> ink along it -> blur, noise.
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

/* ---- From a way to a path --------------------------------------------------------------------------------------- */

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

/* The way's curves in the unit square around 0, each control point moved a little. */
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
        if (*way == STROKE_END)
            return;
        lifted = *way == STROKE_LIFT;
        curve[0] = curve[count - 1];
        count = lifted ? 0 : 1;
    }
}

/* ---- Distortions ------------------------------------------------------------------------------------------------ */

/* Scaled, slanted, turned, and put into the middle of the image, give or take. */
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

/* A Gaussian's weights, from the middle outwards; together (both sides) 1. */
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

/* Along rows, then along columns; beyond the edge there is nothing. */
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
 * Elastic distortion (Simard, Steinkraus, Platt: Best practices for convolutional neural networks, ICDAR 2003): a field of
 * uniform random displacements, smoothed by a Gaussian and scaled. `strength` is the usual displacement in pixels.
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

/* Full ink within `radius` of the line, none a pixel further, in between in proportion. */
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

/* Blurred, as dark as the pen writes, with noise. */
static void develop(float image[SIDE][SIDE], uint8_t *pixels, random_stream *random)
{
    double dark = random_between(random, 215, 275), noise = random_between(random, 0, 10);
    smooth(image, random_between(random, 0.4, 0.75));
    for (int i = 0; i < SIDE * SIDE; i++) {
        double shade = image[i / SIDE][i % SIDE] * dark;
        /* The sum of two uniform numbers is noise enough, and quick. */
        shade += noise * (random_unit(random) + random_unit(random) - 1);
        pixels[i] = shade < 4 ? 0 : shade > 255 ? 255 : (uint8_t)shade;
    }
}

/* ---- Images ----------------------------------------------------------------------------------------------------- */

/* Ten in a row hold every digit once, in an order of their own. */
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
