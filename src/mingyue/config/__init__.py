"""Typed settings of models, training and writing. Imports no torch."""

from mingyue.config.base import Settings, nearest
from mingyue.config.generate import GenerateSettings
from mingyue.config.model import EncoderDecoderConfig, ModelConfig, PartsConfig, RotaryScaling
from mingyue.config.pairs import PairSettings
from mingyue.config.train import (
    BatchSettings,
    BudgetSettings,
    DataSettings,
    ModelSettings,
    OptimiserSettings,
    RunSettings,
    ScheduleSettings,
    TokenizerSettings,
    TrainSettings,
)
from mingyue.config.translate import TranslateSettings

__all__ = [
    "BatchSettings",
    "BudgetSettings",
    "DataSettings",
    "EncoderDecoderConfig",
    "GenerateSettings",
    "ModelConfig",
    "ModelSettings",
    "OptimiserSettings",
    "PairSettings",
    "PartsConfig",
    "RotaryScaling",
    "RunSettings",
    "ScheduleSettings",
    "Settings",
    "TokenizerSettings",
    "TrainSettings",
    "TranslateSettings",
    "nearest",
]
