"""`mingyue score`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from mingyue.cli.screen import write, write_json
from mingyue.cli.texts import collect
from mingyue.errors import SettingsError

if TYPE_CHECKING:
    pass

_MOST_ROWS = 200
_HERE = "A run folder, or a model folder."
_TEXT = "A text; repeat it for several; `-` reads standard input."
_FILE = "A UTF-8 file; repeatable; `-` is standard input."
_STRIDE = "Tokens by which the window moves over a text longer than the context; none = half of the context."
_TOKENS = f"The table of tokens; neither = for texts up to {_MOST_ROWS} tokens."
_JSON = "Print one JSON object a line for each text."
_DEVICE = "cpu, cuda, mps; none = the best that is there."
_THREADS = "CPU threads; none = all cores this process may use."


def score(
    model: Annotated[str, Parameter(help=_HERE)],
    /,
    *,
    text: Annotated[list[str] | None, Parameter(help=_TEXT, negative=())] = None,
    file: Annotated[list[str] | None, Parameter(help=_FILE, negative=())] = None,
    stride: Annotated[int | None, Parameter(help=_STRIDE)] = None,
    tokens: Annotated[bool | None, Parameter(help=_TOKENS)] = None,
    json: Annotated[bool, Parameter(help=_JSON, negative=())] = False,
    device: Annotated[str | None, Parameter(help=_DEVICE)] = None,
    threads: Annotated[int | None, Parameter(help=_THREADS)] = None,
) -> None:
    """Measure how likely a model finds a text: each token, perplexity, bits per byte.

    mingyue score runs/poems --text 床前明月光
    """
    given = collect(text or [], file or [])
    if not given:
        raise SettingsError(
            "there is nothing to score", advice="Give --text, --file, or `--text -` for standard input."
        )

    from mingyue import api

    judge = api.load(model, device=device, threads=threads)
    for number, one in enumerate(given):
        result = judge.score(one.text, stride=stride)
        if json:
            write_json({"source": one.source, **result.to_dict()}, indent=None)
            continue
        if number:
            write("\n")
        if one.source is not None:
            write(f"{one.source}\n")
        if tokens or (tokens is None and len(result.tokens) <= _MOST_ROWS):
            _show_tokens(result)
