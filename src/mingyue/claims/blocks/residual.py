"""What the residual path does for a deep stack: gradients that arrive, tokens that stay apart; and where the norm "
"goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.charts import Chart, LineChart
from mingyue.claims import grammar
from mingyue.claims.blocks.parts import without_residual
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.training import fit, next_token_loss, seeds, tiny
from mingyue.models import DecoderOnly
from mingyue.nn import Taps
from mingyue.runtime import derive_seed
from mingyue.words import Language, Words

ARRIVES = 10.0
"""A gradient arrives when at the first block it is at most so many times as long, or as short, as at the last."""
ALIKE = 0.9
"""Tokens with a mean cosine above this are no longer told apart."""
LEARNS = 0.1
"""Losses that differ by less, in nats, count as the same."""

_CONTEXT = 32
_ARMS = ("pre", "post", "pre-plain", "post-plain", "bare", "bare-plain")
"""Norms before or after the sub-layers, or none (bare); plain: without the residual path."""
_TRAINED = (("pre", True), ("pre", False), ("post", True), ("post", False), ("pre-plain", True))
"""(arm, with warm-up)."""


def _model(arm: str, vocab_size: int, n_layers: int, d_model: int, seed: int) -> DecoderOnly:
    kind, _, plain = arm.partition("-")
    model = tiny(
        vocab_size,
        context=_CONTEXT,
        d_model=d_model,
        n_layers=n_layers,
        seed=seed,
        norm_placement="post" if kind == "post" else "pre",
        final_norm=kind != "post",
        initialisation="xavier",
        embedding_scale=True,
    )
    blocks = model.every_block()
    if kind == "bare":
        for block in blocks:
            block.attention_norm = block.feedforward_norm = nn.Identity()
    model.blocks = nn.ModuleList(without_residual(block) if plain else block for block in blocks)
    return model


def _at_first(arm: str, n_layers: int, d_model: int, seed: int) -> tuple[float, float]:
    """Before training: (norm of the gradient at the input of the first block, beside that at the last block's output;
    mean cosine between the vectors of different tokens at the last block's output)."""
    model = _model(arm, 64, n_layers, d_model, seed)
    generator = torch.Generator().manual_seed(derive_seed(seed, "residual"))
    ids_BT = torch.randint(64, (4, _CONTEXT + 1), generator=generator)
    taps = Taps(("embeddings", f"blocks.{n_layers - 1}.output"))
    logits_BTV = model(ids_BT[:, :-1], taps=taps)
    loss = F.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten())
    begin_BTM, end_BTM = taps.values["embeddings"], taps.values[f"blocks.{n_layers - 1}.output"]
    first_BTM, last_BTM = torch.autograd.grad(loss, [begin_BTM, end_BTM])
    return float(first_BTM.norm() / last_BTM.norm()), _mean_cosine(end_BTM.detach())


def _mean_cosine(x_BTM: Tensor) -> float:
    """Of all pairs of different places of a row."""
    unit_BTM = F.normalize(x_BTM, dim=-1)
    cosines_BTT = unit_BTM @ unit_BTM.transpose(1, 2)
    n_tokens = x_BTM.shape[1]
    return float((cosines_BTT.sum((1, 2)) - n_tokens).mean() / (n_tokens * (n_tokens - 1)))


@dataclass(frozen=True)
class _Training:
    n_layers: int
    d_model: int
    steps: int
    learning_rate: float


def _train(arm: str, warm: bool, how: _Training, seed: int) -> list[float]:
    """Losses of a training on made sentences."""
    written = grammar.topics(3000, seed)
    lexicon = grammar.Lexicon(word for sentence in written for word in sentence)
    ids_N = lexicon.stream(written)

    def batch(step: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed(seed, "residual", step))
        starts_B = torch.randint(len(ids_N) - _CONTEXT - 1, (8,), generator=generator)
        return ids_N[starts_B[:, None] + torch.arange(_CONTEXT + 1)]

    model = _model(arm, len(lexicon), how.n_layers, how.d_model, seed)
    went = fit(
        model,
        batch,
        next_token_loss,
        steps=how.steps,
        learning_rate=how.learning_rate,
        seed=seed,
        warmup=0.3 if warm else 0.0,
    )
    return went.losses


