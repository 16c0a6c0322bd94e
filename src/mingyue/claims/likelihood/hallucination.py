"""Claim: a model says what was frequent in its text, true or false, and answers about subjects that are not in it."""

from __future__ import annotations

import torch
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Table, Trial, values
from mingyue.claims.figures import Bars, Lines
from mingyue.claims.grammar import Lexicon, generator
from mingyue.claims.training import fit, next_token_loss, seeds, tiny

CLOSE = 0.05
"""Largest difference between the probability of the false sentence and its share of the lines."""
ANSWERS = 0.9
"""Smallest total probability of all places for a subject that is not in the text."""
SURE = 2.0
"""The answer counts as confident if its likeliest place has at least this many times the uniform probability."""
_SHARES = tuple(tenth / 10 for tenth in range(1, 10))
_LINES = 20
"""Lines about each subject; of them `share` × 20 are false."""
_PEOPLE = ("甲", "乙", "丙", "丁", "戊", "己", "庚", "辛", "壬")
_STRANGER = "癸"
"""The subject that no line is about."""
_TRUE = ("东城", "西城", "南城", "北城", "中城", "山城", "江城", "海城", "石城")
_FALSE = ("东村", "西村", "南村", "北村", "中村", "山村", "江村", "海村", "石村")
_PLACES = _TRUE + _FALSE


def measure(trial: Trial) -> Measurement:
    """Probability of the false place for each subject, and of all places for a subject that is not in the text."""
    layers, steps = trial.pick((1, 170), (2, 250), (2, 400))
    chosen = seeds(trial, 1, 8, 20)
    words = Lexicon((*_PEOPLE, _STRANGER, "住", "在", *_PLACES, "。"))
    places = torch.tensor(words.ids(_PLACES))
    of_false: dict[float, list[float]] = {share: [] for share in _SHARES}
    followed, answered, likeliest = list[float](), list[float](), list[float]()
    untrained = list[Tensor]()
    spread = list[float]()
    strangers = list[Tensor]()
    for seed in chosen:
        shares = dict(zip(generator(seed, "shares").sample(_PEOPLE, len(_PEOPLE)), _SHARES, strict=True))
        lines_BT = words.tensor(_lines(shares))
        model = tiny(len(words), context=8, n_layers=layers, seed=seed, tied_output=False)
        asked_BT = words.tensor([(person, "住", "在") for person in (*_PEOPLE, _STRANGER)])
        with torch.no_grad():
            untrained.append(model(asked_BT)[-1, -1].softmax(-1)[places])
        fit(model, lambda _, ids_BT=lines_BT: ids_BT, next_token_loss, steps=steps, learning_rate=1e-2, seed=seed)
        with torch.no_grad():
            chances_BV = model(asked_BT)[:, -1].softmax(-1)
        for row, share in enumerate(shares[person] for person in _PEOPLE):
            false = float(chances_BV[row, words[_FALSE[row]]])
            true = float(chances_BV[row, words[_TRUE[row]]])
            of_false[share].append(false)
            if share != 0.5:
                followed.append(float((false > true) == (share > 0.5)))
        stranger_P = chances_BV[-1, places]
        strangers.append(stranger_P)
        answered.append(float(stranger_P.sum()))
        likeliest.append(float(stranger_P.max()))
        own_P = stranger_P / stranger_P.sum()
        spread.append(float((-(own_P * own_P.clamp(min=1e-30).log()).sum()).exp()))
    by_share = {share: Number.share(chances) for share, chances in of_false.items()}
    rows = [number.row(share=share) for share, number in by_share.items()]
    bars = [
        {"place": place, "value": float(chance)} for place, chance in zip(_PLACES, strangers[0].tolist(), strict=True)
    ]
    off = max(by_share, key=lambda share: max(share - by_share[share].low, by_share[share].high - share))
    numbers = {
        "off_at": Number.exact(off),
        "off_most": by_share[off],
        "told_01": by_share[0.1],
        "told_05": by_share[0.5],
        "told_09": by_share[0.9],
        "follows_majority": Number.share(followed),
        "stranger_answered": Number.share(answered),
        "stranger_likeliest": Number.share(likeliest),
        "untrained_answered": Number.share([float(chances_P.sum()) for chances_P in untrained]),
        "untrained_likeliest": Number.share([float(chances_P.max()) for chances_P in untrained]),
        "even_guess": Number.exact(1 / len(_PLACES)),
        "stranger_places": Number.mean(spread),
    }
    return Measurement(numbers, {"told": rows, "stranger": bars})


def _lines(shares: dict[str, float]) -> list[tuple[str, ...]]:
    """The training text: of the lines about each person, the given share is false."""
    lines: list[tuple[str, ...]] = []
    for person, false_place, true_place in zip(_PEOPLE, _FALSE, _TRUE, strict=True):
        false = round(shares[person] * _LINES)
        lines += [(person, "住", "在", false_place, "。")] * false
        lines += [(person, "住", "在", true_place, "。")] * (_LINES - false)
    return lines


def judge(numbers: Numbers) -> Judgement:
    """Probability follows frequency; and a subject that is not in the text is given a place nevertheless."""
    value = values(numbers)
    fits = numbers["off_most"].near(value["off_at"], CLOSE)
    # What the model says of somebody that it does not know comes from training, not from its first weights.
    answers = numbers["stranger_answered"].at_least(max(ANSWERS, numbers["untrained_answered"].high))
    sure = max(SURE * value["even_guess"], numbers["untrained_likeliest"].high)
    confident = numbers["stranger_likeliest"].at_least(sure)
    if fits and answers and not confident:
        return Judgement.corrected("found", "spread")
    return Judgement.when(fits and answers, "found")


def _told(measurement: Measurement) -> Table:
    """The measured line, and the diagonal from its first to its last share."""
    measured = [{**row, "line": "told"} for row in measurement.tables["told"]]
    return [*measured, *(Number.exact(share).row(share=share, line="ideal") for share in (0.1, 0.9))]


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Lines("told", rows=_told, x="share", series="line"),
        Bars("stranger", x="place", interval=None, rules={"even": "even_guess"}),
    ],
    seconds=47,
)
