/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tensor_locale.c - texts that weft writes and reads have the point of the C locale, whatever the user's locale
 * is. The test makes its locale with localedef(1), and exits 77 where that is not possible.
 */
#include "rpc/inside.h"
#include "tensors.h"
#include "unit.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/weft_locale_XXXXXX";

#define NAME "momayyez" /* its decimal separator has two bytes */

/* Only the numbers of the locale are its own: that takes less than a second. */
static bool use_locale(void)
{
    char path[96], command[512], text[32];
    snprintf(path, sizeof(path), "%s/" NAME, folder);
    FILE *source = fopen(path, "w");
    if (!source)
        return false;
    fputs("comment_char %\nescape_char /\nLC_NUMERIC\ndecimal_point \"<U066B>\"\nthousands_sep \"\"\ngrouping -1\n"
          "END LC_NUMERIC\n",
          source);
    fclose(source);
    snprintf(command, sizeof(command), "localedef -c -i %s -f UTF-8 %s.UTF-8 >%s/log 2>&1", path, path, folder);
    (void)!system(command); /* it warns of what the locale lacks, and fails then */
    bool is_there = setlocale(LC_NUMERIC, NAME ".UTF-8") != NULL;
    snprintf(text, sizeof(text), "%.1f", 0.5);
    return is_there && strcmp(text, "0.5") != 0;
}

static void must_print(weft_tensor *tensor, const char *wanted)
{
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    assert_non_null(to);
    weft_tensor_print(tensor, to);
    fclose(to);
    assert_string_equal(text, wanted);
    free(text);
    weft_tensor_unref(tensor);
}

static void tensors_print_alike(void)
{
    static const double numbers[] = {-0.5, 1.25e-30, 3, 1e300};
    static const double parts[] = {0.5, -1.5};
    must_print(tensor_copy_of(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT64, numbers), "float64 [4] [-0.5, 1.25e-30, 3, 1e+300]\n");
    must_print(tensor_copy_of(WEFT_SHAPE(1), WEFT_DTYPE_COMPLEX128, parts), "complex128 [1] [0.5-1.5i]\n");
}

static void budgets_are_read_alike(void)
{
    const weft_agent_options given = {.has_rank = true, .world_size = 1, .master_port = 12345};
    setenv("WEFT_MEMORY_BUDGET", "1.5G", 1);
    assert_int_equal(inside_resolve(&given, NULL, NULL)->memory_budget_bytes, (size_t)3 << 29);
    inside_wipe();
}

static void texts_are_alike(void **state)
{
    tensors_print_alike();
    budgets_are_read_alike();
}

static void drop_folder(void)
{
    char command[64];
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    (void)!system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts_are_alike)};
    if (!mkdtemp(folder))
        return 1;
    atexit(drop_folder);
    setenv("LOCPATH", folder, 1);
    if (!use_locale()) {
        fprintf(stderr, "no localedef, or no definitions of characters: skipped\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
