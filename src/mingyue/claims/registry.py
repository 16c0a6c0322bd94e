"""All claims by name. A claim's module is imported when it is asked for."""

from __future__ import annotations

import importlib
import importlib.util

from mingyue.claims.claim import Claim
from mingyue.config import nearest
from mingyue.errors import SettingsError
from mingyue.words import tr

GROUPS: dict[str, tuple[str, ...]] = {
    "scaling": ("variance", "saturation", "additive"),
    "attention": (
        "rows",
        "mask",
        "worked-example",
        "parallel",
        "last-row",
        "quadratic",
        "context",
        "reference",
        "far",
        "distance",
    ),
    "heads": ("same-cost", "one-matrix", "own-slice", "many-relations", "specialise", "orthogonal-heads", "dataflow"),
    "blocks": ("residual", "layer-norm", "feedforward", "facts", "memory"),
    "embeddings": (
        "lookup",
        "trained-embedding",
        "tying",
        "order",
        "learned",
        "sinusoid",
        "rotary",
        "longer",
    ),
    "likelihood": ("chain-rule", "logs", "cross-entropy", "maximum-likelihood", "hallucination", "shift"),
}
"""Names by group, in the order in which they are listed."""

NAMES: tuple[str, ...] = tuple(name for names in GROUPS.values() for name in names)


def group_of(name: str) -> str:
    """The group of a claim. Raises `SettingsError` for a name that does not exist."""
    for group, names in GROUPS.items():
        if name in names:
            return group
    guess = nearest(name, NAMES)
    raise SettingsError(
        tr("there is no claim {name!r}", name) + (tr("; did you mean {guess!r}?", guess) if guess else ""),
        advice=tr("`mingyue claims list` shows them all."),
    )


def find(name: str) -> Claim:
    """The claim of that name. Raises `SettingsError` for a name that does not exist."""
    claim = importlib.import_module(_module(name)).CLAIM
    assert isinstance(claim, Claim)
    return claim


def written() -> list[str]:
    """The names whose module is there, in order."""
    return [name for name in NAMES if importlib.util.find_spec(_module(name)) is not None]


def _module(name: str) -> str:
    return f"mingyue.claims.{group_of(name)}.{name.replace('-', '_')}"
