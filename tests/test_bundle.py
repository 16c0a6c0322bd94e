"""Model folders: whole or not there, strict, and nothing in them executes."""

from __future__ import annotations

import errno
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mingyue import files
from mingyue.bundle import FORMAT, load_bundle, load_pair_bundle, save_bundle
from mingyue.config import EncoderDecoderConfig, ModelConfig, ModelSettings
from mingyue.errors import BundleError, MingyueError, SettingsError
from mingyue.models import DecoderOnly, EncoderDecoder, build_model, resolve_config
from mingyue.text import Tokenizer, train_char

PRESETS = ("modern", "speed", "gpt2", "llama")


def tokenizer() -> Tokenizer:
    return train_char(["床前明月光，疑是地上霜。"])


def config(preset: str = "modern", **given: Any) -> ModelConfig:
    settings = ModelSettings.model_validate({"preset": preset, "d_model": 32, **given})
    return resolve_config(settings, vocab_size=tokenizer().vocab_size, depth=1, context=16)


def unseal(folder: Path) -> None:
    """Remove the checksums, as training.json's advice says for files that were changed on purpose."""
    path = folder / "training.json"
    training = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**training, "checksums": {}}), encoding="utf-8")


def saved(folder: Path, preset: str = "modern", **given: Any) -> DecoderOnly:
    model = build_model(config(preset, **given), seed=3)
    save_bundle(folder, model.config, model.state_dict(), tokenizer(), {"starts_with_bos": True})
    return model.eval()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal", "rotary"])
def test_a_model_comes_back_bit_for_bit(tmp_path: Path, preset: str, positions: str) -> None:
    model = saved(tmp_path / "model", preset, positions=positions)
    bundle = load_bundle(tmp_path / "model")
    assert bundle.config == model.config
    assert bundle.starts_with_bos
    ids_BT = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(bundle.model(ids_BT), model(ids_BT))
    assert bundle.tokenizer.encode("明月") == tokenizer().encode("明月")


def test_a_tied_table_is_stored_once(tmp_path: Path) -> None:
    saved(tmp_path / "model", "gpt2")
    assert "output.weight" not in load_file(tmp_path / "model" / "model.safetensors")


def test_a_hostile_folder_executes_nothing(tmp_path: Path) -> None:
    """T12: pickled code in place of any of the files is refused, not run."""
    canary = tmp_path / "executed"

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (canary,))

    for name in ("config.json", "model.safetensors", "tokenizer.json", "training.json"):
        folder = tmp_path / f"with-{name}"
        saved(folder)
        (folder / name).write_bytes(pickle.dumps(Bomb()))
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(MingyueError) as caught:
            load_bundle(folder)
        assert name in str(caught.value)
    assert not canary.exists()


