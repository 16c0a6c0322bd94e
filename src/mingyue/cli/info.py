"""`mingyue info`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mingyue.cli.arguments import JsonTable, ModelFolder
from mingyue.cli.screen import print_note, show, table, write, write_json
from mingyue.words import localized, stored, tr

if TYPE_CHECKING:
    from rich.table import Table

    from mingyue.api import Info

_PARTS = {
    "embedding": tr("embedding"),
    "positions": tr("positions"),
    "attention": tr("attention"),
    "cross-attention": tr("cross-attention"),
    "feedforward": tr("feed-forward"),
    "norms": tr("norms"),
    "output": tr("output layer"),
}


def info(
    path: ModelFolder,
    /,
    *,
    json: JsonTable = False,
) -> None:
    """Show the parameters, FLOPs, bytes, tokenizer and training of a model or a run.

    mingyue info runs/poems
    """
    from mingyue import api

    found = api.info(path)
    for note in found.notes:
        print_note(note)
    if json:
        write_json(found.to_dict())
        return
    for title, rows in (
        (tr("Model"), _pairs({name: value for name, value in found.config.items() if value is not None})),
        (tr("Parameters by part"), _parameters(found)),
        (tr("Compute and memory"), _costs(found)),
        (tr("Source tokenizer"), _pairs(found.source_tokenizer or {})),
        (tr("Tokenizer"), _pairs(found.tokenizer)),
        (tr("Started from"), _pairs({} if found.init is None else {"init": found.init})),
        (tr("Training"), _pairs(found.training)),
    ):
        if rows.row_count:
            write(title + "\n")
            show(rows)
            write("\n")


def _parameters(found: Info) -> Table:
    rows = table(tr("part"), tr("parameters"), tr("share"), right=(tr("parameters"), tr("share")))
    total = found.sizes.parameters
    for part, count in found.sizes.parts().items():
        if count:
            rows.add_row(_PARTS.get(part, stored(part)), f"{count:,}", f"{count / total:.1%}")
    rows.add_row(tr("total"), f"{total:,}", "")
    return rows


def _costs(found: Info) -> Table:
    counted, rows = found.sizes, table()
    is_pair_model = found.config["architecture"] == "encoder-decoder"
    token = tr("target token") if is_pair_model else "token"
    one, text = (tr("one pair of full contexts"), tr("pair")) if is_pair_model else (tr("one window"), tr("text"))
    rows.add_row(tr("FLOPs per {token}, forward", token), _big(counted.forward_flops()))
    rows.add_row(tr("FLOPs per {token}, training", token), _big(counted.training_flops()))
    rows.add_row(tr("weights"), _bytes(counted.weight_bytes()))
    rows.add_row(tr("cache of one {text}, full context", text), _bytes(counted.cache_bytes()))
    rows.add_row(tr("training on {one}, with Muon", one), _bytes(counted.training_bytes("muon", 1).total))
    rows.add_row(tr("training on {one}, with AdamW", one), _bytes(counted.training_bytes("adamw", 1).total))
    return rows


def _pairs(values: Mapping[str, Any]) -> Table:
    rows = table()
    for name, text in _flat(values):
        rows.add_row(name, text)
    return rows


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    result: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            result += _flat(value, f"{prefix}{name}.")
        else:
            result.append((f"{prefix}{name}", _shown(name, value)))
    return result


def _shown(name: str, value: object) -> str:
    """A readable value; `name` distinguishes counts from identifiers."""
    if isinstance(value, bool):
        return localized(tr("yes") if value else tr("no"))
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and name not in ("seed", "format"):
        return f"{value:,}"
    return str(value)


def _big(number: float) -> str:
    for size, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.2f} {name}"
    return f"{number:.0f}"


def _bytes(number: float) -> str:
    for size, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if number >= size:
            return f"{number / size:.1f} {name}"
    return tr("{number:.0f} bytes", number)
