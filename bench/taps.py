"""What the named places for looking inside cost a training step that does not look.

    python bench/taps.py [--rounds 20] [--steps 2] [--threads 2] [--cpu-time]

A model as it is beside a twin on the same weights whose code has no taps: the source of blocks, attention, feed-forward
and model is read, every argument, test and call of taps is taken out of its syntax tree, and the twin's parts get the
classes that are left. Nothing called a tap remains in them (the script looks), and both give the same loss and the same
gradients, bit for bit. Forward and backward passes of both take turns in one process, a few steps at a time, in an
order that turns round each time; printed are the medians, and the median of the ratios of neighbours with its middle
half. The same is done with the model and itself: what that ratio strays from 1 is noise.
"""

from __future__ import annotations

import argparse
import ast
import copy
import inspect
import statistics
import sys
import time
import types

import torch
import torch.nn.functional as F
from _beside import machine
from torch import Tensor, nn

from mingyue.config import ModelSettings
from mingyue.models import DecoderOnly, build_model, decoder_only, resolve_config
from mingyue.nn import attention, blocks, feedforward
from mingyue.runtime import available_cores

MODULES = (attention, feedforward, blocks, decoder_only)
TAPS = {"taps", "inner", "block_taps"}  # what variables that hold taps are called in them
SIZES = {
    # width, layers, heads, rows, tokens a row, words
    "2 × 64, 16 windows of 64, 65 characters": (64, 2, 4, 16, 64, 65),
    "4 × 128, 12 windows of 64, 65 characters": (128, 4, 4, 12, 64, 65),
    "4 × 256, 16 windows of 128, 6,900 characters": (256, 4, 4, 16, 128, 6900),
}


class WithoutTaps(ast.NodeTransformer):
    """Code as it would be if nobody could look: `taps` is None everywhere, and what follows from that is done."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "tap":
            return node.args[2]
        node.args = [given for given in node.args if not _holds_taps(given)]
        node.keywords = [given for given in node.keywords if given.arg != "taps"]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef | None:
        if node.name == "recorded_attention":  # attention with taps: nothing calls it without them
            return None
        self.generic_visit(node)
        given = node.args
        for number, argument in reversed(list(enumerate(given.kwonlyargs))):
            if argument.arg in TAPS:
                del given.kwonlyargs[number], given.kw_defaults[number]
        first_default = len(given.args) - len(given.defaults)
        for number, argument in reversed(list(enumerate(given.args))):
            if argument.arg in TAPS:
                del given.args[number]
                if number >= first_default:
                    del given.defaults[number - first_default]
        node.body = [line for line in node.body if not isinstance(line, ast.Pass)] or [ast.Pass()]
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        self.generic_visit(node)
        return ast.Pass() if all(_holds_taps(target) for target in node.targets) else node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        if _holds_taps(node.left):
            return ast.Constant(isinstance(node.ops[0], ast.Is))
        self.generic_visit(node)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        return ast.Constant(False) if isinstance(node.op, ast.And) and _is(node.values[0], False) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        return node.body if _is(node.test, True) else node.orelse if _is(node.test, False) else node

    def visit_If(self, node: ast.If) -> ast.stmt | list[ast.stmt]:
        self.generic_visit(node)
        if _is(node.test, False):
            return node.orelse or ast.Pass()
        return node


def _holds_taps(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in TAPS


def _is(node: ast.expr, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def without_taps(module: types.ModuleType) -> types.ModuleType:
    """The module's code with nothing in it that knows of taps. Ends this program if something is left."""
    tree = ast.fix_missing_locations(WithoutTaps().visit(ast.parse(inspect.getsource(module))))
    tree.body = [line for line in tree.body if not _imports_taps(line)]
    left = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in TAPS | {"tap"}]
    left += [node.lineno for node in ast.walk(tree) if isinstance(node, ast.arg) and node.arg in TAPS]
    if left:
        sys.exit(f"{module.__name__}: taps are left in lines {sorted(set(left))}")
    bare = types.ModuleType(f"without_taps.{module.__name__}")
    sys.modules[bare.__name__] = bare
    exec(compile(tree, f"{module.__name__} without taps", "exec"), bare.__dict__)
    return bare


def _imports_taps(line: ast.stmt) -> bool:
    return isinstance(line, ast.ImportFrom) and line.module == "mingyue.nn.taps"


