"""Complete models, made of the parts of `mingyue.nn`."""

from mingyue.models.build import Transformer, TransformerConfig, build_model, empty_model, make_model
from mingyue.models.decoder_only import DecoderOnly
from mingyue.models.encoder_decoder import EncoderDecoder
from mingyue.models.initialise import initialise
from mingyue.models.parts import TiedOutput
from mingyue.models.presets import preset_parts, resolve_config, resolve_pair_config
from mingyue.models.sizes import Sizes, TrainingBytes, sizes
from mingyue.models.weights import (
    UnreadableModelError,
    WeightsFile,
    cannot_read,
    first_not_finite,
    read_model,
    read_weights_file,
)

__all__ = [
    "DecoderOnly",
    "EncoderDecoder",
    "Sizes",
    "TiedOutput",
    "TrainingBytes",
    "Transformer",
    "TransformerConfig",
    "UnreadableModelError",
    "WeightsFile",
    "build_model",
    "cannot_read",
    "empty_model",
    "first_not_finite",
    "initialise",
    "make_model",
    "preset_parts",
    "read_model",
    "read_weights_file",
    "resolve_config",
    "resolve_pair_config",
    "sizes",
]
