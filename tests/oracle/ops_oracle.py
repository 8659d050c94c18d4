#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""ops_oracle.py - values and gradients of every operator by PyTorch in float64, on inputs from formula.py.

usage: tests/oracle/ops_oracle.py > tests/data/ops_cases.txt      needs python3-torch; tests do not run it

A case is these lines, all words apart by blanks (a shape is "2x3", or "-" for a scalar):
  case NAME OPERATOR
  in KIND SHAPE KEY FACTOR OFFSET   kind f: a leaf; c: a constant; i: int64 in [OFFSET, OFFSET + FACTOR)
  opt COUNT VALUES                  the operator's options, in its order
  out SHAPE VALUES
  grad INPUT VALUES                 of sum(out * weights), weights from key 77; one line a leaf
  after INPUT VALUES                what a constant holds afterwards, where the operator changes it
  end
"""
import sys

import torch
import torch.nn.functional as F

import formula

WEIGHTS_KEY = 77
counter = 0


def f(*shape, factor=1, offset=0):
    return ["f", shape, factor, offset]


def c(*shape, factor=1, offset=0):
    return ["c", shape, factor, offset]


def i(*shape, end=5, start=0):
    return ["i", shape, end, start]


def text(shape):
    return "x".join(map(str, shape)) if len(shape) else "-"


def numbers(t):
    t = t.detach().reshape(-1)
    return " ".join(f"{v:.17g}" if t.dtype.is_floating_point else str(v) for v in t.tolist())


def make(spec):
    global counter
    kind, shape, factor, offset = spec
    counter += 1
    print("in", kind, text(shape), counter, factor, offset)
    if kind == "i":
        return formula.below(shape, counter, factor) + offset
    return formula.tensor(shape, counter, factor, offset).requires_grad_(kind == "f")


def case(name, operator, fn, inputs, *options):
    print("case", name, operator)
    tensors = [make(spec) for spec in inputs]
    before = [t.detach().clone() for t in tensors]
    if options:
        print("opt", len(options), *[f"{float(o):.17g}" for o in options])
    y = fn(*tensors)
    print("out", text(y.shape), numbers(y))
    if y.requires_grad:
        y.backward(formula.tensor(y.shape, WEIGHTS_KEY))
    for index, t in enumerate(tensors):
        if t.requires_grad and y.requires_grad:
            print("grad", index, numbers(t.grad if t.grad is not None else torch.zeros_like(t)))
        elif not torch.equal(t.detach(), before[index]):
            print("after", index, numbers(t))
    print("end")


def elementwise():
    shapes = {
        "same": [(2, 3), (2, 3)], "row": [(2, 3), (3,)], "column": [(3, 4), (3, 1)], "both": [(2, 1, 3), (4, 1)],
        "scalar": [(2, 3), ()], "scalars": [(), ()], "first": [(1,), (5,)], "empty": [(0, 3), (3,)],
        "five": [(2, 1, 2, 1, 3), (2, 1, 3, 1)], "long": [(37,), (37,)],
    }
    functions = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}
    for op, fn in functions.items():
        for name, (a, b) in shapes.items():
            case(f"{op}_{name}", op, fn, [f(*a), f(*b, offset=3 if op == "div" else 0)])
        case(f"{op}_constant", op, fn, [f(2, 3), c(2, 3, offset=2)])
        whole = (lambda a, b: torch.div(a, b, rounding_mode="trunc")) if op == "div" else fn
        case(f"{op}_integers", op, whole, [i(3, 4, end=100, start=-50), i(4, end=9, start=1)])
    for op, fn, offset in [("neg", torch.neg, 0), ("exp", torch.exp, 0), ("log", torch.log, 1.5),
                           ("relu", torch.relu, 0)]:
        for shape in [(), (7,), (2, 3, 4), (0,), (65,)]:
            case(f"{op}_{text(shape)}", op, fn, [f(*shape, offset=offset)])
    case("relu_at_zero", "relu", torch.relu, [f(4, factor=0)])
    case("exp_large", "exp", torch.exp, [f(9, factor=20)])
    for factor in (-2.5, 0, 1e3):
        case(f"scale_{factor}", "scale", lambda x: x * factor, [f(3, 5)], factor)
        case(f"add_scalar_{factor}", "add_scalar", lambda x: x + factor, [f(3, 5)], factor)


def products():
    for m, k, l in [(3, 4, 2), (1, 1, 1), (1, 7, 5), (5, 7, 1), (17, 33, 9), (0, 3, 2), (2, 3, 0)]:
        case(f"matmul_{m}x{k}x{l}", "matmul", torch.matmul, [f(m, k), f(k, l)])
    for shape in [(3, 4), (2, 3, 4), (4,), (1, 4), (0, 4), (33, 4)]:
        case(f"linear_{text(shape)}", "linear", F.linear, [f(*shape), f(5, 4), f(5)])
        case(f"linear_plain_{text(shape)}", "linear", F.linear, [f(*shape), f(2, 4)])
    case("linear_constant_input", "linear", F.linear, [c(3, 4), f(5, 4), f(5)])
    case("linear_frozen_weight", "linear", F.linear, [f(3, 4), c(5, 4), f(5)])


def conv(name, x, weight, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1, bias=True, kinds=(f, f, f)):
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    inputs = [kinds[0](*x), kinds[1](*weight)] + ([kinds[2](weight[0])] if bias else [])
    case(f"conv2d_{name}", "conv2d", lambda *a: F.conv2d(*a, **how), inputs, *stride, *padding, *dilation, groups)


def convolutions():
    conv("plain", (2, 2, 5, 6), (3, 2, 3, 2))
    conv("no_bias", (2, 2, 5, 5), (3, 2, 3, 3), bias=False)
    conv("batch_of_one", (1, 3, 7, 7), (4, 3, 3, 3), padding=(1, 1))
    conv("one_by_one", (2, 4, 3, 3), (5, 4, 1, 1))
    conv("one_by_one_strided", (2, 4, 5, 4), (5, 4, 1, 1), stride=(2, 2))
    conv("strided", (2, 2, 7, 8), (3, 2, 3, 3), stride=(2, 3), padding=(1, 2))
    conv("rows_left_over", (1, 1, 8, 8), (2, 1, 3, 3), stride=(3, 3))
    conv("dilated", (1, 2, 9, 8), (2, 2, 3, 2), dilation=(2, 3))
    conv("all_options", (2, 4, 8, 9), (6, 2, 3, 3), (2, 1), (1, 2), (1, 2), 2)
    conv("depthwise", (2, 4, 5, 5), (4, 1, 3, 3), padding=(1, 1), groups=4)
    conv("depthwise_times_two", (1, 3, 5, 5), (6, 1, 3, 3), groups=3)
    conv("seven_by_seven", (1, 3, 12, 12), (4, 3, 7, 7), (2, 2), (3, 3), bias=False)
    conv("one_row_kernel", (1, 2, 4, 6), (2, 2, 1, 5), padding=(0, 2))
    conv("kernel_as_large_as_input", (2, 2, 3, 3), (2, 2, 3, 3))
    conv("padding_wider_than_input", (1, 1, 2, 2), (2, 1, 3, 3), padding=(3, 3))
    conv("sixteen_channels", (2, 16, 4, 4), (16, 16, 3, 3), padding=(1, 1))
    conv("constant_input", (2, 2, 5, 5), (3, 2, 3, 3), kinds=(c, f, f))
    conv("frozen_weight", (2, 2, 5, 5), (3, 2, 3, 3), kinds=(f, c, f))
    conv("bias_alone", (2, 2, 5, 5), (3, 2, 3, 3), kinds=(c, c, f))
    conv("no_batch", (0, 2, 5, 5), (3, 2, 3, 3))


def norm(name, x, train, momentum=0.0, eps=0.0, affine=True, running=True):
    channels = x[1]
    inputs = [f(*x, offset=0.5)] + ([f(channels, offset=1), f(channels)] if affine else [])
    inputs += [c(channels), c(channels, factor=0.5, offset=1)] if running else []

    def run(x, *rest):
        w, b = rest[:2] if affine else (None, None)
        m, v = rest[-2:] if running else (None, None)
        return F.batch_norm(x, m, v, w, b, train, momentum or 0.1, eps or 1e-5)

    case(f"batch_norm2d_{name}", "batch_norm2d", run, inputs, train, momentum, eps, affine, running)


def norms_and_pools():
    for train in (True, False):
        mode = "train" if train else "eval"
        norm(f"{mode}", (2, 3, 4, 5), train)
        norm(f"{mode}_bare", (3, 2, 1, 2), train, affine=False)
        norm(f"{mode}_one_channel", (1, 1, 3, 3), train)
        norm(f"{mode}_options", (4, 3, 2, 2), train, momentum=0.25, eps=1e-2)
        norm(f"{mode}_wide", (2, 33, 3, 3), train)
    norm("train_without_running", (2, 3, 2, 2), True, running=False)
    norm("train_momentum_one", (2, 2, 2, 2), True, momentum=1.0)
    pools = [("two", (2, 2, 6, 4), (2, 2), (2, 2), (0, 0)), ("left_over", (2, 2, 5, 7), (2, 2), (2, 2), (0, 0)),
             ("overlapping", (1, 2, 7, 8), (3, 3), (2, 2), (1, 1)), ("odd", (1, 3, 5, 6), (3, 2), (2, 1), (1, 1)),
             ("every_place", (1, 1, 4, 4), (2, 3), (1, 1), (0, 1)), ("gaps", (1, 2, 7, 7), (2, 2), (3, 3), (0, 0)),
             ("one", (2, 2, 3, 3), (1, 1), (1, 1), (0, 0)), ("whole", (2, 2, 3, 4), (3, 4), (3, 4), (0, 0)),
             ("no_batch", (0, 2, 4, 4), (2, 2), (2, 2), (0, 0))]
    for name, x, k, s, p in pools:
        case(f"max_pool2d_{name}", "max_pool2d", lambda x: F.max_pool2d(x, k, s, p), [f(*x)], *k, *s, *p)
    case("max_pool2d_default_stride", "max_pool2d", lambda x: F.max_pool2d(x, (2, 3)), [f(1, 2, 5, 6)], 2, 3, 0, 0, 0, 0)
    case("max_pool2d_ties", "max_pool2d", lambda x: F.max_pool2d(x, 3, 2, 1), [f(1, 2, 5, 5, factor=0)], 3, 3, 2, 2, 1, 1)
    case("max_pool2d_negative", "max_pool2d", lambda x: F.max_pool2d(x, 3, 2, 1), [f(1, 2, 5, 5, offset=-3)], 3, 3, 2, 2,
         1, 1)
    for x, size in [((2, 3, 4, 6), (1, 1)), ((2, 2, 5, 7), (2, 3)), ((1, 2, 3, 3), (5, 4)), ((1, 1, 7, 7), (7, 7)),
                    ((2, 2, 1, 1), (1, 1)), ((0, 2, 4, 4), (1, 1)), ((1, 2, 10, 9), (4, 4))]:
        case(f"adaptive_avg_pool2d_{text(x)}_to_{text(size)}", "adaptive_avg_pool2d",
             lambda x: F.adaptive_avg_pool2d(x, size), [f(*x)], *size)
    for op in ("dropout", "dropout2d"):
        case(f"{op}_eval", op, lambda x: x * 1.0, [f(2, 3, 2)], 0.5, 0)
        case(f"{op}_rate_zero", op, lambda x: x * 1.0, [f(2, 3, 2)], 0, 1)


def shapes():
    for shape, dim in [((2, 3, 2), 1), ((2, 3, 2), 0), ((2, 3, 2), -1), ((2, 3, 2), -2), ((5,), 0), ((0, 3, 2), 1)]:
        case(f"flatten_{text(shape)}_{dim}", "flatten", lambda x: torch.flatten(x, dim), [f(*shape)], dim)
    case("flatten_scalar", "flatten", lambda x: torch.flatten(x), [f()], 0)
    for shape, to in [((2, 6), (4, -1)), ((2, 6), (12,)), ((4,), (1, 2, 1, 2)), ((1, 1), ()), ((0, 3), (3, 0))]:
        case(f"reshape_{text(shape)}_{text(to)}", "reshape", lambda x: x.reshape(to), [f(*shape)], *to)
    for shape, a, b in [((2, 3), 0, 1), ((2, 3, 4), 0, -1), ((2, 3, 4), 1, 1), ((2, 0, 3), 0, 1)]:
        case(f"transpose_{text(shape)}_{a}_{b}", "transpose", lambda x: x.transpose(a, b), [f(*shape)], a, b)
    for shape, dim, start, length in [((2, 5), 1, 1, 3), ((4, 2), 0, 3, 1), ((3, 2, 4), -1, 0, 4), ((3,), 0, 1, 0)]:
        case(f"narrow_{text(shape)}_{dim}_{start}_{length}", "narrow", lambda x: x.narrow(dim, start, length), [f(*shape)],
             dim, start, length)
    for shape, dim, index in [((2, 4, 3), 1, 2), ((5,), 0, 4), ((2, 3), -1, 0)]:
        case(f"select_{text(shape)}_{dim}_{index}", "select", lambda x: x.select(dim, index), [f(*shape)], dim, index)
    for shape in [(2, 3), (), (0, 2)]:
        case(f"clone_{text(shape)}", "clone", torch.clone, [f(*shape)])
    case("detach", "detach", lambda x: x.detach(), [f(2, 3)])


def reductions():
    for shape in [(2, 3), (), (1,), (0, 3), (7, 5, 3), (515,)]:
        case(f"sum_{text(shape)}", "sum", torch.sum, [f(*shape)])
        case(f"mean_{text(shape)}", "mean", torch.mean, [f(*shape)])
    for shape, dim in [((2, 3, 4), 0), ((2, 3, 4), 1), ((2, 3, 4), 2), ((2, 3, 4), -1), ((2, 3, 4), -3), ((5,), 0),
                       ((3, 1), 1), ((0, 3), 1), ((2, 0, 3), 1)]:
        for keep in (0, 1):
            name = f"{text(shape)}_{dim}" + ("_kept" if keep else "")
            case(f"sum_dim_{name}", "sum_dim", lambda x: x.sum(dim, keepdim=bool(keep)), [f(*shape)], dim, keep)
            case(f"mean_dim_{name}", "mean_dim", lambda x: x.mean(dim, keepdim=bool(keep)), [f(*shape)], dim, keep)
    for shape, dim in [((2, 3, 4), 0), ((2, 3, 4), 1), ((2, 3, 4), -1), ((9,), 0), ((0, 3), 1), ((3, 1), 1)]:
        case(f"argmax_{text(shape)}_{dim}", "argmax", lambda x: x.argmax(dim), [c(*shape)], dim)
    case("argmax_integers", "argmax", lambda x: x.argmax(1), [i(3, 40, end=20)], 1)
    case("argmax_negative", "argmax", lambda x: x.argmax(0), [c(5, 2, offset=-4)], 0)


def losses():
    for shape, dim in [((3, 4), 1), ((3, 4), -1), ((3, 4), 0), ((2, 3, 4), 1), ((5,), 0), ((2, 1), 1), ((0, 4), 1)]:
        for op in ("softmax", "log_softmax"):
            case(f"{op}_{text(shape)}_{dim}", op, lambda x: getattr(F, op)(x, dim), [f(*shape, factor=4)], dim)
    for op in ("softmax", "log_softmax"):
        case(f"{op}_large", op, lambda x: getattr(F, op)(x, 1), [f(2, 5, factor=900)], 1)
    names = ["mean", "sum", "none"]
    for rows, classes in [(4, 5), (1, 3), (6, 1), (0, 3)]:
        target = i(rows, end=classes)
        for number, reduction in enumerate(names):
            name = f"{rows}x{classes}_{reduction}"
            case(f"nll_loss_{name}", "nll_loss", lambda x, t: F.nll_loss(x, t, reduction=reduction),
                 [f(rows, classes), target], number)
            case(f"cross_entropy_{name}", "cross_entropy", lambda x, t: F.cross_entropy(x, t, reduction=reduction),
                 [f(rows, classes, factor=3), target], number)
    for shape in [(2, 3), (), (2, 1, 5), (0, 3)]:
        for number, reduction in enumerate(names):
            case(f"mse_loss_{text(shape)}_{reduction}", "mse_loss", lambda x, t: F.mse_loss(x, t, reduction=reduction),
                 [f(*shape), f(*shape)], number)
    case("mse_loss_constant_target", "mse_loss", F.mse_loss, [f(4, 3), c(4, 3)], 0)


def picking():
    gathers = [((2, 3), 1, (2, 1)), ((2, 3), 0, (5, 3)), ((4, 2), -1, (4, 6)), ((2, 3, 4), 1, (2, 7, 4)), ((5,), 0, (9,)),
               ((3, 4, 2), -2, (2, 1, 1)), ((2, 3, 4), 2, (1, 3, 8)), ((2, 3, 4), 0, (6, 2, 3)), ((3, 4), 1, (0, 2)),
               ((3, 4), 1, (3, 0)), ((0, 4), 1, (0, 2)), ((1, 1), 0, (4, 1)), ((33, 9), 1, (33, 40))]
    for shape, dim, index in gathers:
        case(f"gather_{text(shape)}_{dim}_{text(index)}", "gather", lambda x, at: x.gather(dim, at),
             [f(*shape), i(*index, end=max(shape[dim], 1))], dim)
    case("gather_constant", "gather", lambda x, at: x.gather(1, at), [c(2, 3), i(2, 2, end=3)], 1)
    case("gather_integers", "gather", lambda x, at: x.gather(1, at), [i(2, 3, end=100), i(2, 5, end=3)], 1)
    stack, concat = (lambda *xs: torch.stack(xs, dim)), (lambda *xs: torch.cat(xs, dim))
    for shape, dims in [((2, 3), (0, 1, 2, -1, -2, -3)), ((), (0, -1)), ((4,), (0, 1)), ((0, 3), (0, 1, 2)), ((1, 1, 2), (1,)),
                        ((1, 2, 1, 2, 1, 2, 2), (7, 3))]:
        for dim in dims:
            for count in (1, 3):
                case(f"stack_{count}_{text(shape)}_{dim}", "stack", stack, [f(*shape) for _ in range(count)], dim)
    dim = 1
    case("stack_with_constants", "stack", stack, [c(2, 3), f(2, 3), c(2, 3), f(2, 3), c(2, 3)], dim)
    case("stack_integers", "stack", stack, [i(2, 3, end=100), i(2, 3, end=100)], dim)
    for dim, list_of in [(0, [(2, 3), (1, 3), (4, 3)]), (1, [(2, 3), (2, 1), (2, 0), (2, 5)]), (-1, [(2, 3), (2, 1)]),
                         (1, [(2, 3, 2), (2, 1, 2)]), (2, [(1, 1, 3), (1, 1, 2)]), (0, [(5,)]), (0, [(3,), (0,), (2,)]),
                         (0, [(0, 3), (0, 3)]), (1, [(0, 3), (0, 4)]), (-2, [(2, 2, 2), (2, 3, 2)])]:
        case(f"concat_{'_'.join(map(text, list_of))}_{dim}", "concat", concat, [f(*shape) for shape in list_of], dim)
    case("narrow_0x7_1_3_2", "narrow", lambda x: x.narrow(1, 3, 2), [f(0, 7)], 1, 3, 2)
    dim = 0
    case("concat_with_constants", "concat", concat, [f(2, 2), c(3, 2), f(1, 2)], dim)
    case("concat_integers", "concat", concat, [i(2, 2, end=9), i(1, 2, end=9)], dim)


def gates():
    for op, fn in (("sigmoid", torch.sigmoid), ("tanh", torch.tanh)):
        for shape in [(), (7,), (2, 3, 4), (0,), (65,)]:
            case(f"{op}_{text(shape)}", op, fn, [f(*shape, factor=2)])
        case(f"{op}_large", op, fn, [f(33, factor=40)])
        case(f"{op}_small", op, fn, [f(9, factor=1e-3)])


def losses_of_more_dimensions():
    for shape in [(2, 3, 4), (2, 5, 3, 2), (4, 1, 3), (0, 3, 2), (2, 3, 0), (5,)]:
        target = i(*(shape[:1] + shape[2:] if len(shape) > 1 else ()), end=shape[1] if len(shape) > 1 else shape[0])
        for number, reduction in enumerate(("mean", "sum", "none")):
            name = f"{text(shape)}_{reduction}"
            case(f"nll_loss_{name}", "nll_loss", lambda x, t: F.nll_loss(x, t, reduction=reduction), [f(*shape), target], number)
            case(f"cross_entropy_{name}", "cross_entropy", lambda x, t: F.cross_entropy(x, t, reduction=reduction),
                 [f(*shape, factor=3), target], number)


def slices():
    for shape, dim, count in [((4, 3), 0, 7), ((4, 3), 1, 2), ((4, 3), -1, 5), ((2, 3, 4), 1, 9), ((5,), 0, 3), ((5,), 0, 0),
                              ((0, 4), 1, 2), ((6, 0), 0, 3), ((17, 33), 0, 40)]:
        case(f"index_select_{text(shape)}_{dim}_{count}", "index_select", lambda x, at: x.index_select(dim, at),
             [f(*shape), i(count, end=max(shape[dim], 1))], dim)
    case("index_select_integers", "index_select", lambda x, at: x.index_select(1, at), [i(2, 3, end=100), i(4, end=3)], 1)
    for shape, dim, index in [((2, 3), 1, (2, 5)), ((4, 3), 0, (9, 2)), ((2, 3, 4), 1, (1, 7, 4)), ((5,), -1, (11,)), ((3, 4), 1, (0, 2)),
                              ((3, 4), 0, (2, 0)), ((33, 9), 1, (33, 40))]:
        at, source = i(*index, end=shape[dim]), f(*index)
        name = f"{text(shape)}_{dim}_{text(index)}"
        case(f"scatter_add_{name}", "scatter_add", lambda x, at, s: x.scatter_add(dim, at, s), [f(*shape), at, source], dim)
        case(f"scatter_add_to_constant_{name}", "scatter_add", lambda x, at, s: x.scatter_add(dim, at, s), [c(*shape), at, source], dim)


def main():
    torch.set_num_threads(1)
    elementwise()
    products()
    convolutions()
    norms_and_pools()
    shapes()
    reductions()
    losses()
    picking()
    gates()
    losses_of_more_dimensions()
    slices()
    print("total", counter, file=sys.stderr)


main()
