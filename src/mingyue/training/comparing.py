"""A run that starts from a trained model: the losses before and after, on the new text and on the old one.

They are events of the log: the first one is from before the first step, the last one from after the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mingyue.training.batches import BatchSource
from mingyue.training.loss import Evaluation
from mingyue.words import tr

EVENT = "compare"
NEW, OLD = "heldout_loss", "old_heldout_loss"
_STEPS = 16  # a comparison reads as much held-out text as so many steps, within these limits
_LEAST, _MOST = 1 << 13, 1 << 16
_RISEN = 1.02  # ratio of the old text's losses above which it counts as risen


@dataclass(frozen=True)
class Comparison:
    """What is compared."""

    new: BatchSource
    old: BatchSource | None
    """Batches of the held-out text of the run that trained the model; None: not at hand."""

    def measure(self, loss_of: Callable[[int | None, BatchSource], Evaluation]) -> dict[str, float]:
        """The losses now, for the log; `loss_of` takes a number of tokens (None: all) and the batches.

        As many tokens each time, whatever the plan is by then: losses on different parts of a text cannot be compared.
        """
        tokens = min(_MOST, max(_LEAST, _STEPS * self.new.sizes.step_tokens))
        found: dict[str, float] = {}
        for name, batches in ((NEW, self.new), (OLD, self.old)):
            if batches is not None and (there := batches.sizes.heldout_tokens) > 0:
                evaluation = loss_of(tokens if tokens < there else None, batches)
                found |= {name: evaluation.loss, name.replace("loss", "tokens"): evaluation.tokens}
        return found


def describe_before(found: Mapping[str, float]) -> str | None:
    """A sentence about the losses before the first step."""
    if NEW in found and OLD in found:
        return tr(
            "Before training: held-out loss {found:.3f} nats per token on the new text, "
            "{own:.3f} on the text that the model was trained on.",
            found[NEW],
            found[OLD],
        )
    if NEW in found:
        return tr("Before training: held-out loss {found:.3f} nats per token on the new text.", found[NEW])
    if OLD in found:
        return tr(
            "Before training: held-out loss {found:.3f} nats per token on the text it was trained on.", found[OLD]
        )
    return None


def describe_comparison(log: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences about the first and the last comparison in a log; none without two of them."""
    lines = [line for line in log if line["event"] == EVENT]
    if len(lines) < 2:
        return []
    first, last = lines[0], lines[-1]
    found = list[str]()
    if _is_number(first.get(NEW)) and _is_number(last.get(NEW)):
        tokens = last.get("heldout_tokens", 0)
        found.append(
            tr(
                "New text: held-out loss {first:.3f} before training, {last:.3f} now ({tokens:,} tokens).",
                first[NEW],
                last[NEW],
                tokens,
            )
        )
    if _is_number(first.get(OLD)) and _is_number(last.get(OLD)):
        tokens = last.get("old_heldout_tokens", 0)
        found.append(
            tr(
                "Old text: held-out loss {first:.3f} before training, {last:.3f} now ({tokens:,} tokens).",
                first[OLD],
                last[OLD],
                tokens,
            )
        )
    if _is_number(first.get(OLD)) and _is_number(last.get(OLD)) and last[OLD] > _RISEN * first[OLD]:
        found.append(
            tr(
                "The loss on the old text rose: fewer steps, lower rates (--learning-rate, "
                "--muon-learning-rate), or training on both texts together keep more of it."
            )
        )
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
