"""Conversion of rotary positions: the two layouts of the pairs, and the keys for base and scaling in config.json.

In Mingyue, as in transformers, pair i of a head is (x[i], x[i + D/2]), "halves". Meta's own Llama files and llama.cpp's
GGUF files of Llama rotate neighbours, (x[2i], x[2i + 1]), "interleaved". Reordering the rows of the query and key
projections (and the gains of QK-norm, but not the values) converts between them.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mingyue.config import ModelConfig
from mingyue.errors import InteropError
from mingyue.interop.mapping import Json
from mingyue.nn import ntk_base
from mingyue.words import tr


def halves_from_interleaved(weight: Tensor, d_head: int) -> Tensor:
    """Reorder the rows of each head: first the first of every pair, then the second of every pair.

    `weight` is [heads · d_head, …]: a projection's weight or bias, or one head's gain.
    """
    return weight.unflatten(0, (-1, d_head // 2, 2)).transpose(1, 2).flatten(0, 2)


def interleaved_from_halves(weight: Tensor, d_head: int) -> Tensor:
    """The inverse of `halves_from_interleaved`."""
    return weight.unflatten(0, (-1, 2, d_head // 2)).transpose(1, 2).flatten(0, 2)


def read_rotary(theirs: Json) -> dict[str, Any]:
    """`rotary_base` and `rotary_scaling` from a config.json of transformers 4 or 5.

    Raises `InteropError` for kinds of scaling that Mingyue does not have, and for rotation of a part of the head.
    """
    rope = theirs.get("rope_scaling") or theirs.get("rope_parameters") or {}
    if any(isinstance(value, dict) for value in rope.values()):
        raise InteropError(tr("config.json: rope_parameters differ between layers; all layers must have the same"))
    share = rope.get("partial_rotary_factor", theirs.get("partial_rotary_factor", 1.0))
    if share != 1.0:
        raise InteropError(tr("config.json: partial_rotary_factor is {share}; only whole heads are supported", share))
    kind = rope.get("rope_type", rope.get("type", "default"))
    scaling: dict[str, Any] | None = None
    try:
        if kind == "linear":
            scaling = {"kind": "linear", "factor": rope["factor"]}
        elif kind == "llama3":
            scaling = {
                "kind": "llama3",
                "factor": rope["factor"],
                "original_context": rope.get("original_max_position_embeddings", theirs["max_position_embeddings"]),
                "low_frequency_factor": rope["low_freq_factor"],
                "high_frequency_factor": rope["high_freq_factor"],
            }
        elif kind != "default":
            raise InteropError(tr("config.json: rope_type is {kind!r}; known: default, linear, llama3", kind))
    except KeyError as error:
        raise InteropError(tr("config.json: rope_type {kind} has no {key}", kind, error.args[0])) from error
    return {"rotary_base": rope.get("rope_theta", theirs.get("rope_theta", 10000.0)), "rotary_scaling": scaling}


def write_rotary(config: ModelConfig) -> dict[str, Any]:
    """The inverse, for a config.json that transformers 4 and 5 read. `ntk` scaling is written as a larger base."""
    base, scaling = config.rotary_base, config.rotary_scaling
    if scaling is None or scaling.kind == "ntk":
        rope: dict[str, Any] = {"rope_type": "default"}
        base = base if scaling is None else ntk_base(base, scaling.factor, config.d_head)
    elif scaling.kind == "linear":
        rope = {"rope_type": "linear", "factor": scaling.factor}
    else:
        rope = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "original_max_position_embeddings": scaling.original_context,
            "low_freq_factor": scaling.low_frequency_factor,
            "high_freq_factor": scaling.high_frequency_factor,
        }
    old = {"rope_theta": base, "rope_scaling": rope if rope["rope_type"] != "default" else None}
    return {**old, "rope_parameters": {"rope_theta": base, **rope}}
