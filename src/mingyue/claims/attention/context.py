"""Claim: a word has one embedding, and another vector in each context."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.claims.attention.senses import (
    LAYERS,
    MASKED,
    Corpus,
    Task,
    beginning_with_word,
    causal_model,
    corpus_of,
    new_encoder,
    other_wording,
    train_encoder,
)
from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Table, Trial
from mingyue.claims.figures import Lines
from mingyue.claims.grammar import banks, strikes
from mingyue.claims.training import seeds
from mingyue.models import DecoderOnly, EncoderDecoder
from mingyue.nn import Taps

GAP = 0.1
"""Mean cosine of the word's vectors in one sense, less that in two: at least this."""
SAME = 1e-6
"""Largest difference of vectors that should be equal."""
_WORDS = {"strike": "打", "bank": "bank"}
_TASKS: tuple[Task, ...] = ("translate", "guess")
_STATES = ("untrained", "guess", "translate", "causal", "after")
_HIDDEN = MASKED
"""Share of words that are masked, as the method names it."""
_AFTER = 3
"""The comma stands so many tokens after 打: what comes next depends on the sense."""

_Gaps = dict[tuple[str, str, int], list[float]]
"""(word, state, layer) → a gap for each seed."""


def measure(trial: Trial) -> Measurement:
    """Encoders and causal models of 打 and of bank, untrained and trained."""
    steps = trial.pick(25, 200, 1000)
    corpora = {
        "strike": corpus_of(strikes(600, 0), _WORDS["strike"]),
        "bank": corpus_of(banks(600, 0), _WORDS["bank"]),
    }
    gaps: _Gaps = {}
    found: dict[str, list[float]] = {}
    for seed in seeds(trial, 1, 5, 10):
        for name, corpus in corpora.items():
            for state, layers in _encoders(corpus, steps, seed).items():
                at_word = [x_BTM[:, corpus.position] for x_BTM in layers]
                found.setdefault(f"{name}_embedding_apart", []).append(_apart(at_word[0]))
                _add(gaps, (name, state), at_word, corpus)
                if state == "untrained":
                    found.setdefault(f"{name}_untrained_cosine", []).append(_by_sense(at_word[-1], corpus)[1])
            untrained, trained = causal_model(corpus, 0, seed), causal_model(corpus, steps, seed)
            found.setdefault(f"causal_{name}_apart", []).append(_apart_after_same_words(trained, corpus))
            for when, model in (("_untrained", untrained), ("", trained)):
                layers = _read(model, corpus.ids_BT)
                _add(gaps, (name, f"causal{when}"), [x_BTM[:, corpus.position] for x_BTM in layers], corpus)
                if name == "strike":
                    after = [x_BTM[:, corpus.position + _AFTER] for x_BTM in layers]
                    _add(gaps, (name, f"after{when}"), after, corpus)
    numbers = {name: Number.largest(samples) for name, samples in found.items() if name.endswith("_apart")}
    numbers |= {name: Number.mean(samples) for name, samples in found.items() if name not in numbers}
    numbers |= {
        f"{name}_{state}": Number.mean(samples) for (name, state, layer), samples in gaps.items() if layer == LAYERS
    }
    rows = [
        Number.mean(samples).row(word=name, state=state, layer=layer)
        for (name, state, layer), samples in gaps.items()
        if state in _STATES
    ]
    return Measurement(numbers, {"gaps": rows})


def _encoders(corpus: Corpus, steps: int, seed: int) -> Mapping[str, list[Tensor]]:
    """x_BTM of each layer: of an untrained encoder, and of the same one trained for each task."""
    found = {"untrained": _encoded(new_encoder(corpus, seed), corpus)}
    for task in _TASKS:
        encoder = new_encoder(corpus, seed)
        train_encoder(encoder, corpus, task, steps, seed)
        found[task] = _encoded(encoder, corpus)
    return found


