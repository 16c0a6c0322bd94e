"""The kinds of attention of a model: self-attention; or encoder, decoder and cross-attention of an encoder-decoder.

Layers and heads are counted from 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from mingyue.config import EncoderDecoderConfig, nearest
from mingyue.errors import SettingsError
from mingyue.inspection.subject import Subject
from mingyue.nn import Attend
from mingyue.words import Words, tr

Part = Literal["self", "encoder", "decoder", "cross"]

PART_NAMES: Mapping[Part, Words] = {
    "self": tr("Self-attention"),
    "encoder": tr("Encoder self-attention"),
    "decoder": tr("Decoder self-attention"),
    "cross": tr("Cross-attention"),
}

_PLACES: Mapping[Part, str] = {
    "self": "blocks.{}.attention",
    "encoder": "encoder.blocks.{}.attention",
    "decoder": "decoder.blocks.{}.attention",
    "cross": "decoder.blocks.{}.cross_attention",
}


@dataclass(frozen=True)
class AttentionPart:
    """One kind of attention of a model."""

    name: Part
    n_layers: int
    n_heads: int
    window: int | None = None

    def tap(self, layer: int, value: str) -> str:
        """The tap name of a value in a layer: `part.tap(0, "weights")` is `blocks.0.attention.weights`."""
        return f"{_PLACES[self.name].format(layer)}.{value}"

    @property
    def causal(self) -> bool:
        """Whether no token attends to the tokens after it."""
        return self.name in ("self", "decoder")

    def allowed(self, n_queries: int, n_keys: int) -> Tensor:
        """allowed_TS, boolean: which keys each query may attend to, in texts without padding."""
        attend = Attend(causal=self.causal, window=self.window)
        return attend.matrix(n_queries, n_keys)[0, 0]

    def check(self, layer: int | None, head: int | None) -> None:
        """Raise `SettingsError` for a layer or a head that this part does not have."""
        name = PART_NAMES[self.name].mapped(str.lower)
        if layer is not None and not 0 <= layer < self.n_layers:
            raise SettingsError(
                tr("there is no layer {layer} in the {part} of this model", layer, name),
                advice=tr("Its layers are counted from 0: 0 to {last}.", self.n_layers - 1),
            )
        if head is not None and not 0 <= head < self.n_heads:
            raise SettingsError(
                tr("there is no head {head} in the {part} of this model", head, name),
                advice=tr("Its heads are counted from 0: 0 to {last}.", self.n_heads - 1),
            )


def attention_parts(subject: Subject) -> tuple[AttentionPart, ...]:
    """All kinds of attention of this model, in the order of a forward pass."""
    config = subject.module.config
    if isinstance(config, EncoderDecoderConfig):
        return (
            AttentionPart("encoder", config.n_encoder_layers, config.n_heads),
            AttentionPart("decoder", config.n_layers, config.n_heads),
            AttentionPart("cross", config.n_layers, config.n_heads),
        )
    return (AttentionPart("self", config.n_layers, config.n_heads, config.window),)


def attention_part(subject: Subject, name: str) -> AttentionPart:
    """One of them. Raises `SettingsError` for a part that this model does not have."""
    parts = {part.name: part for part in attention_parts(subject)}
    for part in parts.values():
        if part.name == name:
            return part
    guess = nearest(name, parts)
    hint = tr("Did you mean {guess!r}?", guess) if guess else tr("It has: {parts}.", ", ".join(parts))
    raise SettingsError(tr("this model has no attention called {name!r}", name), advice=hint)
