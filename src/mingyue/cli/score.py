"""`mingyue score`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from mingyue.cli.arguments import Device, JsonLines, ModelFolder, ScoreBackend, Threads, Weights, repeatable
from mingyue.cli.screen import print_note, show, table, write, write_json
from mingyue.cli.texts import collect
from mingyue.config import Positive
from mingyue.errors import SettingsError
from mingyue.words import tr

if TYPE_CHECKING:
    from mingyue.api import Model
    from mingyue.scoring import Score

_MAX_ROWS = 200
_TEXT = "Text to score; repeatable; `-` reads standard input."
_FILE = "UTF-8 file to score; repeatable; `-` reads standard input."
_STRIDE = "Tokens by which the window moves over a text longer than the context [default: half of the context]."
_TOKENS = f"Show a table of tokens [default: for texts of up to {_MAX_ROWS} tokens]."


def score(
    model: ModelFolder,
    /,
    *,
    text: Annotated[list[str] | None, repeatable(_TEXT)] = None,
    file: Annotated[list[str] | None, repeatable(_FILE)] = None,
    stride: Annotated[Positive | None, Parameter(help=_STRIDE)] = None,
    tokens: Annotated[bool | None, Parameter(help=_TOKENS)] = None,
    json: JsonLines = False,
    device: Device = None,
    threads: Threads = None,
    backend: ScoreBackend = None,
    weights: Weights = "fp32",
) -> None:
    """Compute the log-probability of a text under a model: of each token, and perplexity and bits per byte.

    mingyue score runs/poems --text 床前明月光
    """
    given = collect(text or [], file or [])
    if not given:
        raise SettingsError(
            tr("there is nothing to score"), advice=tr("Give --text, --file, or `--text -` for standard input.")
        )

    from mingyue import api

    loaded = api.load(model, device=device, threads=threads, backend=backend, weights=weights)
    for note in loaded.loading_notes:
        print_note(note)
    for number, one in enumerate(given):
        result = loaded.score(one.text, stride=stride)
        if json:
            write_json({"source": one.source, **result.to_dict()}, indent=None)
            continue
        if number:
            write("\n")
        if one.source is not None:
            write(one.source + "\n")
        if tokens or (tokens is None and len(result.tokens) <= _MAX_ROWS):
            _show_tokens(loaded, result)
        _show_totals(result)
        for note in loaded.notes:
            print_note(note)


def _show_tokens(model: Model, result: Score) -> None:
    rows = table("token", tr("−log P, nats"), "P", right=(tr("−log P, nats"), "P"))
    for one in result.tokens:
        token = model.tokenizer.token_label(one.token)
        if one.logprob is None:
            rows.add_row(token, "–", "–")
        else:
            rows.add_row(token, f"{-one.logprob:.4f}", f"{math.exp(one.logprob):.2%}")
    show(rows)
    write("\n")


def _show_totals(result: Score) -> None:
    rows = table()
    rows.add_row(
        tr("−log P of the text"), tr("{total:.4f} nats over {scored:,} tokens", 0 - result.total, result.scored)
    )
    rows.add_row(tr("perplexity"), _number(result.perplexity))
    rows.add_row(tr("nats per token"), _number(result.nats_per_token))
    rows.add_row(tr("bits per byte"), _number(result.bits_per_byte))
    if result.windows > 1:
        rows.add_row(
            "windows",
            tr("{windows:,} of {context:,} tokens, stride {stride:,}", result.windows, result.context, result.stride),
        )
    show(rows)


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:,.4f}"
