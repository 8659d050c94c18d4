#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""optim_oracle.py - where PyTorch's optimizers take parameters in 20 steps, and the state that they keep: AdamW, Adagrad, RMSprop, Rprop, Adadelta, Adamax, maximize,
clipping by global norm, steps without a gradient, and sparse gradients (SGD, SparseAdam, Adagrad).

usage: tests/oracle/optim_oracle.py > tests/data/optim_cases.txt      needs python3-torch; tests do not run it

Three lines a case:
    KIND sparse=0 max_norm=0 option=value ...     (what is not named is the default of weft/optim.h)
    all elements of both parameters after steps 1, 2 and 20
    what is in the state at the end: PARAMETER NAME COUNT VALUES ..., over and over
Parameters and gradients come from formula.py: keys 1, 2 and 100 + 2 step + parameter; gradients shrink to a tenth after step 4.
In sparse cases the rows have keys 1000 + 2 step + parameter; there are more of them than the parameter has. Parameter k has no gradient in
step s where (s + k) % 5 == 3. After step 10 the rate halves.
"""
import torch

import formula

STEPS = 20
DENSE = [(7,), (2, 3)]
SPARSE = [(9, 4), (6,)]
SPARSE_ROWS = 11
KINDS = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "sparse_adam": torch.optim.SparseAdam,
    "rmsprop": torch.optim.RMSprop,
    "rprop": torch.optim.Rprop,
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
}


def gradient(shape, step, k, sparse):
    if (step + k) % 5 == 3:
        return None
    factor = 0.1 if step > 4 else 1.0
    if not sparse:
        return formula.tensor(shape, 100 + 2 * step + k, factor)
    rows = formula.below((SPARSE_ROWS,), 1000 + 2 * step + k, shape[0])
    values = formula.tensor((SPARSE_ROWS,) + shape[1:], 100 + 2 * step + k, factor)
    return torch.sparse_coo_tensor(rows[None], values, shape).coalesce()


def clip(parameters, max_norm):
    """clip_grad_norm_, of sparse gradients too."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    values = [g._values() if g.is_sparse else g for g in gradients]
    norm = torch.sqrt(sum((v * v).sum() for v in values))
    for v in values:
        v.mul_(min(1.0, max_norm / (float(norm) + 1e-6)))


def arguments(kind, options):
    given = dict(options)
    if "beta1" in given:
        given["betas"] = (given.pop("beta1"), given.pop("beta2"))
    if "eta_minus" in given:
        given["etas"] = (given.pop("eta_minus"), given.pop("eta_plus"))
        given["step_sizes"] = (given.pop("step_min"), given.pop("step_max"))
    if "lr" not in given and kind in ("sgd", "adam", "adamw", "adagrad"):
        given["lr"] = 1e-2 if kind == "adagrad" else 1e-3
    if kind == "adamw":
        given.setdefault("weight_decay", 0)
    return given


def numbers(tensor):
    return [f"{float(v):.17g}" for v in tensor.reshape(-1).tolist()]


def state_words(optimizer, parameters):
    words = []
    for k, p in enumerate(parameters):
        for name, value in optimizer.state[p].items():
            if value is None:
                continue
            values = numbers(torch.as_tensor(value, dtype=torch.float64))
            words += [str(k), name, str(len(values))] + values
    return words


def run(kind, sparse=0, max_norm=0, **options):
    shapes = SPARSE if sparse else DENSE
    parameters = [formula.tensor(shape, 1 + k) for k, shape in enumerate(shapes)]
    given = arguments(kind, options)
    optimizer = KINDS["sparse_adam" if sparse and kind == "adam" else kind](parameters, **given)
    words = []
    for step in range(STEPS):
        for k, p in enumerate(parameters):
            p.grad = gradient(shapes[k], step, k, sparse)
        if max_norm:
            clip(parameters, max_norm)
        optimizer.step()
        if step == 10:
            optimizer.param_groups[0]["lr"] /= 2
        if step in (0, 1, STEPS - 1):
            words += [word for p in parameters for word in numbers(p)]
    print(kind, f"sparse={sparse}", f"max_norm={max_norm}", *(f"{k}={v + 0}" for k, v in options.items()))
    print(*words)
    print(*state_words(optimizer, parameters))


for amsgrad in (False, True):
    for decay in (0, 0.01, 0.3):
        run("adamw", weight_decay=decay, amsgrad=amsgrad)
        run("adamw", lr=1e-2, beta1=0.8, beta2=0.9, eps=1e-4, weight_decay=decay, amsgrad=amsgrad)
for lr_decay in (0, 0.1):
    for decay in (0, 0.01):
        run("adagrad", lr_decay=lr_decay, weight_decay=decay)
        run("adagrad", lr=0.2, lr_decay=lr_decay, eps=1e-3, weight_decay=decay, initial_accumulator_value=0.5)
for momentum in (0, 0.9):
    run("sgd", lr=0.05, momentum=momentum, weight_decay=0.01, maximize=True)
    run("sgd", lr=0.05, momentum=momentum, max_norm=0.5)
    run("sgd", lr=0.05, momentum=momentum, dampening=0.5 if momentum else 0)
for kind in ("adam", "adamw", "adagrad"):
    run(kind, lr=1e-2, weight_decay=0.01, maximize=True)
    run(kind, lr=1e-2, max_norm=0.5)
    run(kind, lr=1e-2, max_norm=100, weight_decay=0.01)
for max_norm in (0, 1.5):
    run("sgd", sparse=1, lr=0.05, max_norm=max_norm)
    run("sgd", sparse=1, lr=0.05, maximize=True, max_norm=max_norm)
    run("adam", sparse=1, max_norm=max_norm)
    run("adam", sparse=1, lr=0.05, beta1=0.8, beta2=0.9, eps=1e-2, max_norm=max_norm)
    run("adagrad", sparse=1, max_norm=max_norm)
    run("adagrad", sparse=1, lr=0.1, lr_decay=0.05, initial_accumulator_value=0.1, maximize=True, max_norm=max_norm)
for momentum in (0, 0.9):
    for centered in (False, True):
        run("rmsprop", momentum=momentum, centered=centered)
        run("rmsprop", lr=0.05, alpha=0.8, eps=1e-2, weight_decay=0.01, momentum=momentum, centered=centered, maximize=True)
run("rprop")
run("rprop", lr=0.05, eta_minus=0.4, eta_plus=1.5, step_min=1e-3, step_max=0.06, maximize=True)
for kind in ("adadelta", "adamax"):
    run(kind)
    run(kind, lr=0.05, max_norm=0.5)
run("adadelta", lr=0.5, rho=0.8, eps=1e-3, weight_decay=0.01, maximize=True)
run("adamax", lr=0.05, beta1=0.8, beta2=0.9, eps=1e-2, weight_decay=0.01, maximize=True)
