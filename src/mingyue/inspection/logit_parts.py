"""A logit as a sum over the parts of the model that wrote into the residual stream (Elhage et al. 2021).

The logit is the dot product of the output layer's row with the last vector of the residual stream, which is a sum. A
norm in between is linear once its scale (1 / σ) is that of this forward pass. So the row is carried backwards, from
the output layer to the embeddings, and each part is credited with its dot product with the row as it stands there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from mingyue.inspection.capture import Captured, capture
from mingyue.inspection.parts import Part
from mingyue.inspection.subject import Reading, Subject
from mingyue.models import EncoderDecoder
from mingyue.nn import Attention, Block, DecoderBlock

_PARTS: Mapping[str, Mapping[bool, Part]] = {
    "attention": {False: "self", True: "decoder"},
    "cross_attention": {True: "cross"},
}


@dataclass(frozen=True)
class LogitParts:
    """The contributions to one logit, or to the difference of two: fp64, and tensors of L layers and H heads."""

    token: float
    """Embedding of the token at the position."""
    position: float | None
    """Vector of the position that is added to it; None for a position kind that adds none."""
    heads_LH: Mapping[Part, Tensor]
    """By kind of attention: each head through its part of the output projection."""
    feedforward_L: Tensor
    biases: float
    """Biases of output projections, feed-forward layers, norms and the output layer."""

    @property
    def total(self) -> float:
        """The sum of all contributions."""
        heads = sum(float(heads_LH.sum()) for heads_LH in self.heads_LH.values())
        return self.token + (self.position or 0.0) + heads + float(self.feedforward_L.sum()) + self.biases


def logit_parts(
    subject: Subject, reading: Reading, position: int, token: int, instead: int | None
) -> tuple[LogitParts, Captured]:
    """The parts of logit(token), or of logit(token) − logit(instead), at one position; and the pass they are from."""
    stack = "decoder." if subject.of_pairs else ""
    sublayers = ("attention", "cross_attention", "feedforward") if subject.of_pairs else ("attention", "feedforward")
    heads = [f"{stack}blocks.*.{one}.heads" for one in sublayers if one != "feedforward"]
    outputs = [f"{stack}blocks.*.{one}.output" for one in sublayers]
    stream = [f"{stack}blocks.*.{name}" for name in ("middle", "crossed", "output")]
    seen = capture(subject, reading, [f"{stack}embeddings", *heads, *outputs, *stream])
    here = {name.removeprefix(stack): _exact(value[..., position, :]) for name, value in seen.values.items()}
    row = _Row(*_output_row(subject.module, token))
    if instead is not None:
        row = row.minus(*_output_row(subject.module, instead))
    return _walk(subject, row, here, int(reading.ids_T[position]), sublayers), seen


def _walk(subject: Subject, row: _Row, here: Mapping[str, Tensor], read: int, sublayers: tuple[str, ...]) -> LogitParts:
    """From the output layer back to the embedding of the id `read`; `here` has the values of one position by tap."""
    module = subject.module
    stack = module.decoder if isinstance(module, EncoderDecoder) else module
    blocks = [*cast(Iterable[Block], stack.blocks)]
    row.through(stack.final_norm, here[f"blocks.{len(blocks) - 1}.output"])
    heads: dict[Part, list[Tensor]] = {part: [] for part in _kinds(subject.of_pairs)}
    feedforward = list[Tensor]()
    for layer, block in reversed([*enumerate(blocks)]):
        before = _streams_before(here, layer, sublayers)
        for name in reversed(sublayers):
            output = here[f"blocks.{layer}.{name}.output"]
            if module.config.norm_placement == "post":
                row.through(getattr(block, f"{name}_norm"), before[name] + output)
            if name == "feedforward":
                feedforward.append(row.dot(output - row.take_bias(cast(nn.Module, block.feedforward.output))))
            else:
                attention = _attention(block, name)
                row.take_bias(attention.output)
                through_HD = (_exact(attention.output.weight).T @ row.vector_M).view(attention.n_heads, -1)
                heads[_PARTS[name][subject.of_pairs]].append((here[f"blocks.{layer}.{name}.heads"] * through_HD).sum(1))
    embedded_M = _exact(module.embedding.weight[read]) * module.embedding_scale
    added = module.config.positions in ("learned", "sinusoidal")
    return LogitParts(
        token=float(row.dot(embedded_M)),
        position=float(row.dot(here["embeddings"] - embedded_M)) if added else None,
        heads_LH={part: torch.stack(found[::-1]) for part, found in heads.items()},
        feedforward_L=torch.stack(feedforward[::-1]),
        biases=row.biases,
    )


def _exact(values: Tensor) -> Tensor:
    """On the CPU in fp64, where rounding does not add up."""
    return values.cpu().double()


class _Row:
    """The row of the output layer on its way back: dot products with it are contributions to the logit."""

    def __init__(self, vector_M: Tensor, bias: float) -> None:
        self.vector_M = vector_M
        self.biases = bias
        """Contribution of all biases met so far."""

    def minus(self, vector_M: Tensor, bias: float) -> _Row:
        """The row of a difference of two logits."""
        return _Row(self.vector_M - vector_M, self.biases - bias)

    def dot(self, added_M: Tensor) -> Tensor:
        """Contribution of a vector that is added here."""
        return self.vector_M @ added_M

    def take_bias(self, linear: nn.Module) -> Tensor:
        """The bias of a layer that writes here, 0 if it has none; its contribution is counted."""
        bias = cast(Tensor | None, getattr(linear, "bias", None))
        if bias is None:
            return torch.zeros_like(self.vector_M)
        self.biases += float(self.dot(_exact(bias)))
        return _exact(bias)

    def through(self, norm: nn.Module, x_M: Tensor) -> None:
        """From behind a norm, which reads x, to before it, with the norm's scale for this x."""
        if isinstance(norm, nn.Identity):
            return
        gain_M, eps = _exact(cast(Tensor, norm.weight)), float(cast(float, norm.eps))
        self.take_bias(norm)
        self.vector_M = gain_M * self.vector_M
        if isinstance(norm, nn.LayerNorm):  # it subtracts the mean of x, which is linear too
            self.vector_M = (self.vector_M - self.vector_M.mean()) / (x_M.var(correction=0) + eps).sqrt()
        else:
            self.vector_M = self.vector_M / (x_M.square().mean() + eps).sqrt()


def _output_row(module: nn.Module, token: int) -> tuple[Tensor, float]:
    """The weights and the bias of one logit; the output layer may be tied to the embedding table."""
    output = cast(nn.Module, module.output)
    table_VM = output.weight if isinstance(output, nn.Linear) else cast(nn.Embedding, module.embedding).weight
    bias_V = cast(Tensor | None, output.bias)
    return _exact(table_VM[token]), 0.0 if bias_V is None else float(bias_V[token])


def _streams_before(here: Mapping[str, Tensor], layer: int, sublayers: tuple[str, ...]) -> dict[str, Tensor]:
    """The residual stream that each sub-layer of a block reads."""
    block = f"blocks.{layer}"
    first = here["embeddings"] if layer == 0 else here[f"blocks.{layer - 1}.output"]
    between = [here[f"{block}.middle"], *([here[f"{block}.crossed"]] if "cross_attention" in sublayers else [])]
    return dict(zip(sublayers, [first, *between], strict=True))


def _attention(block: Block, name: str) -> Attention:
    if name == "attention":
        return block.attention
    assert isinstance(block, DecoderBlock)
    return block.cross_attention


def _kinds(of_pairs: bool) -> tuple[Part, ...]:
    return ("decoder", "cross") if of_pairs else ("self",)
