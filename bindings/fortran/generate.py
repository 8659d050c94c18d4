#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""generate.py - makes the Fortran module weft: weft.f90.in, with the procedures for each kind and rank of arrays.

usage: generate.py weft.f90.in OUT.f90
"""
import sys

KINDS = {  # suffix: (Fortran type, number in weft_dtype)
    "r32": ("real(real32)", 0),
    "r64": ("real(real64)", 1),
    "i64": ("integer(int64)", 2),
    "i32": ("integer(int32)", 3),
    "l8": ("logical(c_bool)", 5),
    "i8": ("integer(int8)", 8),
    "i16": ("integer(int16)", 9),
    "c32": ("complex(real32)", 10),
    "c64": ("complex(real64)", 11),
}
RANKS = range(8)

WRAP = """\
  function {name}_{kind}_{rank}(array) result(view)
    {type}, intent({intent}), target :: array{colons}
    type(weft_array) :: view
    integer(int64) :: steps({most})
{steps}    call wrap(view, {dtype}_c_int, {shape}, steps, {address}, {copy})
  end function
"""
POINT = """\
  subroutine point_{where}_{kind}_{rank}(from, index, pointer, stat, errmsg)
    type({from_type}), intent(in) :: from
    integer, intent(in) :: index
    {type}, pointer, intent(out) :: pointer{colons}
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(int64) :: sizes({most})
    type(c_ptr) :: memory
    call find_memory({list}, {call}, index, {dtype}_c_int, {rank}_c_int, sizes, memory, stat, errmsg)
    nullify(pointer)
    if (c_associated(memory)) call c_f_pointer(memory, pointer{shape})
  end subroutine
"""


GET = """\
  subroutine get_{what}_{where}(from, index, {value}, stat, errmsg)
    type({from_type}), intent(in) :: from
    integer, intent(in) :: index
    {declaration}
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(kind=c_char) :: why(TEXT)
    integer(c_int) :: status
{body}    call finish(status, why, stat, errmsg)
  end subroutine
"""
CALL = "    status = weft_f_{c}({list}, {call}, int(index - 1, c_size_t), {to}, why)\n"
GETTERS = {  # what: (declaration, C function, local variable, conversion)
    "i32": ("integer(int32), intent(inout) :: value", "get_i64", "integer(int64) :: got", "int(got, int32)"),
    "i64": ("integer(int64), intent(inout) :: value", "get_i64", "integer(int64) :: got", "got"),
    "r32": ("real(real32), intent(inout) :: value", "get_f64", "real(real64) :: got", "real(got, real32)"),
    "r64": ("real(real64), intent(inout) :: value", "get_f64", "real(real64) :: got", "got"),
    "logical": ("logical, intent(inout) :: value", "get_bool", "integer(c_int) :: got", "got /= 0"),
    "rref": ("type(weft_rref), intent(inout) :: value", "get_rref", "type(c_ptr) :: got", "weft_rref(got)"),
    "list": ("type(weft_list), intent(inout) :: value", "get_list", "type(c_ptr) :: got", "weft_list(got)"),
}
OPERATION = """\
  ! {told}
  subroutine weft_{name}(group{arguments}, timeout_ms, future, stat, errmsg)
    type(weft_group), intent(in) :: group
{declarations}    integer, intent(in), optional :: timeout_ms
    type(weft_future), intent(out), optional :: future
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call operate({number}, group{passed}, timeout_ms=timeout_ms, future=future, stat=stat, errmsg=errmsg)
  end subroutine
