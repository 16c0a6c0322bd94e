"""Claim: attention finds what a pronoun stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Table, Trial, values
from mingyue.claims.figures import Bars, Matrix, matrix_rows
from mingyue.claims.grammar import THINGS, Lexicon, Reference, references
from mingyue.claims.training import accuracy, fit, seeds, tiny
from mingyue.models import DecoderOnly
from mingyue.nn import Taps
from mingyue.nn.taps import Edit

ABOVE_UNIFORM = 3.0
"""The chosen head's weight on the noun must be at least this many times the uniform weight."""
KNOWS, BROKEN = 0.9, 0.5
"""Smallest accuracy of the whole model, and largest of one whose answer is broken."""
_LAYERS, _HEADS, _BATCH = 2, 4, 32
_CUTS = ("whole", "other", "head", "all")
_CHANCE = 1 / 6
"""Six animals, each with a trait of its own."""


def measure(trial: Trial) -> Measurement:
    """Train on half of all sentences; choose a head on a quarter of them, measure it on the last quarter."""
    known = list(dict.fromkeys(references(3000, 0)))  # every sentence of the grammar
    words = Lexicon(word for text in known for word in (*text.words, text.answer))
    steps = trial.pick(100, 250, 1500)
    found: dict[str, list[float]] = {}
    example: tuple[Tensor, Reference] | None = None
    for seed in seeds(trial, 1, 4, 20):
        train, choose, test = _split(known, seed)
        model = tiny(len(words), context=8, n_layers=_LAYERS, n_heads=_HEADS, seed=seed)
        ids_BT, answers_B = _batch(train, words)

        def batch(step: int, size: int = len(train), seed: int = seed) -> Tensor:
            return torch.randint(size, (_BATCH,), generator=torch.Generator().manual_seed(seed * 100_003 + step))

        def loss(model: DecoderOnly, rows_B: Tensor, ids: Tensor = ids_BT, answers: Tensor = answers_B) -> Tensor:
            return F.cross_entropy(model(ids[rows_B])[:, -1], answers[rows_B])

        fit(model, batch, loss, steps=steps, learning_rate=3e-3, seed=seed)
        chosen_LH = _weight_on_noun(model, choose, words)
        layer, head = divmod(int(chosen_LH.argmax()), _HEADS)
        for name, value in _measure_head(model, test, words, (layer, head)).items():
            found.setdefault(name, []).append(value)
        if example is None:
            example = (_weights(model, test[:1], words)[layer, 0, head], test[0])
    assert example is not None
    numbers = {name: Number.mean(samples) for name, samples in found.items()}
    numbers["uniform"] = Number.exact(1 / len(known[0].words))
    numbers["sentences_tested"] = Number.exact(len(_split(known, 0)[2]))
    rows = [numbers[f"accuracy_{cut}"].row(cut=cut) for cut in _CUTS]
    words_of_example = [{"word": word} for word in example[1].words]
    return Measurement(
        numbers, {"cuts": rows, "weights": matrix_rows(example[0].tolist()), "example": words_of_example}
    )


def _split(known: Sequence[Reference], seed: int) -> tuple[list[Reference], list[Reference], list[Reference]]:
    """(to train on, to choose the head on, to test on): a half and two quarters, no sentence in two of them."""
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed)).tolist()
    half, rest = len(known) // 2, len(known) * 3 // 4
    shuffled = [known[number] for number in order]
    return shuffled[:half], shuffled[half:rest], shuffled[rest:]


def _batch(texts: Sequence[Reference], words: Lexicon) -> tuple[Tensor, Tensor]:
    """(ids_BT up to the pronoun, answers_B)."""
    return words.tensor([text.words for text in texts]), torch.tensor([words[text.answer] for text in texts])


@torch.no_grad()
def _weights(model: DecoderOnly, texts: Sequence[Reference], words: Lexicon) -> Tensor:
    """weights_LBHTS of all layers."""
    taps = Taps(["blocks.*.attention.weights"])
    model(_batch(texts, words)[0], taps=taps)
    return torch.stack([taps.values[f"blocks.{layer}.attention.weights"] for layer in range(_LAYERS)])


def _weight_on_noun(model: DecoderOnly, texts: Sequence[Reference], words: Lexicon) -> Tensor:
    """Mean weight from the pronoun to its noun, [L, H]."""
    weights_LBHTS = _weights(model, texts, words)
    picked = [weights_LBHTS[:, row, :, text.pronoun, text.noun] for row, text in enumerate(texts)]
    return torch.stack(picked).mean(0)


def _measure_head(
    model: DecoderOnly, texts: Sequence[Reference], words: Lexicon, chosen: tuple[int, int]
) -> dict[str, float]:
    """The weight of the chosen head, and the accuracy with edges from the pronoun cut: scores set to −∞."""
    ids_BT, answers_B = _batch(texts, words)
    layer, head = chosen
    others = [next(at for at, word in enumerate(text.words) if word in THINGS) for text in texts]
    nouns = [text.noun for text in texts]
    pronoun = texts[0].pronoun

    def cut(targets: Sequence[int], heads: Sequence[int]) -> Edit:
        def edit(scores_BHTS: Tensor) -> Tensor:
            cut_BHTS = scores_BHTS.clone()
            for row, target in enumerate(targets):
                cut_BHTS[row, list(heads), pronoun, target] = float("-inf")
            return cut_BHTS

        return edit

    every = {f"blocks.{number}.attention.scores": range(_HEADS) for number in range(_LAYERS)}
    one = {f"blocks.{layer}.attention.scores": [head]}
    edits: dict[str, Mapping[str, Edit]] = {
        "whole": {},
        "other": {name: cut(others, heads) for name, heads in every.items()},
        "head": {name: cut(nouns, heads) for name, heads in one.items()},
        "all": {name: cut(nouns, heads) for name, heads in every.items()},
    }
    found: dict[str, float] = {"weight": float(_weight_on_noun(model, texts, words)[layer, head])}
    with torch.no_grad():
        for name, changed in edits.items():
            logits_BV = model(ids_BT, taps=Taps(edits=changed))[:, -1]
            found[f"accuracy_{name}"] = accuracy(logits_BV, answers_B)
    return found


def judge(numbers: Numbers) -> Judgement:
    """The head's weight against uniform; the answer without the edge."""
    value = values(numbers)
    times = numbers["weight"].low / value["uniform"]
    points = times >= ABOVE_UNIFORM and value["accuracy_whole"] >= KNOWS and value["accuracy_other"] >= KNOWS
    if points and value["accuracy_head"] <= BROKEN:
        return Judgement.supported("found", times=times)
    return Judgement.when(points and value["accuracy_all"] <= BROKEN, "found", correction=True, times=times)


def _labelled(measurement: Measurement) -> Table:
    """The rows of the matrix with their words."""
    rows = zip(measurement.tables["weights"], measurement.tables["example"], strict=True)
    return [{**weights, **word} for weights, word in rows]


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Matrix("weights", rows=_labelled, labels="word", low=0.0, high=1.0),
        Bars("cuts", x="cut", rules={"chance": _CHANCE}),
    ],
    seconds=4,
)
