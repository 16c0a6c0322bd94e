"""One forward pass with named values kept, compared with the fused pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mingyue.errors import GenerationError, SettingsError
from mingyue.inspection.subject import Reading, Subject
from mingyue.nn import Taps
from mingyue.nn.taps import Edit
from mingyue.words import tr

TOLERANCE = 1e-5
"""Largest difference of a logit between the captured and the fused pass, for logits of size 1."""


@dataclass(frozen=True)
class Captured:
    """The values kept from one forward pass."""

    reading: Reading
    values: dict[str, Tensor]
    """By tap name (`mingyue.nn.taps` lists them), without the batch axis: `blocks.0.attention.weights` is [H, T, S]."""
    logits_TV: Tensor


@torch.inference_mode()
def capture(
    subject: Subject, reading: Reading, places: Iterable[str], edits: Mapping[str, Edit] | None = None
) -> Captured:
    """Run the model over a reading with `edits`, and keep the values at the taps `places` (names or patterns).

    Without edits the logits are compared with those of the fused pass. Raises `GenerationError` if they differ by more
    than `TOLERANCE` (relative to the largest logit if that is above 1), and for NaN or infinite logits; `SettingsError`
    for an edit that returns anything but a tensor of the same shape, dtype and device.
    """
    taps = Taps(places, checked(edits))
    logits_TV = subject.logits(reading, taps)
    if not bool(torch.isfinite(logits_TV).all()):
        raise GenerationError(
            tr("the model's output is NaN"),
            advice=tr(
                "Its weights are damaged, or training had diverged when it was saved. Use an earlier checkpoint."
            ),
        )
    if not edits:
        fused_TV = subject.logits(reading)
        apart = float((fused_TV - logits_TV).abs().max()) / max(1.0, float(fused_TV.abs().max()))
        if apart > TOLERANCE:
            raise GenerationError(
                tr(
                    "the logits of explicit and fused attention differ by {apart:.1e}, more than "
                    "{tolerance:.0e}: the values shown would not be those of the model in use",
                    apart,
                    TOLERANCE,
                )
            )
    return Captured(reading, {name: value[0] for name, value in taps.values.items()}, logits_TV)


def checked(edits: Mapping[str, Edit] | None) -> dict[str, Edit] | None:
    """Edits that raise `SettingsError`, with the name of their tap, if they return another kind of tensor."""
    return None if edits is None else {tap: _checked(tap, edit) for tap, edit in edits.items()}


def _checked(tap: str, edit: Edit) -> Edit:
    def safe(value: Tensor) -> Tensor:
        edited = edit(value)
        if _described(edited) != _described(value):
            raise SettingsError(
                tr(
                    "the edit of {tap} got {described} and returned {returned}",
                    tap,
                    _described(value),
                    _described(edited),
                ),
                advice=tr("Return a tensor of the same shape, dtype and device as the edit receives."),
            )
        return edited

    return safe


def _described(value: object) -> str:
    if not isinstance(value, Tensor):
        return tr("no tensor ({kind})", type(value).__name__)
    return f"{[*value.shape]} {str(value.dtype).removeprefix('torch.')} on {value.device.type}"
