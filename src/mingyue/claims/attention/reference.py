"""Claim: attention finds what a pronoun stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Table, Trial
from mingyue.claims.figures import Bars, Matrix, matrix_rows
from mingyue.claims.grammar import Lexicon, Reference, references
from mingyue.claims.training import accuracy, fit, seeds, tiny
from mingyue.models import DecoderOnly
from mingyue.nn import Taps
from mingyue.nn.taps import Edit

ABOVE_UNIFORM = 3.0
"""The chosen head's weight on the noun must be at least this many times the uniform weight."""
PREFERS = 0.75
"""Of its weight on the two animals, the share on the right one; a head that looks at any animal has one half."""
KNOWS, BROKEN = 0.9, 0.5
"""Smallest accuracy of the whole model, and largest of one whose answer is broken: a guess between two animals."""
_LAYERS, _HEADS, _BATCH = 2, 4, 64
_LEARNED = 0.995
"""Accuracy at which the training ends."""
_CUTS = ("whole", "other", "head", "carriers", "tokens")

_Head = tuple[int, int]


@dataclass(frozen=True)
class _Texts:
    """Sentences as tensors."""

    ids_BT: Tensor
    """Up to the pronoun."""
    noun_B: Tensor
    other_B: Tensor
    answers_B: Tensor

    @classmethod
    def of(cls, texts: Sequence[Reference], words: Lexicon) -> _Texts:
        return cls(
            words.tensor([text.words for text in texts]),
            torch.tensor([text.noun for text in texts]),
            torch.tensor([text.other for text in texts]),
            torch.tensor([words[text.answer] for text in texts]),
        )


def measure(trial: Trial) -> Measurement:
    """Train on half of the sentences; choose heads on a quarter of them, measure them on the last quarter."""
    known = list(dict.fromkeys(references(8000, 0)))  # nearly every sentence of the grammar
    words = Lexicon(word for text in known for word in (*text.words, text.answer))
    steps = trial.pick(60, 2500, 4000)
    found: dict[str, list[float]] = {}
    example: tuple[Tensor, Reference] | None = None
    for seed in seeds(trial, 1, 5, 20):
        parts = _split(known, seed)
        train, choose, test = (_Texts.of(part, words) for part in parts)
        model = tiny(len(words), context=8, n_layers=_LAYERS, n_heads=_HEADS, seed=seed)
        measured = {f"{name}_untrained": value for name, value in _measure_head(model.eval(), choose, test).items()}
        _train(model, train, choose, steps, seed)
        measured |= _measure_head(model, choose, test) | _measure_cuts(model, choose, test)
        for name, value in measured.items():
            found.setdefault(name, []).append(value)
        if example is None:
            layer, head = _best(_attention(model, choose))
            example = (_weights(model, test.ids_BT[:1])[layer, 0, head], parts[2][0])
    assert example is not None
    numbers = {name: Number.mean(samples).clipped(0, _LAYERS * _HEADS) for name, samples in found.items()}
    shares = [name for name in numbers if name != "carriers"]
    numbers |= {name: numbers[name].clipped(0, 1) for name in shares}
    numbers["uniform"] = Number.exact(1 / len(known[0].words))
    numbers["sentences_tested"] = Number.exact(len(_split(known, 0)[2]))
    rows = [numbers[f"accuracy_{cut}"].row(cut=cut) for cut in _CUTS]
    words_of_example = [{"word": word} for word in example[1].words]
    return Measurement(
        numbers, {"cuts": rows, "weights": matrix_rows(example[0].tolist()), "example": words_of_example}
    )


def _split(known: Sequence[Reference], seed: int) -> tuple[list[Reference], list[Reference], list[Reference]]:
    """(to train on, to choose heads on, to test on): a half and two quarters, no sentence in two of them."""
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed)).tolist()
    half, rest = len(known) // 2, len(known) * 3 // 4
    shuffled = [known[number] for number in order]
    return shuffled[:half], shuffled[half:rest], shuffled[rest:]


def _train(model: DecoderOnly, texts: _Texts, choose: _Texts, steps: int, seed: int) -> None:
    """Until the answers of `choose` are right too: some seeds learn the sentences by heart long before the rule."""

    def batch(step: int) -> Tensor:
        draw = torch.Generator().manual_seed(seed * 100_003 + step)
        return torch.randint(len(texts.ids_BT), (_BATCH,), generator=draw)

    def loss(model: DecoderOnly, rows_B: Tensor) -> Tensor:
        return F.cross_entropy(model(texts.ids_BT[rows_B])[:, -1], texts.answers_B[rows_B])

    def until(model: DecoderOnly) -> bool:
        return accuracy(model(choose.ids_BT)[:, -1], choose.answers_B) >= _LEARNED

    fit(model, batch, loss, steps=steps, learning_rate=3e-3, seed=seed, decay=False, until=until, check_every=50)


