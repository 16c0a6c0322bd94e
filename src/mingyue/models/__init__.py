"""Complete models, made of the parts of `mingyue.nn`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mingyue.lazy import lazy_names

if TYPE_CHECKING:
    from mingyue.models.build import Transformer, TransformerConfig, build_model, empty_model, make_model
    from mingyue.models.decoder_only import DecoderOnly
    from mingyue.models.encoder_decoder import EncoderDecoder
    from mingyue.models.initialisation import initialise
    from mingyue.models.parts import TiedOutput
    from mingyue.models.presets import preset_parts, resolve_config, resolve_pair_config
    from mingyue.models.size import Sizes, TrainingBytes, sizes
    from mingyue.models.weights import first_not_finite, read_model, read_weights_file
    from mingyue.models.weights_file import UnreadableModelError, WeightsFile, cannot_read

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

__getattr__ = lazy_names(
    __name__,
    {
        "build": ("Transformer", "TransformerConfig", "build_model", "empty_model", "make_model"),
        "decoder_only": ("DecoderOnly",),
        "encoder_decoder": ("EncoderDecoder",),
        "initialisation": ("initialise",),
        "parts": ("TiedOutput",),
        "presets": ("preset_parts", "resolve_config", "resolve_pair_config"),
        "size": ("Sizes", "TrainingBytes", "sizes"),
        "weights": ("first_not_finite", "read_model", "read_weights_file"),
        "weights_file": ("UnreadableModelError", "WeightsFile", "cannot_read"),
    },
)
