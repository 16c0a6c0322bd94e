"""The list of verbs. The module of a verb is imported when the verb runs, or when its help is shown."""

from __future__ import annotations

from cyclopts import App, Group, Parameter

from mingyue import __version__
from mingyue.cli.help import HelpPage
from mingyue.words import tr

EVERYWHERE = tr(
    "With every command: --language en or zh sets the language (default: the system's), --debug shows the traceback of "
    "an error, --help lists the options."
)


def shown_default(value: object) -> str | None:
    """What the help says of a default; None = nothing, of one that is off or empty."""
    if value is None or value is False or value in ("", (), []):
        return None
    return "on" if value is True else str(value)


app = App(
    name="mingyue",
    help="A Transformer you can see through: train one on your own text, generate with it, look inside it.",
    version=f"mingyue {__version__}",
    version_flags=["--version", "-V"],
    help_format="plaintext",
    version_format="plaintext",
    help_epilogue=EVERYWHERE,
    help_formatter=HelpPage(),
    default_parameter=Parameter(show_default=shown_default),
    suppress_keyboard_interrupt=False,
)

_make = Group.create_ordered("Make a model")
_use = Group.create_ordered("Use a model")
_around = Group.create_ordered("Other")

_TRAIN = """Train a model on text or on pairs.

mingyue train poems.txt --out runs/poems --minutes 10
mingyue train python-docs --preset gpt2 --depth 4
mingyue train --source train.en --target train.de --out runs/en-de

Ctrl-C saves and stops; `mingyue resume` continues."""

_RESUME = """Resume a run that was stopped, from its latest checkpoint.

mingyue resume runs/poems
mingyue resume runs/poems --minutes 30

With unchanged settings the result is identical to that of an uninterrupted run.
Changed settings take effect and are reported, or are refused with a reason."""

_DEMO = """Train a small model in minutes and see what it does.

mingyue demo
mingyue demo --translate

The first reads Python's own documentation. Other options of `mingyue train`,
such as --preset, are accepted too."""

_INSPECT = """Look inside a model: attention, vectors, predictions of each layer, shapes; or all in one page.

Tables are printed; --out writes pictures. Layers, heads and positions are counted from 0.
`mingyue inspect VIEW --help` lists the options of a view."""

_VERBS = (
    ("train", _make, _TRAIN),
    ("resume", _make, _RESUME),
    ("demo", _make, _DEMO),
    ("generate", _use, "Generate text with a model."),
    ("score", _use, "Score a text: log-probability of each token, perplexity, bits per byte."),
    ("translate", _use, "Translate lines with an encoder-decoder model."),
    ("evaluate", _use, "Evaluate translations on a test set: BLEU, chrF, exact matches, loss."),
    ("inspect", _use, _INSPECT),
    ("info", _use, "Show the parts of a model or a run: parameters, FLOPs, bytes, tokenizer, training."),
    ("serve", _use, "Serve models over HTTP: the OpenAI API, LibreTranslate's, and our own."),
    ("claims", _around, "Test claims about Transformers, each by an experiment, and write a report."),
    ("data", _around, "List the known corpora, or download one."),
    ("doctor", _around, "Check this machine: versions, cores, speed, memory, disk, missing packages."),
    ("version", _around, "Print the version."),
)

for _order, (_name, _group, _help) in enumerate(_VERBS):
    app.command(f"mingyue.cli.{_name}:{_name}", name=_name, help=_help, group=_group, sort_key=_order)
app.register_install_completion_command(
    help="Install completion for bash, zsh, fish or PowerShell; adds a line to the startup file of the shell.",
    group=_around,
)
app["--help"].group = _around
app["--version"].group = _around
