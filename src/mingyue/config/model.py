"""Model configs: every size and the choice of every part. Stored as the bundle's config.json.

A field of `ModelParts` (or of `DecoderOnlyParts`) is part of a model's config and a setting of a run at once.
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import Annotated, Any, Generic, Literal, Never, Self, TypeVar, get_args

from pydantic import Field, create_model, model_validator

from mingyue.config.base import Settings
from mingyue.config.numbers import (
    Context,
    Epsilon,
    Heads,
    Layers,
    Positive,
    PositiveFloat,
    Probability,
    Vocabulary,
    Width,
)
from mingyue.config.setting import CONFIG, WEIGHTS, Needs, declare, setting, setting_of
from mingyue.words import tr

PositionKind = Literal["none", "learned", "sinusoidal", "rotary"]
FeedForwardKind = Literal["relu", "gelu", "gelu-tanh", "silu", "relu2", "swiglu"]
NormKind = Literal["layer", "rms"]
InitialisationKind = Literal["gpt2", "zero-output", "xavier"]
Unset = TypeVar("Unset")
_PRESET = tr("from the preset")


class RotaryScaling(Settings):
    """Rescaling of the rotary angles, which lets a model read a longer context than it was trained on."""

    kind: Literal["linear", "ntk", "llama3"] = "ntk"
    """linear: positions divided by the factor (Chen et al. 2023); ntk: a larger base; llama3: by frequency band."""
    factor: Annotated[float, Field(ge=1.0, le=1e6, allow_inf_nan=False)] = 1.0
    """Factor by which the context grows."""
    original_context: Context | None = None
    """Context before scaling, in tokens; required by llama3."""
    low_frequency_factor: PositiveFloat = 1.0
    """llama3: wavelengths above original_context / low_frequency_factor are scaled by the whole factor."""
    high_frequency_factor: PositiveFloat = 4.0
    """llama3: wavelengths below original_context / high_frequency_factor are not scaled."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind == "llama3" and self.original_context is None:
            raise ValueError(tr("rotary_scaling kind llama3 needs original_context"))
        if self.kind == "llama3" and not 0 < self.low_frequency_factor < self.high_frequency_factor:
            raise ValueError(
                tr(
                    "rotary_scaling: low_frequency_factor {low_frequency_factor} must be above 0 and "
                    "below high_frequency_factor {high_frequency_factor}",
                    self.low_frequency_factor,
                    self.high_frequency_factor,
                )
            )
        return self


class ModelSizes(Settings):
    """Sizes of a complete model, common to both architectures."""

    vocab_size: Vocabulary
    """Number of token ids (of the target side, where there are two vocabularies)."""
    context: Context
    """Context length, in tokens: the most that one forward pass reads (of each side, where there are two)."""
    d_model: Width
    """Width of the residual stream."""
    n_layers: Layers
    """Number of blocks."""
    n_heads: Heads
    """Number of query heads of each attention."""
    n_kv_heads: Heads
    """Number of key-value heads; fewer than n_heads = grouped-query attention."""
    d_head: Width
    """Width of a head; n_heads × d_head may differ from d_model."""
    d_ff: Width
    """Inner width of the feed-forward layer."""


