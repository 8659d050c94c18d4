# SPDX-License-Identifier: Apache-2.0
"""Rank 1 sends an array to rank 0, which answers with its sum: weft-run -n 2 python3 hello.py"""
import numpy
import weft


@weft.function
def total(x):  # x is a weft.Tensor over the memory that arrived
    return float(x.numpy().sum())


agent = weft.init_rpc()  # rank and world size come from weft-run, mpirun or srun
if agent.rank == 1:
    numbers = numpy.arange(1_000_000.0)
    print(f"rank 1: the sum of {numbers.size} numbers is {weft.rpc_sync(0, total, (numbers,)):.0f}")
weft.shutdown()  # serves until all workers are done
