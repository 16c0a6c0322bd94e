"""`mingyue data list` and `mingyue data get`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from mingyue.cli.screen import show, table, write, write_json

data = App(name="data", help_format="plaintext")


@data.command(name="list")
def list_(*, json: Annotated[bool, Parameter(negative=(), help="Print JSON instead of a table.")] = False) -> None:
    """List the known corpora, and which of them are on this machine."""
    from mingyue.data import data_folder, list_corpora

    known = list_corpora()
    if json:
        write_json(
            [
                {
                    "name": one.corpus.name,
                    "description": one.corpus.description,
                    "size": one.corpus.size,
                    "licence": one.corpus.licence,
                    "here": one.here,
                    "path": None if one.path is None else str(one.path),
                }
                for one in known
            ]
        )
        return
    rows = table("name", "here", "size", "what", "licence")
    for one in known:
        corpus = one.corpus
        rows.add_row(corpus.name, "yes" if one.here else "no", corpus.size, corpus.description, corpus.licence)
    show(rows)
    write(f"\nThey are kept in {data_folder()}. `mingyue data get NAME` gets one; `mingyue train NAME` trains on it.\n")


@data.command
def get(
    name: Annotated[str, Parameter(help="Its name, as `mingyue data list` shows it.")],
    /,
    *,
    simplified: Annotated[bool, Parameter(negative=(), help="tang: in simplified characters.")] = False,
    out: Annotated[Path | None, Parameter(help="Folder to put it into; none = the cache folder of this user.")] = None,
) -> None:
    """Get a known corpus, and print where it is. What is already here is not fetched again.

    MINGYUE_DATA_MIRROR names a folder or URL that holds the same files.
    """
    from mingyue.cli.live import Stages
    from mingyue.data import get_corpus

    with Stages() as stages:
        path = get_corpus(name, simplified=simplified, folder=out, progress=stages)
    write(f"{path}\n")
