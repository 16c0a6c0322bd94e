"""`mingyue generate`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from mingyue.cli.arguments import Device, JsonLines, ModelFolder, Threads
from mingyue.cli.options import COMMAND_LINE, takes
from mingyue.cli.screen import print_note, show, table, write, write_json
from mingyue.cli.texts import collect, unescape, without_final_newline
from mingyue.config import GenerateSettings

if TYPE_CHECKING:
    from mingyue.api import Model
    from mingyue.generation import Generation

_PROMPT = "Text to continue; repeatable; `-` reads standard input [default: the start of a text]."
_FILE = "UTF-8 file with a prompt; repeatable. One line break at its end is removed."
_LOGPROBS = "Show −log P (in nats) and P of each token, before temperature and top-k, top-p, min-p; --json has log P."
_STREAM = "Show the text while it is generated (one prompt, one sample); --no-stream waits for the end."


@takes(GenerateSettings)
def generate(
    model: ModelFolder,
    /,
    *,
    prompt: Annotated[list[str] | None, Parameter(help=_PROMPT, negative=())] = None,
    prompt_file: Annotated[list[str] | None, Parameter(help=_FILE, negative=())] = None,
    json: JsonLines = False,
    logprobs: Annotated[bool, Parameter(help=_LOGPROBS, negative=())] = False,
    stream: Annotated[bool, Parameter(help=_STREAM)] = True,
    device: Device = None,
    threads: Threads = None,
    **given: Any,  # noqa: ANN401  (values of GenerateSettings, checked there)
) -> None:
    r"""Generate text with a model.

    mingyue generate runs/poems --prompt 床前 --max-new-tokens 60 --temperature 0.8 --top-p 0.95 --seed 1

    In --stop, \n is a line break. The same seed gives the same text.
    """
    if "stop" in given:
        given["stop"] = tuple(unescape(text) for text in given["stop"])
    settings = GenerateSettings.read(given, source=COMMAND_LINE)
    prompts = [without_final_newline(text).text for text in collect(prompt or [], prompt_file or [])] or [""]

    from mingyue import api

    loaded = api.load(model, device=device, threads=threads)
    for note in loaded.loading_notes:
        print_note(note)
    if stream and not json and not logprobs and len(prompts) * settings.samples == 1:
        events = loaded.events(prompts, settings)
        n_shown = len(loaded.notes)
        for note in loaded.notes:
            print_note(note)
        write(prompts[0])
        for event in events:
            if event.text:
                write(event.text)
        write("\n")
        for note in loaded.notes[n_shown:]:
            print_note(note)
        return
    results = loaded.generate(prompts, settings, logprobs=logprobs)
    for number, result in enumerate(results, start=1):
        if json:
            write_json(result.to_dict(), indent=None)
            continue
        if len(results) > 1:
            write(f"--- {number} of {len(results)} ---\n")
        write(f"{result.prompt}{result.text}\n")
        if logprobs:
            _show_logprobs(loaded, result)
    for note in loaded.notes:
        print_note(note)


def _show_logprobs(model: Model, result: Generation) -> None:
    rows = table("token", "−log P, nats", "P", right=("−log P, nats", "P"))
    for token, logprob in zip(result.ids, result.logprobs or (), strict=True):
        rows.add_row(model.tokenizer.token_label(token), f"{0 - logprob:.4f}", f"{math.exp(logprob):.2%}")
    show(rows)
