"""The list of verbs. A verb's module is imported when the verb runs (or its own --help is asked for)."""

from __future__ import annotations

from cyclopts import App, Group

from mingyue import __version__

_EVERYWHERE = "Everywhere: --debug shows the traceback of an error; --help after a verb lists its options."

app = App(
    name="mingyue",
    help="A Transformer you can see through: train one on your own text, write with it, look inside it.",
    version=f"mingyue {__version__}",
    version_flags=["--version", "-V"],
    help_format="plaintext",
    version_format="plaintext",
    help_epilogue=_EVERYWHERE,
    suppress_keyboard_interrupt=False,
)

_make = Group.create_ordered("Make a model")
_use = Group.create_ordered("Use a model")
_around = Group.create_ordered("Around it")

_INSPECT = """Look inside a model: attention, vectors, predictions of each layer, shapes; or all in one page.

Tables are printed; --out writes pictures. Layers, heads and positions are counted from 0.
`mingyue inspect VIEW --help` lists the options of a view."""

_VERBS = (
    ("train", _make, "Train a model on text: files, folders, standard input, or a known corpus."),
    ("resume", _make, "Go on with a run that was stopped, exactly as if it never had been."),
    ("demo", _make, "Train a small model in minutes and see what it does: text, or translation with --translate."),
    ("generate", _use, "Write text with a model."),
    ("score", _use, "Measure how likely a model finds a text: each token, perplexity, bits per byte."),
    ("translate", _use, "Translate lines with a model that was trained on pairs."),
    ("evaluate", _use, "Measure translations against a test set: BLEU, chrF, exact lines, loss."),
    ("inspect", _use, _INSPECT),
    ("info", _use, "Show what a model or a run consists of: parameters, FLOPs, bytes, tokenizer, training."),
    ("claims", _around, "Test what is claimed about Transformers, each claim as an experiment, and write a report."),
    ("data", _around, "List the known corpora, or get one."),
    ("doctor", _around, "Check this machine: versions, cores, speed, memory, disk, what is missing."),
    ("version", _around, "Print the version."),
)

for _order, (_name, _group, _help) in enumerate(_VERBS):
    app.command(f"mingyue.cli.{_name}:{_name}", name=_name, help=_help, group=_group, sort_key=_order)
app["--help"].group = _around
app["--version"].group = _around
