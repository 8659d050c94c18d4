#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""half_oracle.py - PyTorch's conversions of float16 and bfloat16 as checksums: the table in tests/tensor/test_tensor_dtypes.c.

usage: tests/oracle/half_oracle.py      needs python3-torch; tests do not run it

A line has a dtype and three checksums of bits: of all 65,536 values as float32; of 2^20 float32 of random bits rounded to the dtype; and
of 2^20 whose exponents lie around those of float16. All NaNs count as one, as their payloads are each implementation's own.
"""
import numpy
import torch

COUNT = 1 << 20
MASK = (1 << 64) - 1
KEYS = {"any": 1, "near": 2}


def mix(key):
    """formula.h's numbers."""
    index = numpy.arange(COUNT, dtype=numpy.uint64)
    with numpy.errstate(over="ignore"):
        z = (index + numpy.uint64(1)) * numpy.uint64(0x9E3779B97F4A7C15)
        z += numpy.uint64(key * 0xD1342543DE82EF95 & MASK)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


def samples(kind):
    bits = mix(KEYS[kind])
    words = (bits >> numpy.uint64(32)).astype(numpy.uint32)
    if kind == "near":  # sign and fraction of the word; exponents from 2^-27 to 2^17
        exponent = ((bits & numpy.uint64(0xFFFF)) % numpy.uint64(45)).astype(numpy.uint32) + numpy.uint32(127 - 27)
        words = (words & numpy.uint32(0x807FFFFF)) | (exponent << numpy.uint32(23))
    return torch.from_numpy(words.view(numpy.float32))


def checksum(words):
    h = 0xCBF29CE484222325
    for word in words.tolist():
        h = (h ^ word) * 0x100000001B3 & MASK
    return f"0x{h:016x}"


def of_floats(x):
    words = x.numpy().view(numpy.uint32).copy()
    words[torch.isnan(x).numpy()] = 0x7FC00000
    return checksum(words)


def of_halves(x):
    words = x.view(torch.int16).numpy().view(numpy.uint16).copy()
    words[torch.isnan(x).numpy()] = 0x7FFF
    return checksum(words)


for name, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16)):
    every = torch.from_numpy(numpy.arange(65536, dtype=numpy.uint16).view(numpy.int16)).view(dtype)
    print(name, of_floats(every.float()), *(of_halves(samples(kind).to(dtype)) for kind in KEYS))
