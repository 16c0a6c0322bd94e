"""Name maps: a family of foreign models is described by data, which is applied in both directions.

A `Family` maps their settings to ours and their tensors to ours, transposed or concatenated. Nothing is guessed: a
setting that one side cannot express, and the first tensor that does not fit, is named in an `InteropError`.

"Ours" is Mingyue, "theirs" is the foreign library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from mingyue.config import EncoderDecoderConfig, ModelConfig, PartsConfig
from mingyue.errors import InteropError, SettingsError
from mingyue.models import make_model
from mingyue.words import tr

Json = Mapping[str, Any]
Config = TypeVar("Config", ModelConfig, EncoderDecoderConfig)

EMBEDDING, OUTPUT = "embedding.weight", "lm_head.weight"


@dataclass(frozen=True)
class Setting:
    """A value that both sides have: `theirs` is a key of their config.json, `ours` one or several fields of our config.

    `default` computes the value of a missing or null key from the rest of their config; without it the key is required.
    `values` maps their values to ours. `also` are further keys of theirs that get the same value.
    """

    theirs: str
    ours: str | tuple[str, ...]
    default: Callable[[Json], Any] | None = None
    values: Mapping[Any, Any] | None = None
    also: tuple[str, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """The names on our side."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours


@dataclass(frozen=True)
class TensorRule:
    """One weight of ours, made of one or several of theirs; `{i}` is the number of the block.

    Several are concatenated by rows in the order given; `rows` gives the number of rows of each. `transposed`: theirs
    is stored as [in, out]; `leading_axis`: theirs has an axis of size 1 in front. A rule for a weight that a config
    does not have (a bias, an untied output layer) is not used; nor is one whose `when` is false.
    """

    ours: str
    theirs: str | tuple[str, ...]
    rows: Callable[[PartsConfig], tuple[int, ...]] | None = None
    transposed: bool = False
    leading_axis: bool = False
    when: Callable[[Any], bool] = lambda _config: True


