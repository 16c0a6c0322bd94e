"""A stand-in for `mingyue.api`: what the command line asks of it, without models."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

from mingyue.config import RunSettings


@pytest.fixture(autouse=True)
def english(monkeypatch):
    """What is said in both languages is said in English, whatever this machine speaks."""
    monkeypatch.delenv("LC_ALL", raising=False)
    monkeypatch.setenv("LC_MESSAGES", "C")


@pytest.fixture
def api(monkeypatch):
    """An empty module in the place of `mingyue.api`; a test puts functions into it."""
    import mingyue

    module = types.ModuleType("mingyue.api")
    module.processes_of_run = lambda folder, changes: RunSettings()
    monkeypatch.setitem(sys.modules, "mingyue.api", module)
    monkeypatch.setattr(mingyue, "api", module, raising=False)
    return module


@pytest.fixture
def run(capsys):
    """Run a command line in this process: `code, out, err = run("info", "x")`."""
    from mingyue.cli import main

    def call(*arguments):
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def process():
    """Run `python -m mingyue …` as a process of its own."""

    def call(*arguments, **options):
        command = [sys.executable, "-m", "mingyue", *arguments]
        return subprocess.run(command, capture_output=True, timeout=60, check=False, **options)

    return call


@pytest.fixture
def ended():
    """Makes what `api.train` returns, with only what the command line reads."""

    def make(reason, *, sentences=(), texts=(), copying=None, repetition=None, of_pairs=False):
        folder = Path("runs") / "x"
        return types.SimpleNamespace(
            folder=folder,
            model_folder=folder / "model",
            describe_course=lambda: None,
            of_pairs=of_pairs,
            training=types.SimpleNamespace(reason=reason, step=7),
            outcome=types.SimpleNamespace(
                verdict="learning",
                verdict_words="learning",
                sentences=sentences,
                texts=texts,
                copying=copying,
                repetition=repetition,
            ),
        )

    return make


@pytest.fixture(scope="session")
def text_model(tmp_path_factory) -> str:
    """The folder of a decoder-only model: bytes, a context of 24, weights never trained."""
    from mingyue.config import ModelConfig

    return _saved(tmp_path_factory, "text", ModelConfig, {"n_layers": 1})


@pytest.fixture(scope="session")
def pair_model(tmp_path_factory) -> str:
    """The folder of an encoder-decoder model of the same kind."""
    from mingyue.config import EncoderDecoderConfig

    return _saved(tmp_path_factory, "pairs", EncoderDecoderConfig, {"n_layers": 1, "n_encoder_layers": 1})


def _saved(tmp_path_factory, name, config_class, layers):
    from mingyue.bundle import save_bundle
    from mingyue.models import build_model
    from mingyue.text import byte_tokenizer

    tokenizer = byte_tokenizer()
    config = config_class(
        vocab_size=tokenizer.vocab_size, context=24, d_model=16, n_heads=2, n_kv_heads=2, d_head=8, d_ff=16, **layers
    )
    folder = tmp_path_factory.mktemp(name) / "model"
    save_bundle(folder, config, build_model(config, seed=3).state_dict(), tokenizer, {"steps": 0})
    return str(folder)