def _measure(trial: Trial) -> Measurement:
    depths, d_model = trial.pick(((2, 12), 32), ((1, 2, 4, 8, 12, 16), 64), ((1, 2, 4, 8, 12, 16), 128))
    rows: list[dict[str, Any]] = []
    numbers: dict[str, Number] = {"depth": Number.exact(depths[-1])}
    for arm in _ARMS:
        for n_layers in depths:
            found = [_at_first(arm, n_layers, d_model, seed) for seed in seeds(trial, 3, 5, 5)]
            # Lengths differ by powers of ten: their median, with the least and the greatest.
            gradient = Number.median([length for length, _ in found], "×")
            cosine = Number.mean([alike for _, alike in found])
            for what, number in (("gradient", gradient), ("cosine", cosine)):
                row = {"arm": arm, "what": what, "layers": n_layers}
                ends = (
                    (number.low, number.high) if what == "gradient" else (max(-1.0, number.low), min(1.0, number.high))
                )
                rows.append({**row, "value": number.value, "low": ends[0], "high": ends[1]})
            if n_layers == depths[-1]:
                numbers |= {f"{arm}_gradient": gradient, f"{arm}_cosine": cosine}
    how = trial.pick(None, _Training(6, 32, 200, 1e-2), _Training(6, 64, 800, 1e-2))
    lines: list[dict[str, Any]] = []
    if how is not None:
        losses, lines = _trainings(how, seeds(trial, 1, 3, 5))
        numbers |= {"trained_depth": Number.exact(how.n_layers), **losses}
    return Measurement(numbers, {"depth": rows, "training": lines})


