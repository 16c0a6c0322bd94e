"""`mingyue generate`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from mingyue.cli.arguments import Backend, Device, JsonLines, ModelFolder, Threads, Weights, repeatable
from mingyue.cli.options import COMMAND_LINE, takes
from mingyue.cli.screen import print_note, say, show, table, write, write_json
from mingyue.cli.texts import collect_prompts, unescape
from mingyue.config import GenerateSettings
from mingyue.errors import SettingsError
from mingyue.words import tr

if TYPE_CHECKING:
    from mingyue.api import Model
    from mingyue.generation import Generation
    from mingyue.scoring import RepetitionReport

_PROMPT = "Text to continue; repeatable; `-` reads standard input [default: the start of a text]."
_FILE = "UTF-8 file with a prompt; repeatable. One line break at its end is removed."
_PROMPTS = "UTF-8 file with one prompt per line; repeatable; `-` reads standard input."
_INTERACTIVE = "Continue what is typed, text after text, until Ctrl-D; Ctrl-C ends the current text only."
_REPORT = (
    "Report how much the texts repeat themselves, distinct n-grams and loops beside those of held-out text, and what "
    "helps."
)
_LOGPROBS = "Show −log P (in nats) and P of each token, before temperature and top-k, top-p, min-p; --json has log P."
_STREAM = "Show the text while it is generated (one prompt, one sample); --no-stream waits for the end."


@takes(GenerateSettings)
def generate(
    model: ModelFolder,
    /,
    *,
    prompt: Annotated[list[str] | None, repeatable(_PROMPT)] = None,
    prompt_file: Annotated[list[str] | None, repeatable(_FILE)] = None,
    prompts_file: Annotated[list[str] | None, repeatable(_PROMPTS)] = None,
    interactive: Annotated[bool, Parameter(help=_INTERACTIVE, negative=())] = False,
    json: JsonLines = False,
    logprobs: Annotated[bool, Parameter(help=_LOGPROBS, negative=())] = False,
    report: Annotated[bool, Parameter(help=_REPORT, negative=())] = False,
    stream: Annotated[bool, Parameter(help=_STREAM)] = True,
    device: Device = None,
    threads: Threads = None,
    backend: Backend = None,
    weights: Weights = "fp32",
    **given: Any,  # noqa: ANN401  (values of GenerateSettings, checked there)
) -> None:
    r"""Generate text with a model.

    mingyue generate runs/poems --prompt 床前 --max-new-tokens 60 --temperature 0.8 --top-p 0.95 --seed 1

    In --stop, \n is a line break. The same seed gives the same text.
    """
    if "stop" in given:
        given["stop"] = tuple(unescape(text) for text in given["stop"])
    settings = GenerateSettings.read(given, source=COMMAND_LINE)
    if interactive:
        _check_interactive(settings, prompt or prompt_file or prompts_file, json or logprobs or report or not stream)
    prompts = collect_prompts(prompt or [], prompt_file or [], prompts_file or [])
    prompts = prompts if prompts or prompts_file else [""]

    from mingyue import api

    loaded = api.load(model, device=device, threads=threads, backend=backend, weights=weights)
    for note in loaded.loading_notes:
        print_note(note)
    if interactive:
        from mingyue.cli.interactive import interact

        interact(loaded, settings)
        return
    if stream and not json and not logprobs and len(prompts) * settings.samples == 1:
        results = stream_text(loaded, prompts[0], settings)
    else:
        results = loaded.generate(prompts, settings, logprobs=logprobs)
        _show_texts(loaded, results, json=json, logprobs=logprobs)
        for note in loaded.notes:
            print_note(note)
    if report:
        _show_report(api.repetition(results, model, settings=settings, verdict=loaded.training.get("verdict")), json)


def stream_text(model: Model, prompt: str, settings: GenerateSettings) -> list[Generation]:
    """Show one text while it is generated; returns it."""
    events = model.events([prompt], settings)
    n_shown = len(model.notes)
    for note in model.notes:
        print_note(note)
    write(prompt)
    results: list[Generation] = []
    for event in events:
        if event.text:
            write(event.text)
        if event.result is not None:
            results.append(event.result)
    write("\n")
    for note in model.notes[n_shown:]:
        print_note(note)
    return results


def _check_interactive(settings: GenerateSettings, prompts: list[str] | None, other: bool) -> None:
    if prompts:
        raise SettingsError(
            tr("--interactive reads prompts from the terminal, and prompts are given"),
            advice=tr("Leave one of them out."),
        )
    if other or settings.samples != 1:
        raise SettingsError(
            tr(
                "--interactive streams one text after the other: --json, --logprobs, --report, "
                "--no-stream and --samples have no effect on it"
            ),
            advice=tr("Leave them out."),
        )


def _show_texts(model: Model, results: list[Generation], *, json: bool, logprobs: bool) -> None:
    for number, result in enumerate(results, start=1):
        if json:
            write_json(result.to_dict(), indent=None)
            continue
        if len(results) > 1:
            write(tr("--- {number} of {n_results} ---\n", number, len(results)))
        write(f"{result.prompt}{result.text}\n")
        if logprobs:
            _show_logprobs(model, result)


def _show_logprobs(model: Model, result: Generation) -> None:
    rows = table("token", tr("−log P, nats"), "P", right=(tr("−log P, nats"), "P"))
    for token, logprob in zip(result.ids, result.logprobs or (), strict=True):
        rows.add_row(model.tokenizer.token_label(token), f"{0 - logprob:.4f}", f"{math.exp(logprob):.2%}")
    show(rows)


def _show_report(report: RepetitionReport, json: bool) -> None:
    if json:
        write_json({"repetition": report.to_dict()}, indent=None)
        return
    write("\n")
    rows = table(tr("repetition"), tr("generated"), tr("held out"), right=(tr("generated"), tr("held out")))
    for row in report.table():
        rows.add_row(*row)
    show(rows)
    for line in report.describe():
        say(line)