def test_python_named_in_a_config_is_an_unknown_setting_not_an_import(tmp_path: Path) -> None:
    """T12: keys that other tools take as a reason to import code are errors here."""
    saved(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    header = json.loads(path.read_text(encoding="utf-8"))
    header["model"]["auto_map"] = {"AutoModel": "evil.Model"}
    path.write_text(json.dumps(header), encoding="utf-8")
    with pytest.raises(SettingsError, match="auto_map"):
        load_bundle(tmp_path / "model")


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (FORMAT + 1, f"format version {FORMAT + 1}; this program knows versions up to {FORMAT}"),
        (None, "no format version"),
    ],
)
def test_a_version_that_is_not_known_is_refused_with_both_numbers(
    tmp_path: Path, version: int | None, message: str
) -> None:
    saved(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    header = json.loads(path.read_text(encoding="utf-8"))
    header["format"] = version
    path.write_text(json.dumps(header), encoding="utf-8")
    with pytest.raises(BundleError, match=message):
        load_bundle(tmp_path / "model")


def test_the_first_wrong_tensor_is_named(tmp_path: Path) -> None:
    saved(tmp_path / "model")
    unseal(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    weights = load_file(path)
    name = "blocks.0.attention.qkv.weight"
    save_file({**weights, name: weights[name][:-1].clone()}, path)
    with pytest.raises(BundleError, match=rf"{name} is \[\d+, 32\], the config asks for \[\d+, 32\]"):
        load_bundle(tmp_path / "model")
    save_file({key: value for key, value in weights.items() if key != name}, path)
    with pytest.raises(BundleError, match=f"{name} .*is missing"):
        load_bundle(tmp_path / "model")
    save_file({**weights, "blocks.9.extra": torch.zeros(1)}, path)
    with pytest.raises(BundleError, match=r"blocks\.9\.extra does not belong"):
        load_bundle(tmp_path / "model")


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_truncated_file_of_weights_is_called_damaged(tmp_path: Path, keep: int) -> None:
    saved(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BundleError, match="damaged"):
        load_bundle(tmp_path / "model")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    saved(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").unlink()
    with pytest.raises(BundleError, match=r"tokenizer\.json missing"):
        load_bundle(tmp_path / "model")


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "model")
    unseal(tmp_path / "model")
    train_char(["许多别的字" + "".join(map(chr, range(0x4E00, 0x4F00)))]).save(tmp_path / "model" / "tokenizer.json")
    with pytest.raises(BundleError, match="belongs to another model"):
        load_bundle(tmp_path / "model")


def test_a_full_disk_leaves_the_old_model_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T13: the error says disk, and what was there still loads."""
    model = saved(tmp_path / "model")

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_bytes_atomically", full)
    with pytest.raises(BundleError, match="disk is full"):
        saved(tmp_path / "model", "gpt2")
    monkeypatch.undo()
    assert load_bundle(tmp_path / "model").config == model.config
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T13: the old folder has stepped aside, the new one is not in its place yet."""
    model = saved(tmp_path / "model")
    (tmp_path / "model").rename(tmp_path / ".model-old.tmp")
    assert load_bundle(tmp_path / "model").config == model.config


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_others_may_read_a_model_as_far_as_the_umask_allows(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        saved(tmp_path / "model")
    finally:
        os.umask(old)
    for path in (tmp_path / "model").iterdir():
        assert path.stat().st_mode & 0o777 == 0o644, path.name
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o755


def test_saving_twice_replaces_the_model(tmp_path: Path) -> None:
    saved(tmp_path / "model")
    second = saved(tmp_path / "model", "gpt2")
    assert load_bundle(tmp_path / "model").config == second.config
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def saved_pairs(folder: Path, source: Tokenizer | None) -> EncoderDecoder:
    sizes = {"context": 8, "d_model": 16, "n_layers": 1, "n_encoder_layers": 1, "n_heads": 2, "n_kv_heads": 2}
    of_source = None if source is None else source.vocab_size
    config = EncoderDecoderConfig(
        vocab_size=tokenizer().vocab_size, source_vocab_size=of_source, d_head=8, d_ff=32, **sizes
    )
    model = build_model(config, seed=3)
    save_bundle(folder, config, model.state_dict(), tokenizer(), {}, source_tokenizer=source)
    return model.eval()


def test_an_encoder_decoder_model_comes_back_with_the_tokenizers_of_both_sides(tmp_path: Path) -> None:
    for name, source in (("shared", None), ("separate", train_char(["bright moon"]))):
        model = saved_pairs(tmp_path / name, source)
        bundle = load_bundle(tmp_path / name, EncoderDecoder)
        assert bundle.config == model.config and bundle.tokenizer.fingerprint == tokenizer().fingerprint
        assert (bundle.source_tokenizer is bundle.tokenizer) is (source is None)
        assert bundle.source_tokenizer.fingerprint == (source or tokenizer()).fingerprint
        for key, tensor in model.state_dict().items():
            assert torch.equal(bundle.model.state_dict()[key], tensor)


def test_a_model_of_the_other_architecture_is_refused_with_what_to_use(tmp_path: Path) -> None:
    saved(tmp_path / "text")
    saved_pairs(tmp_path / "pairs", None)
    with pytest.raises(BundleError, match="decoder-only model, which does not translate") as refused:
        load_bundle(tmp_path / "text", EncoderDecoder)
    assert refused.value.advice == "Use `mingyue generate`, or in Python load."
    with pytest.raises(BundleError, match="encoder-decoder model, which does not continue prompts") as refused:
        load_bundle(tmp_path / "pairs")
    assert refused.value.advice == "Use `mingyue translate`, or in Python load_translator."


def test_the_old_name_of_the_loader_of_pairs_still_works(tmp_path: Path) -> None:
    model = saved_pairs(tmp_path / "pairs", None)
    with pytest.deprecated_call(match=r"load_bundle\(folder, EncoderDecoder\)"):
        assert load_pair_bundle(tmp_path / "pairs").config == model.config


@pytest.mark.parametrize("unseen", [[[0, 10**12]], [[5, 4, 3]], [["a", "b"]], [[9, 5]], [[-1, 3]], 7, [[1.5, "x"]]])
def test_unseen_ids_that_are_no_ranges_of_the_vocabulary_are_refused(tmp_path: Path, unseen: Any) -> None:
    saved(tmp_path / "model")
    bundle = load_bundle(tmp_path / "model")
    bundle.training["unseen"] = unseen
    with pytest.raises(BundleError, match="unseen"):
        _ = bundle.unseen
