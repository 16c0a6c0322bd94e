"""Every step from ids to loss: its name, shape, parameters, FLOPs, formula, and the line of source that computes it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mingyue.charts import BarChart, Chart, TableChart
from mingyue.errors import NothingToShowError
from mingyue.inspection.command import ONE_TEXT, Command
from mingyue.inspection.recording import Recorder
from mingyue.inspection.subject import Reading, Subject
from mingyue.inspection.trace_steps import Step, Tracer, tokenizer_steps
from mingyue.inspection.view import View
from mingyue.training.loss import loss_of_logits
from mingyue.words import Language, TextTable, Words

MOST_CELLS = 1 << 26
"""Attention weights of one layer: 256 MB."""
_Groups = list[tuple[list[Step], str]]
_BLOCK = re.compile(r"^(?:(?:encoder|decoder)\.)?blocks\.(\d+)")
_PARTS = {
    "text": Words("text", "文本"),
    "embedding": Words("embedding", "嵌入"),
    "source embedding": Words("source embedding", "源语言嵌入"),
    "positions": Words("positions", "位置"),
    "attention": Words("attention", "注意力"),
    "encoder attention": Words("encoder attention", "编码器注意力"),
    "decoder attention": Words("decoder attention", "解码器自注意力"),
    "cross-attention": Words("cross-attention", "交叉注意力"),
    "feedforward": Words("feed-forward", "前馈"),
    "encoder feedforward": Words("encoder feed-forward", "编码器前馈"),
    "decoder feedforward": Words("decoder feed-forward", "解码器前馈"),
    "norms": Words("norms", "归一化"),
    "output": Words("output layer", "输出层"),
    "residual": Words("residual stream", "残差流"),
    "loss": Words("loss", "损失"),
}


@dataclass(frozen=True, eq=False)
class TraceView(View):
    """All steps of a forward pass, in order."""

    title = Words("Every step from ids to loss", "从 id 到损失的每一步")

    text: str
    steps: tuple[Step, ...]
    legend: dict[str, int]
    """The size of each letter here."""
    loss: float | None
    """Nats per token; None where no next token is known."""
    source: str | None = None

    @property
    def parameters(self) -> int:
        """Parameters of all steps: those of the model."""
        return sum(step.parameters for step in self.steps)

    @property
    def flops(self) -> int:
        """FLOPs of all steps: those of `sizes(config).forward_flops(…, dense=True)` for this text."""
        return sum(step.flops for step in self.steps)

    def by_part(self) -> dict[str, tuple[int, int]]:
        """(parameters, FLOPs) by part, in the order of the pass."""
        parts = dict.fromkeys(step.part for step in self.steps)
        return {
            part: (
                sum(step.parameters for step in self.steps if step.part == part),
                sum(step.flops for step in self.steps if step.part == part),
            )
            for part in parts
        }

    def charts(self, language: Language = "en") -> list[Chart]:
        """Parameters and FLOPs by part."""
        return _charts(self, language)

    def pictures(self, language: Language = "en") -> list[Chart]:
        """The steps as a table, with their formulas, then parameters and FLOPs by part."""
        return [TableChart.of(_drawn_steps(self, language)), *_charts(self, language)]

    def tables(self, language: Language = "en") -> list[TextTable]:
        """Steps with shapes and costs, steps with formulas and lines, sums; blocks after the first in one row each."""
        groups = _folded(self.steps)
        return [_costs(self, groups, language), _lines(groups, language), _sums(self, language)]

    def to_dict(self) -> dict[str, Any]:
        """All steps, with the sums."""
        return {
            "text": self.text,
            "source": self.source,
            "legend": self.legend,
            "steps": [asdict(step) for step in self.steps],
            "parameters": self.parameters,
            "flops": self.flops,
            "by_part": {part: list(pair) for part, pair in self.by_part().items()},
            "loss": self.loss,
        }


@torch.inference_mode()
def trace_view(subject: Subject, reading: Reading) -> TraceView:
    """Run the model over a reading and record every step, from the running code.

    Attention uses the explicit path, with scores and weights, as in all views of weights; the fused kernel computes
    the same without them. With a sliding window the products are counted over the keys that the kernel computes. Raises
    `NothingToShowError` for a text whose weights would not fit.
    """
    module = subject.module
    longest = max(len(reading.ids_T), 0 if reading.source_ids_S is None else len(reading.source_ids_S))
    cells = module.config.n_heads * longest**2
    if cells > MOST_CELLS:
        most = math.isqrt(MOST_CELLS // module.config.n_heads)
        raise NothingToShowError(
            Words(
                f"{longest:,} tokens have {cells:,} attention weights per layer; "
                f"a trace computes at most {MOST_CELLS:,}",
                f"{longest:,} 个 token 每层有 {cells:,} 个注意力权重；这里最多计算 {MOST_CELLS:,} 个",
            ),
            advice=f"Give a text of at most {most:,} tokens: the steps are the same.",
        )
    recorder = Recorder(module)
    with recorder:
        logits_TV = subject.logits(reading, recorder.taps)
        n_known = len(reading.targets_T)
        loss = text_loss(logits_TV[None, :n_known], reading.targets_T[None]) if n_known else None
    tracer = Tracer(module, reading)
    steps = [*tokenizer_steps(reading), *tracer.steps(recorder.operations)]
    return TraceView(
        text=reading.text,
        steps=tuple(steps),
        legend=tracer.legend,
        loss=None if loss is None else float(loss),
        source=reading.source,
    )


def text_loss(logits_BNV: Tensor, targets_BN: Tensor) -> Tensor:
    """Mean −log P of the targets, from the sum that training minimises."""
    logprobs_BNV = logits_BNV.float().log_softmax(dim=-1)
    surprise_BN = -logprobs_BNV.gather(-1, targets_BN[..., None])[..., 0]
    return loss_of_logits(logits_BNV.flatten(0, 1), targets_BN.flatten()).nats / surprise_BN.numel()


def _charts(view: TraceView, language: Language) -> list[Chart]:
    """Parameters and FLOPs by part."""
    rows = [
        {"part": _PARTS[part].of(language), "parameters": parameters, "flops": flops}
        for part, (parameters, flops) in view.by_part().items()
        if parameters or flops
    ]
    part = Words("part", "部件").of(language)
    tied = Words("The output layer is the embedding table, which is counted once.", "输出层就是嵌入表，只计一次。")
    return [
        BarChart(
            Words("Parameters by part", "参数，按部件").of(language),
            rows,
            x="part",
            y="parameters",
            x_title=part,
            y_title=Words("parameters", "参数个数").of(language),
            note=tied.of(language) if any(step.formula == "x·Eᵀ" for step in view.steps) else "",
        ),
        BarChart(
            Words("FLOPs of this text by part", "这段文本的 FLOPs，按部件").of(language),
            rows,
            x="part",
            y="flops",
            x_title=part,
            y_title="FLOPs",
            note=_how_counted(language),
        ),
    ]


def _folded(steps: Sequence[Step]) -> _Groups:
    """The steps one by one, but those of a later block together, with its path: they repeat those of the first."""
    groups: _Groups = []
    for step in steps:
        found = _BLOCK.match(step.module)
        path = found[0] if found and int(found[1]) > 0 else ""
        if path and groups and groups[-1][1] == path:
            groups[-1][0].append(step)
        else:
            groups.append(([step], path))
    return groups


def _costs(view: TraceView, groups: _Groups, language: Language) -> TextTable:
    columns = [
        name.of(language)
        for name in (
            Words("no.", "序号"), Words("step", "步骤"), Words("module", "模块"), Words("symbols", "符号形状"),
            Words("shape", "实际形状"), Words("parameters", "参数"), Words("FLOPs", "FLOPs"), Words("RMS", "均方根"),
        )
    ]  # fmt: skip
    rows: list[list[str]] = []
    number = 0
    for group, path in groups:
        number += 1
        first, costs = group[0], [sum(step.parameters for step in group), sum(step.flops for step in group)]
        costly = [f"{cost:,}" if cost else "" for cost in costs]
        if path:
            last = number + len(group) - 1
            again = Words(f"the same {len(group)} steps again", f"同样的 {len(group)} 步").of(language)
            rows.append([f"{number}–{last}" if len(group) > 1 else str(number), again, path, "", "", *costly, ""])
            number = last
        else:
            mark = f" [{first.flow}]" if first.flow else ""
            name = first.name.of(language) + mark
            size = "" if first.size is None else f"{first.size:.3g}"
            rows.append([str(number), name, first.module, _tuple(first.symbols), _tuple(first.shape), *costly, size])
    letters = ", ".join(f"{letter} = {size:,}" for letter, size in view.legend.items())
    note = Words(
        f"{letters}. N = tokens that are predicted. [1] … [8]: the eight shapes of multi-head attention. "
        "RMS: root mean square of the result. Blocks are counted from 0.",
        f"{letters}。N = 被预测的 token 数。[1] … [8]：多头注意力的八个形状。均方根：结果的均方根。层从 0 数起。",
    )
    return TextTable(
        view.title.of(language),
        columns,
        rows,
        right=[columns[0], *columns[5:]],
        note=note.of(language),
        spared=[columns[2], columns[3], columns[7]],
    )


def _drawn_steps(view: TraceView, language: Language) -> TextTable:
    """The table of costs without what only readers of the code need, and with formulas."""
    groups = _folded(view.steps)
    costs = _costs(view, groups, language)
    shown = [0, 1, 3, 4, 5, 6]  # all but the module and the RMS
    columns = [costs.columns[column] for column in shown]
    formula = Words("formula", "公式").of(language)
    rows = [
        [*(row[column] for column in shown), "" if path else group[0].formula]
        for row, (group, path) in zip(costs.rows, groups, strict=True)
    ]
    columns.append(formula)
    return TextTable(costs.title, columns, rows, right=costs.right, note=costs.note)


def _lines(groups: _Groups, language: Language) -> TextTable:
    names = (
        Words("no.", "序号"), Words("step", "步骤"), Words("formula", "公式"), Words("source", "源代码"),
        Words("tap", "tap"),
    )  # fmt: skip
    columns = [name.of(language) for name in names]
    rows: list[list[str]] = []
    number = 0
    for group, path in groups:
        first = group[0]
        if not path:
            where = f"{first.source}:{first.line}"
            rows.append([str(number + 1), first.name.of(language), first.formula, where, first.tap])
        number += len(group)
    title = Words("Formulas and source lines", "公式与源代码行")
    note = Words(
        "Files and lines are those of the code that ran. A tap is the name under which a value can be captured and "
        "edited. [view]: the same memory in another shape; [copy]: the numbers are copied.",
        "文件和行号是实际执行的代码。tap 是可以查看和修改这个值的名字。"
        "[view]：同一块内存换个形状；[copy]：数字被复制。",
    )
    spared = [columns[2], columns[3]]
    return TextTable(title.of(language), columns, rows, right=[columns[0]], note=note.of(language), spared=spared)


def _sums(view: TraceView, language: Language) -> TextTable:
    columns = [
        name.of(language) for name in (Words("part", "部件"), Words("parameters", "参数"), Words("FLOPs", "FLOPs"))
    ]
    rows = [
        [_PARTS[part].of(language), f"{parameters:,}", f"{flops:,}"]
        for part, (parameters, flops) in view.by_part().items()
        if parameters or flops
    ]
    rows.append([Words("all", "合计").of(language), f"{view.parameters:,}", f"{view.flops:,}"])
    note = _how_counted(language)
    if view.loss is not None:
        loss = Words(
            f" Loss of the text: {view.loss:.4f} nats per token.", f"这段文本的损失：每 token {view.loss:.4f} nat。"
        )
        note += loss.of(language)
    return TextTable(Words("Sums", "合计").of(language), columns, rows, right=columns[1:], note=note)


def _how_counted(language: Language) -> str:
    return Words(
        "FLOPs are those of matrix products, a multiply-add as 2, over every pair of positions in attention; the fused "
        "causal kernel skips most of the masked half.",
        "只计矩阵乘法，一次乘加算 2；注意力里每一对位置都算上。融合的因果内核会省去大部分被遮住的一半。",
    ).of(language)


def _tuple(values: Sequence[object]) -> str:
    return f"({', '.join(map(str, values))})"


COMMAND = Command(trace_view, options=ONE_TEXT)
