"""Records the operations of a forward pass: shape, module, and the source line of this package that called each.

PyTorch passes its operations to a `TorchFunctionMode` while that is entered; passes outside it are not affected. Taps
are matched to the operations that computed their values.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mingyue.nn import Taps

_PACKAGE = Path(__file__).parents[1]
_SELF = str(Path(__file__))


@dataclass(eq=False)
class Operation:
    """One operation."""

    name: str
    """As PyTorch calls it: linear, view, matmul, softmax, …"""
    shape: tuple[int, ...]
    """Of its result."""
    input_shape: tuple[int, ...]
    """Of its first tensor argument; () without one."""
    flops: int
    """Of a matrix product (a multiply-add is 2); 0 for all else."""
    size: float
    """Root mean square of the finite numbers of the result; NaN for integers and booleans."""
    module: str
    """Path of the innermost module at work, as in `named_modules`; "" for the model itself and around it."""
    function: str
    """The function of this package that called it, with its class."""
    source: str
    """The file of that function, from the package on."""
    line: int
    moves: bool
    """Whether numbers were written: False if the result is a view of the first tensor."""
    tap: str = ""
    """The tap at which the result can be captured and edited (`mingyue.nn.taps`); "" = none."""


class Recorder(TorchFunctionMode):
    """Context manager around a forward pass of `model` that is given `taps`; `operations` then holds its operations."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.taps = Taps("*")
        self.taps.values = _Named(self)
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._results: list[weakref.ref[Tensor]] = []

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self._keep(getattr(func, "__name__", str(func)).strip("_"), args, result)
        return result

    def name(self, tap: str, value: Tensor) -> None:
        """Give the name of a tap to the latest operation that computed its value."""
        for operation, result in zip(reversed(self.operations), reversed(self._results), strict=True):
            if result() is value:
                operation.tap = operation.tap or tap  # where a norm is absent, a value has two names
                return

    def _keep(self, name: str, args: tuple[Any, ...], result: Tensor) -> None:
        frame = sys._getframe(2)
        source = _ours(frame)
        if source is None:
            return
        first = args[0] if args and isinstance(args[0], Tensor) else None
        self.operations.append(
            Operation(
                name=name,
                shape=tuple(result.shape),
                input_shape=() if first is None else tuple(first.shape),
                flops=_flops(name, args, result),
                size=_size(result),
                module=self._module(frame),
                function=source.f_code.co_qualname,
                source=Path(source.f_code.co_filename).relative_to(_PACKAGE.parent).as_posix(),
                line=source.f_lineno,
                moves=first is None or _storage(first) != _storage(result),
            )
        )
        self._results.append(weakref.ref(result))

    def _module(self, frame: FrameType | None) -> str:
        while frame is not None:
            path = self._paths.get(id(frame.f_locals.get("self")))
            if path is not None:
                return path
            frame = frame.f_back
        return ""


class _Named(dict[str, Tensor]):
    """Keeps no values: reports their names to the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __setitem__(self, name: str, value: Tensor) -> None:
        self._recorder.name(name, value)


def _ours(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of this package, outside this module."""
    while frame is not None:
        path = frame.f_code.co_filename
        if path != _SELF and Path(path).is_relative_to(_PACKAGE):
            return frame
        frame = frame.f_back
    return None


def _storage(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _flops(name: str, args: tuple[Any, ...], result: Tensor) -> int:
    if name in ("linear", "matmul"):
        return 2 * result.numel() * int(args[0].shape[-1])
    return 0


def _size(result: Tensor) -> float:
    if not result.is_floating_point() or not result.numel():
        return float("nan")
    finite = result[result.isfinite()].float()
    return float(finite.square().mean().sqrt()) if finite.numel() else float("nan")
