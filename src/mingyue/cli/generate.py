"""`mingyue generate`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from mingyue.cli.options import COMMAND_LINE, takes
from mingyue.cli.screen import remark, show, table, write, write_json
from mingyue.cli.texts import collect, unescape, without_last_line_end
from mingyue.config import GenerateSettings

if TYPE_CHECKING:
    from mingyue.api import Model
    from mingyue.generation import Generation

_HERE = "A run folder, or a model folder."
_PROMPT = "Text to go on from; repeat it for several; `-` reads standard input. None = the start of a text."
_FILE = "A UTF-8 file with a prompt; repeatable. One line end at its end is left out."
_JSON = "Print one JSON object a line for each text."
_LOGPROBS = "Show how likely each token was (natural logarithm), before temperature and the like."
_STREAM = "Show the text as it is written (one prompt, one sample); --no-stream waits for the end."
_DEVICE = "cpu, cuda, mps; none = the best that is there."
_THREADS = "CPU threads; none = all cores this process may use."


@takes(GenerateSettings)
def generate(
    model: Annotated[str, Parameter(help=_HERE)],
    /,
    *,
    prompt: Annotated[list[str] | None, Parameter(help=_PROMPT, negative=())] = None,
    prompt_file: Annotated[list[str] | None, Parameter(help=_FILE, negative=())] = None,
    json: Annotated[bool, Parameter(help=_JSON, negative=())] = False,
    logprobs: Annotated[bool, Parameter(help=_LOGPROBS, negative=())] = False,
    stream: Annotated[bool, Parameter(help=_STREAM)] = True,
    device: Annotated[str | None, Parameter(help=_DEVICE)] = None,
    threads: Annotated[int | None, Parameter(help=_THREADS)] = None,
    **given: Any,  # noqa: ANN401  (values of GenerateSettings, checked there)
) -> None:
    r"""Write text with a model.

    mingyue generate runs/poems --prompt 床前 --max-new-tokens 60 --temperature 0.8 --top-p 0.95 --seed 1

    In --stop, \n is a line end. The same seed gives the same text.
    """
    if "stop" in given:
        given["stop"] = tuple(unescape(text) for text in given["stop"])
    settings = GenerateSettings.read(given, source=COMMAND_LINE)
    prompts = [without_last_line_end(text).text for text in collect(prompt or [], prompt_file or [])] or [""]

    from mingyue import api

    writer = api.load(model, device=device, threads=threads)
    if stream and not json and not logprobs and len(prompts) * settings.samples == 1:
        _stream(writer, prompts[0], settings)
        return
    results = writer.generate(prompts, settings, logprobs=logprobs)
    for number, result in enumerate(results, start=1):
        if json:
            write_json(result.to_dict(), indent=None)
            continue
        if len(results) > 1:
            write(f"--- {number} of {len(results)} ---\n")
        write(f"{result.prompt}{result.text}\n")
        if logprobs:
            _show_logprobs(writer, result)
    for note in writer.notes:
        remark(note)


def _stream(writer: Model, prompt: str, settings: GenerateSettings) -> None:
    pieces = writer.stream(prompt, settings)
    told = len(writer.notes)
    for note in writer.notes:
        remark(note)
    write(prompt)
    for piece in pieces:
        write(piece)
    write("\n")
    for note in writer.notes[told:]:
        remark(note)


def _show_logprobs(writer: Model, result: Generation) -> None:
    rows = table("token", "log P", "P", right=("log P", "P"))
    for token, logprob in zip(result.ids, result.logprobs or (), strict=True):
        rows.add_row(writer.tokenizer.token_text(token), f"{logprob:.4f}", f"{math.exp(logprob):.2%}")
    show(rows)
