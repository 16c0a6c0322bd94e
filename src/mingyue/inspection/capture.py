"""One forward pass with named values kept, and the promise that looking changed nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mingyue.errors import GenerationError, SettingsError
from mingyue.inspection.subject import Reading, Subject
from mingyue.nn import Taps
from mingyue.nn.taps import Edit

TOLERANCE = 1e-5
"""Largest difference of a logit between the pass that was looked at and the fused one, for logits of size 1."""


@dataclass(frozen=True)
class Captured:
    """What one pass showed."""

    reading: Reading
    values: dict[str, Tensor]
    """By tap name (`mingyue.nn.taps` lists them), without the batch axis: `blocks.0.attention.weights` is [H, T, S]."""
    logits_TV: Tensor


@torch.inference_mode()
def capture(
    subject: Subject, reading: Reading, places: Iterable[str], edits: Mapping[str, Edit] | None = None
) -> Captured:
    """Run the model over a reading, keep the values at `places` (names or patterns), with `edits` made on the way.

    Without edits the logits are compared with those of the fused pass. Raises `GenerationError` if they differ by more
    than `TOLERANCE` (relative to the largest logit where that is above 1), and for logits that are not a number;
    `SettingsError` for an edit that returns something else than a tensor like the one that it got.
    """
    taps = Taps(places, checked(edits))
    logits_TV = subject.logits(reading, taps)
    if not bool(torch.isfinite(logits_TV).all()):
        raise GenerationError(
            "the model's output is not a number (NaN)",
            advice="Its weights are damaged, or it was saved after training diverged: use an earlier checkpoint.",
        )
    if not edits:
        fused_TV = subject.logits(reading)
        apart = float((fused_TV - logits_TV).abs().max()) / max(1.0, float(fused_TV.abs().max()))
        if apart > TOLERANCE:
            raise GenerationError(
                f"the logits of explicit and fused attention differ by {apart:.1e}, more than {TOLERANCE:.0e}: "
                "what would be shown is not what the model does"
            )
    return Captured(reading, {name: value[0] for name, value in taps.values.items()}, logits_TV)


def checked(edits: Mapping[str, Edit] | None) -> dict[str, Edit] | None:
    """Edits that raise `SettingsError`, with the name of their place, where they return what cannot stand there."""
    return None if edits is None else {place: _checked(place, edit) for place, edit in edits.items()}


def _checked(place: str, edit: Edit) -> Edit:
    def safe(value: Tensor) -> Tensor:
        edited = edit(value)
        if _described(edited) != _described(value):
            raise SettingsError(
                f"the edit of {place} got {_described(value)} and returned {_described(edited)}",
                advice="An edit returns a tensor of the same shape, type and device as it gets.",
            )
        return edited

    return safe


def _described(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"no tensor ({type(value).__name__})"
    return f"{[*value.shape]} {str(value.dtype).removeprefix('torch.')} on {value.device.type}"
