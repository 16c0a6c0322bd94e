"""The model that a run starts from (`--init`): its weights, architecture and tokenizer.

It is copied into the run folder, with held-out text of the run that trained it, so that a resume needs nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch

from mingyue.bundle import Bundle, load_bundle, save_bundle
from mingyue.config import ModelConfig, TrainSettings
from mingyue.config.train import PresetName
from mingyue.data import KeptVocabulary, TokenCorpus, TokenShards, TokenView, TokenWriter, load_corpus
from mingyue.errors import DataError, MingyueError, SettingsError
from mingyue.models import DecoderOnly
from mingyue.paths import path_of
from mingyue.runs.loading import DECODER_ONLY, find_model, read_bundle, translates
from mingyue.runs.model_configs import run_config
from mingyue.text import Tokenizer
from mingyue.training import RunFolder
from mingyue.words import stacked, tr

_FREE = {"dropout", "attention_dropout"}
"""Settings of the model that do not change the meaning of its weights."""
_HELD_OUT = "held_out"
_MOST_TOKENS = 1 << 20  # of the old held-out text that are kept
_STRETCH = 1 << 14  # consecutive tokens of it, where it is longer


def check_init_path(settings: TrainSettings, out: Path) -> None:
    """Raise `SettingsError` for an `init` inside the folder that the new run replaces."""
    if settings.run.init is None:
        return
    init = path_of(settings.run.init).resolve()
    if out.resolve() in (init, *init.parents):
        raise SettingsError(
            tr("--init {init} is in the folder of the new run, {out}", settings.run.init, out),
            advice=tr("Choose another --out."),
        )


def initial_of(path: str | Path) -> str | None:
    """The `init` of the run in a folder; None if there is none, or `path` is not the folder of a run."""
    folder = RunFolder(path_of(path))
    return folder.read_settings().run.init if folder.settings_path.is_file() else None


def adopt_initial(settings: TrainSettings, folder: RunFolder) -> tuple[TrainSettings, list[str]]:
    """Copy the model of `settings.run.init` into the run folder.

    Returns the settings, completed with the model's own, and notes. Raises `SettingsError` for settings that contradict
    the model, and as `load` does.
    """
    init = settings.run.init
    assert init is not None
    if translates(init):
        raise SettingsError(
            tr("--init {init} holds an encoder-decoder model, and this run is on text", init),
            advice=tr("Give a run or a model that was trained on text."),
        )
    bundle, _ = read_bundle(DECODER_ONLY, init, torch.device("cpu"), None)
    config = bundle.model.config
    if bundle.tokenizer.vocab_size != config.vocab_size:
        raise SettingsError(
            tr(
                "--init {init}: the model has {vocab_size:,} ids and its tokenizer {n_tokens:,}",
                init,
                config.vocab_size,
                bundle.tokenizer.vocab_size,
            ),
            advice=tr("Only a model whose tokenizer has all of its ids can be trained further."),
        )
    completed = _with_model(settings, bundle)
    weights = {name: tensor.contiguous() for name, tensor in bundle.model.state_dict().items()}
    save_bundle(folder.init, config, weights, bundle.tokenizer, _without_checksums(bundle.training))
    notes = [
        tr("The run starts from the model in {init}: its weights, architecture and tokenizer are kept.", init),
        *bundle.notes,
    ]
    old = _old_held_out(init, bundle.tokenizer)
    if old is None:
        notes.append(tr("The held-out text of that model is not at hand, so its loss on it is not measured."))
    else:
        _write_sample(old, bundle.tokenizer, folder.init)
    return completed, notes


def kept_vocabulary(folder: RunFolder) -> KeptVocabulary:
    """The vocabulary of the model that a run started from. Raises `BundleError` if its copy is damaged."""
    bundle = load_bundle(folder.init)
    return KeptVocabulary(bundle.tokenizer, bundle.unseen)


def initial_model(folder: RunFolder) -> DecoderOnly:
    """The model that a run started from. Raises `BundleError` if its copy is damaged."""
    return load_bundle(folder.init).model


def described_initial(folder: RunFolder) -> dict[str, Any]:
    """What training.json says about the model that a run started from."""
    training = load_bundle(folder.init).training
    return {name: training[name] for name in ("steps", "tokens", "made") if name in training}


def old_text(corpus: TokenCorpus, folder: RunFolder) -> TokenCorpus | None:
    """`corpus` with the held-out text of the model that the run started from; None without that text."""
    files = sorted(folder.init.glob(f"{_HELD_OUT}-*.tokens"))
    if not files:
        return None
    view = TokenView(TokenShards(files, fingerprint=corpus.fingerprint), corpus.bos_id)
    return replace(corpus, held_out=view)


def _with_model(settings: TrainSettings, bundle: Bundle[DecoderOnly]) -> TrainSettings:
    """`settings` with everything that the model decides. Raises `SettingsError` for what contradicts it."""
    config, given, kept = bundle.model.config, settings.model, settings.tokenizer
    own = {name: getattr(config, name) for name in type(given).model_fields if hasattr(config, name)}
    own["depth"] = config.n_layers
    if config.positions != "rotary":
        del own["rotary_base"]
    wrong = [
        tr("--{name} {value}: the model has {own}", name.replace("_", "-"), value, own.get(name, "none"))
        for name in type(given).model_fields
        if name not in (*_FREE, "preset") and (value := getattr(given, name)) not in (None, own.get(name))
    ]
    preset = _preset_of(settings, bundle, own)
    if given.preset not in (None, preset):
        wrong.append(tr("--preset {preset}: the model has {own}", given.preset, preset))
    kind = bundle.tokenizer.kind
    if kept.tokenizer and kept.tokenizer != kind and not _is_same_tokenizer(kept.tokenizer, bundle.tokenizer):
        wrong.append(tr("--tokenizer {tokenizer}: the model has its own, of kind {kind}", kept.tokenizer, kind))
    for name in ("tokenizer_size", "min_count"):
        if getattr(kept, name) != type(kept).model_fields[name].default:
            wrong.append(
                tr("--{name} {value}: the model has its own tokenizer", name.replace("_", "-"), getattr(kept, name))
            )
    if wrong:
        raise SettingsError(
            tr(
                "--init {init} keeps the model's architecture and tokenizer, and these settings contradict it:\n",
                settings.run.init,
            )
            + stacked(["  " + line for line in wrong]),
            advice=tr("Leave them out, or train a new model without --init."),
        )
    free = {name: getattr(given, name) for name in _FREE if getattr(given, name) is not None}
    return settings.with_flat(**{**own, **free, "preset": preset, "tokenizer": None})


def _preset_of(settings: TrainSettings, bundle: Bundle[DecoderOnly], own: dict[str, Any]) -> PresetName:
    """The preset whose other parts are those of the model. Raises `SettingsError` if there is none."""
    config, recorded = bundle.model.config, bundle.training.get("preset")
    names = [name for name in get_args(PresetName) if name.partition("-")[0] not in ("paper", "translate")]
    for name in sorted(names, key=lambda one: one != recorded):
        tried = run_config(settings.with_flat(**own, preset=name), config.vocab_size)
        if _comparable(tried) == _comparable(config):
            return cast("PresetName", name)
    raise SettingsError(
        tr(
            "--init {init}: its architecture has parts that no preset has, so no run can train it further",
            settings.run.init,
        )
    )


def _comparable(config: ModelConfig) -> dict[str, Any]:
    without = {"rotary_base"} if config.positions != "rotary" else set[str]()
    return config.model_dump(exclude=without)


def _is_same_tokenizer(given: str, tokenizer: Tokenizer) -> bool:
    try:
        return Tokenizer.load(given).fingerprint == tokenizer.fingerprint
    except MingyueError:
        return False


def _without_checksums(training: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in training.items() if name != "checksums"}


def _old_held_out(init: str, tokenizer: Tokenizer) -> TokenView | None:
    """The held-out text of the run that trained the model, if its token files are there."""
    found = find_model(init)
    run = found if isinstance(found, RunFolder) else RunFolder(found.parent)
    try:
        _, corpus, _ = load_corpus(run.data)
    except DataError:
        return None
    return corpus.held_out if corpus.fingerprint == tokenizer.fingerprint and corpus.held_out_targets > 0 else None


def _write_sample(tokens: TokenView, tokenizer: Tokenizer, folder: Path) -> None:
    """Write held-out text as token files: all of it, or stretches of it that are spread evenly."""
    count = max(1, min(len(tokens), _MOST_TOKENS) // _STRETCH)
    starts = [0] if len(tokens) <= _MOST_TOKENS else np.linspace(0, len(tokens) - _STRETCH, count, dtype=int).tolist()
    size = len(tokens) if len(tokens) <= _MOST_TOKENS else _STRETCH
    with TokenWriter(folder, _HELD_OUT, vocab_size=tokenizer.vocab_size, fingerprint=tokenizer.fingerprint) as writer:
        for start in starts:
            writer.append(tokens.read(start, start + size))
        writer.finish()
