"""Taps: named values of a forward pass that can be recorded or replaced.

A forward takes `taps=None`. It passes every named value to a `Taps`, which records those whose names match, and may
replace them. There are no hooks and no globals, and a pass without taps does no extra work.

Names (`i` counts blocks from 0):

    embeddings                     x_BTM      token (and position) embeddings, after dropout
    blocks.i.attention.query       BHTD       after QK-norm and rotation, as used in the dot product
    blocks.i.attention.key         BGSD       likewise; with a cache, all keys of the row
    blocks.i.attention.value       BGSD
    blocks.i.attention.scores      BHTS       q·k / √d_head before mask and softmax
    blocks.i.attention.weights     BHTS       after softmax; each row sums to 1, masked keys are exactly 0
    blocks.i.attention.heads       BHTD       output of each head, before concatenation
    blocks.i.attention.output      BTM        after the output projection
    blocks.i.middle                x_BTM      the residual stream between the two sub-layers
    blocks.i.feedforward.inner     BTF        after the activation
    blocks.i.feedforward.output    BTM
    blocks.i.output                x_BTM      the residual stream after the block
    final                          x_BTM      the input of the output layer
    logits                         BTV

In an encoder-decoder model all names but `logits` start with `encoder.` or `decoder.`; a decoder block also has

    decoder.blocks.i.cross_attention.*  as attention.*; keys and values are those of the S positions of the source text
    decoder.blocks.i.crossed       x_BTM      the residual stream between cross-attention and feed-forward

When several targets of one source text are read side by side (K rows for each row of the memory), cross-attention reads
them as one row of K·T queries: its query, scores, weights and heads have K·T instead of T.

If scores or weights are requested, attention uses its explicit path; for all other names it uses the fused one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase

from torch import Tensor

Edit = Callable[[Tensor], Tensor]


class Taps:
    """What to record and what to replace in one forward pass.

    `record` is a name or pattern, or several; `edits` maps names or patterns to functions from a value to another of
    the same shape. In a pattern such as `"blocks.*.output"` `*` matches one part of a name, never a dot; `"*"` alone
    matches every name. `values` holds what was recorded, after edits.
    """

    def __init__(self, record: Iterable[str] = (), edits: Mapping[str, Edit] | None = None) -> None:
        self.record = (record,) if isinstance(record, str) else tuple(record)
        self.edits = dict(edits or {})
        self.values: dict[str, Tensor] = {}
        self._prefix = ""

    def within(self, prefix: str) -> Taps:
        """The same taps for a submodule: names are prefixed with `prefix.`."""
        inner = Taps.__new__(Taps)
        inner.record, inner.edits, inner.values = self.record, self.edits, self.values
        inner._prefix = f"{self._prefix}{prefix}."
        return inner

    def wants(self, name: str) -> bool:
        """Whether the value called `name` here would be recorded or edited."""
        full = self._prefix + name
        return any(_matches(full, pattern) for pattern in (*self.record, *self.edits))

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """Pass a value to the taps under its name; returns it, or what an edit replaces it with.

        Raises `ValueError` if an edit changes the shape.
        """
        full = self._prefix + name
        for pattern, edit in self.edits.items():
            if _matches(full, pattern):
                edited = edit(value)
                if edited.shape != value.shape:
                    raise ValueError(f"edit of {full} turned {tuple(value.shape)} into {tuple(edited.shape)}")
                value = edited
        if any(_matches(full, pattern) for pattern in self.record):
            self.values[full] = value
        return value


def _matches(name: str, pattern: str) -> bool:
    if pattern == "*":
        return True
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def tap(taps: Taps | None, name: str, value: Tensor) -> Tensor:
    """Pass `value` to the taps, if there are any."""
    return value if taps is None else taps(name, value)


def within(taps: Taps | None, prefix: str) -> Taps | None:
    """The taps for a submodule, if there are any."""
    return None if taps is None else taps.within(prefix)
