/* SPDX-License-Identifier: Apache-2.0 */
/* digits.c - distorted drawings of digits. Each pixel of an image is looked up in the font, at a random place. */
#include "digits.h"

#include "random_stream.h"

#include <stdbool.h>

enum { WIDTH = 5, HEIGHT = 7 }; /* of a digit of the font */

/* Rows from the top; the highest of five bits is the left one. */
static const uint8_t font[10][HEIGHT] = {
    {0x0e, 0x11, 0x11, 0x11, 0x11, 0x11, 0x0e}, {0x04, 0x0c, 0x04, 0x04, 0x04, 0x04, 0x0e},
    {0x0e, 0x11, 0x01, 0x02, 0x04, 0x08, 0x1f}, {0x0e, 0x11, 0x01, 0x06, 0x01, 0x11, 0x0e},
    {0x02, 0x06, 0x0a, 0x12, 0x1f, 0x02, 0x02}, {0x1f, 0x10, 0x1e, 0x01, 0x01, 0x11, 0x0e},
    {0x06, 0x08, 0x10, 0x1e, 0x11, 0x11, 0x0e}, {0x1f, 0x01, 0x02, 0x04, 0x04, 0x08, 0x08},
    {0x0e, 0x11, 0x11, 0x0e, 0x11, 0x11, 0x0e}, {0x0e, 0x11, 0x11, 0x0f, 0x01, 0x02, 0x0c},
};

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

static double ink_at(int digit, int column, int row)
{
    bool inside = column >= 0 && column < WIDTH && row >= 0 && row < HEIGHT;
    return inside && (font[digit][row] >> (WIDTH - 1 - column) & 1) ? 1 : 0;
}

/* Ink at a place between the middles of four squares of the font. */
static double ink_between(int digit, double x, double y)
{
    int column = (int)floor(x), row = (int)floor(y);
    double u = x - column, v = y - row;
    return (1 - v) * ((1 - u) * ink_at(digit, column, row) + u * ink_at(digit, column + 1, row)) +
           v * ((1 - u) * ink_at(digit, column, row + 1) + u * ink_at(digit, column + 1, row + 1));
}

int digits_draw(uint64_t seed, uint64_t index, uint8_t *pixels)
{
    random_stream random = {random_key(seed, index)};
    int label = label_of(seed, index);
    double height = random_between(&random, 16, 20.5) / HEIGHT, width = height * random_between(&random, 0.8, 1.2);
    double shear = 0.13 + 0.2 * random_normal(&random), angle = 0.15 * random_normal(&random);
    double right = DIGITS_SIDE / 2.0 + 0.8 * random_normal(&random);
    double down = DIGITS_SIDE / 2.0 + 0.8 * random_normal(&random);
    double dark = random_between(&random, 300, 500), noise = random_between(&random, 0, 30);
    for (int i = 0; i < DIGITS_PIXELS; i++) {
        double dx = i % DIGITS_SIDE + 0.5 - right, dy = i / DIGITS_SIDE + 0.5 - down;
        double y = (cos(angle) * dy - sin(angle) * dx) / height;
        double x = (cos(angle) * dx + sin(angle) * dy) / width + shear * y;
        double shade = dark * ink_between(label, x + (WIDTH - 1) / 2.0, y + (HEIGHT - 1) / 2.0);
        shade += noise * (random_unit(&random) + random_unit(&random) - 1); /* near enough to normal noise */
        pixels[i] = shade < 4 ? 0 : shade > 255 ? 255 : (uint8_t)shade;
    }
    return label;
}
