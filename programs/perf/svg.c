/* SPDX-License-Identifier: Apache-2.0 */
/*
 * svg.c - results as curves: a panel for each measurement whose results differ by size or by calls in flight, both axes
 * logarithmic. A line joins the results that differ in nothing else.
 */
#include "perf/writers.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { WIDTH = 760, HEIGHT = 420, LEFT = 70, RIGHT = 250, TOP = 36, BOTTOM = 44, LINE = 15 };

static const char *const colours[] = {"#1b6ca8", "#c8553d", "#2a9d5c", "#8e5ea2", "#c29a18",
                                      "#2aa1a8", "#7a4b2a", "#d46a9f", "#5b6770", "#93b31f"};
#define COLOURS (sizeof colours / sizeof *colours)

typedef struct range {
    double low, high;
} range;

typedef struct panel {
    const results *found;
    const char *measure;
    bool by_window; /* otherwise by size */
    range x, y;
    int top, height; /* of the panel, in the picture */
} panel;

static double x_of(const panel *p, const result *r)
{
    return p->by_window ? (double)r->window : (double)r->bytes;
}

static bool is_drawn(const panel *p, const result *r)
{
    return strcmp(r->measure, p->measure) == 0 && x_of(p, r) > 0 && isfinite(r->p50) && r->p50 > 0;
}

static void widen(range *r, double value)
{
    r->low = r->low > 0 && r->low < value ? r->low : value;
    r->high = r->high > value ? r->high : value;
}

static double place(range r, double value, double from, double to)
{
    double share = r.high > r.low ? log(value / r.low) / log(r.high / r.low) : 0.5;
    return from + share * (to - from);
}

static double px(const panel *p, double x)
{
    return place(p->x, x, LEFT, WIDTH - RIGHT);
}

static double py(const panel *p, double y)
{
    return p->top + place(p->y, y, p->height - BOTTOM, TOP);
}

static bool same_line(const result *a, const result *b)
{
    return strcmp(a->program, b->program) == 0 && strcmp(a->fabric, b->fabric) == 0 && strcmp(a->what, b->what) == 0 &&
           a->workers == b->workers && strcmp(a->unit, b->unit) == 0;
}

static const result *first_of_line(const panel *p, const result *like)
{
    for (size_t i = 0; i < p->found->count; i++)
        if (is_drawn(p, &p->found->items[i]) && same_line(&p->found->items[i], like))
            return &p->found->items[i];
    return NULL;
}

/* False: fewer than two places on the x axis. */
static bool prepare(panel *p)
{
    int lines = 0;
    p->by_window = strcmp(p->measure, "rate") == 0;
    for (size_t i = 0; i < p->found->count; i++) {
        const result *r = &p->found->items[i];
        if (!is_drawn(p, r))
            continue;
        widen(&p->x, x_of(p, r));
        widen(&p->y, r->p50);
        lines += first_of_line(p, r) == r;
    }
    p->height = TOP + BOTTOM + LINE * lines > HEIGHT ? TOP + BOTTOM + LINE * lines : HEIGHT;
    if (!(p->x.high > p->x.low))
        return false;
    p->y = (range){pow(10, floor(log10(p->y.low))), pow(10, ceil(log10(p->y.high)))};
    if (!(p->y.high > p->y.low))
        p->y.high = p->y.low * 10;
    return true;
}

static void write_escaped(FILE *to, const char *text)
{
    for (; *text; text++)
        fprintf(to, *text == '<' ? "&lt;" : *text == '&' ? "&amp;" : "%c", *text);
}

