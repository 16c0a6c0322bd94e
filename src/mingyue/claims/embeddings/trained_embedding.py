"""Claim: word vectors trained with the model are better than pretrained vectors that are frozen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial
from mingyue.claims.embeddings.villages import ANIMALS, LEXICON, NUMERALS, SEASONS, KnownSentence, villages
from mingyue.claims.figures import Bars
from mingyue.claims.training import fit, seeds, tiny
from mingyue.models import DecoderOnly
from mingyue.runtime import derive_seed

GAP = 0.01
"""Nats per word by which end to end must be better than frozen vectors, pretrained or random."""
TIMES_CHANCE = 3.0
"""Near neighbours must be of the same kind at least this many times as often as by chance."""
_ARMS = ("end_to_end", "frozen", "tuned", "random")
_SOURCES = ("random", "frozen", "end_to_end")
_KINDS = {"animals": ANIMALS, "numerals": NUMERALS, "seasons": SEASONS}
_LONGEST = 13
"""Words of a row: the 。 before a sentence, and the longest sentence."""
_NO_WORD = -100
_POWERS = (0.5, 0.0)
"""Pretrained vectors are weighted by their singular values to these powers (Levy, Goldberg & Dagan 2015)."""
_SPREAD = 0.2
"""Standard deviation of the entries of pretrained vectors: better for them than the 0.02 of the initial table."""


def measure(trial: Trial) -> Measurement:
    """Held-out loss above the entropy of the language for each arm, and of which kind near neighbours are."""
    d_model, steps, sentences = trial.pick((16, 75, 600), (32, 600, 3000), (32, 1200, 10_000))
    excess: dict[str, list[float]] = {arm: [] for arm in _ARMS}
    near: dict[str, list[float]] = {}
    for seed in seeds(trial, 1, 4, 8):
        text = villages(sentences, seed)
        check, held = (villages(sentences // 3, derive_seed(seed, purpose)) for purpose in ("validation", "held out"))
        models = _arms(text, check, d_model=d_model, steps=steps, seed=seed)
        for arm, model in models.items():
            excess[arm].append(_excess(model, held))
        # Of the pretrained vectors the usual form, whichever form the model was better with.
        tables = {arm: models[arm].embedding.weight.detach() for arm in ("random", "end_to_end")}
        for source, table_VM in {**tables, "frozen": pretrained_vectors(text, d_model)}.items():
            for name, value in _neighbours(table_VM).items():
                near.setdefault(f"{source}_{name}", []).append(value)
    numbers = {f"excess_{arm}": Number.mean(samples) for arm, samples in excess.items()}
    for name, arm in (("gap", "frozen"), ("gap_random", "random")):
        pairs = zip(excess[arm], excess["end_to_end"], strict=True)
        numbers[name] = Number.mean([other - own for other, own in pairs])
    numbers |= {name: Number.mean(samples) for name, samples in near.items()}
    numbers |= {f"chance_{name}": Number.exact((len(kind) - 1) / (len(LEXICON) - 1)) for name, kind in _KINDS.items()}
    for name in _KINDS:
        pairs = zip(near[f"end_to_end_{name}"], near[f"frozen_{name}"], strict=True)
        numbers[f"more_{name}"] = Number.mean([own - other for own, other in pairs])
    losses = [numbers[f"excess_{arm}"].row(arm=arm) for arm in _ARMS]
    shares = [numbers[f"{source}_{name}"].row(source=source, kind=name) for source in _SOURCES for name in _KINDS]
    return Measurement(numbers, {"losses": losses, "shares": shares})


def _arms(
    text: Sequence[KnownSentence], check: Sequence[KnownSentence], *, d_model: int, steps: int, seed: int
) -> dict[str, DecoderOnly]:
    """A trained model for each arm; the pretrained vectors are the better of two forms, by the loss on `check`."""

    def train(table_VM: Tensor | None, *, frozen: bool) -> DecoderOnly:
        return _train(table_VM, text, frozen=frozen, d_model=d_model, steps=steps, seed=seed)

    random_VM = torch.randn(len(LEXICON), d_model, generator=torch.Generator().manual_seed(derive_seed(seed, "table")))
    forms = [pretrained_vectors(text, d_model, power) for power in _POWERS]
    frozen = [train(form_VM, frozen=True) for form_VM in forms]
    best = min(range(len(forms)), key=lambda number: _excess(frozen[number], check))
    return {
        "end_to_end": train(None, frozen=False),
        "frozen": frozen[best],
        "tuned": train(forms[best], frozen=False),
        "random": train(random_VM, frozen=True),
    }


def _train(
    table_VM: Tensor | None, text: Sequence[KnownSentence], *, frozen: bool, d_model: int, steps: int, seed: int
) -> DecoderOnly:
    """A model of one block, not tied, so that the arms differ in the embedding table alone."""
    model = tiny(len(LEXICON), context=_LONGEST, d_model=d_model, n_layers=1, seed=seed, tied_output=False)
    if table_VM is not None:
        with torch.no_grad():
            model.embedding.weight.copy_(table_VM * (_SPREAD / table_VM.std()))
    model.embedding.weight.requires_grad_(not frozen)
    rows_BT = _rows(text)

    def batch(step: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed(seed, "batch", step))  # the same for every arm
        return rows_BT[torch.randint(len(rows_BT), (64,), generator=generator)]

    fit(model, batch, _loss, steps=steps, learning_rate=3e-3, seed=seed)
    return model


def _rows(text: Sequence[KnownSentence]) -> Tensor:
    """ids_BT: one sentence in each row, 。 before it, padded with `_NO_WORD`."""
    rows_BT = torch.full((len(text), _LONGEST), _NO_WORD)
    for row_T, sentence in zip(rows_BT, text, strict=True):
        ids = LEXICON.ids(("。", *sentence.words))
        row_T[: len(ids)] = torch.tensor(ids)
    return rows_BT


def _loss(model: DecoderOnly, ids_BT: Tensor) -> Tensor:
    """Mean −log P of the words; padding comes after them, so no word sees it."""
    logits_BTV = model(ids_BT[:, :-1].clamp(min=0))
    return F.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten(), ignore_index=_NO_WORD)


@torch.no_grad()
def _excess(model: DecoderOnly, held: Sequence[KnownSentence]) -> float:
    """Held-out loss in nats per word, less that of the language itself on the same sentences."""
    n_words = sum(len(sentence.words) for sentence in held)
    return float(_loss(model, _rows(held))) + sum(sentence.log_probability for sentence in held) / n_words


def pretrained_vectors(text: Sequence[KnownSentence], d_model: int, power: float = 0.5) -> Tensor:
    """Pretrained vectors [V, M]: positive pointwise mutual information of words at most two apart, then an SVD.

    Levy & Goldberg 2014 show that skip-gram with negative sampling factors a matrix of this kind. `power` is the
    exponent of the singular values: with 0 no direction is stronger than another.
    """
    count_VV = np.zeros((len(LEXICON), len(LEXICON)))
    for sentence in text:
        ids = np.array(LEXICON.ids(sentence.words))
        for apart in (1, 2):
            np.add.at(count_VV, (ids[:-apart], ids[apart:]), 1)
    count_VV += count_VV.T
    share_V = count_VV.sum(axis=1, keepdims=True) / count_VV.sum()
    by_chance_VV = share_V * share_V.T
    # Of pairs that never occur together the ratio is set to 1: their positive information is 0.
    ratio_VV = np.divide(
        count_VV / count_VV.sum(), by_chance_VV, out=np.ones_like(count_VV), where=(count_VV > 0) & (by_chance_VV > 0)
    )
    left_VV, strength_V, _ = np.linalg.svd(np.log(ratio_VV).clip(min=0))
    return torch.from_numpy(left_VV[:, :d_model] * strength_V[:d_model] ** power).float()


def _neighbours(table_VM: Tensor) -> dict[str, float]:
    """Share of the n − 1 nearest neighbours of the n words of a kind that are of that kind; and 猫 with two words."""
    unit_VM = F.normalize(table_VM, dim=1)
    cosine_VV = unit_VM @ unit_VM.T
    cat = LEXICON["猫"]
    found = {
        "cat_dog": float(cosine_VV[cat, LEXICON["狗"]]),
        "cat_universe": float(cosine_VV[cat, LEXICON["宇宙"]]),
    }
    found["cat_nearer"] = found["cat_dog"] - found["cat_universe"]
    cosine_VV.fill_diagonal_(-2.0)
    for name, kind in _KINDS.items():
        ids = torch.tensor(LEXICON.ids(kind))
        nearest_NK = cosine_VV[ids].topk(len(kind) - 1).indices
        found[name] = float(torch.isin(nearest_NK, ids).float().mean())
    return found


def judge(numbers: Numbers) -> Judgement:
    """Kinds are near one another; end to end is better than frozen, and that because its vectors were trained."""
    own = {name: numbers[f"end_to_end_{name}"] for name in _KINDS}
    least = min(own[name].low / numbers[f"chance_{name}"].value for name in _KINDS)
    above_random = all(own[name].low > numbers[f"random_{name}"].high for name in _KINDS)
    near = least >= TIMES_CHANCE and above_random and numbers["end_to_end_cat_nearer"].low > 0
    better, trained = (numbers[name].low >= GAP for name in ("gap", "gap_random"))
    clusters = all(numbers[f"more_{name}"].high >= 0 for name in _KINDS)
    reasons = [
        "found",
        "better" if better else "not_surely",
        "trained" if trained else "random_too",
        "near" if near else "not_near",
        *([] if clusters else ["pretrained_nearer"]),
    ]
    if not (near and better):
        return Judgement.not_supported(*reasons, least=least)
    return Judgement.when(True, *reasons, correction=not (trained and clusters), least=least)


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[Bars("losses", x="arm"), Bars("shares", x="kind", series="source")],
    seconds=100,
)
