"""Complete models, made of the parts in `mingyue.nn`."""

from mingyue.models.decoder_only import DecoderOnly, TiedOutput, build_model
from mingyue.models.initialise import initialise
from mingyue.models.presets import resolve_config
from mingyue.models.sizes import Sizes, TrainingBytes, sizes

__all__ = [
    "DecoderOnly",
    "Sizes",
    "TiedOutput",
    "TrainingBytes",
    "build_model",
    "initialise",
    "resolve_config",
    "sizes",
]
