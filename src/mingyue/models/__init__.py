"""Complete models, made of the parts in `mingyue.nn`."""

from mingyue.models.decoder_only import DecoderOnly, TiedOutput, build_model
from mingyue.models.initialise import initialise
from mingyue.models.presets import resolve_config

__all__ = ["DecoderOnly", "TiedOutput", "build_model", "initialise", "resolve_config"]
