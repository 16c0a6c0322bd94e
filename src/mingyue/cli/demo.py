"""`mingyue demo`."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

from cyclopts import Parameter

from mingyue.cli.invocation import INTERRUPTED, OK
from mingyue.cli.options import takes
from mingyue.config import TrainSettings, one_budget
from mingyue.words import tr

_TRANSLATE = "Train on pairs instead: dates and numbers in English or Chinese words to ISO dates and digits."
_MAX_SHOWN = 8
_MAX_WRONG = 5
_CHOSEN = {"sources", "source", "target", "pairs", "valid_source", "valid_target", "valid_pairs"}
_ONE_PROCESS = {"nproc", "parallel", "restarts"}
_LISTED = {
    "minutes": "1.4; with --translate 2.75",
    "steps": "",
    "epochs": "",
    "out": "runs/demo; with --translate runs/demo-translate",
    "seed": "",
    "device": "",
    "threads": "",
    "overwrite": "",
}


@takes(TrainSettings, without=_CHOSEN | _ONE_PROCESS, listed=_LISTED)
def demo(
    *,
    translate: Annotated[bool, Parameter(help=_TRANSLATE, negative=())] = False,
    **given: Any,  # noqa: ANN401  (values of TrainSettings, checked there)
) -> int:
    """Train a small model in minutes and show its output: on Python's own documentation, or on pairs.

    mingyue demo --translate

    All options of `mingyue train` are accepted.
    """
    from mingyue import api
    from mingyue.cli.options import COMMAND_LINE
    from mingyue.cli.progress import RunScreen
    from mingyue.cli.screen import write
    from mingyue.cli.verdict import show_result
    from mingyue.runtime import seconds_since_process_start

    out = given.pop("out", "runs/demo-translate" if translate else "runs/demo")
    settings = TrainSettings().with_flat(COMMAND_LINE, **one_budget(given))
    waited = seconds_since_process_start()
    if not translate:
        with RunScreen() as screen:
            run = api.text_demo(out, settings, observer=screen, waited=waited)
        return show_result(run)
    with RunScreen() as screen:
        result = api.translate_demo(out, settings, observer=screen, waited=waited)
    code = show_result(result.run)
    if code == INTERRUPTED:
        return code
    total = len(result.test)
    write(
        tr(
            "\n{exact:,} of {total:,} unseen items are exactly right ({share:.1%}).\n",
            result.exact,
            total,
            result.exact / total,
        )
    )
    write(tr("The first {total}, ✓ right, ✗ wrong:\n", min(total, _MAX_SHOWN)))
    for item in result.test[:_MAX_SHOWN]:
        write(_item(*item))
    others = [item for item in result.wrong if item not in result.test[:_MAX_SHOWN]]
    if others:
        write(tr("Other wrong ones, {n_others:,} of {n_all:,}:\n", min(len(others), _MAX_WRONG), len(others)))
        for item in others[:_MAX_WRONG]:
            write(_item(*item))
    folder = shlex.quote(str(result.run.folder))
    write(
        tr(
            "Now try: mingyue translate {folder} --text 'the third of March, 1987' --text 二〇二四年十二月三十一日\n",
            folder,
        )
    )
    return OK


def _item(source: str, target: str, translation: str) -> str:
    """A line about one item: its translation, and the right one where that is another."""
    if translation == target:
        return f"    ✓ {source} → {translation}\n"
    return tr("    ✗ {source} → {translation} (right: {target})\n", source, translation, target)
