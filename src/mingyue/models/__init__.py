"""Complete models, made of the parts in `mingyue.nn`."""

from mingyue.models.build import Transformer, TransformerConfig, build_model, make_model
from mingyue.models.counts import TrainingBytes
from mingyue.models.decoder_only import DecoderOnly
from mingyue.models.encoder_decoder import EncoderDecoder
from mingyue.models.initialise import initialise
from mingyue.models.pair_sizes import PairSizes
from mingyue.models.parts import TiedOutput
from mingyue.models.presets import resolve_config, resolve_pair_config
from mingyue.models.sizes import Sizes, sizes

__all__ = [
    "DecoderOnly",
    "EncoderDecoder",
    "PairSizes",
    "Sizes",
    "TiedOutput",
    "TrainingBytes",
    "Transformer",
    "TransformerConfig",
    "build_model",
    "initialise",
    "make_model",
    "resolve_config",
    "resolve_pair_config",
    "sizes",
]
