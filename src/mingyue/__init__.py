"""Mingyue 明月: a Transformer you can see through.

    import mingyue
    result = mingyue.train(sources=["poems.txt"], minutes=10)
    model = mingyue.load(result.folder)
    print(model.generate("床前", max_new_tokens=60)[0].text)

Names are imported when they are first used, so that `import mingyue` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mingyue.lazy import lazy_names

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


__getattr__ = lazy_names(
    __name__,
    {
        "mingyue.api": (
            "Inspection",
            "Model",
            "RunResult",
            "Translator",
            "curve",
            "inspect",
            "load",
            "load_translator",
            "resume",
            "train",
        ),
        "mingyue.config": ("GenerateSettings", "ModelConfig", "TrainSettings", "TranslateSettings"),
        "mingyue.errors": ("MingyueError",),
        "mingyue.training": ("Observer",),
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
