/* SPDX-License-Identifier: Apache-2.0 */
/* option.c - the bounds of an option, and the error of a value outside of them. */
#include "optim/rules.h"

#include <math.h>
#include <stdio.h>

#define MUST_BYTES 96

bool wfi_is_not_negative(double number)
{
    return number >= 0 && isfinite(number);
}

double wfi_or_else(double given, double otherwise)
{
    return given == 0 ? otherwise : given;
}

double wfi_clip_factor(double norm, double max_norm)
{
    double factor = max_norm / (norm + WFI_NORM_ROOM);
    return factor > 1 ? 1 : factor; /* NaN stays NaN */
}

weft_error *wfi_bad_option(const char *type, const char *option, double value, const char *must)
{
    return weft_error_create(WEFT_ERR_INVALID, "%s: %s is %g, it must be %s", type, option, value, must);
}

static bool has_bounds(const weft_optimizer_option *option)
{
    return option->min != 0 || option->max != 0;
}

static bool fits(const weft_optimizer_option *option, double value)
{
    if (option->flag)
        return value == 0 || value == 1;
    if (!isfinite(value) || !has_bounds(option))
        return isfinite(value) != 0;
    return option->open ? value > option->min && value < option->max : value >= option->min && value <= option->max;
}

/* Describes the values that the option may have. */
static const char *describe(const weft_optimizer_option *option, char text[MUST_BYTES])
{
    const char *open = option->open ? "above" : "at least";
    if (option->flag)
        snprintf(text, MUST_BYTES, "0 or 1");
    else if (!has_bounds(option) || (isinf(option->min) && isinf(option->max)))
        snprintf(text, MUST_BYTES, "finite");
    else if (isinf(option->max) && option->min == 0)
        snprintf(text, MUST_BYTES, option->open ? "positive and finite" : "finite and not negative");
    else if (isinf(option->max))
        snprintf(text, MUST_BYTES, "finite and %s %g", open, option->min);
    else if (isinf(option->min))
        snprintf(text, MUST_BYTES, "finite and %s %g", option->open ? "below" : "at most", option->max);
    else
        snprintf(text, MUST_BYTES, option->open ? "between %g and %g" : "from %g to %g", option->min, option->max);
    return text;
}

weft_error *wfi_option_check(const char *type, const weft_optimizer_option *option, double value)
{
    char must[MUST_BYTES];
    return fits(option, value) ? NULL : wfi_bad_option(type, option->name, value, describe(option, must));
}