def twin_of(model: DecoderOnly) -> DecoderOnly:
    """The same weights, code without taps."""
    bare = [without_taps(module) for module in MODULES]
    twin = copy.copy(model)
    _change(twin, bare)
    return twin


def _change(module: nn.Module, bare: list[types.ModuleType]) -> None:
    """Give it and its parts the classes without taps; parts are copied first, weights are not."""
    for known, other in zip(MODULES, bare, strict=True):
        if type(module).__module__ == known.__name__:
            module.__class__ = getattr(other, type(module).__name__)
    children = {name: copy.copy(child) for name, child in module._modules.items() if child is not None}
    module.__dict__["_modules"] = {**module._modules, **children}
    for child in children.values():
        _change(child, bare)


def step(model: nn.Module, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
    """Forward, loss, backward."""
    model.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(ids_BT).flatten(0, 1), targets_BT.flatten())
    loss.backward()
    return loss.detach()


def same_numbers(model: nn.Module, twin: nn.Module, ids_BT: Tensor, targets_BT: Tensor) -> None:
    """Ends this program if loss or gradients of the two differ in a bit."""
    results = []
    for one in (model, twin):
        loss = step(one, ids_BT, targets_BT)
        results.append([loss, *(weight.grad.clone() for weight in one.parameters() if weight.grad is not None)])
    if not all(torch.equal(first, second) for first, second in zip(*results, strict=True)):
        sys.exit("the two models do not compute the same")


def seconds(model: nn.Module, batch: tuple[Tensor, Tensor], asked: argparse.Namespace) -> float:
    """Of one step."""
    clock = time.process_time if asked.cpu_time else time.perf_counter
    start = clock()
    for _ in range(asked.steps):
        step(model, *batch)
    return (clock() - start) / asked.steps


def compare(first: nn.Module, second: nn.Module, batch: tuple[Tensor, Tensor], asked: argparse.Namespace) -> str:
    """Times of both, and how many times as long the first one takes."""
    times: list[tuple[float, float]] = []
    for number in range(asked.rounds + 1):
        if number % 2:
            b, a = seconds(second, batch, asked), seconds(first, batch, asked)
        else:
            a, b = seconds(first, batch, asked), seconds(second, batch, asked)
        times.append((a, b))
    times = times[1:]  # the first round pays for memory and threads
    ratios = [a / b for a, b in times]
    low, _, high = statistics.quantiles(ratios, n=4)
    medians = " | ".join(f"{1000 * statistics.median(side):.2f}" for side in zip(*times, strict=True))
    return f"{medians} | {statistics.median(ratios):.4f} ({low:.3f} to {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=2, help="steps of a model before the other takes its turn")
    parser.add_argument("--sizes", type=int, nargs="+", choices=range(len(SIZES)), default=list(range(len(SIZES))))
    parser.add_argument("--preset", default="speed")
    parser.add_argument("--cpu-time", action="store_true", help="seconds of the processor, for a machine that is busy")
    parser.add_argument("--threads", type=int, default=available_cores())
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.set_flush_denormal(True)
    rows = []
    for number in asked.sizes:
        name, (width, layers, heads, n_rows, n_tokens, words) = list(SIZES.items())[number]
        settings = ModelSettings(preset=asked.preset, d_model=width, n_layers=layers, n_heads=heads)
        config = resolve_config(settings, vocab_size=words, depth=layers, context=n_tokens)
        model = build_model(config, seed=1).train()
        twin = twin_of(model)
        ids = torch.randint(words, (n_rows, n_tokens + 1), generator=torch.Generator().manual_seed(1))
        batch = (ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        same_numbers(model, twin, *batch)
        for beside, other in (("without taps", twin), ("itself", model)):
            rows.append(f"| {name} | {beside} | {compare(model, other, batch, asked)} |")
            print(rows[-1], flush=True)
    print(f"\n{machine(asked.threads)}; preset {asked.preset}, {asked.rounds} rounds of {asked.steps} steps each")
    print("times are those of the processor\n" if asked.cpu_time else "")
    print(
        "| a step | beside | the model, ms | the other, ms | ratio (middle half) |\n|--|--|--|--|--|", *rows, sep="\n"
    )


if __name__ == "__main__":
    main()
