"""The families with a name map, and conversion in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mingyue.config import ModelConfig, nearest
from mingyue.errors import InteropError
from mingyue.interop.gpt2 import GPT2
from mingyue.interop.llama import LLAMA
from mingyue.interop.mapping import Family, Json
from mingyue.interop.marian import MARIAN
from mingyue.interop.qwen3 import QWEN3
from mingyue.words import tr

FAMILIES: dict[str, Family[ModelConfig]] = {family.model_type: family for family in (GPT2, LLAMA, QWEN3)}

SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def from_hf_state(config_json: Json, tensors: Mapping[str, Tensor]) -> tuple[ModelConfig, dict[str, Tensor]]:
    """A foreign config.json and its tensors → (config, state of a `DecoderOnly(config)`, fp32).

    Raises `InteropError` naming the first key or tensor that is missing, unexpected or not supported.
    """
    family = _family(config_json.get("model_type"), "config.json: model_type")
    config = family.read_config(config_json)
    return config, family.read_tensors(config, tensors)


def to_hf_state(
    config: ModelConfig,
    state: Mapping[str, Tensor],
    *,
    family: str | None = None,
    special_ids: Mapping[str, int] | None = None,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(config, state of a `DecoderOnly(config)`) → a foreign config.json and its tensors: the inverse.

    `family` is gpt2, llama or qwen3; default: the first that can express the config. `special_ids` may have the keys
    `SPECIAL_IDS`; missing ones are written as null, because the defaults of the families are ids of ordinary tokens.

    Raises `InteropError` naming the setting that the family cannot express, or the first tensor that does not fit.
    """
    chosen = choose_family(config) if family is None else _family(family, "family")
    theirs = chosen.write_config(config)
    tensors = chosen.write_tensors(config, state)
    theirs["torch_dtype"] = str(state["embedding.weight"].dtype).removeprefix("torch.")
    theirs |= dict.fromkeys(SPECIAL_IDS)
    for name, value in (special_ids or {}).items():
        if name not in SPECIAL_IDS:
            raise InteropError(
                tr("special_ids: there is no {name!r}; known: {special_ids}", name, ", ".join(SPECIAL_IDS))
            )
        theirs[name] = value
    return theirs, tensors


def choose_family(config: ModelConfig) -> Family[ModelConfig]:
    """The first family that can express `config`. Raises `InteropError` with each family's reason if none can."""
    reasons: list[str] = []
    for family in FAMILIES.values():
        try:
            family.write_config(config)
        except InteropError as error:
            reasons.append(error.message)
        else:
            return family
    raise InteropError(
        tr("no known family can express this model:\n") + "\n".join(reasons),
        advice=tr("Models of the presets modern, gpt2 and llama can be exported."),
    )


def _family(name: object, where: str) -> Family[ModelConfig]:
    if isinstance(name, str) and name in FAMILIES:
        return FAMILIES[name]
    if name == MARIAN.model_type:
        raise InteropError(
            tr(
                "{where} is {name!r}: an encoder-decoder model, whose SentencePiece tokenizers are not supported",
                where,
                name,
            ),
            advice=tr("mingyue.interop.from_marian and to_marian convert its weights."),
        )
    guess = nearest(str(name), FAMILIES)
    raise InteropError(
        tr("{where} is {name!r}; known: {families}", where, name, ", ".join(FAMILIES)),
        advice=tr("Did you mean {guess}?", guess) if guess else None,
    )
