/* SPDX-License-Identifier: Apache-2.0 */
/* option.c - what the kinds ask of the numbers among their options. */
#include "optim/rules.h"

#include <math.h>

bool wfi_is_rate(double lr)
{
    return lr > 0 && isfinite(lr);
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

weft_error *wfi_bad_option(const char *kind, const char *option, double value, const char *must)
{
    return weft_error_create(WEFT_ERR_INVALID, "%s: %s is %g, it must be %s", kind, option, value, must);
}
