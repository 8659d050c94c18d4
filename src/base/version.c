/* SPDX-License-Identifier: Apache-2.0 */
/* version.c - the version of this library, for programs that were compiled with other headers. */
#include <weft/base.h>

#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)

const char *weft_version(void)
{
    return TEXT(WEFT_VERSION_MAJOR) "." TEXT(WEFT_VERSION_MINOR) "." TEXT(WEFT_VERSION_PATCH);
}

int weft_version_number(void)
{
    return WEFT_VERSION_NUMBER;
}
