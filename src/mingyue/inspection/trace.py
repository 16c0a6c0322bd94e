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
from mingyue.words import Language, TextTable, tr

MOST_CELLS = 1 << 26
"""Attention weights of one layer: 256 MB."""
_Groups = list[tuple[list[Step], str]]
_BLOCK = re.compile(r"^(?:(?:encoder|decoder)\.)?blocks\.(\d+)")
_PARTS = {
    "text": tr("text"),
    "embedding": tr("embedding"),
    "source embedding": tr("source embedding"),
    "positions": tr("positions"),
    "attention": tr("attention"),
    "encoder attention": tr("encoder attention"),
    "decoder attention": tr("decoder attention"),
    "cross-attention": tr("cross-attention"),
    "feedforward": tr("feed-forward"),
    "encoder feedforward": tr("encoder feed-forward"),
    "decoder feedforward": tr("decoder feed-forward"),
    "norms": tr("norms"),
    "output": tr("output layer"),
    "residual": tr("residual stream"),
    "loss": tr("loss"),
}


@dataclass(frozen=True, eq=False)
class TraceView(View):
    """All steps of a forward pass, in order."""

    title = tr("Every step from ids to loss")

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
            tr(
                "{longest:,} tokens have {cells:,} attention weights per layer; a trace computes at "
                "most {most_cells:,}",
                longest,
                cells,
                MOST_CELLS,
            ),
            advice=tr("Give a text of at most {most:,} tokens: the steps are the same.", most),
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
    part = tr("part").of(language)
    tied = tr("The output layer is the embedding table, which is counted once.")
    return [
        BarChart(
            tr("Parameters by part").of(language),
            rows,
            x="part",
            y="parameters",
            x_title=part,
            y_title=tr("parameters").of(language),
            note=tied.of(language) if any(step.formula == "x·Eᵀ" for step in view.steps) else "",
        ),
        BarChart(
            tr("FLOPs of this text by part").of(language),
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
            tr("no."), tr("operation"), tr("module"), tr("symbols"),
            tr("shape"), tr("parameters"), tr("FLOPs"), tr("RMS"),
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
            again = tr("the same {n_group} steps again", len(group)).of(language)
            rows.append([f"{number}–{last}" if len(group) > 1 else str(number), again, path, "", "", *costly, ""])
            number = last
        else:
            mark = f" [{first.flow}]" if first.flow else ""
            name = first.name.of(language) + mark
            size = "" if first.size is None else f"{first.size:.3g}"
            rows.append([str(number), name, first.module, _tuple(first.symbols), _tuple(first.shape), *costly, size])
    letters = ", ".join(f"{letter} = {size:,}" for letter, size in view.legend.items())
    note = tr(
        "{letters}. N = tokens that are predicted. [1] … [8]: the eight shapes of multi-head "
        "attention. RMS: root mean square of the result. Blocks are counted from 0.",
        letters,
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
    formula = tr("formula").of(language)
    rows = [
        [*(row[column] for column in shown), "" if path else group[0].formula]
        for row, (group, path) in zip(costs.rows, groups, strict=True)
    ]
    columns.append(formula)
    return TextTable(costs.title, columns, rows, right=costs.right, note=costs.note)


def _lines(groups: _Groups, language: Language) -> TextTable:
    names = (
        tr("no."), tr("operation"), tr("formula"), tr("source line"),
        tr("tap"),
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
    title = tr("Formulas and source lines")
    note = tr(
        "Files and lines are those of the code that ran. A tap is the name under which a "
        "value can be captured and edited. [view]: the same memory in another shape; [copy]: "
        "the numbers are copied."
    )
    spared = [columns[2], columns[3]]
    return TextTable(title.of(language), columns, rows, right=[columns[0]], note=note.of(language), spared=spared)


def _sums(view: TraceView, language: Language) -> TextTable:
    columns = [name.of(language) for name in (tr("part"), tr("parameters"), tr("FLOPs"))]
    rows = [
        [_PARTS[part].of(language), f"{parameters:,}", f"{flops:,}"]
        for part, (parameters, flops) in view.by_part().items()
        if parameters or flops
    ]
    rows.append([tr("all").of(language), f"{view.parameters:,}", f"{view.flops:,}"])
    note = _how_counted(language)
    if view.loss is not None:
        loss = tr(" Loss of the text: {loss:.4f} nats per token.", view.loss)
        note += loss.of(language)
    return TextTable(tr("Sums").of(language), columns, rows, right=columns[1:], note=note)


def _how_counted(language: Language) -> str:
    return tr(
        "FLOPs are those of matrix products, a multiply-add as 2, over every pair of "
        "positions in attention; the fused causal kernel skips most of the masked half."
    ).of(language)


def _tuple(values: Sequence[object]) -> str:
    return f"({', '.join(map(str, values))})"


COMMAND = Command(trace_view, options=ONE_TEXT)
