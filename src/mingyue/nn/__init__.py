"""The parts of a Transformer: tensors in, tensors out; independent of text, files and devices.

Shapes are in the names. The legend, for this package and for `mingyue.models`:

    B  batch                    T  positions of queries      S  positions of keys
    M  model width (d_model)    H  heads                     G  key-value heads
    D  head width (d_head)      F  feed-forward width        V  vocabulary

`x_BTM` is a tensor of shape [batch, positions, model width]; `weights_BHTS` holds, for each head, one row per query.
"""

from mingyue.nn.attend import CAUSAL, EVERYONE, Attend
from mingyue.nn.attention import (
    Attention,
    CrossAttention,
    MultiHeadAttention,
    explicit_attention,
    fused_attention,
    needs_matrix,
)
from mingyue.nn.blocks import (
    Block,
    DecoderBlock,
    PostNormBlock,
    PostNormDecoderBlock,
    PreNormBlock,
    PreNormDecoderBlock,
)
from mingyue.nn.cache import Cache, CacheStep, MemoryKV
from mingyue.nn.feedforward import FeedForward, SwiGLU, make_feedforward
from mingyue.nn.norm import make_norm
from mingyue.nn.positions import (
    LearnedPositions,
    Positions,
    RotaryPositions,
    RotaryRotation,
    Rotation,
    SinusoidalPositions,
    ntk_base,
    rotary_frequencies,
    sinusoid_table,
)
from mingyue.nn.taps import Taps, tap, within
from mingyue.nn.windowed import blocked_window_attention, chunk_of, chunked_window_attention

__all__ = [
    "CAUSAL",
    "EVERYONE",
    "Attend",
    "Attention",
    "Block",
    "Cache",
    "CacheStep",
    "CrossAttention",
    "DecoderBlock",
    "FeedForward",
    "LearnedPositions",
    "MemoryKV",
    "MultiHeadAttention",
    "Positions",
    "PostNormBlock",
    "PostNormDecoderBlock",
    "PreNormBlock",
    "PreNormDecoderBlock",
    "RotaryPositions",
    "RotaryRotation",
    "Rotation",
    "SinusoidalPositions",
    "SwiGLU",
    "Taps",
    "blocked_window_attention",
    "chunk_of",
    "chunked_window_attention",
    "explicit_attention",
    "fused_attention",
    "make_feedforward",
    "make_norm",
    "needs_matrix",
    "ntk_base",
    "rotary_frequencies",
    "sinusoid_table",
    "tap",
    "within",
]
