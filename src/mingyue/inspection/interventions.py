"""Interventions: replace a value at a tap of a forward pass, and measure the effect on the logits.

Edits are functions by tap (`mingyue.nn.taps`), as `capture` and the forward of a model take them, several in one dict.
Here the logits of a model of six letters with random weights change without one of its heads:

    >>> from mingyue.config import ModelConfig
    >>> from mingyue.inspection import Subject
    >>> from mingyue.inspection.interventions import edited_logits, patching, replace_vector, switch_off
    >>> from mingyue.models import build_model
    >>> from mingyue.text import train_char
    >>> letters = train_char(["abcdef"])
    >>> config = ModelConfig(
    ...     vocab_size=letters.vocab_size, context=8, d_model=16, n_layers=2, n_heads=2, n_kv_heads=2, d_head=8, d_ff=32
    ... )
    >>> subject = Subject(build_model(config, seed=0).eval(), letters)
    >>> reading = subject.read("abca")
    >>> plain_TV = subject.logits(reading)
    >>> without_TV = edited_logits(subject, reading, switch_off(layer=1, head=0))
    >>> bool((plain_TV - without_TV).abs().max() > 0)
    True

Activation patching finds the activations that carry the difference between two texts. The model reads the corrupted
text with one vector, at one tap and position, taken from its pass over the clean text; 1 = the answer is recovered:

    >>> view = patching(subject, subject.read("abc"), subject.read("dbc"), answer="a", instead="d")
    >>> view.recovered_PT.shape, view.places
    ((2, 3), ('blocks.0.output', 'blocks.1.output'))
    >>> round(float(view.recovered_PT[-1, -1]), 3)  # the answer depends on the last vector of the last block alone
    1.0
    >>> moved = replace_vector("blocks.0.output", 0, subject.module.embedding.weight[5])
    >>> bool((edited_logits(subject, reading, moved) - plain_TV).abs().max() > 0)
    True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mingyue.errors import SettingsError
from mingyue.inspection.capture import capture
from mingyue.inspection.patching import PatchingView, patching
from mingyue.inspection.subject import Reading, Subject
from mingyue.inspection.taps import check_taps
from mingyue.nn.taps import Edit
from mingyue.words import tr

__all__ = ["Edits", "PatchingView", "edited_logits", "patching", "replace_vector", "switch_off"]

Edits = dict[str, Edit]


def switch_off(layer: int, head: int, part: str = "self") -> Edits:
    """Edits that set the output of one head to 0. `part`: "self"; for an encoder-decoder "encoder", "decoder", "cross".

    Layers and heads are counted from 0. Whether the model has them is checked when the edits are used.
    """
    stack = {"self": "", "encoder": "encoder.", "decoder": "decoder.", "cross": "decoder."}.get(part)
    if stack is None:
        raise SettingsError(tr("part {part!r} is not one of self, encoder, decoder, cross", part))
    attention = "cross_attention" if part == "cross" else "attention"
    tap = f"{stack}blocks.{layer}.{attention}.heads"

    def edit(heads_BHTD: Tensor) -> Tensor:
        n_heads = heads_BHTD.shape[1]
        if not 0 <= head < n_heads:
            raise SettingsError(
                tr("there is no head {head} at {tap}", head, tap),
                advice=tr("Heads are counted from 0: 0 to {n_heads}.", n_heads - 1),
            )
        edited_BHTD = heads_BHTD.clone()
        edited_BHTD[:, head] = 0.0
        return edited_BHTD

    return {tap: edit}


def replace_vector(place: str, position: int, vector: Tensor | Sequence[float] | float) -> Edits:
    """Edits that put a vector at one position (from 0; negative ones count from the end) of a tap.

    `place` is the tap. The vector has the shape of the value at one position: [M] of the residual stream, [H, D] of
    queries and heads, where [D] is used for every head; a number fills the vector. When used, the edit raises
    `SettingsError` for a position or a shape that does not fit.
    """

    def edit(value: Tensor) -> Tensor:
        axis = _position_axis(value)
        if not -value.shape[axis] <= position < value.shape[axis]:
            raise SettingsError(
                tr("there is no position {position} at {place}", position, place),
                advice=tr("Positions are counted from 0: 0 to {shape}.", value.shape[axis] - 1),
            )
        edited = value.clone()
        old = edited.select(axis, position)
        new = torch.as_tensor(vector, dtype=value.dtype, device=value.device)
        try:
            old.copy_(new.expand_as(old))
        except RuntimeError:
            raise SettingsError(
                tr(
                    "a vector of shape {value} does not fit {place}, which has {wanted} at each position",
                    [*new.shape],
                    place,
                    [*old.shape[1:]],
                )
            ) from None
        return edited

    return {place: edit}


def _position_axis(value: Tensor) -> int:
    """The axis of positions in [B, T, M] or [B, H, T, D]."""
    return value.ndim - 2


@torch.inference_mode()
def edited_logits(subject: Subject, reading: Reading, edits: Mapping[str, Edit]) -> Tensor:
    """logits_TV of a forward pass with edits.

    Raises `SettingsError` for a name that is no tap of this model (with the nearest that is), and for an edit that
    returns another kind of tensor.
    """
    check_taps(subject, edits)
    return capture(subject, reading, (), edits).logits_TV