static void write_axes(FILE *to, const panel *p, const char *unit)
{
    fprintf(to, "<text x=\"%d\" y=\"%d\" class=\"head\">%s, %s, median</text>\n", LEFT, p->top + 20, p->measure, unit);
    for (double y = p->y.low; y <= p->y.high * 1.001; y *= 10)
        fprintf(to, "<path d=\"M%d %.1fH%d\" class=\"grid\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                LEFT, py(p, y), WIDTH - RIGHT, LEFT - 6, py(p, y) + 4, y);
    for (double x = 1; x <= p->x.high * 1.001; x *= p->by_window ? 4 : 8) {
        char text[32];
        if (x < p->x.low)
            continue;
        snprintf(text, sizeof text, "%g", x);
        fprintf(to,
                "<path d=\"M%.1f %dV%d\" class=\"grid\"/><text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                px(p, x), p->top + TOP, p->top + p->height - BOTTOM, px(p, x), p->top + p->height - BOTTOM + 16,
                p->by_window ? text : measure_bytes_name((size_t)x, text));
    }
}

static void write_line(FILE *to, const panel *p, const result *first, int number)
{
    const char *colour = colours[(size_t)number % COLOURS];
    int y = p->top + TOP + 8 + LINE * number;
    bool begun = false;
    fprintf(to, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"1.8\"%s d=\"", colour,
            (size_t)number >= COLOURS ? " stroke-dasharray=\"5 3\"" : "");
    for (size_t i = 0; i < p->found->count; i++) {
        const result *r = &p->found->items[i];
        if (!is_drawn(p, r) || !same_line(r, first))
            continue;
        fprintf(to, "%c%.1f %.1f", begun ? 'L' : 'M', px(p, x_of(p, r)), py(p, r->p50));
        begun = true;
    }
    fprintf(to, "\"/>\n<path d=\"M%d %dh16\" stroke=\"%s\" stroke-width=\"3\"/><text x=\"%d\" y=\"%d\">",
            WIDTH - RIGHT + 12, y, colour, WIDTH - RIGHT + 34, y + 4);
    write_escaped(to, strcmp(first->program, "weft") == 0 ? "" : first->program);
    fprintf(to, "%s", strcmp(first->program, "weft") == 0 ? "" : " ");
    write_escaped(to, first->fabric);
    fprintf(to, " ");
    write_escaped(to, first->what);
    if (first->workers > 2)
        fprintf(to, ", %d workers", (int)first->workers);
    fprintf(to, "</text>\n");
}

static void write_panel(FILE *to, const panel *p)
{
    int number = 0;
    for (size_t i = 0; i < p->found->count; i++) {
        const result *r = &p->found->items[i];
        if (!is_drawn(p, r) || first_of_line(p, r) != r)
            continue;
        if (number == 0)
            write_axes(to, p, r->unit);
        write_line(to, p, r, number++);
    }
}

static bool fail(const char *path)
{
    fprintf(stderr, "weft-perf: --svg %s: %s\n", path, strerror(errno));
    return false;
}

bool svg_open(picture *out, const char *path)
{
    *out = (picture){.path = path, .is_new = true, .fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)};
    if (out->fd < 0 && errno == EEXIST) {
        out->is_new = false;
        out->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    }
    return out->fd >= 0 || fail(path);
}

void svg_drop(picture *to)
{
    if (to->fd >= 0)
        close(to->fd);
    if (to->fd >= 0 && to->is_new)
        (void)unlink(to->path);
    to->fd = -1;
}

bool svg_write(picture *out, const results *found)
{
    static const char *const measures[] = {"latency", "bandwidth", "rate", "incast", "collectives"};
    panel panels[sizeof measures / sizeof *measures];
    int count = 0, top = 0;
    for (size_t i = 0; i < sizeof measures / sizeof *measures; i++) {
        panel p = {.found = found, .measure = measures[i], .top = top};
        if (!prepare(&p))
            continue;
        panels[count++] = p;
        top += p.height;
    }
    FILE *to = fdopen(out->fd, "w");
    if (!to) {
        (void)fail(out->path);
        svg_drop(out);
        return false;
    }
    out->fd = -1;
    bool failed = ftruncate(fileno(to), 0) != 0 && errno != EINVAL; /* EINVAL: a pipe or a device */
    fprintf(to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
            "font-size=\"11\">\n<style>.grid{stroke:#ddd;fill:none}.head{font-size:14px;font-weight:bold}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
            WIDTH, top ? top : HEIGHT);
    if (count == 0)
        fprintf(to, "<text x=\"20\" y=\"30\">No measurement has results of two sizes.</text>\n");
    for (int i = 0; i < count; i++)
        write_panel(to, &panels[i]);
    fprintf(to, "</svg>\n");
    failed = fflush(to) != 0 || failed;
    int why = errno;
    failed = ferror(to) || failed;
    failed = fclose(to) != 0 || failed;
    errno = why;
    return !failed || fail(out->path);
}
