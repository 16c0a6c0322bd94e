"""`mingyue data list` and `mingyue data get`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from mingyue.cli.screen import say, show, table, write, write_json
from mingyue.paths import path_of
from mingyue.words import tr

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
    rows = table(tr("name"), tr("here"), tr("size"), tr("what"), tr("licence"))
    for one in known:
        corpus = one.corpus
        rows.add_row(corpus.name, tr("yes") if one.here else tr("no"), corpus.size, corpus.description, corpus.licence)
    show(rows, droppable=(tr("size"), tr("licence")))
    write("\n")
    say(
        tr(
            "They are kept in {data_folder}. Download one with `mingyue data get NAME`; train on "
            "it with `mingyue train NAME`.",
            data_folder(),
        )
    )


@data.command
def get(
    name: Annotated[str, Parameter(help="Name of a corpus, from `mingyue data list`.")],
    /,
    *,
    simplified: Annotated[bool, Parameter(negative=(), help="For tang: simplified characters.")] = False,
    out: Annotated[str | None, Parameter(help="Folder to write to [default: the user's cache folder].")] = None,
) -> None:
    """Download a known corpus, and print its path. Files that exist are not downloaded again.

    MINGYUE_DATA_MIRROR names a folder or URL with the same files.
    """
    from mingyue.cli.live import Stages
    from mingyue.data import get_corpus

    with Stages() as stages:
        path = get_corpus(name, simplified=simplified, folder=None if out is None else path_of(out), progress=stages)
    write(f"{path}\n")