class ModelParts(Settings, Generic[Unset]):
    """Choices of parts that a run can set and a model's config holds; each is declared once, for both.

    `ModelParts[Never]`, in a config: every field has the default given here. `ModelParts[None]`, in `ModelSettings`:
    every field may be None, which is its default and means "from the preset".
    """

    positions: PositionKind | Unset = setting("rotary", resume=WEIGHTS, auto=_PRESET)
    """Position encoding: none, a learned table, the paper's sinusoidal, or rotary."""
    rotary_base: PositiveFloat | Unset = setting(
        10000.0,
        resume=WEIGHTS,
        auto="the context, at least 100; llama and pairs: 10,000",
        needs=Needs(tr("with --positions rotary"), lambda run: run["positions"] == "rotary"),
    )
    """Base of the rotary angles."""
    feedforward: FeedForwardKind | Unset = setting("swiglu", resume=WEIGHTS, auto=_PRESET)
    """Activation of the feed-forward layer; relu2 is squared ReLU, swiglu is gated."""
    norm: NormKind | Unset = setting("rms", resume=WEIGHTS, auto=_PRESET)
    """Normalisation: LayerNorm or RMSNorm."""
    norm_placement: Literal["pre", "post"] | Unset = setting("pre", resume=WEIGHTS, auto=_PRESET)
    """Placement of the norm: before each sub-layer (pre), or after the addition as in the paper (post)."""
    qk_norm: bool | Unset = setting(False, resume=WEIGHTS, auto=_PRESET)
    """RMSNorm with a gain on each head's queries and keys."""
    tied_output: bool | Unset = setting(True, resume=WEIGHTS, auto=_PRESET)
    """Output layer tied to the embedding table."""
    dropout: Probability | Unset = setting(0.0, resume=CONFIG, auto=_PRESET)
    """Dropout on embeddings and on the output of each sub-layer (the paper, section 5.4)."""
    attention_dropout: Probability | Unset = setting(0.0, resume=CONFIG, auto="0")
    """Dropout on attention weights."""
    initialisation: InitialisationKind | Unset = setting("gpt2", resume=WEIGHTS, auto=_PRESET)
    """Weight initialisation: gpt2: N(0, 0.02²), residual outputs scaled down with depth; zero-output: N(0, 1/fan_in),
    residual outputs 0, so that blocks start as the identity; xavier: uniform (Glorot & Bengio 2010)."""

    def __class_getitem__(cls, typevar_values: Any) -> Any:  # noqa: ANN401  (as pydantic declares it)
        """A class with the fields of this one: as they are, or (`None`) each of them optional."""
        optional = typevar_values is None
        fields: dict[str, Any] = {}
        for name, info in cls.model_fields.items():
            types = [one for one in get_args(info.annotation) if one is not Unset] + [None] * optional
            details = setting_of(info)
            assert details is not None, name
            value = None if optional else info.default
            fields[name] = (reduce(operator.or_, types), declare(value, details, help=info.description))
        return create_model(cls.__name__, __base__=Settings, **fields)


class DecoderOnlyParts(Settings):
    """The same for choices that only a decoder-only model has; None = without it, in a config and in a run."""

    window: Positive | None = setting(None, kinds="text", resume=WEIGHTS, auto="no window")
    """Sliding window of attention, in tokens: a token attends to itself and to the window − 1 tokens before it."""


class PartsConfig(ModelParts[Never], ModelSizes):
    """What both architectures have in common: sizes, and a choice for every part."""

    sinusoid_layout: Literal["interleaved", "halves"] = "interleaved"
    """Sines and cosines alternate (the paper), or all sines come first."""
    rotary_scaling: RotaryScaling | None = None
    """Rescaling of the rotary angles for longer contexts."""
    norm_eps: Epsilon = 1e-6
    """Added to the variance inside a norm."""
    final_norm: bool = True
    """Norm between the last block and the output layer."""
    bias_qkv: bool = False
    """Bias of the projection to queries, keys and values."""
    bias_output: bool = False
    """Bias of the output projection of attention."""
    bias_feedforward: bool = False
    """Biases of the feed-forward layer."""
    embedding_scale: bool = False
    """Embeddings multiplied by √d_model (the paper, section 3.4)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                tr("n_heads {n_heads} is not a multiple of n_kv_heads {n_kv_heads}", self.n_heads, self.n_kv_heads)
            )
        if self.positions == "rotary" and self.d_head % 2:
            raise ValueError(
                tr("rotary positions rotate pairs of dimensions: d_head {d_head} must be even", self.d_head)
            )
        if self.rotary_scaling is not None and self.positions != "rotary":
            raise ValueError(tr("rotary_scaling needs positions rotary, not {positions}", self.positions))
        return self


class ModelConfig(DecoderOnlyParts, PartsConfig):
    """A decoder-only Transformer, complete: two equal configs build modules of equal shapes."""

    architecture: Literal["decoder-only"] = "decoder-only"
    """Architecture of the model."""


class EncoderDecoderConfig(PartsConfig):
    """An encoder-decoder Transformer, complete. `n_layers` counts the blocks of the decoder."""

    architecture: Literal["encoder-decoder"] = "encoder-decoder"
    """Architecture of the model."""
    n_encoder_layers: Layers
    """Number of encoder blocks."""
    source_vocab_size: Vocabulary | None = None
    """Number of source token ids, with their own embedding table; none = one vocabulary and table for both sides."""
    output_bias: bool = False
    """Bias on the logits (Marian has one; the paper's output layer is the tied table alone)."""