def _trainings(how: _Training, chosen: Sequence[int]) -> tuple[dict[str, Number], list[dict[str, Any]]]:
    """(the last losses of each arm, the way there)."""
    losses: dict[str, Number] = {}
    rows: list[dict[str, Any]] = []
    stretch = max(1, how.steps // 40)
    for arm, warm in _TRAINED:
        name = f"{arm}_{'warm' if warm else 'cold'}"
        runs = [_train(arm, warm, how, seed) for seed in chosen]
        losses[f"{name}_loss"] = Number.mean([sum(run[-stretch:]) / stretch for run in runs], "nats")
        for begin in range(0, how.steps - stretch + 1, stretch):
            mean = Number.mean([sum(run[begin : begin + stretch]) / stretch for run in runs])
            row = {"arm": name, "step": begin + stretch / 2}
            rows.append({**row, "loss": mean.value, "low": max(0.0, mean.low), "high": mean.high})
    return losses, rows


def _judge(numbers: Numbers) -> Finding:
    gradient = {arm: numbers[f"{arm}_gradient"].value for arm in _ARMS}
    cosine = {arm: numbers[f"{arm}_cosine"].value for arm in _ARMS}
    told = _told(numbers, gradient, cosine)
    arrives = 1 / ARRIVES <= gradient["pre"] <= ARRIVES and cosine["pre"] <= ALIKE
    lost = gradient["pre-plain"] < 1 / ARRIVES and gradient["post-plain"] < 1 / ARRIVES
    alike = min(cosine["pre-plain"], cosine["post-plain"]) > ALIKE
    learns = "pre-plain_warm_loss" in numbers and not (
        numbers["pre-plain_warm_loss"].value >= numbers["pre_warm_loss"].value + LEARNS
    )
    if not arrives or not (lost or alike) or learns:
        return Finding("does not hold here", told)
    if lost and cosine["post"] <= ALIKE:
        return Finding("holds", told)
    en, zh = told.en, told.zh
    if not lost:
        en += " So with norms, what is lost without the path is not the gradient's length but what tells tokens apart."
        zh += "可见有归一化时，去掉残差失去的不是梯度的长度，而是 token 之间的差别。"
    if cosine["post"] > ALIKE:
        en += " Where the norm stands on the path (post-norm), so deep a stack makes tokens alike all the same."
        zh += "若归一化落在残差路径上（post-norm），堆到这么深，token 同样会变得雷同。"
    return Finding("holds with a correction", Words(en, zh))


def _told(numbers: Numbers, gradient: Mapping[str, float], cosine: Mapping[str, float]) -> Words:
    """What was measured, in sentences."""
    depth = numbers["depth"].value
    en = (
        f"In {depth:.0f} blocks the gradient at the first is, beside that at the last: with the residual path "
        f"{gradient['pre']:.2g} times as long (pre-norm) and {gradient['post']:.2g} (post-norm), without it "
        f"{gradient['pre-plain']:.2g} and {gradient['post-plain']:.2g}; without norms {gradient['bare']:.0e} with "
        f"the path, {gradient['bare-plain']:.0e} without. Cosine of two tokens: {cosine['pre']:.2f} (pre-norm) and "
        f"{cosine['post']:.2f} (post-norm) with the path, {cosine['pre-plain']:.2f} and {cosine['post-plain']:.2f} "
        "without."
    )
    zh = (
        f"{depth:.0f} 层时，第一块处的梯度长度与最后一块之比：有残差为 {gradient['pre']:.2g}（pre-norm）和 "
        f"{gradient['post']:.2g}（post-norm），无残差为 {gradient['pre-plain']:.2g} 和 {gradient['post-plain']:.2g}；"
        f"若连归一化也去掉，有残差为 {gradient['bare']:.0e}，无残差为 {gradient['bare-plain']:.0e}。两个 token 的余弦："
        f"有残差 {cosine['pre']:.2f}（pre-norm）和 {cosine['post']:.2f}（post-norm），无残差 "
        f"{cosine['pre-plain']:.2f} 和 {cosine['post-plain']:.2f}。"
    )
    if "pre_warm_loss" in numbers:
        loss = {name: f"{numbers[f'{name}_loss'].value:.2f}" for name in _LOSSES}
        en += (
            f" Losses of {numbers['trained_depth'].value:.0f} blocks after training, with and without warm-up: "
            f"pre-norm {loss['pre_warm']} and {loss['pre_cold']}, post-norm {loss['post_warm']} and "
            f"{loss['post_cold']}; without the path {loss['pre-plain_warm']}."
        )
        zh += (
            f"{numbers['trained_depth'].value:.0f} 层训练后的损失（有、无预热）：pre-norm 为 {loss['pre_warm']} 和 "
            f"{loss['pre_cold']}，post-norm 为 {loss['post_warm']} 和 {loss['post_cold']}；无残差为 "
            f"{loss['pre-plain_warm']}。"
        )
    return Words(en, zh)


_NAMES = {
    "pre": Words("pre-norm", "pre-norm"),
    "post": Words("post-norm", "post-norm"),
    "pre-plain": Words("pre-norm, no residual", "pre-norm，无残差"),
    "post-plain": Words("post-norm, no residual", "post-norm，无残差"),
    "bare": Words("no norm", "无归一化"),
    "bare-plain": Words("no norm, no residual", "无归一化，无残差"),
}
_LOSSES = {
    "pre_warm": Words("pre-norm, warm-up", "pre-norm，有预热"),
    "pre_cold": Words("pre-norm, no warm-up", "pre-norm，无预热"),
    "post_warm": Words("post-norm, warm-up", "post-norm，有预热"),
    "post_cold": Words("post-norm, no warm-up", "post-norm，无预热"),
    "pre-plain_warm": Words("no residual, warm-up", "无残差，有预热"),
}


def _draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    rows = [{**row, "arm": _NAMES[row["arm"]].of(language)} for row in measurement.tables["depth"]]
    layers = Words("blocks", "层数").of(language)

    def over_depth(what: str, title: Words, y_title: Words, log_y: bool) -> Chart:
        chosen = [row for row in rows if row["what"] == what]
        return LineChart(
            title.of(language), chosen, x="layers", y="value", series="arm", low="low", high="high", x_title=layers,
            y_title=y_title.of(language), log_x=True, log_y=log_y,
        )  # fmt: skip

    charts = [
        over_depth(
            "gradient",
            Words(
                "Gradient at the first block, beside the last, before training", "训练前第一块处的梯度，与最后一块之比"
            ),
            Words("times as long", "长度之比"),
            True,
        ),
        over_depth(
            "cosine",
            Words("How alike the tokens are after the last block", "最后一块之后 token 有多相似"),
            Words("mean cosine of two tokens", "两个 token 的平均余弦"),
            False,
        ),
    ]
    if lines := measurement.tables["training"]:
        trained = [{**row, "arm": _LOSSES[row["arm"]].of(language)} for row in lines]
        charts.append(
            LineChart(
                Words("Training a deep stack", "训练一个深的模型").of(language),
                trained,
                x="step",
                y="loss",
                series="arm",
                low="low",
                high="high",
                x_title=Words("step", "步").of(language),
                y_title=Words("loss, nats", "损失（nats）").of(language),
            )
        )
    return charts


CLAIM = Claim(
    name="residual",
    group="blocks",
    claim=Words(
        "The residual path lets the gradient reach the first of many blocks, and keeps tokens apart.",
        "残差连接让梯度能传到很多层之前的第一块，并使各个 token 不至于变得雷同。",
    ),
    prediction=Words(
        "At initialisation, in the deepest stack: with the path and norms before the sub-layers, the gradient at "
        f"the first block is within {ARRIVES:.0f} times that at the last, and two tokens have a cosine of at most "
        f"{ALIKE}. Without the path the gradient is below a tenth (holds), or at least tokens are alike, cosine "
        f"above {ALIKE} (with a correction; so too if post-norm makes them alike). Where both are trained, the loss "
        f"without the path stays at least {LEARNS} nats higher.",
        f"初始化时，在最深的一档：有残差且 pre-norm，第一块处的梯度与最后一块相差不到 {ARRIVES:.0f} 倍，两个 token 的"
        f"余弦不超过 {ALIKE}。去掉残差，梯度不到十分之一（成立），或至少 token 变得雷同、余弦超过 {ALIKE}（修正后成"
        f"立；若 post-norm 也使其雷同，亦然）。训练之后，无残差的损失至少高出 {LEARNS} nats。",
    ),
    method=Words(
        "Decoders of this library with Xavier's weights, from 1 block to many; the path is taken out of the same "
        "blocks. Lengths of gradients of the loss, and cosines, are read by taps. Report and full form also train 6 "
        "blocks on made sentences, with a warm-up of 30 % of the steps and with none.",
        "用本库的解码器（Xavier 初始化），从 1 块到多块；从同样的块中去掉残差。用 taps 读出损失梯度的长度与余弦。报告"
        "版与完整版还用造出的句子训练 6 块，预热占 30% 的步数，或不预热。",
    ),
    measure=_measure,
    judge=_judge,
    draw=_draw,
    labels={
        "depth": Words("blocks of the deepest stack", "最深的层数"),
        "trained_depth": Words("blocks of the stacks that were trained", "所训练模型的层数"),
        **{
            f"{arm}_gradient": Words(
                f"gradient at the first block, beside the last: {name.en}", f"第一块与最后一块梯度之比：{name.zh}"
            )
            for arm, name in _NAMES.items()
        },
        **{
            f"{arm}_cosine": Words(f"cosine of two tokens: {name.en}", f"两个 token 的余弦：{name.zh}")
            for arm, name in _NAMES.items()
        },
        **{
            f"{arm}_loss": Words(f"loss after training: {name.en}", f"训练后的损失：{name.zh}")
            for arm, name in _LOSSES.items()
        },
    },
    correction=Words(
        "Norm and path do their work together. Norms alone keep the length of the gradient, but the tokens become "
        "one; the path alone lets lengths grow without bound. And in post-norm, which puts the norm on the path, "
        "very deep stacks lose the difference of tokens too: pre-norm keeps it.",
        "归一化与残差要配合才有效：只有归一化，梯度长度保住了，token 却变得一样；只有残差，长度会无限增长。而 "
        "post-norm 把归一化放在残差路径上，层数很多时同样会抹去 token 的差别，pre-norm 则能保住。",
    ),
)
