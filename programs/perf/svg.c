/* SPDX-License-Identifier: Apache-2.0 */
/*
 * svg.c - results as curves: a plot for each operation that was measured with several sizes, or with several numbers
 * of calls in flight. Both axes are logarithmic. A line joins the results of one fabric, or of one peer; a dotted one
 * joins the floors. A mark is a measured value.
 */
#include "perf/writers.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { WIDTH = 780, HEIGHT = 360, LEFT = 76, RIGHT = 210, TOP = 40, BOTTOM = 56, LINE = 17, CAPTION = 36, PLOTS = 32 };

static const char *const colours[] = {"#1b6ca8", "#c8553d", "#2a9d5c", "#8e5ea2", "#c29a18",
                                      "#2aa1a8", "#7a4b2a", "#d46a9f", "#5b6770", "#93b31f"};
#define COLOURS (sizeof(colours) / sizeof(*colours))

typedef struct range {
    double low, high;
} range;

typedef struct plot {
    const results *found;
    const result *like; /* a result of the operation */
    bool by_window;     /* otherwise by size */
    range x, y;
    int top, height; /* in the picture */
} plot;

static double x_of(const plot *p, const result *r)
{
    return p->by_window ? (double)r->window : (double)r->bytes;
}

static double y_of(const result *r, bool is_floor)
{
    return is_floor ? r->floor : r->p50;
}

static bool is_drawn(const plot *p, const result *r)
{
    return strcmp(r->measure, p->like->measure) == 0 && strcmp(r->what, p->like->what) == 0 && x_of(p, r) > 0 &&
           isfinite(r->p50) && r->p50 > 0;
}

static bool same_line(const result *a, const result *b)
{
    return strcmp(a->program, b->program) == 0 && strcmp(a->fabric, b->fabric) == 0 && a->workers == b->workers;
}

/* Whether no result before it belongs to the same line. */
static bool begins_line(const plot *p, const result *r)
{
    for (const result *at = p->found->items; at < r; at++)
        if (is_drawn(p, at) && same_line(at, r))
            return false;
    return is_drawn(p, r);
}

static void widen(range *r, double value)
{
    r->low = r->low > 0 && r->low < value ? r->low : value;
    r->high = r->high > value ? r->high : value;
}

/* The ticks of the y axis: 1, 2 and 5 in each decade, or 1 alone if there are many decades. */
static double next_tick(const range *y, double tick)
{
    double decade = pow(10, floor(log10(tick * 1.001))), lead = tick / decade;
    if (y->high / y->low > 500)
        return decade * 10;
    return decade * (lead < 1.5 ? 2 : lead < 3 ? 5 : 10);
}

/* False: fewer than two places on the x axis. */
static bool prepare(plot *p)
{
    int lines = 0;
    p->by_window = strcmp(p->like->measure, "rate") == 0;
    for (size_t i = 0; i < p->found->count; i++) {
        const result *r = &p->found->items[i];
        if (!is_drawn(p, r))
            continue;
        widen(&p->x, x_of(p, r));
        widen(&p->y, r->p50);
        if (isfinite(r->floor))
            widen(&p->y, r->floor);
        lines += begins_line(p, r) ? 2 : 0;
    }
    p->height = TOP + BOTTOM + LINE * lines > HEIGHT ? TOP + BOTTOM + LINE * lines : HEIGHT;
    if (!(p->x.high > p->x.low))
        return false;
    range tight = p->y;
    p->y.low = pow(10, floor(log10(tight.low)));
    while (next_tick(&tight, p->y.low) <= tight.low)
        p->y.low = next_tick(&tight, p->y.low);
    for (p->y.high = p->y.low; p->y.high <= tight.high;)
        p->y.high = next_tick(&tight, p->y.high);
    return true;
}

static double place(range r, double value, double from, double to)
{
    return from + log(value / r.low) / log(r.high / r.low) * (to - from);
}

static double px(const plot *p, double x)
{
    return place(p->x, x, LEFT + 12, WIDTH - RIGHT - 12);
}

static double py(const plot *p, double y)
{
    return p->top + place(p->y, y, p->height - BOTTOM, TOP);
}

static void write_escaped(FILE *to, const char *text)
{
    for (; *text; text++)
        fprintf(to, *text == '<' ? "&lt;" : *text == '&' ? "&amp;" : "%c", *text);
}

/* "20", "50 k", "2 M" */
static const char *tick_text(double value, char out[32])
{
    double shown = value >= 1e6 ? value / 1e6 : value >= 1e4 ? value / 1e3 : value;
    snprintf(out, 32, "%.6g%s", shown, value >= 1e6 ? " M" : value >= 1e4 ? " k" : "");
    return out;
}

