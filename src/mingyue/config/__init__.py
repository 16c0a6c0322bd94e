"""Typed settings of models, training and writing. Imports no torch."""

from mingyue.config.base import Settings, nearest
from mingyue.config.generate import GenerateSettings
from mingyue.config.model import ModelConfig, RotaryScaling
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

__all__ = [
    "BatchSettings",
    "BudgetSettings",
    "DataSettings",
    "GenerateSettings",
    "ModelConfig",
    "ModelSettings",
    "OptimiserSettings",
    "RotaryScaling",
    "RunSettings",
    "ScheduleSettings",
    "Settings",
    "TokenizerSettings",
    "TrainSettings",
    "nearest",
]
