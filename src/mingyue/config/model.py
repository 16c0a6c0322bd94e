"""What a model is: every size and every choice of a part. Stored as the bundle's config.json."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mingyue.config.base import Settings

Positive = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]

PositionKind = Literal["none", "learned", "sinusoidal", "rotary"]
FeedForwardKind = Literal["relu", "gelu", "gelu-tanh", "silu", "relu2", "swiglu"]
NormKind = Literal["layer", "rms"]
InitialisationKind = Literal["gpt2", "zero-output", "xavier"]


class RotaryScaling(Settings):
    """How rotary angles are changed so that a model serves a longer context than it was trained on."""

    kind: Literal["linear", "ntk", "llama3"] = "ntk"
    """linear: positions divided by the factor (Chen et al. 2023); ntk: a larger base; llama3: by frequency band."""
    factor: Annotated[float, Field(ge=1.0)] = 1.0
    """How many times longer the context becomes."""
    original_context: Positive | None = None
    """The context before scaling; needed by llama3."""
    low_frequency_factor: float = 1.0
    """llama3: wavelengths above original_context / this are scaled fully."""
    high_frequency_factor: float = 4.0
    """llama3: wavelengths below original_context / this are left alone."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind == "llama3" and self.original_context is None:
            raise ValueError("rotary_scaling kind llama3 needs original_context")
        if self.kind == "llama3" and not 0 < self.low_frequency_factor < self.high_frequency_factor:
            raise ValueError(
                f"rotary_scaling: low_frequency_factor {self.low_frequency_factor} must be above 0 "
                f"and below high_frequency_factor {self.high_frequency_factor}"
            )
        return self


class PartsConfig(Settings):
    """What both architectures have in common: sizes, and a choice for every part."""

    vocab_size: Positive
    """Number of token ids (of the target side, where there are two vocabularies)."""
    context: Positive
    """Most tokens that one forward pass sees (of each side, where there are two)."""
    d_model: Positive
    """Width of the residual stream."""
    n_layers: Positive
    """Number of blocks."""
    n_heads: Positive
    """Query heads of each attention."""
    n_kv_heads: Positive
    """Key and value heads; fewer than n_heads means grouped queries."""
    d_head: Positive
    """Width of a head; n_heads × d_head need not be d_model."""
    d_ff: Positive
    """Inner width of the feed-forward part."""
    positions: PositionKind = "rotary"
    """How a token knows its place: none, a learned table, the paper's sinusoids, or rotary angles."""
    sinusoid_layout: Literal["interleaved", "halves"] = "interleaved"
    """Sines and cosines alternate (the paper), or all sines come first."""
    rotary_base: Annotated[float, Field(gt=0.0)] = 10000.0
    """Base of the rotary angles."""
    rotary_scaling: RotaryScaling | None = None
    """Stretching of the rotary angles for longer contexts."""
    feedforward: FeedForwardKind = "swiglu"
    """Kind of the feed-forward part."""
    norm: NormKind = "rms"
    """LayerNorm or RMSNorm."""
    norm_eps: Annotated[float, Field(gt=0.0)] = 1e-6
    """Added to the variance inside a norm."""
    norm_placement: Literal["pre", "post"] = "pre"
    """Norm before each sub-layer, or after the addition as in the paper."""
    final_norm: bool = True
    """A norm between the last block and the output layer."""
    qk_norm: bool = False
    """RMSNorm with a gain on each head's queries and keys."""
    bias_qkv: bool = False
    """Bias of the projection to queries, keys and values."""
    bias_output: bool = False
    """Bias of the projection that joins the heads."""
    bias_feedforward: bool = False
    """Biases of the feed-forward part."""
    tied_output: bool = True
    """The output layer is the transposed embedding table."""
    embedding_scale: bool = False
    """Embeddings are multiplied by √d_model (the paper, section 3.4)."""
    dropout: Probability = 0.0
    """Dropout on embeddings and on the output of each sub-layer (the paper, section 5.4)."""
    attention_dropout: Probability = 0.0
    """Dropout on attention weights."""
    initialisation: InitialisationKind = "gpt2"
    """gpt2: N(0, 0.02²), residual outputs scaled down with depth; zero-output: N(0, 1/fan_in), residual outputs 0;
    xavier: uniform, by fan-in and fan-out (Glorot & Bengio 2010)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads {self.n_heads} is not a multiple of n_kv_heads {self.n_kv_heads}")
        if self.positions == "rotary" and self.d_head % 2:
            raise ValueError(f"rotary positions turn pairs: d_head {self.d_head} must be even")
        if self.rotary_scaling is not None and self.positions != "rotary":
            raise ValueError(f"rotary_scaling needs positions rotary, not {self.positions}")
        return self


class ModelConfig(PartsConfig):
    """A decoder-only Transformer, complete: two equal configs build modules of equal shapes."""

    architecture: Literal["decoder-only"] = "decoder-only"
    """Which of the model families this is."""
    window: Positive | None = None
    """A token attends to itself and the window − 1 tokens before it; none = all before it."""


class EncoderDecoderConfig(PartsConfig):
    """An encoder-decoder Transformer, complete. `n_layers` counts the blocks of the decoder."""

    architecture: Literal["encoder-decoder"] = "encoder-decoder"
    """Which of the model families this is."""
    n_encoder_layers: Positive
    """Number of blocks of the encoder."""
    source_vocab_size: Positive | None = None
    """Token ids of the source side, with a table of their own; none = one vocabulary and one table for both sides."""
    output_bias: bool = False
    """A bias on the logits (Marian has one; the paper's linear layer is the tied table alone)."""
