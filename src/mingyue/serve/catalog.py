"""The models that are served, by name: a request names one, never a path."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mingyue import api
from mingyue.config import ServeSettings
from mingyue.errors import SettingsError
from mingyue.paths import path_of
from mingyue.serve.chat_template import ChatTemplate, template_of
from mingyue.serve.errors import ApiError
from mingyue.training import RunFolder
from mingyue.words import tr

if TYPE_CHECKING:
    from mingyue.generation.service import Service

_GIB = 2**30
UNNAMED = ("source", "target")
"""What stands for the codes of languages that nobody named."""
_LANGUAGES = re.compile(r"([a-z]{2,3})-([a-z]{2,3})")


@dataclass
class ServedModel:
    """A model under its name, the folder's."""

    name: str
    folder: Path
    created: int
    """Time at which its folder was written, in seconds since 1970."""
    fingerprint: str
    """Changes with the files of the model."""

    @property
    def run(self) -> RunFolder | None:
        """The run that trained it, where its folder is at hand."""
        found = RunFolder(self.folder)
        return found if found.metrics.is_file() else None


@dataclass
class Generator(ServedModel):
    """A decoder-only model, with the thread that generates."""

    model: api.Model
    service: Service
    template: ChatTemplate | None = None
    """How a conversation becomes a text; None for a model that was not trained on conversations."""

    @property
    def context(self) -> int:
        """Tokens of its context."""
        return self.model.config.context


@dataclass
class ServedTranslator(ServedModel):
    """An encoder-decoder model, with the codes of its languages."""

    model: api.Translator
    source: str
    target: str


@dataclass
class Catalog:
    """Every model that is served."""

    models: Mapping[str, Generator | ServedTranslator]

    @classmethod
    def open(cls, folders: Sequence[str | Path], settings: ServeSettings) -> Catalog:
        """Load the models. Raises `SettingsError` for two folders of one name, and as `mingyue.load` does."""
        paths = [path_of(folder) for folder in folders]
        names = [name_of(path) for path in paths]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SettingsError(
                tr("two models have the name {name}, that of their folders", twice[0]),
                advice=tr("Rename one of the folders: requests name a model by it."),
            )
        pairs = dict(_pair(given) for given in settings.language_pair)
        if unknown := sorted(set(pairs) - set(names)):
            raise SettingsError(
                tr("--language-pair: there is no model {name}", unknown[0]),
                advice=tr("The models are {names}.", ", ".join(names)),
            )
        models: dict[str, Generator | ServedTranslator] = {}
        catalog = cls(models)
        try:
            for name, path in zip(names, paths, strict=True):
                models[name] = _load(name, path, settings, pairs)
            catalog.check_languages()
        except BaseException:
            catalog.close(0.0)
            raise
        return catalog

    def check_languages(self) -> None:
        """Raise `SettingsError` for two translators of the same languages: a request names languages only."""
        seen: dict[tuple[str, str], str] = {}
        for one in self.translators():
            other = seen.setdefault((one.source, one.target), one.name)
            if other != one.name:
                raise SettingsError(
                    tr(
                        "{other} and {name} both translate {source} to {target}",
                        other,
                        one.name,
                        one.source,
                        one.target,
                    ),
                    advice=tr("Name their languages: --language-pair {name}=en:de", one.name),
                )

    def generators(self) -> Iterator[Generator]:
        """The decoder-only models."""
        return (one for one in self.models.values() if isinstance(one, Generator))

    def translators(self) -> Iterator[ServedTranslator]:
        """The encoder-decoder models."""
        return (one for one in self.models.values() if isinstance(one, ServedTranslator))

    def find(self, name: str | None) -> Generator | ServedTranslator:
        """The model of that name; None: the first one. Raises `ApiError` (404) for an unknown one."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise ApiError(
                tr("there is no model {name!r}; the models are {names}", name, ", ".join(self.models)),
                status=404,
                param="model",
                code="model_not_found",
            )
        return self.models[name]

    def generator(self, name: str | None) -> Generator:
        """The decoder-only model of that name; None: the first one. Raises `ApiError`."""
        found = self.find(name) if name is not None else next(self.generators(), None) or self.find(None)
        if isinstance(found, Generator):
            return found
        raise ApiError(
            tr("{name} is an encoder-decoder model, which translates: use /translate", found.name),
            param="model",
            code="model_not_supported",
        )

    def close(self, drain_seconds: float) -> None:
        """End the threads that generate."""
        for one in self.generators():
            one.service.close(drain_seconds)


def name_of(path: Path) -> str:
    """The name of a model: that of its folder, or of a link to it; of the folder `model` of a run, that of the run."""
    place = Path(os.path.abspath(path))  # noqa: PTH100  (a link keeps its own name)
    return (place.parent if place.name == "model" else place).name or "model"


def _load(
    name: str, path: Path, settings: ServeSettings, pairs: Mapping[str, tuple[str, str]]
) -> Generator | ServedTranslator:
    load = api.load_translator if api.translates(path) else api.load
    model = load(
        path, device=settings.device, threads=settings.threads, backend=settings.backend, weights=settings.weights
    )
    known = (name, path, int(path.stat().st_mtime), _fingerprint(model.training, model.tokenizer.fingerprint))
    if isinstance(model, api.Translator):
        return ServedTranslator(*known, model, *pairs.get(name, _languages(name)))
    if name in pairs:
        raise SettingsError(
            tr("--language-pair: {name} is a decoder-only model, which does not translate", name),
            advice=tr("Leave its pair out."),
        )
    service = model.service(cache_bytes=int(settings.cache_gib * _GIB), max_waiting=settings.max_waiting)
    return Generator(*known, model, service, template_of(model))


def _fingerprint(training: Mapping[str, Any], tokenizer: str) -> str:
    text = json.dumps(training.get("checksums", {}), sort_keys=True) + tokenizer
    return f"mingyue_{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _languages(name: str) -> tuple[str, str]:
    """Codes of languages from a name such as en-de; else words that say which side is which."""
    match = _LANGUAGES.fullmatch(name)
    return (match[1], match[2]) if match else UNNAMED


def _pair(given: str) -> tuple[str, tuple[str, str]]:
    name, _, languages = given.partition("=")
    source, _, target = languages.partition(":")
    if not (name and source and target):
        raise SettingsError(
            tr("--language-pair {given}: not of the form MODEL=SOURCE:TARGET", given),
            advice=tr("An example: --language-pair digits=en:de"),
        )
    return name, (source, target)
