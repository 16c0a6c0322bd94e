"""How the steps of a pass are tabulated and drawn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mingyue.charts import BarChart, Chart
from mingyue.words import Language, TextTable, Words

if TYPE_CHECKING:
    from mingyue.inspection.trace import Step, TraceView

_Groups = list[tuple[list["Step"], str]]
_BLOCK = re.compile(r"^(?:(?:encoder|decoder)\.)?blocks\.(\d+)")
_PARTS = {
    "text": Words("text", "文本"),
    "embedding": Words("embedding", "词表"),
    "source embedding": Words("source embedding", "源语言词表"),
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


def charts(view: TraceView, language: Language) -> list[Chart]:
    """Parameters and arithmetic by part."""
    rows = [
        {"part": _PARTS[part].of(language), "parameters": parameters, "flops": flops}
        for part, (parameters, flops) in view.by_part().items()
        if parameters or flops
    ]
    part = Words("part", "部件").of(language)
    tied = Words(
        "The output layer is the embedding table once more, and counts once.", "输出层就是词表本身，只计一次。"
    )
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
            Words("Arithmetic of this text by part", "这段文本的计算量，按部件").of(language),
            rows,
            x="part",
            y="flops",
            x_title=part,
            y_title="FLOPs",
            note=_how_counted(language),
        ),
    ]


def tables(view: TraceView, language: Language) -> list[TextTable]:
    """Shapes and costs; formulas and lines; sums."""
    groups = _folded(view.steps)
    return [_costs(view, groups, language), _lines(groups, language), _sums(view, language)]


def _folded(steps: Sequence[Step]) -> _Groups:
    """Steps by themselves, but those of a later block together, with its path: it repeats the first one's."""
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
        money = [f"{cost:,}" if cost else "" for cost in costs]
        if path:
            last = number + len(group) - 1
            again = Words(f"the same {len(group)} steps again", f"同样的 {len(group)} 步").of(language)
            rows.append([f"{number}–{last}" if len(group) > 1 else str(number), again, path, "", "", *money, ""])
            number = last
        else:
            mark = f" [{first.flow}]" if first.flow else ""
            name = first.name.of(language) + mark
            size = "" if first.size is None else f"{first.size:.3g}"
            rows.append([str(number), name, first.module, _tuple(first.symbols), _tuple(first.shape), *money, size])
    letters = ", ".join(f"{letter} = {size:,}" for letter, size in view.legend.items())
    note = Words(
        f"{letters}. N = tokens that are predicted. [1] … [8]: the eight shapes of multi-head attention. "
        "RMS: root mean square of the numbers. Blocks are counted from 0.",
        f"{letters}。N = 被预测的 token 数。[1] … [8]：多头注意力的八个形状。均方根：这些数字一般有多大。层从 0 数起。",
    )
    return TextTable(
        view.title.of(language),
        columns,
        rows,
        right=[columns[0], *columns[5:]],
        note=note.of(language),
        spared=[columns[2], columns[3], columns[7]],
    )


def _lines(groups: _Groups, language: Language) -> TextTable:
    names = (
        Words("no.", "序号"), Words("step", "步骤"), Words("formula", "公式"), Words("source", "源代码"),
        Words("tap", "观察点"),
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
    title = Words("Formulas, and the lines that did it", "公式，以及执行它的代码行")
    note = Words(
        "Files and lines are those that ran. A tap is the name under which a value can be looked at and edited. "
        "[view]: the same numbers in another shape; [copy]: they are written anew.",
        "文件和行号是实际执行的那一行。观察点是可以查看和修改这个值的名字。[view]：同一批数字换个形状看；[copy]：数字被重新写了一遍。",
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
        "Counted are matrix products, a multiply-add as 2, and every pair of positions of attention; the fused causal "
        "kernel leaves out most of the hidden half.",
        "只计矩阵乘法，一次乘加算 2；注意力里每一对位置都算上。融合的因果内核会省去大部分被遮住的一半。",
    ).of(language)


def _tuple(values: Sequence[object]) -> str:
    return f"({', '.join(map(str, values))})"
