"""Mingyue 明月: a Transformer you can see through.

    import mingyue
    result = mingyue.train(sources=["poems.txt"], minutes=10)
    model = mingyue.load(result.folder)
    print(model.generate("床前", max_new_tokens=60)[0].text)

Names are imported when they are first used, so that `import mingyue` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mingyue.api import (
        Inspection,
        Model,
        RunResult,
        Translator,
        curve,
        inspect,
        load,
        load_translator,
        resume,
        train,
    )
    from mingyue.config import GenerateSettings, ModelConfig, TrainSettings, TranslateSettings
    from mingyue.errors import MingyueError
    from mingyue.training import Observer

__version__ = "0.1.0"

_HOMES = {
    "GenerateSettings": "mingyue.config",
    "Inspection": "mingyue.api",
    "MingyueError": "mingyue.errors",
    "Model": "mingyue.api",
    "ModelConfig": "mingyue.config",
    "Observer": "mingyue.training",
    "RunResult": "mingyue.api",
    "TrainSettings": "mingyue.config",
    "TranslateSettings": "mingyue.config",
    "Translator": "mingyue.api",
    "curve": "mingyue.api",
    "inspect": "mingyue.api",
    "load": "mingyue.api",
    "load_translator": "mingyue.api",
    "resume": "mingyue.api",
    "train": "mingyue.api",
}

__all__ = [
    "GenerateSettings",
    "Inspection",
    "MingyueError",
    "Model",
    "ModelConfig",
    "Observer",
    "RunResult",
    "TrainSettings",
    "TranslateSettings",
    "Translator",
    "__version__",
    "curve",
    "inspect",
    "load",
    "load_translator",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mingyue' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