static void write_axes(FILE *to, const plot *p)
{
    const char *unit = strcmp(p->like->unit, "us") == 0        ? "microseconds"
                       : strcmp(p->like->unit, "calls/s") == 0 ? "calls a second"
                                                               : p->like->unit;
    int bottom = p->top + p->height - BOTTOM, middle = (LEFT + WIDTH - RIGHT) / 2, half = (p->top + TOP + bottom) / 2;
    double step = p->by_window || p->x.high / p->x.low < 20000 ? 4 : 8;
    char text[32];
    fprintf(to, "<text x=\"%d\" y=\"%d\" class=\"head\">%s: ", LEFT, p->top + 24, p->like->measure);
    write_escaped(to, p->like->what);
    fprintf(to, "</text>\n");
    for (double y = p->y.low; y <= p->y.high * 1.001; y = next_tick(&p->y, y))
        fprintf(to, "<path d=\"M%d %.1fH%d\" class=\"grid\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                LEFT, py(p, y), WIDTH - RIGHT, LEFT - 6, py(p, y) + 4, tick_text(y, text));
    for (double x = 1; x <= p->x.high * 1.001; x *= step)
        if (x >= p->x.low)
            fprintf(
                to,
                "<path d=\"M%.1f %dV%d\" class=\"grid\"/><text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                px(p, x), p->top + TOP, bottom, px(p, x), bottom + 16,
                p->by_window ? tick_text(x, text) : measure_bytes_name((size_t)x, text));
    fprintf(to, "<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"#555\"/>\n", LEFT, p->top + TOP, bottom,
            WIDTH - RIGHT);
    fprintf(to, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", middle, bottom + 36,
            p->by_window ? "calls in flight" : "size of the tensor");
    fprintf(to, "<text transform=\"translate(18 %d) rotate(-90)\" text-anchor=\"middle\">%s, median</text>\n", half,
            unit);
}

static void write_name(FILE *to, const result *r, bool is_floor)
{
    bool is_weft = strcmp(r->program, "weft") == 0;
    fprintf(to, "%s ", is_floor ? "floor of" : r->program);
    write_escaped(to, is_weft ? r->fabric : r->control);
    if (r->workers > 2 || strcmp(r->measure, "collectives") == 0)
        fprintf(to, ", %d workers", (int)r->workers);
}

/* A line, its marks, and its name beside the plot. False: it has no values. */
static bool write_line(FILE *to, const plot *p, const result *first, bool is_floor, int colour, int row)
{
    bool begun = false, is_weft = strcmp(first->program, "weft") == 0;
    int y = p->top + TOP + 8 + LINE * row, x = WIDTH - RIGHT + 14;
    const char *dashes = is_floor ? " stroke-dasharray=\"2 3\"" : is_weft ? "" : " stroke-dasharray=\"7 3\"";
    const char *shade = colours[(size_t)colour % COLOURS];
    for (const result *r = first; r < p->found->items + p->found->count; r++) {
        if (!is_drawn(p, r) || !same_line(r, first) || !isfinite(y_of(r, is_floor)))
            continue;
        if (!begun)
            fprintf(to, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"1.8\"%s d=\"", shade, dashes);
        fprintf(to, "%c%.1f %.1f", begun ? 'L' : 'M', px(p, x_of(p, r)), py(p, y_of(r, is_floor)));
        begun = true;
    }
    if (!begun)
        return false;
    fprintf(to, "\"/>\n<g fill=\"%s\" stroke=\"%s\">", is_floor ? "white" : shade, shade);
    for (const result *r = first; r < p->found->items + p->found->count; r++)
        if (is_drawn(p, r) && same_line(r, first) && isfinite(y_of(r, is_floor)))
            fprintf(to, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>", px(p, x_of(p, r)), py(p, y_of(r, is_floor)));
    fprintf(to,
            "<path d=\"M%d %dh22\" stroke-width=\"1.8\"%s/><circle cx=\"%d\" cy=\"%d\" r=\"3\"/></g>"
            "<text x=\"%d\" y=\"%d\">",
            x, y, dashes, x + 11, y, x + 30, y + 4);
    write_name(to, first, is_floor);
    fprintf(to, "</text>\n");
    return true;
}

static void write_plot(FILE *to, const plot *p)
{
    int colour = 0, row = 0;
    write_axes(to, p);
    for (size_t i = 0; i < p->found->count; i++) {
        const result *r = &p->found->items[i];
        if (!begins_line(p, r))
            continue;
        row += write_line(to, p, r, false, colour, row);
        row += write_line(to, p, r, true, colour, row);
        colour++;
    }
}

/* Whether the operation of a result has a plot already. */
static bool has_plot(const plot *plots, int count, const result *r)
{
    for (int i = 0; i < count; i++)
        if (strcmp(plots[i].like->measure, r->measure) == 0 && strcmp(plots[i].like->what, r->what) == 0)
            return true;
    return false;
}

static int find_plots(const results *found, plot plots[PLOTS])
{
    int count = 0;
    for (size_t i = 0; i < found->count && count < PLOTS; i++) {
        plot p = {.found = found, .like = &found->items[i]};
        if (count)
            p.top = plots[count - 1].top + plots[count - 1].height;
        if (!has_plot(plots, count, p.like) && prepare(&p))
            plots[count++] = p;
    }
    return count;
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

bool svg_write(picture *out, const run_report *run)
{
    plot plots[PLOTS];
    char caption[512];
    int count = find_plots(&run->found, plots);
    int height = count ? plots[count - 1].top + plots[count - 1].height : 60;
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
            "font-size=\"12\">\n<style>.grid{stroke:#ddd;fill:none}.head{font-size:15px;font-weight:bold}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
            WIDTH, height + CAPTION);
    if (count == 0)
        fprintf(to, "<text x=\"20\" y=\"30\">No operation has results of two sizes.</text>\n");
    for (int i = 0; i < count; i++)
        write_plot(to, &plots[i]);
    fprintf(to, "<text x=\"12\" y=\"%d\" font-size=\"11\" fill=\"#555\">", height + CAPTION / 2);
    write_escaped(to, run_report_caption(run, caption, sizeof(caption)));
    fprintf(to, "</text>\n</svg>\n");
    failed = fflush(to) != 0 || failed;
    int why = errno;
    failed = ferror(to) || failed;
    failed = fclose(to) != 0 || failed;
    errno = why;
    return !failed || fail(out->path);
}
