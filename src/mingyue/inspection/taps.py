"""The taps of a model, and their labels in tables and charts (`mingyue.nn.taps`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from mingyue.config import nearest
from mingyue.errors import SettingsError
from mingyue.inspection.labels import layer_label
from mingyue.inspection.subject import Subject
from mingyue.nn import Taps
from mingyue.words import Language, tr


def stream_taps(n_blocks: int, stack: str = "") -> list[str]:
    """Taps of the residual stream of a stack, in the order of a pass: embeddings, after each block, final.

    `stack` is "" (decoder-only), "encoder." or "decoder.".
    """
    return [f"{stack}embeddings", *(f"{stack}blocks.{layer}.output" for layer in range(n_blocks)), f"{stack}final"]


def tap_label(tap: str, language: Language = "en") -> str:
    """The label of a tap of the residual stream. The output of block 3 is that of layer 3; both count from 0."""
    parts = tap.split(".")
    if "blocks" in parts:
        return layer_label(int(parts[parts.index("blocks") + 1]), language)
    names = {
        "static": tr("table"),
        "embeddings": tr("embeddings"),
        "final": tr("final"),
    }
    return names[parts[-1]].of(language)


def tap_names(subject: Subject) -> tuple[str, ...]:
    """Every tap of this model, in the order of a forward pass; read from the running code, on one token."""
    taps = Taps("*")
    one = torch.zeros(1, 1, dtype=torch.long, device=subject.device)
    with torch.inference_mode():
        subject.module(*([one, one] if subject.of_pairs else [one]), taps=taps)
    return tuple(taps.values)


def check_taps(subject: Subject, taps: Iterable[str]) -> None:
    """Raise `SettingsError` for a name or pattern that matches no tap of this model, with the nearest that does."""
    known = tap_names(subject)
    for name in taps:
        if not matching(name, known):
            hint = _of_the_other_kind(subject, name, known)
            if hint is None:
                guess = nearest(name, known)
                hint = (
                    tr("Did you mean {guess!r}?", guess)
                    if guess
                    else tr("The first are {known}, …", ", ".join(known[:5]))
                )
            raise SettingsError(tr("this model has no tap {name!r}", name), advice=hint)


def _of_the_other_kind(subject: Subject, name: str, known: Sequence[str]) -> str | None:
    """Advice for a name that the other kind of model has."""
    if subject.of_pairs and matching(f"decoder.{name}", known):
        return tr(
            "An encoder-decoder model has its blocks in both stacks: names begin with `encoder.` "
            'or `decoder.`. Give switch_off part="encoder", "decoder" (its self-attention) or '
            '"cross".'
        )
    if not subject.of_pairs and name.startswith(("encoder.", "decoder.")):
        return tr(
            "A decoder-only model has neither encoder nor decoder: its names begin with "
            '`blocks.`. Leave the part of switch_off out (part="self").'
        )
    return None


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that a name or pattern of `Taps` matches."""
    return [name for name in names if Taps(pattern).wants(name)]