@dataclass(frozen=True)
class Family(Generic[Config]):
    """A family of foreign models, under its names in transformers."""

    config_class: type[Config]
    """Our config class for its models."""
    model_type: str
    architecture: str
    prefix: str
    """Prefix of all tensor names except those in `unprefixed`; files without the output layer omit it."""
    settings: tuple[Setting, ...]
    fixed: Mapping[str, Any]
    """Our settings that are the same in every model of the family; a function computes one from the others."""
    required: Mapping[str, Any]
    """Keys of theirs that are supported with this value only; it is assumed for a missing key."""
    tensors: tuple[TensorRule, ...]
    ignored: tuple[str, ...] = ()
    """Patterns of names of tensors that are not weights."""
    unprefixed: tuple[str, ...] = (OUTPUT,)
    """Tensors of theirs without the prefix."""
    tied_names: tuple[str, ...] = (OUTPUT,)
    """Further names of theirs under which a tied embedding table may be stored again."""
    read_more: Callable[[Json], dict[str, Any]] = lambda _theirs: {}
    """Settings of ours that are computed from several keys of theirs."""
    write_more: Callable[[Config], dict[str, Any]] = lambda _config: {}
    """The inverse; raises InteropError for what the family cannot express."""

    def read_config(self, theirs: Json) -> Config:
        """Their config.json → ours. Raises `InteropError` naming the key that is missing or not supported."""
        for key, value in self.required.items():
            if theirs.get(key, value) != value:
                raise InteropError(
                    tr("config.json: {key} is {theirs!r}; only {value!r} is supported", key, theirs[key], value)
                )
        values: dict[str, Any] = {}
        for setting in self.settings:
            values |= dict.fromkeys(setting.fields, _read(setting, theirs))
        values |= self.read_more(theirs)
        try:
            for name, value in self.fixed.items():
                values[name] = value(values) if callable(value) else value
            return self.config_class.read(values, source="config.json")
        except (SettingsError, TypeError, ZeroDivisionError) as error:
            raise InteropError(
                tr("config.json describes no {model_type} model: {error}", self.model_type, error)
            ) from error

    def write_config(self, config: Config) -> dict[str, Any]:
        """Our config → theirs. Raises `InteropError` naming the setting that the family cannot express.

        Dropout that the family does not have and the kind of initialisation are lost: they matter in training only.
        """
        ours = config.model_dump()
        for name, value in self.fixed.items():
            expected = value(ours) if callable(value) else value
            if ours[name] != expected:
                raise InteropError(
                    tr(
                        "{model_type} cannot express {name} {ours}: it has {expected}",
                        self.model_type,
                        name,
                        ours[name],
                        expected,
                    )
                )
        theirs: dict[str, Any] = {"architectures": [self.architecture], "model_type": self.model_type}
        for setting in self.settings:
            theirs |= dict.fromkeys((setting.theirs, *setting.also), _write(setting, ours, self.model_type))
        stated = {key: value for key, value in self.required.items() if value is not None}
        return theirs | stated | self.write_more(config)

    def read_tensors(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Their tensors → the state of a model of `config`, fp32.

        Raises `InteropError` naming the first tensor that is missing, unexpected or of a wrong shape.
        """
        without_prefix = not any(name.startswith(self.prefix) for name in tensors)
        left = {
            (self.prefix if without_prefix and name not in self.unprefixed else "") + name: tensor
            for name, tensor in tensors.items()
        }
        state: dict[str, Tensor] = {}
        for ours, parts in self._plan(config):
            found = [_take(left, part) for part in parts]
            state[ours] = (found[0] if len(found) == 1 else torch.cat(found)).float().contiguous()
        for name in self.tied_names:
            copy = left.pop(name, None)
            if copy is not None and not torch.equal(copy.float(), state[EMBEDDING]):
                raise InteropError(
                    tr("tensor {name} is not the embedding table, though config.json says that they are tied", name)
                )
        for name, tensor in left.items():
            if not any(fnmatchcase(name, pattern) for pattern in self.ignored):
                raise InteropError(
                    tr(
                        "tensor {name} {shape} is not part of a {model_type} model of this config.json",
                        name,
                        list(tensor.shape),
                        self.model_type,
                    )
                )
        return state

    def write_tensors(self, config: Config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of `read_tensors`. Raises `InteropError` if `state` is not that of a model of `config`."""
        left = dict(state)
        tensors: dict[str, Tensor] = {}
        for ours, parts in self._plan(config):
            whole = _take(left, _Part(ours, (sum(part.n_rows for part in parts), *parts[0].row_shape)))
            for part, piece in zip(parts, whole.split([part.n_rows for part in parts]), strict=True):
                tensors[part.name] = part.as_theirs(piece).clone(memory_format=torch.contiguous_format)
        for name, tensor in left.items():
            raise InteropError(
                tr("tensor {name} {shape} does not belong to a model of this config", name, list(tensor.shape))
            )
        return tensors

    def _plan(self, config: Config) -> Iterator[tuple[str, list[_Part]]]:
        """For each weight of ours, in the order of the model: the tensors of theirs that it is made of."""
        with torch.device("meta"):
            expected = {name: tuple(tensor.shape) for name, tensor in make_model(config).state_dict().items()}
        rules = {rule.ours: rule for rule in self.tensors if rule.when(config)}
        for name, (n_rows, *rest) in expected.items():
            found = re.search(r"\bblocks\.(\d+)\.", name)
            block = found[1] if found else ""
            rule = rules[name.replace(f"blocks.{block}.", "blocks.{i}.", 1)]
            theirs = (rule.theirs,) if isinstance(rule.theirs, str) else rule.theirs
            n_rowss = (n_rows,) if rule.rows is None else rule.rows(config)
            yield (
                name,
                [
                    _Part(one.replace("{i}", block), (rows, *rest), rule.transposed, rule.leading_axis)
                    for one, rows in zip(theirs, n_rowss, strict=True)
                ],
            )


def weight_and_bias(
    ours: str, *theirs: str, rows: Callable[[PartsConfig], tuple[int, ...]] | None = None, transposed: bool = False
) -> tuple[TensorRule, TensorRule]:
    """The rules for a linear layer or norm; of theirs, only the weight is stored `transposed`."""
    weight, bias = (tuple(f"{name}.{kind}" for name in theirs) for kind in ("weight", "bias"))
    return (
        TensorRule(f"{ours}.weight", weight, rows=rows, transposed=transposed),
        TensorRule(f"{ours}.bias", bias, rows=rows),
    )


def check_width_divides(family: str, config: PartsConfig) -> None:
    """Raise `InteropError` where the family needs d_model to be a multiple of n_heads, and it is not."""
    if config.d_model % config.n_heads:
        raise InteropError(
            tr(
                "{family} cannot express d_model {d_model} with n_heads {n_heads}: it must divide",
                family,
                config.d_model,
                config.n_heads,
            )
        )


def query_key_value_rows(config: PartsConfig) -> tuple[int, ...]:
    """Number of rows of Q, K and V in our `attention.qkv`."""
    keys = config.n_kv_heads * config.d_head
    return config.n_heads * config.d_head, keys, keys


def key_value_rows(config: PartsConfig) -> tuple[int, ...]:
    """Number of rows of K and V in our `cross_attention.key_value`."""
    return query_key_value_rows(config)[1:]


def gate_up_rows(config: PartsConfig) -> tuple[int, ...]:
    """Number of rows of gate and up in the `feedforward.inner` of SwiGLU."""
    return config.d_ff, config.d_ff


@dataclass(frozen=True)
class _Part:
    """A tensor of theirs: its name, its shape as ours, and how theirs is stored."""

    name: str
    shape: tuple[int, ...]
    transposed: bool = False
    leading_axis: bool = False

    @property
    def n_rows(self) -> int:
        return self.shape[0]

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape[1:]

    @property
    def their_shape(self) -> tuple[int, ...]:
        shape = self.shape[::-1] if self.transposed else self.shape
        return (1, *shape) if self.leading_axis else shape

    def as_theirs(self, ours: Tensor) -> Tensor:
        stored = ours.T if self.transposed else ours
        return stored[None] if self.leading_axis else stored

    def as_ours(self, theirs: Tensor) -> Tensor:
        without_axis = theirs[0] if self.leading_axis else theirs
        return without_axis.T if self.transposed else without_axis


def _take(tensors: dict[str, Tensor], part: _Part) -> Tensor:
    shape = part.their_shape
    tensor = tensors.pop(part.name, None)
    if tensor is None:
        raise InteropError(tr("tensor {name} {shape} is missing", part.name, list(shape)))
    if tuple(tensor.shape) != shape:
        raise InteropError(
            tr(
                "tensor {name} is {shape}, the config asks for {config_shape}",
                part.name,
                list(tensor.shape),
                list(shape),
            )
        )
    if not tensor.is_floating_point():
        raise InteropError(
            tr("tensor {name} holds {dtype} numbers", part.name, tensor.dtype),
            advice=tr("Quantised checkpoints are not read: use the original one."),
        )
    return part.as_ours(tensor)


def _read(setting: Setting, theirs: Json) -> Any:  # noqa: ANN401
    value = theirs.get(setting.theirs)
    if value is None:
        if setting.default is None:
            raise InteropError(tr("config.json has no {theirs}", setting.theirs))
        try:
            value = setting.default(theirs)
        except (KeyError, TypeError, ZeroDivisionError) as error:
            raise InteropError(
                tr(
                    "config.json has no {theirs}, and it cannot be computed from the rest: {error!r}",
                    setting.theirs,
                    error,
                )
            ) from error
    if setting.values is None:
        return value
    if value not in setting.values:
        raise InteropError(
            tr(
                "config.json: {theirs} is {value!r}; known: {values}",
                setting.theirs,
                value,
                ", ".join(map(str, setting.values)),
            )
        )
    return setting.values[value]


def _write(setting: Setting, ours: Json, family: str) -> Any:  # noqa: ANN401
    first, *others = setting.fields
    value = ours[first]
    for other in others:
        if ours[other] != value:
            raise InteropError(
                tr(
                    "{family} cannot express {other} {ours} with {first} {value}",
                    family,
                    other,
                    ours[other],
                    first,
                    value,
                )
            )
    if setting.values is None:
        return value
    theirs = [foreign for foreign, own in setting.values.items() if own == value]
    if not theirs:
        known = ", ".join(dict.fromkeys(map(str, setting.values.values())))
        raise InteropError(tr("{family} cannot express {first} {value}: it knows {known}", family, first, value, known))
    return theirs[0]