@torch.no_grad()
def _encoded(model: EncoderDecoder, corpus: Corpus) -> list[Tensor]:
    """x_BTM: embeddings, then after each block of the encoder."""
    taps = Taps(["encoder.embeddings", "encoder.blocks.*.output"])
    model.eval().encode(corpus.ids_BT, source_lengths_B=corpus.lengths_B, taps=taps)
    return _layers(taps, "encoder.")


@torch.no_grad()
def _read(model: DecoderOnly, ids_BT: Tensor) -> list[Tensor]:
    """x_BTM: embeddings, then after each block."""
    taps = Taps(["embeddings", "blocks.*.output"])
    model(ids_BT, taps=taps)
    return _layers(taps)


def _layers(taps: Taps, prefix: str = "") -> list[Tensor]:
    blocks = [taps.values[f"{prefix}blocks.{layer}.output"] for layer in range(LAYERS)]
    return [taps.values[f"{prefix}embeddings"], *blocks]


def _add(gaps: _Gaps, of: tuple[str, str], layers: list[Tensor], corpus: Corpus) -> None:
    for layer, x_BM in enumerate(layers):
        same, other = _by_sense(x_BM, corpus)
        gaps.setdefault((*of, layer), []).append(same - other)


def _by_sense(x_BM: Tensor, corpus: Corpus) -> tuple[float, float]:
    """Mean cosine of vectors of one sense in other words, and of two senses."""
    unit_BM = F.normalize(x_BM, dim=-1)
    cosine_BB = unit_BM @ unit_BM.T
    alike_BB = torch.tensor([[one == two for two in corpus.senses] for one in corpus.senses])
    return float(cosine_BB[alike_BB & other_wording(corpus)].mean()), float(cosine_BB[~alike_BB].mean())


def _apart(x_BM: Tensor) -> float:
    return float((x_BM - x_BM[0]).abs().max())


def _apart_after_same_words(model: DecoderOnly, corpus: Corpus) -> float:
    """Largest difference of the word's vectors at the beginning of a text and after the same words, in any layer."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for row, before in enumerate(corpus.ids_BT[:, : corpus.position].tolist()):
        alike.setdefault(tuple(before), []).append(row)
    at_beginning = max(_apart(x_BTM[:, 0]) for x_BTM in _read(model, beginning_with_word(corpus)))
    at_word = [x_BTM[:, corpus.position] for x_BTM in _read(model, corpus.ids_BT)]
    return max(at_beginning, *(_apart(x_BM[rows]) for x_BM in at_word for rows in alike.values()))


def judge(numbers: Numbers) -> Judgement:
    """One embedding; senses that separate with training and not without; the word at the beginning of a text."""

    def separates(state: str, control: str) -> bool:
        gap = numbers[state]
        return gap.low >= GAP and gap.low > numbers[control].high

    def every(state: str) -> bool:
        return all(separates(f"{name}_{state}", f"{name}_untrained") for name in _WORDS)

    one = all(numbers[f"{name}_embedding_apart"].high == 0 for name in _WORDS)
    blind = max(numbers[f"causal_{name}_apart"].high for name in _WORDS)
    unlabelled = separates("bank_causal", "bank_causal_untrained") and separates(
        "strike_after", "strike_after_untrained"
    )
    if not (one and (every("guess") or (every("translate") and unlabelled))):
        return Judgement.not_supported("found", "causal", "not_apart", blind=blind)
    if every("guess"):
        return Judgement.when(True, "found", "causal", correction=blind <= SAME, blind=blind)
    return Judgement.corrected("found", "causal", "where_needed", blind=blind)


def _lines(measurement: Measurement, word: str) -> Table:
    return [row for row in measurement.tables["gaps"] if row["word"] == word]


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Lines("strike", rows=partial(_lines, word="strike"), x="layer", series="state", order=_STATES),
        Lines("bank", rows=partial(_lines, word="bank"), x="layer", series="state", order=_STATES),
    ],
    seconds=45,
)