@torch.no_grad()
def _weights(model: DecoderOnly, ids_BT: Tensor) -> Tensor:
    """weights_LBHTS of all layers."""
    taps = Taps(["blocks.*.attention.weights"])
    model(ids_BT, taps=taps)
    return torch.stack([taps.values[f"blocks.{layer}.attention.weights"] for layer in range(_LAYERS)])


def _attention(model: DecoderOnly, texts: _Texts) -> tuple[Tensor, Tensor]:
    """Mean weight from the pronoun to its noun, and to the other animal: [L, H] each."""
    asked_LBHS = _weights(model, texts.ids_BT)[..., -1, :]
    rows_B = torch.arange(len(texts.ids_BT))
    noun_LH, other_LH = (asked_LBHS[:, rows_B, :, at_B].mean(0) for at_B in (texts.noun_B, texts.other_B))
    return noun_LH, other_LH


def _best(attention: tuple[Tensor, Tensor]) -> _Head:
    """The head whose weight on the noun most exceeds that on the other animal."""
    layer, head = divmod(int((attention[0] - attention[1]).argmax()), _HEADS)
    return layer, head


def _measure_head(model: DecoderOnly, choose: _Texts, test: _Texts) -> dict[str, float]:
    """The weight of the head that is best on `choose`, measured on `test`."""
    layer, head = _best(_attention(model, choose))
    noun, other = (float(weight_LH[layer, head]) for weight_LH in _attention(model, test))
    return {"weight": noun, "preference": noun / (noun + other)}


def _carriers(attention: tuple[Tensor, Tensor], uniform: float) -> list[_Head]:
    """Heads that look at the noun more than at any token, and rather than at the other animal; at least the best."""
    noun_LH, other_LH = attention
    carries_LH = (noun_LH > uniform) & (noun_LH > PREFERS * (noun_LH + other_LH))
    found = {(layer, head) for layer, head in carries_LH.nonzero().tolist()}
    return sorted(found | {_best(attention)})


def _measure_cuts(model: DecoderOnly, choose: _Texts, test: _Texts) -> dict[str, float]:
    """The accuracy with edges cut: from the pronoun in some heads, or from every later token in all of them."""
    attention = _attention(model, choose)
    carriers = _carriers(attention, 1 / choose.ids_BT.shape[1])
    every = [(layer, head) for layer in range(_LAYERS) for head in range(_HEADS)]
    last = test.ids_BT.shape[1] - 1
    edits: dict[str, Mapping[str, Edit]] = {
        "whole": {},
        "other": _cut(test.other_B, every, first=last),
        "head": _cut(test.noun_B, [_best(attention)], first=last),
        "carriers": _cut(test.noun_B, carriers, first=last),
        "tokens": _cut(test.noun_B, every, first=0),
    }
    found: dict[str, float] = {"carriers": len(carriers)}
    with torch.no_grad():
        for name, changed in edits.items():
            logits_BV = model(test.ids_BT, taps=Taps(edits=changed))[:, -1]
            found[f"accuracy_{name}"] = accuracy(logits_BV, test.answers_B)
    return found


def _cut(target_B: Tensor, heads: Iterable[_Head], *, first: int) -> Mapping[str, Edit]:
    """Sets scores to −∞ in `heads`: those of the target from all tokens after it, if they are at `first` or later."""

    def of(which: Sequence[int]) -> Callable[[Tensor], Tensor]:
        def edit(scores_BHTS: Tensor) -> Tensor:
            cut_BHTS, at_T = scores_BHTS.clone(), torch.arange(scores_BHTS.shape[2])
            cut_BTS = ((at_T[:, None] > target_B[:, None, None]) & (at_T[:, None] >= first)) & (
                at_T == target_B[:, None, None]
            )
            for head in which:
                cut_BHTS[:, head].masked_fill_(cut_BTS, float("-inf"))
            return cut_BHTS

        return edit

    by_layer: dict[int, list[int]] = {}
    for layer, head in heads:
        by_layer.setdefault(layer, []).append(head)
    return {f"blocks.{layer}.attention.scores": of(which) for layer, which in by_layer.items()}


def judge(numbers: Numbers) -> Judgement:
    """The head's weight against uniform, the other animal and an untrained model; the answer without the edges."""
    weight, preference = numbers["weight"], numbers["preference"]
    times = weight.low / numbers["uniform"].value
    points = (
        times >= ABOVE_UNIFORM and preference.low >= PREFERS and preference.low > numbers["preference_untrained"].high
    )
    knows = numbers["accuracy_whole"].low >= KNOWS and numbers["accuracy_other"].low >= KNOWS
    broken = {cut: numbers[f"accuracy_{cut}"].high <= BROKEN for cut in ("head", "carriers", "tokens")}
    if not (points and knows):
        return Judgement.not_supported("found", "not_found", times=times)
    if broken["head"]:
        return Judgement.supported("found", times=times)
    if broken["carriers"]:
        return Judgement.corrected("found", "several", times=times)
    return Judgement.when(broken["tokens"], "found", "passed_on", correction=True, times=times)


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
        Bars("cuts", x="cut", rules={"guess": BROKEN}),
    ],
    seconds=30,
)
