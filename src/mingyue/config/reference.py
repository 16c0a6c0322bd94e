"""Reference of all settings as Markdown, generated from the classes: the content of docs/settings.md."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from mingyue.config.base import Settings
from mingyue.config.generate import GenerateSettings
from mingyue.config.model import EncoderDecoderConfig, ModelConfig, RotaryScaling
from mingyue.config.setting import Setting, meaning_of, setting_of
from mingyue.config.train import TrainSettings
from mingyue.config.translate import TranslateSettings

_TITLE = """# Settings

Generated from the settings classes by `make docs`; edit the docstrings in `src/mingyue/config`, not this page.

An option of the command line is the name with hyphens: `batch_tokens` is `--batch-tokens`. In Python it is a keyword:
`mingyue.train(..., batch_tokens=8192)`. In a `run.toml` it stands in its section. A switch such as
`skip_bad` is `--skip-bad` or `--no-skip-bad`."""

_TRAIN = """## Training: `mingyue train`, `mingyue.train`, `run.toml`

For: runs that can use the setting (on text, on pairs, or both). Resume: what `mingyue resume` does with a changed
setting."""
_GENERATE = """## Generation: `mingyue generate`, `GenerateSettings`"""
_TRANSLATE = """## Translation: `mingyue translate`, `TranslateSettings`"""
_PAIR_MODEL = """## An encoder-decoder model: `config.json` of a bundle, `EncoderDecoderConfig`"""
_MODEL = """## A decoder-only model: `config.json` of a bundle, `ModelConfig`"""


def reference() -> str:
    """The page, ending in a line break."""
    parts = [_TITLE, _TRAIN]
    for section, owner in TrainSettings.groups().items():
        parts += [f"### `[{section}]`", _describe(owner, of_run=True)]
    parts += [_GENERATE, _describe(GenerateSettings), _TRANSLATE, _describe(TranslateSettings)]
    parts += [_MODEL, _describe(ModelConfig), _PAIR_MODEL, _describe(EncoderDecoderConfig)]
    parts += ["### `rotary_scaling`", _describe(RotaryScaling)]
    return "\n\n".join(parts) + "\n"


def _describe(settings: type[Settings], *, of_run: bool = False) -> str:
    columns = ["setting", "values", "default", "meaning", *(["for", "resume"] if of_run else [])]
    rows = [columns, *(_row(name, info, of_run=of_run) for name, info in settings.model_fields.items())]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|--" * len(columns) + "|")
    return f"{inspect.getdoc(settings) or ''}\n\n" + "\n".join(lines)


def _row(name: str, info: FieldInfo, *, of_run: bool) -> list[str]:
    values = " or ".join(_values(info.annotation, info.metadata))
    details = setting_of(info) if of_run else None
    row = [f"`{name}`", values, _default(info, details), _cell(meaning_of(info))]
    if details is not None:
        rule = details.resume
        row += [details.kinds, f"{'allowed' if rule.allowed else 'refused'}: {_cell(rule.why)}"]
    return row


def _default(info: FieldInfo, details: Setting | None) -> str:
    if info.is_required():
        return "required"
    if details is not None and details.auto:
        return _cell(details.auto)
    value = info.get_default(call_default_factory=True)
    if value is None:
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if value in ("", (), []):
        return "empty"
    return f"`{value}`"


def _values(annotation: Any, metadata: Iterable[object] = ()) -> list[str]:  # noqa: ANN401  (any annotation at all)
    """Accepted values in words: `_values(Annotated[int, Field(ge=1)])` is ["whole number ≥ 1"]."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _values(inner[0], [*_flat(inner[1:]), *metadata])
    if origin in (Union, types.UnionType):
        return [word for member in inner if member is not type(None) for word in _values(member, metadata)]
    if origin is Literal:
        return [", ".join(f"`{value}`" for value in inner)]
    if origin in (list, tuple):
        return ["list of " + " or ".join(_values(inner[0])) + "s"]
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [f"`{annotation.__name__}` (below)"]
    words = {bool: "`true`, `false`", int: "whole number", float: "number", str: "text"}
    return [" ".join([words.get(annotation, str(annotation)), *_limits(metadata)])]


def _flat(metadata: Iterable[object]) -> list[object]:
    return [limit for item in metadata for limit in (item.metadata if isinstance(item, FieldInfo) else [item])]


def _limits(metadata: Iterable[object]) -> list[str]:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found = [
        f"{signs[key]} {_number(getattr(limit, key))}" for limit in metadata for key in signs if hasattr(limit, key)
    ]
    return [", ".join(found)] if found else []


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
