"""Reference of all settings as Markdown, from the classes: the content of docs/settings.md and settings.zh.md."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from mingyue.config.base import Settings
from mingyue.config.generate import GenerateSettings
from mingyue.config.model import EncoderDecoderConfig, ModelConfig, RotaryScaling
from mingyue.config.setting import Setting, meaning_of, setting_of
from mingyue.config.train import TrainSettings
from mingyue.config.translate import TranslateSettings
from mingyue.words import Language, in_language, joined, tr

Translate = Callable[[str], str]
"""Says a text of English help in the language of the page."""

_TITLE = tr("# Settings")
_INTRODUCTION = (
    tr(
        "Generated from the settings classes by `make docs`; edit the docstrings in `src/mingyue/config` and the "
        "dictionary `src/mingyue/words.zh.toml`, not this page."
    ),
    tr(
        "An option of the command line is the name with hyphens: `batch_tokens` is `--batch-tokens`. In Python it is a "
        "keyword: `mingyue.train(..., batch_tokens=8192)`. In a `run.toml` it stands in its section. A switch such as "
        "`skip_bad` is `--skip-bad` or `--no-skip-bad`."
    ),
)
_TRAIN = tr("## Training: `mingyue train`, `mingyue.train`, `run.toml`")
_ABOUT_TRAIN = tr(
    "For: runs that can use the setting (on text, on pairs, or both). Resume: what `mingyue resume` does with a "
    "changed setting."
)
_GENERATE = tr("## Generation: `mingyue generate`, `GenerateSettings`")
_TRANSLATE = tr("## Translation: `mingyue translate`, `TranslateSettings`")
_PAIR_MODEL = tr("## An encoder-decoder model: `config.json` of a bundle, `EncoderDecoderConfig`")
_MODEL = tr("## A decoder-only model: `config.json` of a bundle, `ModelConfig`")
_COLUMNS = (tr("setting"), tr("values"), tr("default"), tr("meaning"))
_OF_RUN = (tr("for"), tr("resume"))


def reference(language: Language = "en", translate: Translate = str) -> str:
    """The page, ending in a line break. `translate` is used for the help of the settings."""
    page = _Page(language, translate)
    said = page.said
    parts = [said(_TITLE), *map(said, _INTRODUCTION), said(_TRAIN), said(_ABOUT_TRAIN)]
    for section, owner in TrainSettings.groups().items():
        parts += [f"### `[{section}]`", page.describe(owner, of_run=True)]
    parts += [said(_GENERATE), page.describe(GenerateSettings), said(_TRANSLATE), page.describe(TranslateSettings)]
    parts += [said(_MODEL), page.describe(ModelConfig), said(_PAIR_MODEL), page.describe(EncoderDecoderConfig)]
    parts += ["### `rotary_scaling`", page.describe(RotaryScaling)]
    return "\n\n".join(parts) + "\n"


@dataclass(frozen=True)
class _Page:
    """The tables of the page in one language."""

    language: Language
    translate: Translate

    def said(self, text: str) -> str:
        return in_language(text, self.language)

    def describe(self, settings: type[Settings], *, of_run: bool = False) -> str:
        columns = [self.said(name) for name in (*_COLUMNS, *(_OF_RUN if of_run else ()))]
        rows = [columns, *(self._row(name, info, of_run=of_run) for name, info in settings.model_fields.items())]
        lines = [f"| {' | '.join(row)} |" for row in rows]
        lines.insert(1, "|--" * len(columns) + "|")
        return f"{self.translate(inspect.getdoc(settings) or '')}\n\n" + "\n".join(lines)

    def _row(self, name: str, info: FieldInfo, *, of_run: bool) -> list[str]:
        values = self.said(joined(_values(info.annotation, info.metadata), en=" or ", zh=" 或 "))
        details = setting_of(info) if of_run else None
        row = [f"`{name}`", values, self._default(info, details), _cell(self.translate(meaning_of(info)))]
        if details is not None:
            rule = details.resume
            verdict = tr("allowed: {why}", rule.why) if rule.allowed else tr("refused: {why}", rule.why)
            row += [self.said(_KINDS[details.kinds]), _cell(self.said(verdict))]
        return row

    def _default(self, info: FieldInfo, details: Setting | None) -> str:
        if info.is_required():
            return self.said(tr("required"))
        if details is not None and details.auto:
            return _cell(self.translate(details.auto) if " " in details.auto else details.auto)
        value = info.get_default(call_default_factory=True)
        if value is None:
            return "–"
        if isinstance(value, bool):
            return f"`{str(value).lower()}`"
        if value in ("", (), []):
            return self.said(tr("empty"))
        return f"`{value}`"


_KINDS = {"text": tr("text"), "pairs": tr("pairs"), "both": tr("both")}


_TYPES = {bool: "`true`, `false`", int: tr("whole number"), float: tr("number"), str: tr("text")}


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
        return [tr("list of {values}", joined(_values(inner[0]), en=" or ", zh=" 或 "))]
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [tr("`{name}` (below)", annotation.__name__)]
    name = _TYPES.get(annotation, str(annotation))
    limits = _limits(metadata)
    return [name + f" {limits[0]}" if limits else name]


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
