"""Claim: writing needs the last row alone, training uses all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.charts import BarChart, LineChart
from mingyue.claims.attention.figures import interval, named, worst
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.grammar import Lexicon, topics
from mingyue.claims.training import fit, next_token_loss, seeds, tiny
from mingyue.models import DecoderOnly
from mingyue.nn import Taps
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

ROUNDING = 1e-4
"""Largest difference of logits of size 1 between a whole pass and one with a cache."""
_LENGTH, _BATCH = 24, 8
_ARMS = {
    "all": Words("loss on all rows", "所有行都算损失"),
    "last": Words("loss on the last row", "只算最后一行的损失"),
}


def measure(trial: Trial) -> Measurement:
    """One model with random weights for what is exact; two trained on all rows and on the last for the rest."""
    sentences = topics(trial.pick(300, 2000, 10000), trial.seed)
    words = Lexicon(word for sentence in sentences for word in sentence)
    stream = words.stream(sentences)
    cut = len(stream) * 9 // 10
    train, held = stream[:cut], stream[cut:]
    steps = trial.pick(25, 200, 1000)
    found: dict[str, list[float]] = {}
    losses: dict[str, list[float]] = {"all": [], "last": []}
    norms: dict[str, list[Tensor]] = {"all": [], "last": []}
    for seed in seeds(trial, 2, 4, 10):
        model = tiny(len(words), context=_LENGTH, seed=seed, initialisation="xavier")
        for name, value in _exact(model, train, seed, norms).items():
            found.setdefault(name, []).append(value)
        for arm, held_losses in losses.items():
            held_losses.append(_trained(arm, (train, held), steps, seed))
    numbers = {name: worst(values) for name, values in found.items() if name.endswith("_error")}
    numbers |= {name: Number.median(values) for name, values in found.items() if name not in numbers}
    numbers |= {f"loss_{arm}": Number.mean(values, "nats") for arm, values in losses.items()}
    gradient = [
        interval(Number.median([float(norm[row]) for norm in rows]), loss=arm, row=row + 1)
        for arm, rows in norms.items()
        for row in range(_LENGTH)
    ]
    trained = [interval(numbers[f"loss_{arm}"], arm=arm) for arm in losses]
    return Measurement(numbers, {"gradient": gradient, "trained": trained})


def _windows(ids_N: Tensor, count: int, draw: torch.Generator) -> Tensor:
    starts = torch.randint(len(ids_N) - _LENGTH - 1, (count,), generator=draw)
    return torch.stack([ids_N[start : start + _LENGTH + 1] for start in starts])


def _exact(model: DecoderOnly, ids_N: Tensor, seed: int, norms: dict[str, list[Tensor]]) -> dict[str, float]:
    """What holds for any weights: which rows the next token needs, and which rows a loss reaches."""
    both_BT = _windows(ids_N, 1, torch.Generator().manual_seed(seed))
    ids_BT, targets_T = both_BT[:, :-1], both_BT[0, 1:]
    taps = Taps(["final", "embeddings"])
    logits_TV = model(ids_BT, taps=taps)[0]
    terms_T = F.cross_entropy(logits_TV, targets_T, reduction="none")
    places = [taps.values["final"], taps.values["embeddings"]]
    reached: dict[str, float] = {}
    for arm, loss in (("all", terms_T.mean()), ("last", terms_T[-1])):
        final, embedded = (grad[0].norm(dim=-1) for grad in torch.autograd.grad(loss, places, retain_graph=True))
        norms[arm].append(final)
        reached |= {
            f"rows_{arm}": float((final > 0).float().mean()),
            f"inputs_{arm}": float((embedded > 0).float().mean()),
        }
    with torch.no_grad():
        cache = model.new_cache(1)
        model(ids_BT[:, :-1], cache=cache.step())
        one_V = model(ids_BT[:, -1:], cache=cache.step())[0, -1]
        noise = torch.randn(taps.values["final"].shape, generator=torch.Generator().manual_seed(seed))
        noise[:, -1] = 0.0
        spoilt_V = model(ids_BT, taps=Taps(edits={"final": lambda x_BTM: x_BTM + 100 * noise}))[0, -1]
        prefixes = [model(ids_BT[:, : row + 1])[0, -1].log_softmax(-1)[targets_T[row]] for row in range(_LENGTH)]
        log_p = -float(terms_T.sum())
        return reached | {
            "cache_error": float((one_V - logits_TV[-1]).abs().max()),
            "other_rows_error": float((spoilt_V - logits_TV[-1]).abs().max()),
            "likelihood_error": abs(float(torch.stack(prefixes).sum()) - log_p) / abs(log_p),
            "last_term_share": -float(terms_T[-1]) / log_p,
        }


def _trained(arm: str, texts: tuple[Tensor, Tensor], steps: int, seed: int) -> float:
    """Held-out loss after `steps` steps on texts of one length, with the loss on all rows or on the last."""

    def batch(step: int) -> Tensor:
        return _windows(train, _BATCH, torch.Generator().manual_seed(seed * 100_003 + step))

    def last_row_loss(model: DecoderOnly, ids_BT: Tensor) -> Tensor:
        return F.cross_entropy(model(ids_BT[:, :-1])[:, -1], ids_BT[:, -1])

    train, held = texts
    model = tiny(int(train.max()) + 1, context=_LENGTH, seed=seed)
    fit(model, batch, next_token_loss if arm == "all" else last_row_loss, steps=steps, learning_rate=3e-3, seed=seed)
    # Judged by what both were trained for: the last row.
    ids_BT = _windows(held, 256, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return float(last_row_loss(model, ids_BT))


def judge(numbers: Numbers) -> Finding:
    """The last row suffices for the next token; every row for training and for the likelihood."""
    value = {name: number.value for name, number in numbers.items()}
    writes = value["cache_error"] <= ROUNDING and value["other_rows_error"] <= ROUNDING
    trains = value["rows_all"] == 1 and value["loss_all"] < value["loss_last"]
    every_row = value["likelihood_error"] <= ROUNDING and value["last_term_share"] < 0.5
    right = "holds with a correction" if every_row else "holds"
    return Finding(
        right if writes and trains else "does not hold here",
        Words(
            f"The last row alone gives the next token's logits within {value['cache_error']:.1g}. The loss on all rows "
            f"reaches {value['rows_all']:.0%} of the rows, on the last {value['rows_last']:.0%}; after equal steps the "
            f"held-out loss is {value['loss_all']:.2f} against {value['loss_last']:.2f} nats. The last row holds "
            f"{value['last_term_share']:.0%} of log P of the text; the sum over all rows is the whole.",
            f"只用最后一行，下一个字的 logit 误差不超过 {value['cache_error']:.1g}。对所有行算损失，梯度到达 "
            f"{value['rows_all']:.0%} 的行，只算最后一行则是 {value['rows_last']:.0%}；同样步数后，留出损失为 "
            f"{value['loss_all']:.2f} 对 {value['loss_last']:.2f} nat。最后一行只含整段文字 log P 的 "
            f"{value['last_term_share']:.0%}；所有行之和才是全部。",
        ),
    )


def draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    """Gradient of each row; held-out loss of both trainings."""
    zh = language == "zh"
    # A logarithmic axis has no 0: rows that no gradient reaches stand at its foot.
    gradient = [
        {**row, **{end: max(row[end], 1e-6) for end in ("value", "low", "high")}}
        for row in named(measurement.tables["gradient"], "loss", _ARMS, language)
    ]
    return [
        LineChart(
            "梯度到达输出的哪些行" if zh else "Which rows of the output the gradient reaches",
            gradient,
            x="row",
            y="value",
            series="loss",
            low="low",
            high="high",
            x_title="行（第几个 token）" if zh else "row (place of the token)",
            y_title="梯度的大小" if zh else "size of the gradient",
            log_y=True,
            note="梯度为 0 的行画在 1e-6 处。" if zh else "Rows with gradient 0 are drawn at 1e-6.",
        ),
        BarChart(
            "同样步数后的留出损失（最后一行）" if zh else "Held-out loss of the last row after equal steps",
            named(measurement.tables["trained"], "arm", _ARMS, language),
            x="arm",
            y="value",
            low="low",
            high="high",
            y_title="nat / token" if zh else "nats a token",
            note="误差线：各种子的 95% 区间。" if zh else "Error bars: 95 % intervals over seeds.",
        ),
    ]


CLAIM = Claim(
    name="last-row",
    group="attention",
    claim=Words(
        "Training uses every row of the decoder's output; to write the next token the last row is enough.",
        "训练用到解码器输出的每一行；要写下一个字，只需最后一行。",
    ),
    prediction=Words(
        f"Next-token logits from one row and a cache within {ROUNDING:g} of a whole pass; the loss on all rows reaches "
        "every row and leaves a lower held-out loss after equal steps than the loss on the last row. The likelihood "
        f"of a text is the sum over all rows (within {ROUNDING:g} of itself), of which the last is less than half.",
        f"用缓存只算一行，下一个字的 logit 与整遍计算相差不超过 {ROUNDING:g}；对所有行算损失，梯度到达每一行，同样步数"
        f"后留出损失更低。一段文字的似然是所有行之和（相对误差不超过 {ROUNDING:g}），最后一行不到一半。",
    ),
    method=Words(
        "With random weights: one row with cached keys and values against the whole pass; noise on all other rows; "
        "gradients at each row; log P of a text from one pass and from a pass for each prefix. Then two small models "
        f"trained on a generated text in windows of {_LENGTH} words, alike but for the rows that have a loss.",
        "随机权重：用缓存的键和值只算一行，与整遍比较；给其余各行加噪声；看每一行的梯度；一段文字的 log P 由一遍算出，"
        f"再由每个前缀各算一遍。然后在生成的文字（每段 {_LENGTH} 个词）上训练两个小模型，只有算损失的行不同。",
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    labels={
        "cache_error": Words("last row with a cache against a whole pass", "用缓存的最后一行与整遍的差"),
        "other_rows_error": Words(
            "change of the last logits by noise on all other rows", "其余行加噪声后，最后一行的变化"
        ),
        "likelihood_error": Words("log P from all rows against prefixes (relative)", "所有行的 log P 与逐前缀的相对差"),
        "last_term_share": Words("share of log P in the last row", "最后一行占 log P 的份额"),
        "rows_all": Words("rows of the output reached by the loss on all rows", "对所有行算损失：梯度到达的输出行"),
        "rows_last": Words("rows of the output reached by the loss on the last row", "只算最后一行：梯度到达的输出行"),
        "inputs_all": Words("input tokens reached by the loss on all rows", "对所有行算损失：梯度到达的输入字"),
        "inputs_last": Words("input tokens reached by the loss on the last row", "只算最后一行：梯度到达的输入字"),
        "loss_all": Words("held-out loss, trained on all rows", "留出损失：对所有行训练"),
        "loss_last": Words("held-out loss, trained on the last row", "留出损失：只对最后一行训练"),
    },
    correction=Words(
        "The last row gives the distribution of one token. The likelihood of a text, which training maximises, needs "
        "every row: row t gives the term of token t + 1.",
        "最后一行只给出一个字的分布。训练要最大化的是整段文字的似然，它需要每一行：第 t 行给出第 t + 1 个字的那一项。",
    ),
)
