/* SPDX-License-Identifier: Apache-2.0 */
/* unit.h - cmocka, and what it wants to have been included before it. */
#ifndef TESTS_UNIT_H
#define TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
