/* SPDX-License-Identifier: Apache-2.0 */
/* option.c - what the kinds ask of the numbers among their options. */
#include "optim/rules.h"

#include <math.h>

#define NORM_ROOM 1e-6 /* PyTorch adds it to the norm that gradients are clipped by */

bool wfi_is_positive(double number)
{
    return number > 0 && isfinite(number);
}

bool wfi_is_not_negative(double number)
{
    return number >= 0 && isfinite(number);
}

bool wfi_is_share(double number)
{
    return number > 0 && number < 1;
}

double wfi_or_else(double given, double otherwise)
{
    return given == 0 ? otherwise : given;
}

double wfi_lr_or_else(const weft_optimizer_spec *spec, double given, double otherwise)
{
    return spec->has_lr ? given : wfi_or_else(given, otherwise);
}

double wfi_clip_factor(double norm, double max_norm)
{
    double factor = max_norm / (norm + NORM_ROOM);
    return factor > 1 ? 1 : factor; /* NaN stays NaN */
}

weft_error *wfi_bad_option(const char *kind, const char *option, double value, const char *must)
{
    return weft_error_create(WEFT_ERR_INVALID, "%s: %s is %g, it must be %s", kind, option, value, must);
}
