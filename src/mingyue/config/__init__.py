"""Typed settings of models, training, generation and translation. Imports no torch."""

from mingyue.config.base import Settings
from mingyue.config.data import DataSettings, PairSettings, TokenizerSettings
from mingyue.config.effect import refuse_other_kind, refuse_unused, unused, with_effective_defaults
from mingyue.config.generate import GenerateSettings
from mingyue.config.model import EncoderDecoderConfig, ModelConfig, PartsConfig, RotaryScaling
from mingyue.config.nearest import nearest, nearest_path
from mingyue.config.numbers import Count, NonNegative, Positive, Seed, Workers, checked, checked_text, checked_texts
from mingyue.config.serve import ServeSettings
from mingyue.config.setting import Needs, ResumeRule, Setting, meaning_of, setting_of
from mingyue.config.train import (
    DEFAULT_MINUTES,
    BatchSettings,
    BudgetSettings,
    ModelSettings,
    OptimiserSettings,
    RunSettings,
    ScheduleSettings,
    SizeSettings,
    TrainSettings,
    one_budget,
)
from mingyue.config.translate import TranslateSettings

__all__ = [
    "DEFAULT_MINUTES",
    "BatchSettings",
    "BudgetSettings",
    "Count",
    "DataSettings",
    "EncoderDecoderConfig",
    "GenerateSettings",
    "ModelConfig",
    "ModelSettings",
    "Needs",
    "NonNegative",
    "OptimiserSettings",
    "PairSettings",
    "PartsConfig",
    "Positive",
    "ResumeRule",
    "RotaryScaling",
    "RunSettings",
    "ScheduleSettings",
    "Seed",
    "ServeSettings",
    "Setting",
    "Settings",
    "SizeSettings",
    "TokenizerSettings",
    "TrainSettings",
    "TranslateSettings",
    "Workers",
    "checked",
    "checked_text",
    "checked_texts",
    "meaning_of",
    "nearest",
    "nearest_path",
    "one_budget",
    "refuse_other_kind",
    "refuse_unused",
    "setting_of",
    "unused",
    "with_effective_defaults",
]