"""
ARRAY = "    type(weft_array), intent(in){optional} :: {name}\n"
OPERATIONS = (  # in the order of operate() in weft_fortran.c
    ("barrier", "Completes when every member has called it.", ()),
    ("allreduce", "Sets the array, on every member, to the reduction of all: op is sum, avg, min, max or prod.", ("array", "op")),
    ("reduce", "The same, on the member with the index root only.", ("array", "op", "root")),
    ("broadcast", "Sets the array, on every member, to that of the member root.", ("array", "root")),
    ("send", "The n-th send to a member goes to its n-th recv from this one.", ("array", "to")),
    ("recv", "Receives what the member source sent.", ("array", "source")),
    ("allgather", "Sets out to the arrays of all members, one after another.", ("array", "out")),
    ("gather", "allgather, on the member root only; the others give no out.", ("array", "out?", "root")),
    ("scatter", "Sets out, on member i, to part i of the array of the member root; the others give no array.",
     ("array?", "out", "root")),
    ("all_to_all", "Sets part j of out, on member i, to part i of the array of member j.", ("array", "out")),
    ("reduce_scatter", "Sets out to this member's part of the reduction of all arrays.", ("array", "out", "op")),
)


def getter(what, where):
    from_type, list_, call = {"list": ("weft_list", "from%p", "c_null_ptr"), "call": ("weft_call", "c_null_ptr", "from%p")}[where]
    if what == "text":
        return GET.format(what=what, where=where, value="value", from_type=from_type,
                          declaration="character(:), allocatable, intent(out) :: value",
                          body=f"    call read_text({list_}, {call}, index, value, stat, errmsg)\n").replace(
            "    character(kind=c_char) :: why(TEXT)\n    integer(c_int) :: status\n", "").replace(
            "    call finish(status, why, stat, errmsg)\n", "")
    if what == "array":
        body = "    if (is_bad(array, stat, errmsg)) return\n" + CALL.format(c="copy", list=list_, call=call, to="array%p")
        return GET.format(what=what, where=where, value="array", from_type=from_type, declaration="type(weft_array), intent(in) :: array",
                          body=body)
    declaration, c, local, converted = GETTERS[what]
    body = CALL.format(c=c, list=list_, call=call, to="got")
    if what == "i32":
        body += "    if (status == 0 .and. abs(real(got, real64)) > huge(value)) call not_int32(got, status, why)\n"
    body += f"    if (status == 0) value = {converted}\n"
    text = GET.format(what=what, where=where, value="value", from_type=from_type, declaration=declaration, body=body)
    return text.replace("    integer(c_int) :: status\n", f"    integer(c_int) :: status\n    {local}\n")


def operation(number, name, told, arguments):
    names = [one.rstrip("?") for one in arguments]
    names.sort(key=lambda one: one == "op")  # last, so that call weft_reduce(group, x, root) needs no op
    declarations, passed = "", ""
    for one in arguments:
        word = one.rstrip("?")
        if word in ("array", "out"):
            declarations += ARRAY.format(name=word, optional=", optional" if one.endswith("?") else "")
            passed += f", {'in' if word == 'array' else 'out'}={word}"
        elif word == "op":
            declarations += "    character(*), intent(in), optional :: op\n"
            passed += ", op=op"
        else:
            declarations += f"    integer, intent(in) :: {word}\n"
            passed += f", root={word}"
    return OPERATION.format(number=number, name=name, told=told, arguments="".join(f", {one}" for one in names), declarations=declarations,
                            passed=passed)


def element(rank, dim=None):
    """The first element of an array, or its neighbor along `dim`: an assumed-shape array begins at 1."""
    return f"array({', '.join('2' if i == dim else '1' for i in range(1, rank + 1))})"


def wrap(name, intent, kind, rank):
    type_, dtype = KINDS[kind]
    colons = f"({', '.join(':' * rank)})" if rank else ""
    steps = ""
    for dim in range(1, rank + 1):
        steps += f"    steps({dim}) = 0\n    if (size(array, kind=int64) > 0 .and. size(array, {dim}, int64) > 1) &\n"
        steps += f"      steps({dim}) = distance(c_loc({element(rank)}), c_loc({element(rank, dim)}))\n"
    if rank == 0:
        steps = "    steps = 0\n"
    shape = "shape(array, int64)" if rank else "[integer(int64) ::]"
    if rank:  # an array without elements has no first one
        address = "first"
        steps += f"    first = c_null_ptr\n    if (size(array, kind=int64) > 0) first = c_loc({element(rank)})\n"
    else:
        address = "c_loc(array)"
    text = WRAP.format(name=name, intent=intent, kind=kind, rank=rank, type=type_, dtype=dtype, colons=colons, steps=steps, shape=shape,
                       address=address, most=max(rank, 1),
                       copy=".true." if name == "copy" else ".false.")
    return text.replace("    integer(int64) :: steps", "    type(c_ptr) :: first\n    integer(int64) :: steps") if rank else text


def point(where, kind, rank):
    type_, dtype = KINDS[kind]
    from_type, list_, call = {"list": ("weft_list", "from%p", "c_null_ptr"), "call": ("weft_call", "c_null_ptr", "from%p")}[where]
    colons = f"({', '.join(':' * rank)})" if rank else ""
    shape = f", sizes({rank}:1:-1)" if rank else ""
    return POINT.format(where=where, kind=kind, rank=rank, type=type_, dtype=dtype, from_type=from_type, list=list_, call=call, colons=colons,
                        shape=shape, most=max(rank, 1))


def interface(generic, names):
    return f"  interface {generic}\n    module procedure " + ", &\n      ".join(names) + "\n  end interface\n"


def main(template, out):
    all_ = [(kind, rank) for kind in KINDS for rank in RANKS]
    interfaces = interface("weft_of", [f"of_{k}_{r}" for k, r in all_]) + interface("weft_input", [f"input_{k}_{r}" for k, r in all_])
    interfaces += interface("weft_copy", [f"copy_{k}_{r}" for k, r in all_])
    interfaces += interface("weft_point", [f"point_{w}_{k}_{r}" for w in ("list", "call") for k, r in all_])
    body = [wrap("of", "inout", *one) for one in all_] + [wrap("input", "in", *one) for one in all_]
    body += [wrap("copy", "in", *one) for one in all_]
    body += [point(where, *one) for where in ("list", "call") for one in all_]
    getters = [getter(what, where) for what in (*GETTERS, "text", "array") for where in ("list", "call")]
    operations = [operation(number, *one) for number, one in enumerate(OPERATIONS)]
    with open(template, encoding="ascii") as file:
        text = file.read()
    text = text.replace("  ! @getters@\n", "\n".join(getters) + "\n").replace("  ! @operations@\n", "\n".join(operations) + "\n")
    with open(out, "w", encoding="ascii") as file:
        file.write(text.replace("  ! @interfaces@\n", interfaces).replace("  ! @procedures@\n", "\n".join(body)))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
