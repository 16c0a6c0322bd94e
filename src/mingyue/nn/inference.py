"""Modules without the call overhead of `nn.Module`, for passes that compute so little that the overhead dominates.

Generating one token calls a hundred modules for microseconds of work each. Calling a module looks for hooks and for
tracing, and reading a parameter searches three dictionaries; the same `forward` on an object with plain attributes does
neither. The computation is not duplicated: the object runs the `forward` of the module's own class.
"""

from __future__ import annotations

from functools import cache
from types import FunctionType
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_Module = TypeVar("_Module", bound=nn.Module)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_KNOWN = ("mingyue.", "torch.nn.modules.")


def for_inference(module: _Module) -> _Module:
    """An object that computes what `module` does in evaluation mode, on the same weights, with less call overhead.

    Make it where it is used and do not keep it: it does not follow changes of the module's structure. Parts that have
    hooks, or whose class is neither ours nor PyTorch's (adapters), remain the modules that they are.
    """
    return cast(_Module, _plain(module))


def _plain(module: nn.Module) -> Any:  # noqa: ANN401  (has the interface of a module without being one)
    if type(module) is nn.ModuleList:
        return [_plain(child) for child in module]
    if not type(module).__module__.startswith(_KNOWN) or any(getattr(module, hooks) for hooks in _HOOKS):
        return module
    return (_SPECIAL.get(type(module)) or _plain_class(type(module)))(module)


@cache
def _plain_class(kind: type[nn.Module]) -> type[_Plain]:
    """Objects of this class are called directly through the `forward` of `kind`, without a function in between."""
    return type(f"_Plain{kind.__name__}", (_Plain,), {"__call__": kind.forward})


class _Plain:
    def __init__(self, module: nn.Module) -> None:
        values = vars(module)
        self.__dict__.update({name: value for name, value in values.items() if not name.startswith("_")})
        self.__dict__.update(values["_parameters"] | values["_buffers"])
        self.__dict__.update({name: child and _plain(child) for name, child in values["_modules"].items()})
        self.training = False
        self._class = type(module)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        for base in self._class.__mro__:
            if name in vars(base):
                found = vars(base)[name]
                value = found.__get__(self, self._class) if hasattr(found, "__get__") else found
                if isinstance(found, FunctionType):  # a method: bound at its first use
                    self.__dict__[name] = value
                return value
        raise AttributeError(f"{self._class.__name__} has no attribute {name!r}")


class _PlainLinear(_Plain):
    """A single row is multiplied as a vector: one operation instead of five."""

    def __init__(self, module: nn.Linear) -> None:
        super().__init__(module)
        self._weight, self._bias = module.weight, module.bias
        self._n_inputs, self._dtype = module.in_features, module.weight.dtype

    def __call__(self, x: Tensor) -> Tensor:
        if x.numel() != self._n_inputs or x.dtype is not self._dtype:
            return F.linear(x, self._weight, self._bias)
        row = x.reshape(-1)
        product = self._weight.mv(row) if self._bias is None else torch.addmv(self._bias, self._weight, row)
        return product.view(_ONE_ROW[x.ndim])


class _PlainLayerNorm(_Plain):
    """The operation itself, without the Python wrapper that looks for overrides."""

    normalized_shape: tuple[int, ...]
    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


_ONE_ROW: dict[int, tuple[int, ...]] = {1: (-1,), 2: (1, -1), 3: (1, 1, -1)}
_SPECIAL: dict[type[nn.Module], type[_Plain]] = {nn.Linear: _PlainLinear, nn.LayerNorm: _PlainLayerNorm}
