# SPDX-License-Identifier: Apache-2.0
# page.awk PAGE - the blocks of a page that are marked as C, as one program.
BEGIN { print "#include <weft/weft.h>" }
/^```/ { code = $0 == "```c"; next }
code
