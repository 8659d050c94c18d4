# SPDX-License-Identifier: Apache-2.0
"""partner.py FOLDER - compares what file_partner.c wrote into the folder with the same formulas, and writes what it will read."""
import sys

import numpy
import safetensors_numpy as st

KINDS = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1", "U8": "u1", "BOOL": "?", "C64": "c8"}


def expected(kind):
    x = numpy.arange(6).reshape(2, 3)
    return (x % 2 if kind == "BOOL" else x - 1j * x if kind == "C64" else x).astype(KINDS[kind])


folder = sys.argv[1]
ours = st.read(folder + "/dtypes")
assert set(ours) == set(KINDS) | {"BF16", "scalar", "empty", "transposed \u00e9\""}, sorted(ours)
for kind in KINDS:
    assert ours[kind].dtype == KINDS[kind] and numpy.array_equal(ours[kind], expected(kind)), kind
assert numpy.array_equal((ours["BF16"].astype("u4") << 16).view("f4"), expected("F32"))
assert ours["scalar"].shape == () and ours["scalar"] == 2.5
assert ours["empty"].shape == (0, 4)
assert numpy.array_equal(ours["transposed \u00e9\""], expected("F32").T)

module = st.read(folder + "/module")
assert list(sorted(module)) == ["bias", "weight"] and module["weight"].shape == (2, 3)
assert numpy.array_equal(module["weight"], expected("F32"))
state = st.read(folder + "/optimizer")
assert set(state) == {f"state.{i}.{name}" for i in (0, 1) for name in ("step", "exp_avg", "exp_avg_sq")}, sorted(state)
assert state["state.0.step"] == 1 and state["state.0.exp_avg"].shape == (2, 3)

st.write(folder + "/python_dtypes", {kind: expected(kind) for kind in KINDS})
st.write(folder + "/python_module", {"weight": 2 * module["weight"], "bias": numpy.ones(2, "f4")})
st.write(folder + "/python_optimizer", {name: x + numpy.ones_like(x) for name, x in state.items()})
