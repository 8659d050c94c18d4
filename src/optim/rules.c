/* SPDX-License-Identifier: Apache-2.0 */
/* rules.c - weft's own types of optimizers, and the checks of specs of any type. */
#include "optim/rules.h"

#include "base/text/sized.h"
#include "tensor/cpu/optim/update.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define PIN_TIMEOUT_MS 60000
#define MUST_BYTES 96 /* of a text that says which values an option may have */

/* Where a spec has the options of a type. */
typedef struct section {
    const char *name;
    size_t offset, count;
    const weft_optimizer_type *types[2];
} section;

#define SECTION(member, ...)                                                                                           \
    {                                                                                                                  \
#member, offsetof(weft_optimizer_spec, member), offsetof(weft_##member##_options, reserved) / sizeof(double),  \
        {                                                                                                              \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }
static const section sections[] = {
    SECTION(sgd, &weft_sgd_type),         SECTION(adam, &weft_adam_type, &weft_adamw_type),
    SECTION(adagrad, &weft_adagrad_type), SECTION(rmsprop, &weft_rmsprop_type),
    SECTION(rprop, &weft_rprop_type),     SECTION(adadelta, &weft_adadelta_type),
    SECTION(adamax, &weft_adamax_type),   {"own", offsetof(weft_optimizer_spec, own), WEFT_OPTIMIZER_OPTIONS, {NULL}},
};
#define SECTIONS (sizeof(sections) / sizeof(sections[0]))

static const section *section_of(const weft_optimizer_type *type)
{
    size_t s = 0;
    while (s < SECTIONS - 1 && sections[s].types[0] != type && sections[s].types[1] != type)
        s++;
    return &sections[s];
}

/* A flag has the last place of its struct, which is one of 8 bytes too. */
static_assert(offsetof(weft_sgd_options, nesterov) == 3 * sizeof(double) &&
                  offsetof(weft_adam_options, amsgrad) == 4 * sizeof(double) &&
                  offsetof(weft_rmsprop_options, centered) == 4 * sizeof(double),
              "each option has a place of 8 bytes");

static void *place_of(const weft_optimizer_spec *spec, const section *where, size_t option)
{
    return (char *)spec + where->offset + option * sizeof(double);
}

static bool is_flag(const section *where, size_t option)
{
    return where->types[0] && where->types[0]->options[option].flag;
}

static double number_at(const weft_optimizer_spec *spec, const section *where, size_t option)
{
    const void *place = place_of(spec, where, option);
    return is_flag(where, option) ? *(const bool *)place : *(const double *)place;
}

void wfi_optimizer_spec_get_options(const weft_optimizer_spec *spec, double options[WEFT_OPTIMIZER_OPTIONS])
{
    const section *where = section_of(spec->type);
    for (size_t i = 0; i < where->count; i++)
        options[i] = number_at(spec, where, i);
}

void wfi_optimizer_spec_set_options(weft_optimizer_spec *spec, const double options[WEFT_OPTIMIZER_OPTIONS])
{
    const section *where = section_of(spec->type);
    for (size_t i = 0; i < where->count; i++) {
        void *place = place_of(spec, where, i);
        if (is_flag(where, i))
            *(bool *)place = options[i] != 0;
        else
            *(double *)place = options[i];
    }
}

const weft_optimizer_type *wfi_type_find(const char *name)
{
    for (size_t s = 0; s < SECTIONS; s++)
        for (int k = 0; k < 2; k++)
            if (sections[s].types[k] && strcmp(sections[s].types[k]->name, name) == 0)
                return sections[s].types[k];
    return NULL;
}

int wfi_type_option_count(const weft_optimizer_type *type)
{
    int count = 0;
    while (count < WEFT_OPTIMIZER_OPTIONS && type->options[count].name)
        count++;
    return count;
}

int wfi_type_option_index(const weft_optimizer_type *type, const char *name)
{
    for (int i = wfi_type_option_count(type) - 1; i >= 0; i--)
        if (strcmp(type->options[i].name, name) == 0)
            return i;
    return -1;
}

static int slot_count(const weft_optimizer_type *type)
{
    int count = 0;
    while (count < WEFT_OPTIMIZER_SLOTS && type->slots[count].name)
        count++;
    return count;
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

bool wfi_option_is_not_negative(double number)
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

/* ---- Types ------------------------------------------------------------------------------------------------------- */

static bool is_name(const char *name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    size_t length = strspn(name, allowed);
    return length > 0 && length <= WEFT_OPTIMIZER_NAME && name[length] == '\0';
}

static weft_error *bad_name(const weft_optimizer_type *type, const char *what, const char *name)
{
    return weft_error_create(
        WEFT_ERR_INVALID, "optimizer type %s: the name \"%.40s\" of %s: use 1 to %d letters, digits, '_', '-' or '.'",
        type->name, name, what, WEFT_OPTIMIZER_NAME);
}

static weft_error *option_problem(const weft_optimizer_type *type, int i)
{
    const weft_optimizer_option *option = &type->options[i];
    if (!is_name(option->name))
        return bad_name(type, "an option", option->name);
    if (strcmp(option->name, "lr") == 0)
        return weft_error_create(WEFT_ERR_INVALID,
                                 "optimizer type %s: an option is called lr, which every optimizer has", type->name);
    if (wfi_type_option_index(type, option->name) != i)
        return weft_error_create(WEFT_ERR_INVALID, "optimizer type %s: two options are called %s", type->name,
                                 option->name);
    if (!option->flag && !(option->min <= option->max))
        return weft_error_create(WEFT_ERR_INVALID, "optimizer type %s: option %s has the bounds %g and %g", type->name,
                                 option->name, option->min, option->max);
    return option->otherwise == 0 ? NULL : wfi_option_check(type->name, option, option->otherwise);
}

static weft_error *slot_problem(const weft_optimizer_type *type, int k)
{
    const weft_optimizer_slot *slot = &type->slots[k];
    if (!is_name(slot->name))
        return bad_name(type, "a slot", slot->name);
    if (strcmp(slot->name, "step") == 0)
        return weft_error_create(WEFT_ERR_INVALID,
                                 "optimizer type %s: a slot is called step, which is the number of steps", type->name);
    for (int i = 0; i < k; i++)
        if (strcmp(type->slots[i].name, slot->name) == 0)
            return weft_error_create(WEFT_ERR_INVALID, "optimizer type %s: two slots are called %s", type->name,
                                     slot->name);
    if (isnan(slot->initial))
        return weft_error_create(WEFT_ERR_INVALID, "optimizer type %s: slot %s begins with NaN", type->name,
                                 slot->name);
    const char *unknown = NULL;
    if (slot->needs && wfi_type_option_index(type, slot->needs) < 0)
        unknown = slot->needs;
    if (slot->initial_of && strcmp(slot->initial_of, "lr") != 0 && wfi_type_option_index(type, slot->initial_of) < 0)
        unknown = slot->initial_of;
    if (unknown)
        return weft_error_create(WEFT_ERR_INVALID, "optimizer type %s: slot %s depends on %.40s, which is no option",
                                 type->name, slot->name, unknown);
    return NULL;
}

weft_error *wfi_type_check(const weft_optimizer_type *type)
{
    if (!type || !type->name)
        return weft_error_create(WEFT_ERR_INVALID, "an optimizer type %s", !type ? "is NULL" : "has no name");
    if (!is_name(type->name))
        return bad_name(type, "the type", type->name);
    bool newer = !WFI_ROOM_IS_ZERO(type);
    for (int i = 0; i < WEFT_OPTIMIZER_OPTIONS; i++)
        newer |= !WFI_ROOM_IS_ZERO(&type->options[i]);
    for (int k = 0; k < WEFT_OPTIMIZER_SLOTS; k++)
        newer |= !WFI_ROOM_IS_ZERO(&type->slots[k]);
    if (newer)
        return weft_error_create(WEFT_ERR_INVALID, "optimizer type %s: " WFI_NEWER, type->name, "its table");
    if (!type->step)
        return weft_error_create(WEFT_ERR_INVALID, "optimizer type %s has no step function", type->name);
    if (!wfi_option_is_not_negative(type->lr))
        return wfi_bad_option(type->name, "the default lr", type->lr, "finite and not negative");
    weft_error *error = NULL;
    int options = wfi_type_option_count(type), slots = slot_count(type);
    for (int i = 0; i < options && !error; i++)
        error = option_problem(type, i);
    for (int k = 0; k < slots && !error; k++)
        error = slot_problem(type, k);
    return error;
}

/* ---- Specs ------------------------------------------------------------------------------------------------------- */

static bool sets_newer(const weft_optimizer_spec *s)
{
    return !(WFI_ROOM_IS_ZERO(&s->sgd) && WFI_ROOM_IS_ZERO(&s->adam) && WFI_ROOM_IS_ZERO(&s->adagrad) &&
             WFI_ROOM_IS_ZERO(&s->rmsprop) && WFI_ROOM_IS_ZERO(&s->rprop) && WFI_ROOM_IS_ZERO(&s->adadelta) &&
             WFI_ROOM_IS_ZERO(&s->adamax));
}

/* That no option of another type is set. */
static weft_error *foreign_option(const weft_optimizer_spec *spec)
{
    const section *mine = section_of(spec->type);
    if (sets_newer(spec))
        return weft_error_create(WEFT_ERR_INVALID, "%s: " WFI_NEWER, spec->type->name, "its options");
    for (const section *s = sections; s < sections + SECTIONS; s++) {
        size_t from = s == mine ? (size_t)wfi_type_option_count(spec->type) : 0;
        for (size_t i = from; i < s->count; i++) {
            double value = number_at(spec, s, i);
            if (value == 0)
                continue;
            if (!s->types[0])
                return weft_error_create(WEFT_ERR_INVALID, "%s: own[%zu] is %g, but the type has %d options of its own",
                                         spec->type->name, i, value, s == mine ? wfi_type_option_count(spec->type) : 0);
            return weft_error_create(WEFT_ERR_INVALID, "%s: %s.%s is %g, an option of another type", spec->type->name,
                                     s->name, s->types[0]->options[i].name, value);
        }
    }
    return NULL;
}

static weft_error *complete_options(weft_optimizer_spec *spec)
{
    const weft_optimizer_type *type = spec->type;
    double values[WEFT_OPTIMIZER_OPTIONS];
    int count = wfi_type_option_count(type);
    wfi_optimizer_spec_get_options(spec, values);
    for (int i = 0; i < count; i++) {
        values[i] = wfi_or_else(values[i], type->options[i].otherwise);
        weft_error *error = wfi_option_check(type->name, &type->options[i], values[i]);
        if (error)
            return error;
    }
    wfi_optimizer_spec_set_options(spec, values);
    if (!spec->has_lr)
        spec->lr = wfi_or_else(spec->lr, type->lr);
    if (!spec->has_lr && spec->lr == 0)
        return wfi_bad_option(type->name, "lr", 0, "set: the type has no default (has_lr allows 0)");
    if (!wfi_option_is_not_negative(spec->lr))
        return wfi_bad_option(type->name, "lr", spec->lr, "finite and not negative");
    spec->has_lr = true;
    return !type->check ? NULL : type->check(spec->lr, values);
}

weft_error *wfi_optimizer_spec_complete(weft_optimizer_spec *spec)
{
    if (!spec->type)
        return weft_error_create(WEFT_ERR_INVALID, "the type of the optimizer is NULL: set it, to &weft_sgd_type for "
                                                   "example");
    const char *name = spec->type->name;
    weft_error *error = wfi_type_check(spec->type);
    if (!error)
        error = foreign_option(spec);
    if (!error)
        error = complete_options(spec);
    if (error)
        return error;
    if (!wfi_option_is_not_negative(spec->max_norm))
        return wfi_bad_option(name, "max_norm", spec->max_norm, "finite and not negative");
    if (spec->pin_timeout_ms < WEFT_FOREVER)
        return wfi_bad_option(name, "pin_timeout_ms", (double)spec->pin_timeout_ms,
                              "WEFT_FOREVER (-1) or not negative");
    if (spec->pin_timeout_ms == 0)
        spec->pin_timeout_ms = PIN_TIMEOUT_MS;
    if ((int)spec->update < WEFT_UPDATE_DEFAULT || spec->update > WEFT_UPDATE_BESIDE)
        return weft_error_create(WEFT_ERR_INVALID, "%s: there is no update %d", name, (int)spec->update);
    return NULL;
}

weft_error *wfi_optimizer_spec_copy(const weft_optimizer_spec *given, size_t size, weft_optimizer_spec *out)
{
    const weft_optimizer_spec *spec = WFI_SIZED(given, size, out);
    if (!spec)
        return weft_error_create(WEFT_ERR_INVALID, WFI_NEWER, "weft_optimizer_spec");
    *out = *spec;
    return wfi_optimizer_spec_complete(out);
}

static double option_named(const weft_optimizer_spec *spec, const char *name)
{
    int index = wfi_type_option_index(spec->type, name);
    return index < 0 ? spec->lr : number_at(spec, section_of(spec->type), (size_t)index);
}

int wfi_optimizer_spec_slots(const weft_optimizer_spec *spec, wfi_slot slots[WEFT_OPTIMIZER_SLOTS])
{
    int kept = 0, count = slot_count(spec->type);
    for (int k = 0; k < count; k++) {
        const weft_optimizer_slot *slot = &spec->type->slots[k];
        double initial = !slot->initial_of ? slot->initial : option_named(spec, slot->initial_of);
        if (!slot->needs || option_named(spec, slot->needs) != 0)
            slots[kept++] = (wfi_slot){slot->name, initial, k};
    }
    return kept;
}

const char *wfi_optimizer_spec_dense_only(const weft_optimizer_spec *spec)
{
    int count = wfi_type_option_count(spec->type);
    for (int i = 0; i < count; i++)
        if (spec->type->options[i].dense_only && number_at(spec, section_of(spec->type), (size_t)i) != 0)
            return spec->type->options[i].name;
    return NULL;
}

/* ---- Updates ----------------------------------------------------------------------------------------------------- */

wfi_update wfi_optimizer_kernel_update(const weft_optimizer_update *update, wfi_sparse_rows *rows)
{
    wfi_update u = {.from = update->from,
                    .to = update->to,
                    .gradient = update->gradient,
                    .factor = update->factor,
                    .step = update->step};
    memcpy(u.slots, update->slots, sizeof(u.slots));
    if (!update->gradient && update->rows) {
        *rows = (wfi_sparse_rows){.count = update->row_count,
                                  .width = update->row_size,
                                  .dtype = update->from->dtype,
                                  .rows = (int64_t *)update->rows,
                                  .at = (const void **)update->row_values};
        u.rows = rows;
    }
    if (update->gpu) {
        u.scale = update->gpu->scale;
        u.steps = update->gpu->steps;
        u.rows = update->gpu->rows ? update->gpu->rows : u.rows;
    }
    return u;
}

weft_status weft_optimizer_update_run(const weft_optimizer_update *update, weft_optimizer_span_fn run, const void *arg)
{
    wfi_sparse_rows rows;
    if (!update || !run || !update->from || !update->to)
        return wfi_refuse_null("weft_optimizer_update_run", !update         ? "update"
                                                            : !run          ? "run"
                                                            : !update->from ? "update->from"
                                                                            : "update->to");
    wfi_update u = wfi_optimizer_kernel_update(update, &rows);
    return wfi_update_run(&u, &(const wfi_rule){0, run, run, WFI_GPU_KINDS}, arg, 0);
}
