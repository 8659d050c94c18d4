#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""sequence_oracle.py - embedding, embedding_bag and LSTM by PyTorch in float64, on tensors from formula.py.

usage: tests/oracle/sequence_oracle.py > tests/data/sequence_cases.txt      needs python3-torch; tests do not run it

A case begins with "case KIND", ends with "end"; between them each line is a field: NAME COUNT VALUES. What a field means stands in
tests/autograd/test_autograd_embedding.c, test_autograd_lstm.c and tests/nn/test_nn_sequence.c; gradients are those of sum(result * weights), weights from
keys 77 (and 78, 79 for h_n and c_n).
"""
import torch
import torch.nn.functional as F

import formula

WEIGHTS_KEY = 77


def field(name, values):
    if isinstance(values, torch.Tensor):
        values = values.detach().reshape(-1).tolist()
    print(name, len(values), *[f"{v:.17g}" if isinstance(v, float) else int(v) for v in values])


def embedding(rows, width, shape, padding):
    print("case embedding")
    weight = formula.tensor((rows, width), 1).requires_grad_()
    index = formula.below(shape, 5, rows)
    y = F.embedding(index, weight, padding_idx=padding)
    y.backward(formula.tensor(y.shape, WEIGHTS_KEY))
    field("table", [rows, width])
    field("shape", list(shape))
    field("index", index)
    field("padding", [] if padding is None else [padding])
    field("out", y)
    field("grad", weight.grad)
    print("end")


def bag(rows, width, shape, mode, offsets=None, padding=None, scaled=False, scale_wanted=True):
    print("case bag")
    weight = formula.tensor((rows, width), 1).requires_grad_()
    index = formula.below(shape, 6, rows)
    scale = formula.tensor(shape, 2).requires_grad_(scale_wanted) if scaled else None
    where = None if offsets is None else torch.tensor(offsets)
    y = F.embedding_bag(index, weight, where, mode=mode, per_sample_weights=scale, padding_idx=padding)
    y.backward(formula.tensor(y.shape, WEIGHTS_KEY))
    field("table", [rows, width])
    field("shape", list(shape))
    field("index", index)
    field("mode", [["mean", "sum", "max"].index(mode)])
    field("padding", [] if padding is None else [padding])
    if offsets is not None:
        field("offsets", offsets)
    field("out", y)
    field("grad", weight.grad)
    if scaled:
        field("scale_grad", scale.grad if scale_wanted else [])
    print("end")


def embeddings():
    for rows, width, shape in [(7, 3, (5,)), (7, 3, (2, 4)), (1, 1, (3,)), (11, 20, (4, 2, 3)), (5, 70, (6,)), (5, 4, ())]:
        embedding(rows, width, shape, None)
    embedding(4, 3, (9,), 2)
    embedding(4, 3, (9,), -1)


def bags():
    for mode in ("mean", "sum", "max"):
        bag(7, 3, (4, 5), mode)
        bag(9, 20, (3, 1), mode)
        bag(3, 70, (2, 9), mode)
        bag(7, 5, (10,), mode, offsets=[0, 4, 4, 5, 10])
        bag(7, 5, (6,), mode, offsets=[0])
        bag(5, 4, (12,), mode, offsets=[0, 3, 9], padding=2)
        bag(3, 4, (4, 6), mode, padding=-1)
    bag(7, 5, (3, 4), "sum", scaled=True)
    bag(7, 18, (10,), "sum", offsets=[0, 4, 4, 10], scaled=True)
    bag(4, 5, (10,), "sum", offsets=[0, 4, 4, 10], scaled=True, padding=1)
    bag(4, 5, (3, 4), "sum", scaled=True, scale_wanted=False)


def lstm(steps, batch, inputs, hidden, layers=1, batch_first=False, bias=True, state=True, uses=7):
    """`uses`: whether the loss has y (1), h_n (2), c_n (4)."""
    print("case lstm")
    shape = (batch, steps, inputs) if batch_first else (steps, batch, inputs)
    net = torch.nn.LSTM(inputs, hidden, layers, bias=bias, batch_first=batch_first).double()
    for number, p in enumerate(net.parameters()):
        p.data.copy_(formula.tensor(p.shape, 10 + number, 0.5))
    x = formula.tensor(shape, 1).requires_grad_()
    start = [formula.tensor((layers, batch, hidden), key).requires_grad_() for key in (2, 3)] if state else []
    y, (h_n, c_n) = net(x, tuple(start) if state else None)
    loss = sum((t * formula.tensor(t.shape, WEIGHTS_KEY + i)).sum() for i, t in enumerate((y, h_n, c_n)) if uses >> i & 1)
    loss.backward()
    field("x", list(shape))
    field("hidden", [hidden])
    field("layers", [layers])
    field("batch_first", [batch_first])
    field("bias", [bias])
    field("state", [state])
    field("uses", [uses])
    for name, t in (("y", y), ("h_n", h_n), ("c_n", c_n), ("dx", x.grad)):
        field(name, t)
    for name, t in zip(("dh0", "dc0"), start):
        field(name, t.grad)
    for number, p in enumerate(net.parameters()):
        field(f"dw{number}", p.grad)
    print("end")


def lstms():
    lstm(5, 3, 4, 6)
    lstm(1, 1, 1, 1)
    lstm(4, 2, 3, 5, layers=3)
    lstm(4, 2, 3, 5, layers=2, batch_first=True)
    lstm(4, 2, 3, 5, layers=2, bias=False)
    lstm(4, 2, 3, 5, state=False)
    lstm(4, 2, 3, 5, layers=2, state=False, batch_first=True, bias=False)
    for uses in (1, 2, 4):
        lstm(3, 2, 3, 4, layers=2, uses=uses)
    lstm(3, 4, 20, 33)


def train():
    """20 steps of a small language model by SGD; padding, dropout 0. Parameter k is formula key 30 + k, times 0.5."""
    print("case train")
    rows, width, hidden, layers, steps, batch = 30, 12, 16, 2, 9, 4
    net = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(rows, width, padding_idx=0),
                               "lstm": torch.nn.LSTM(width, hidden, layers), "linear": torch.nn.Linear(hidden, rows)}).double()
    for number, p in enumerate(net.parameters()):
        p.data.copy_(formula.tensor(p.shape, 30 + number, 0.5))
    net["embedding"].weight.data[0] = 0
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    losses = []
    for step in range(20):
        text = formula.below((steps + 1, batch), 60 + step % 4, rows)
        optimizer.zero_grad(set_to_none=True)
        y, _ = net["lstm"](net["embedding"](text[:-1]))
        loss = F.cross_entropy(net["linear"](y).reshape(-1, rows), text[1:].reshape(-1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    field("sizes", [rows, width, hidden, layers, steps, batch])
    field("losses", losses)
    print("end")


embeddings()
bags()
lstms()
train()
