"""Claim: a word has one embedding, and another vector in each context."""

from __future__ import annotations

from collections.abc import Sequence
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
    train_encoder,
)
from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Table, Trial, values
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
_LINES = ("same", "other", "other_guess", "random")
_HIDDEN = MASKED
"""Share of words that are masked, as the method names it."""


def measure(trial: Trial) -> Measurement:
    """Encoders of 打 and of bank, untrained and trained for each task; causal models of both."""
    steps = trial.pick(25, 200, 1000)
    corpora = {
        "strike": corpus_of(strikes(600, 0), _WORDS["strike"]),
        "bank": corpus_of(banks(600, 0), _WORDS["bank"]),
    }
    cosines: dict[tuple[str, str, str, int], list[float]] = {}
    found: dict[str, list[float]] = {}
    for seed in seeds(trial, 1, 3, 10):
        for name, corpus in corpora.items():
            encoders = {"untrained": new_encoder(corpus, seed)}
            for task in _TASKS:
                encoders[task] = new_encoder(corpus, seed)
                train_encoder(encoders[task], corpus, task, steps, seed)
            for state, encoder in encoders.items():
                layers = _encoded(encoder, corpus)
                found.setdefault(f"{name}_embedding_apart", []).append(_apart(layers[0][:, corpus.position]))
                for layer, x_BTM in enumerate(layers):
                    for pairs, value in _alike(x_BTM, corpus, seed).items():
                        cosines.setdefault((name, state, pairs, layer), []).append(value)
            for what, value in _causal(causal_model(corpus, steps, seed), corpus).items():
                found.setdefault(f"causal_{name}_{what}", []).append(value)
    numbers = {name: Number.largest(samples) for name, samples in found.items() if name.endswith("_apart")}
    numbers |= {name: Number.median(samples) for name, samples in found.items() if name not in numbers}
    for (name, state, pairs, layer), samples in cosines.items():
        if layer == LAYERS and (state == "translate" or pairs != "random"):
            prefix = name if state == "translate" else f"{name}_{state}"
            numbers[f"{prefix}_{pairs}"] = Number.median(samples)
    rows = [
        Number.median(samples).row(word=name, state=state, pairs=pairs, layer=layer)
        for (name, state, pairs, layer), samples in cosines.items()
    ]
    return Measurement(numbers, {"cosines": rows})


@torch.no_grad()
def _encoded(model: EncoderDecoder, corpus: Corpus) -> list[Tensor]:
    """x_BTM: embeddings, then after each block of the encoder."""
    taps = Taps(["encoder.embeddings", "encoder.blocks.*.output"])
    model.encode(corpus.ids_BT, source_lengths_B=corpus.lengths_B, taps=taps)
    return _layers(taps, "encoder.")


def _layers(taps: Taps, prefix: str = "") -> list[Tensor]:
    blocks = [taps.values[f"{prefix}blocks.{layer}.output"] for layer in range(LAYERS)]
    return [taps.values[f"{prefix}embeddings"], *blocks]


def _alike(x_BTM: Tensor, corpus: Corpus, seed: int) -> dict[str, float]:
    """Mean cosine of the word's vectors in one sense, in two, and of pairs of words drawn at random."""
    draw = torch.Generator().manual_seed(seed)
    real = corpus.real_BT.nonzero()
    one, two = (real[torch.randint(len(real), (500,), generator=draw)].T for _ in range(2))
    apart = corpus.ids_BT[one[0], one[1]] != corpus.ids_BT[two[0], two[1]]
    random = F.cosine_similarity(x_BTM[one[0], one[1]], x_BTM[two[0], two[1]], dim=-1)[apart]
    return {**_by_sense(x_BTM[:, corpus.position], corpus.senses), "random": float(random.mean())}


def _by_sense(x_BM: Tensor, senses: Sequence[str]) -> dict[str, float]:
    """Mean cosine of vectors of one sense, and of two."""
    cosine_BB = _cosines(x_BM, x_BM)
    alike_BB = torch.tensor([[one == two for two in senses] for one in senses])
    pairs_BB = torch.ones_like(alike_BB).triu(1)
    return {
        "same": float(cosine_BB[alike_BB & pairs_BB].mean()),
        "other": float(cosine_BB[~alike_BB & pairs_BB].mean()),
    }


def _cosines(one_NM: Tensor, two_NM: Tensor) -> Tensor:
    return F.normalize(one_NM, dim=-1) @ F.normalize(two_NM, dim=-1).T


def _apart(x_BM: Tensor) -> float:
    return float((x_BM - x_BM[0]).abs().max())


@torch.no_grad()
def _causal(model: DecoderOnly, corpus: Corpus) -> dict[str, float]:
    """The word at the beginning, after the same words and after any; and the last word of the sentence."""

    def read(ids_BT: Tensor) -> list[Tensor]:
        taps = Taps(["embeddings", "blocks.*.output"])
        model(ids_BT, taps=taps)
        return _layers(taps)

    last_layer_BTM = read(corpus.ids_BT)[-1]
    word_BM = last_layer_BTM[:, corpus.position]
    alike: dict[tuple[int, ...], list[int]] = {}
    for row, before in enumerate(corpus.ids_BT[:, : corpus.position].tolist()):
        alike.setdefault(tuple(before), []).append(row)
    at_word = _by_sense(word_BM, corpus.senses)
    at_end = _by_sense(last_layer_BTM[torch.arange(len(word_BM)), corpus.lengths_B - 1], corpus.senses)
    return {
        "first_apart": max(_apart(x_BTM[:, 0]) for x_BTM in read(beginning_with_word(corpus))),
        "same_before_apart": max(_apart(word_BM[rows]) for rows in alike.values()),
        **at_word,
        **{f"last_{pairs}": value for pairs, value in at_end.items()},
    }


def judge(numbers: Numbers) -> Judgement:
    """One embedding; vectors that follow the sense; and the word at the beginning of a causal model's text."""
    value = values(numbers)
    one = value["strike_embedding_apart"] == 0 and value["bank_embedding_apart"] == 0
    gaps = [value[f"{name}_same"] - value[f"{name}_other"] for name in _WORDS]
    blind = max(value[f"causal_{name}_{what}"] for name in _WORDS for what in ("first_apart", "same_before_apart"))
    return Judgement.when(one and min(gaps) >= GAP, "found", correction=blind <= SAME, blind=blind)


def _lines(measurement: Measurement, word: str) -> Table:
    """A word's lines: in the encoder that translates, and two senses in the one that guesses."""
    rows = [row for row in measurement.tables["cosines"] if row["word"] == word]
    lines = [{**row, "line": row["pairs"]} for row in rows if row["state"] == "translate"]
    guess = [row for row in rows if row["state"] == "guess" and row["pairs"] == "other"]
    return [*lines, *({**row, "line": "other_guess"} for row in guess)]


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Lines("strike", rows=partial(_lines, word="strike"), x="layer", series="line", order=_LINES),
        Lines("bank", rows=partial(_lines, word="bank"), x="layer", series="line", order=_LINES),
    ],
    seconds=17,
)
