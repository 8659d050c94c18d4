# SPDX-License-Identifier: Apache-2.0
"""formula.py - the same tensors as formula.h makes."""
import numpy
import torch


def u64(key, count):
    with numpy.errstate(over="ignore"):
        z = (numpy.arange(count, dtype=numpy.uint64) + numpy.uint64(1)) * numpy.uint64(0x9E3779B97F4A7C15)
        z += numpy.uint64(key) * numpy.uint64(0xD1342543DE82EF95)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        return z ^ (z >> numpy.uint64(31))


def tensor(shape, key, factor=1.0, offset=0.0, dtype=torch.float64):
    count = int(numpy.prod(shape, dtype=numpy.int64))
    value = (u64(key, count) >> numpy.uint64(40)).astype(numpy.float64) / 8388608.0 - 1.0
    return torch.from_numpy(offset + factor * value).reshape(shape).to(dtype)


def below(shape, key, end):
    count = int(numpy.prod(shape, dtype=numpy.int64))
    return torch.from_numpy((u64(key, count) % numpy.uint64(end)).astype(numpy.int64)).reshape(shape)
