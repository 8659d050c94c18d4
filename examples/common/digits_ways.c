/* SPDX-License-Identifier: Apache-2.0 */
/* digits_ways.c - how people write digits: the strokes that digits.c distorts. Curves pass through the points. */
#include "digits.h"

#define LIFT STROKE_LIFT
#define CORNER STROKE_CORNER
#define END STROKE_END
#define WAY (const int8_t[])

/* clang-format off */
static const int8_t *const zero[] = {
    WAY{52,3, 24,16, 11,50, 24,84, 50,97, 77,82, 89,48, 76,15, 50,3, END},
    WAY{70,10, 40,4, 16,30, 12,66, 36,95, 68,88, 88,55, 80,22, 58,6, 38,10, END},
    WAY{38,8, 14,38, 16,76, 44,98, 76,84, 90,48, 78,14, 54,2, 30,14, END},
    NULL};
static const int8_t *const one[] = {
    WAY{50,2, 50,98, END},
    WAY{54,2, 49,50, 47,98, END},
    WAY{30,24, 52,3, CORNER, 51,50, 50,98, END},
    WAY{50,2, 51,50, 50,98, END},
    WAY{32,20, 52,3, CORNER, 52,97, LIFT, 26,97, 78,97, END},
    NULL};
static const int8_t *const two[] = {
    WAY{15,25, 30,6, 58,3, 80,18, 76,42, 52,68, 14,96, CORNER, 50,93, 88,95, END},
    WAY{18,22, 38,4, 68,8, 78,32, 60,64, 30,92, 14,88, 24,76, 48,84, 88,95, END},
    WAY{15,12, 50,4, 80,14, 74,40, 44,68, 14,95, CORNER, 88,93, END},
    WAY{22,30, 28,10, 54,3, 76,20, 68,48, 40,78, 12,90, 22,98, 46,86, 86,92, END},
    NULL};
static const int8_t *const three[] = {
    WAY{18,14, 42,3, 72,10, 74,32, 40,47, CORNER, 74,56, 82,78, 56,97, 14,88, END},
    WAY{16,5, 48,6, 82,5, CORNER, 44,42, CORNER, 78,56, 80,82, 50,98, 14,88, END},
    WAY{20,16, 46,3, 74,16, 66,40, 42,48, 56,50, 80,64, 78,88, 44,98, 16,86, END},
    WAY{24,10, 54,3, 76,18, 62,40, 36,46, CORNER, 66,50, 84,68, 70,92, 36,98, 12,82, END},
    NULL};
static const int8_t *const four[] = {
    WAY{30,4, 24,30, 16,56, CORNER, 50,57, 88,54, LIFT, 72,4, 66,50, 62,98, END},
    WAY{64,98, 64,50, 64,2, CORNER, 12,66, CORNER, 90,66, END},
    WAY{20,5, 16,38, 38,56, 72,48, LIFT, 78,4, 72,50, 68,98, END},
    WAY{34,2, 14,54, CORNER, 86,48, LIFT, 72,14, 58,98, END},
    WAY{24,8, 18,46, CORNER, 52,52, 76,44, LIFT, 80,2, 76,44, 74,98, END},
    NULL};
static const int8_t *const five[] = {
    WAY{80,4, 52,6, 24,6, CORNER, 20,44, CORNER, 50,36, 80,52, 80,82, 48,98, 12,88, END},
    WAY{28,6, 22,44, CORNER, 54,38, 82,60, 70,90, 38,98, 12,88, LIFT, 28,6, 56,6, 88,3, END},
    WAY{82,6, 46,6, 24,22, 34,42, 64,50, 80,70, 62,94, 16,94, END},
    WAY{84,5, 34,7, CORNER, 26,42, CORNER, 52,42, 74,58, 72,84, 46,97, 16,92, END},
    NULL};
static const int8_t *const six[] = {
    WAY{68,3, 36,28, 16,62, 26,92, 56,97, 80,78, 68,56, 40,56, 20,74, END},
    WAY{58,2, 30,36, 18,74, 38,97, 70,92, 78,66, 52,56, 26,68, END},
    WAY{38,2, 22,46, 20,80, 48,98, 78,84, 68,60, 38,60, 22,78, END},
    WAY{74,8, 44,14, 20,50, 20,84, 46,98, 74,88, 74,62, 48,54, 24,70, END},
    NULL};
static const int8_t *const seven[] = {
    WAY{12,8, 48,6, 86,5, CORNER, 60,48, 42,98, END},
    WAY{12,8, 48,6, 86,5, CORNER, 60,48, 42,98, LIFT, 30,52, 78,48, END},
    WAY{14,24, 15,7, CORNER, 50,7, 86,5, CORNER, 62,46, 52,98, END},
    WAY{10,14, 30,5, 84,8, CORNER, 70,34, 52,64, 46,98, END},
    NULL};
static const int8_t *const eight[] = {
    WAY{74,14, 48,3, 24,16, 32,38, 62,54, 80,76, 60,97, 30,94, 20,74, 40,52, 68,36, 76,14, END},
    WAY{50,3, 28,12, 28,36, 50,47, 72,36, 72,12, 50,3, LIFT, 50,47, 22,62, 22,88, 50,98, 78,88, 78,62, 50,47, END},
    WAY{54,48, 28,32, 32,8, 58,3, 76,20, 62,42, 34,56, 20,78, 38,97, 68,94, 78,72, 54,48, END},
    WAY{78,8, 44,4, 22,22, 44,44, 74,64, 72,92, 40,98, 20,80, 40,56, 72,34, 84,10, END},
    NULL};
static const int8_t *const nine[] = {
    WAY{74,20, 52,4, 24,14, 20,40, 44,52, 70,38, 76,16, CORNER, 74,50, 66,98, END},
    WAY{76,26, 56,4, 26,12, 20,36, 42,50, 68,40, 78,18, CORNER, 80,56, 66,92, 28,96, END},
    WAY{72,10, 40,4, 18,26, 32,48, 60,42, 74,10, CORNER, 72,50, 70,98, END},
    WAY{80,12, 50,3, 22,22, 30,46, 58,44, 80,12, CORNER, 64,56, 46,98, END},
    NULL};
/* clang-format on */

const int8_t *const *const digits_ways[10] = {zero, one, two, three, four, five, six, seven, eight, nine};
