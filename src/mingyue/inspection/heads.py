"""Heads labelled by their attention patterns on probe texts, with the loss when each head is switched off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mingyue.charts import Chart
from mingyue.inspection.ablation import Floats, ablate_heads
from mingyue.inspection.arrays import to_lists
from mingyue.inspection.command import FILE, SEED, SOURCE, STEP, TARGET, TEXTS, Command, Inspected, Progress, Text
from mingyue.inspection.head_labels import PartHeads, Source
from mingyue.inspection.head_patterns import Probe, Scores, random_probe, score_patterns
from mingyue.inspection.head_tables import FEWEST_TOKENS, Measured, heads_table, label_chart, largest_change, loss_chart
from mingyue.inspection.parts import Part, attention_parts
from mingyue.inspection.subject import Reading, Subject
from mingyue.inspection.view import View
from mingyue.words import Language, TextTable, Words, tr

MOST_RANDOM_ROWS = 64
"""Random sequences on which the loss is measured, at most: as many as `FEWEST_TOKENS` take."""
MOST_TEXTS = 64
MOST_TOKENS = 1024
"""Tokens of all given texts together; further texts are left out, which the view reports."""


@dataclass(frozen=True)
class HeadsView(View):
    """The label of each head with its score, and the loss without the head."""

    title: ClassVar[Words] = tr("Attention heads")  # pyrefly: ignore[bad-override]
    parts: tuple[PartHeads, ...]
    measured: Measured
    """The loss of the whole model, and what it was measured on."""

    @property
    def loss(self) -> float | None:
        """Loss of the whole model on the measured texts, nats per token; None if there were none."""
        return self.measured.loss

    def part(self, name: Part) -> PartHeads:
        """The heads of one kind of attention. Raises `KeyError` for a kind that this model lacks."""
        return {part.part: part for part in self.parts}[name]

    def charts(self, language: Language = "en") -> list[Chart]:
        """For each kind of attention its labels, layers × heads; then the change of the loss without each head."""
        charts: list[Chart] = []
        high = largest_change(self.parts, self.measured)
        for part in self.parts:
            charts.append(label_chart(part, language))
            if part.zero_LH is not None:
                charts.append(loss_chart(part, self.measured, language, high=high))
        return charts

    def tables(self, language: Language = "en") -> list[TextTable]:
        """A row for each head: label, score, threshold, score of uniform attention, change of the loss."""
        last = self.parts[-1]
        return [heads_table(part, self.measured, language, explained=part is last) for part in self.parts]

    def to_dict(self) -> dict[str, Any]:
        """By kind of attention: labels, scores by pattern, uniform, thresholds, changes of the loss with errors."""
        return {
            "loss": self.loss,
            "tokens": self.measured.tokens,
            "measured_on": self.measured.about.en,
            "parts": {part.part: _part_dict(part) for part in self.parts},
        }


def heads_view(
    subject: Subject,
    *,
    probes: Sequence[Text] | None = None,
    held_out: Sequence[Reading] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> HeadsView:
    """Label all heads of a model and switch each of them off in turn.

    Labels are measured on a random sequence (by `seed`) that is repeated once, and on the texts `probes`, on which the
    loss is measured too; cross-attention is labelled on these alone. Without `probes` the texts `held_out` take their
    place. Without these either, the loss is that of the repeated part of random sequences; for an encoder-decoder
    model it is then not measured, and cross-attention is labelled on random pairs.

    Raises `GenerationError` for a model too small for probes, and as `Subject.read` does.
    """
    parts = attention_parts(subject)
    random = random_probe(subject, seed)
    texts, left_out = _own_texts(subject, probes or ())
    given = bool(texts)
    if not given:
        texts = [_probe(reading) for reading in held_out]
    scores: dict[Part, dict[Source, Scores]] = {part.name: {} for part in parts}
    for part in parts:
        if part.name != "cross" or not texts:
            scores[part.name]["random"] = score_patterns(subject, part, [random])
        if texts:
            scores[part.name]["texts"] = score_patterns(subject, part, texts)
    measured = texts or ([] if subject.of_pairs else [_random_rows(subject, seed)])
    loss, ablated = ablate_heads(subject, parts, measured, progress) if measured else (None, [None] * len(parts))
    return HeadsView(
        parts=tuple(
            PartHeads(part.name, scores[part.name], **({} if changes is None else vars(changes)))
            for part, changes in zip(parts, ablated, strict=True)
        ),
        measured=Measured(
            loss,
            sum(probe.targets_BT[:, probe.counted_from :].numel() for probe in measured),
            _measured_on(texts, left_out, given=given, of_pairs=subject.of_pairs),
        ),
    )


def _own_texts(subject: Subject, given: Sequence[Text]) -> tuple[list[Probe], int]:
    """The texts within the limits, and how many were left out. A text of one token has nothing to predict: skipped."""
    probes: list[Probe] = []
    n_tokens = n_given = 0
    for text in given:
        if isinstance(text, Reading):
            reading = text
        else:
            reading = subject.read(text) if isinstance(text, str) else subject.read(text[1], text[0])
        if not len(reading.targets_T):
            continue
        n_given += 1
        n_tokens += len(reading.ids_T)
        if probes and (len(probes) == MOST_TEXTS or n_tokens > MOST_TOKENS):
            continue
        probes.append(_probe(reading))
    return probes, n_given - len(probes)


def _probe(reading: Reading) -> Probe:
    source_BS = None if reading.source_ids_S is None else reading.source_ids_S[None]
    return Probe(reading.ids_T[None], reading.targets_T[None], source_BS)


def _random_rows(subject: Subject, seed: int) -> Probe:
    """Random sequences with `FEWEST_TOKENS` predictions, if that takes no more than `MOST_RANDOM_ROWS`."""
    probe = random_probe(subject, seed, 1)
    n_counted = probe.targets_BT.shape[1] - probe.counted_from
    return random_probe(subject, seed, min(MOST_RANDOM_ROWS, -(-FEWEST_TOKENS // n_counted)))


def _measured_on(texts: Sequence[Probe], left_out: int, *, given: bool, of_pairs: bool) -> Words:
    count = sum(probe.targets_BT.numel() for probe in texts)
    kind = tr("pairs of texts") if of_pairs else tr("texts")
    if given:
        more = tr(" ({left_out} more left out)", left_out) if left_out else Words("", "")
        return tr("Measured on the given {kind} ({n_texts}), {count:,} tokens{more}.", kind, len(texts), count, more)
    if texts:
        return tr("Measured on held-out {kind} of the run ({n_texts}), {count:,} tokens.", kind, len(texts), count)
    if of_pairs:
        return tr(
            "No pair of texts was given, and no held-out pairs of the run are at hand: the loss "
            "was not measured, and cross-attention is labelled on random tokens."
        )
    return tr(
        "Measured on repetitions of random sequences, since no text was given and no "
        "held-out text of the run is at hand: this shows what matters for copying. Give "
        "texts to measure the loss on them."
    )


def _part_dict(part: PartHeads) -> dict[str, Any]:
    def lists(array: Floats | None) -> Any:  # noqa: ANN401
        return None if array is None else to_lists(array)

    return {
        "labels_LH": [list(row) for row in part.labels_LH],
        "scores": {
            source: {
                "patterns": list(scores.patterns),
                "scores_LHP": lists(scores.scores_LHP),
                "uniform_P": lists(scores.uniform_P),
                "thresholds_P": lists(scores.thresholds_P),
            }
            for source, scores in part.scores.items()
        },
        **{name: lists(getattr(part, name)) for name in ("zero_LH", "zero_error_LH", "mean_LH", "mean_error_LH")},
    }


def _heads_of_inspection(
    inspected: Inspected, *, texts: Sequence[str] = (), seed: int = 0, progress: Progress | None = None
) -> HeadsView:
    probes = inspected.probes(texts)
    run = None if probes else inspected.run_texts
    held_out = [] if run is None else run.held_out(MOST_TOKENS)
    return heads_view(inspected.subject, probes=probes, held_out=held_out, seed=seed, progress=progress)


COMMAND = Command(
    _heads_of_inspection,
    options=(TEXTS, FILE, SOURCE, TARGET, STEP, SEED),
    texts="any number",
    slow=True,
)
