"""`mingyue evaluate`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from mingyue.cli.arguments import Backend, Device, Encoding, JsonTable, ModelFolder, Threads, Weights
from mingyue.cli.live import Live
from mingyue.cli.options import COMMAND_LINE, takes
from mingyue.cli.screen import print_note, show, stderr, table, write_json
from mingyue.config import DataSettings, PairSettings, TranslateSettings
from mingyue.errors import DataError, SettingsError
from mingyue.files import explain_os_error, write_text_atomically
from mingyue.paths import check_output, path_of
from mingyue.words import tr

if TYPE_CHECKING:
    from rich.table import Table

    from mingyue.api import TranslationReport

_SOURCE = "File of source texts, one per line, plain or .gz; `-` is standard input."
_TARGET = "File of the reference translations: line n belongs to line n of the source file."
_PAIRS = "TSV, CSV or JSON lines instead of --source and --target; records with an empty side are left out."
_SOURCE_FIELD = "Key or column of the source text in the records; a column number for files without a header."
_TARGET_FIELD = "Key or column of the target text in the records; a column number for files without a header."
_LANGUAGE = "Target language, such as de or zh, for the tokenizer of BLEU [default: detected from the references]."
_OUTPUT = "File for the translations, one per line."


@takes(TranslateSettings, without=("n_best",))
def evaluate(
    model: ModelFolder,
    /,
    *,
    source: Annotated[str | None, Parameter(help=_SOURCE)] = None,
    target: Annotated[str | None, Parameter(help=_TARGET)] = None,
    pairs: Annotated[str | None, Parameter(help=_PAIRS)] = None,
    source_field: Annotated[str, Parameter(help=_SOURCE_FIELD)] = "source",
    target_field: Annotated[str, Parameter(help=_TARGET_FIELD)] = "target",
    target_language: Annotated[str | None, Parameter(help=_LANGUAGE)] = None,
    output: Annotated[str | None, Parameter(help=_OUTPUT)] = None,
    json: JsonTable = False,
    encoding: Encoding = None,
    device: Device = None,
    threads: Threads = None,
    backend: Backend = None,
    weights: Weights = "fp32",
    **given: Any,  # noqa: ANN401  (values of TranslateSettings, checked there)
) -> None:
    """Evaluate translations on a test set: BLEU and chrF (sacrebleu), exact matches, loss, perplexity.

    mingyue evaluate runs/en-de --source test.en --target test.de

    The signature beside a score says how it was computed: compare only scores of equal signatures. The loss counts the
    pairs that training would use: text on both sides, within the context.
    """
    settings = TranslateSettings.read(given, source=COMMAND_LINE)
    if pairs is None and (source is None or target is None):
        raise SettingsError(tr("there is no test set"), advice=tr("Give --source and --target, or --pairs."))
    if pairs is not None and (source is not None or target is not None):
        raise SettingsError(
            tr("--pairs and --source or --target are given"), advice=tr("Give the test set in one way.")
        )
    if pairs is None and (source_field, target_field) != ("source", "target"):
        raise SettingsError(tr("--source-field and --target-field have an effect only with --pairs"))
    check_output(output, source, target, pairs, model)

    from mingyue import api

    if not api.translates(model):
        raise SettingsError(
            tr("{model} is a decoder-only model: it does not translate", model),
            advice=tr("`mingyue score {model} --file test.txt` computes the log-probability of a text.", model),
        )
    if source is not None and target is not None:
        sources, references = _read_lines(source, target, encoding)
    else:
        assert pairs is not None
        sources, references = _read_records(pairs, source_field, target_field, encoding)
    translator = api.load_translator(model, device=device, threads=threads, backend=backend, weights=weights)
    for note in translator.loading_notes:
        print_note(note)
    with Live(stderr()) as live:
        report = translator.evaluate(
            sources,
            references,
            settings,
            target_language=target_language,
            progress=lambda done, total: live.show(
                tr("translating"), done, total, [tr("{done:,} of {total:,} lines", done, total)]
            ),
        )
    for note in translator.notes:
        print_note(note)
    if output is not None:
        _write(path_of(output), report.hypotheses)
    if json:
        write_json(report.to_dict())
    else:
        show(_table(report), droppable=(tr("details"),))


def _read_lines(source: str, target: str, encoding: str | None) -> tuple[list[str], list[str]]:
    """Both files, line by line, empty ones too. Raises `DataError` if one has more lines (both counts, the first)."""
    from mingyue.data import ReadReport, read_lines

    if source == target == "-":
        raise DataError(tr("`-` is given twice, but standard input can be read only once"))
    report = ReadReport()
    sources, references = (list(read_lines(name, encoding, report, offers_skipping=False)) for name in (source, target))
    for note in report.notes:
        print_note(note)
    if len(sources) != len(references):
        first = min(len(sources), len(references)) + 1
        longer = source if len(sources) > len(references) else target
        raise DataError(
            tr(
                "{source} has {n_sources:,} lines and {target} has {n_references:,}: line {first:,} "
                "of {longer} has no partner",
                source,
                len(sources),
                target,
                len(references),
                first,
                longer,
            ),
            advice=tr("Line n of one file belongs to line n of the other: give two files of the same number of lines."),
        )
    return sources, references


def _read_records(
    pairs: str, source_field: str, target_field: str, encoding: str | None
) -> tuple[list[str], list[str]]:
    from mingyue.data import ReadReport, read_pairs

    asked = PairSettings(pairs=(pairs,), source_field=source_field, target_field=target_field, keep_duplicates=True)
    report = ReadReport()
    found = list(read_pairs(asked, DataSettings(encoding=encoding), report, "train", offers_skipping=False))
    for reason, count in report.dropped.items():
        print_note(tr("Left out: {count:,} × {reason} (first: {examples}).", count, reason, report.examples[reason]))
    for note in report.notes:
        print_note(note)
    return [pair.source for pair in found], [pair.target for pair in found]


def _write(path: Path, lines: list[str]) -> None:
    try:
        write_text_atomically(path, "".join(f"{line}\n" for line in lines))
    except OSError as error:
        message, _ = explain_os_error(tr("the translations"), path, error)
        raise DataError(message, advice=tr("Choose another file with --output.")) from error


def _table(report: TranslationReport) -> Table:
    scores, rows = report.scores, table(tr("metric"), tr("value"), tr("details"))
    rows.add_row("BLEU", f"{scores.bleu:.2f}", scores.bleu_signature)
    rows.add_row("chrF", f"{scores.chrf:.2f}", scores.chrf_signature)
    rows.add_row(
        tr("exact lines"),
        f"{scores.exact:.2%}",
        tr("{exact:,} of {lines:,}", round(scores.exact * scores.lines), scores.lines),
    )
    tokens = 0 if report.evaluation is None else report.evaluation.tokens
    rows.add_row(
        tr("loss"),
        _number(report.loss),
        tr("nats per token, over {tokens:,} tokens of {counted:,} pairs", tokens, report.counted),
    )
    rows.add_row(tr("perplexity"), _number(report.perplexity), "")
    rows.add_row(tr("bits per byte"), _number(report.bits_per_byte), "")
    speed = report.lines / max(report.seconds, 1e-9)
    rows.add_row(
        "time",
        f"{report.seconds:,.1f} s",
        tr("to translate {lines:,} lines: {speed:,.1f} lines/s", report.lines, speed),
    )
    return rows


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:,.4f}"
