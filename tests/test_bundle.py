"""Model folders: whole or not there, strict, and nothing in them executes."""

from __future__ import annotations

import errno
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import mingyue
from mingyue import files
from mingyue.bundle import FORMAT, load_bundle, save_bundle
from mingyue.config import EncoderDecoderConfig, ModelConfig, ModelSettings
from mingyue.errors import BundleError, MingyueError, SettingsError, TokenizerError
from mingyue.models import (
    DecoderOnly,
    EncoderDecoder,
    WeightsFile,
    build_model,
    read_weights_file,
    resolve_config,
)
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


@pytest.mark.parametrize("unseen", [[[0, 10**12]], [[5, 4, 3]], [["a", "b"]], [[9, 5]], [[-1, 3]], 7, [[1.5, "x"]]])
def test_unseen_ids_that_are_no_ranges_of_the_vocabulary_are_refused(tmp_path: Path, unseen: Any) -> None:
    saved(tmp_path / "model")
    bundle = load_bundle(tmp_path / "model")
    bundle.training["unseen"] = unseen
    with pytest.raises(BundleError, match="unseen"):
        _ = bundle.unseen


# --- checked before it is used ----------------------------------------------------------------------------------------


def tampered(folder: Path, change: Any) -> None:
    """Change the weights of a model, without checksums, as a hostile author gives it away."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path)
    unseal(folder)


def first_value(value: float) -> Any:
    def change(weights: dict[str, torch.Tensor]) -> None:
        weights["blocks.0.attention.output.weight"].view(-1)[3] = value

    return change


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_refused_by_name_at_save_and_at_load(tmp_path: Path, value: float) -> None:
    """T21: plausible text from a damaged model is worse than an error."""
    model = saved(tmp_path / "model")
    tampered(tmp_path / "model", first_value(value))
    with pytest.raises(BundleError, match=r"blocks\.0\.attention\.output\.weight holds NaN or infinity"):
        load_bundle(tmp_path / "model")
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    first_value(value)(weights)
    with pytest.raises(BundleError, match=r"blocks\.0\.attention\.output\.weight holds NaN or infinity"):
        save_bundle(tmp_path / "other", model.config, weights, tokenizer(), {})
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_another_number_format_are_converted_with_a_note(tmp_path: Path, dtype: torch.dtype) -> None:
    """T21: all of them, or one among others."""
    for name, chosen in (("one", ["final_norm.weight"]), ("all", None)):
        model = saved(tmp_path / name)
        names = sorted(model.state_dict()) if chosen is None else chosen
        tampered(tmp_path / name, lambda weights, names=names: weights.update({n: weights[n].to(dtype) for n in names}))
        bundle = load_bundle(tmp_path / name)
        assert {weight.dtype for weight in bundle.model.state_dict().values()} == {torch.float32}
        assert len(bundle.notes) == 1 and str(dtype).removeprefix("torch.") in bundle.notes[0]
        assert names[0] in bundle.notes[0] or chosen is None
        loaded = mingyue.load(tmp_path / name, threads=1)
        assert loaded.loading_notes[: len(bundle.notes)] == bundle.notes
        loaded.generate("明", max_new_tokens=2)


def test_numbers_too_large_for_fp32_are_not_finite_after_conversion(tmp_path: Path) -> None:
    saved(tmp_path / "model")
    tampered(
        tmp_path / "model", lambda w: w.update({"final_norm.weight": torch.full((32,), 1e300, dtype=torch.float64)})
    )
    with pytest.raises(BundleError, match=r"final_norm\.weight holds NaN or infinity"):
        load_bundle(tmp_path / "model")


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.bool])
def test_weights_that_are_no_real_numbers_are_refused_by_name(tmp_path: Path, dtype: torch.dtype) -> None:
    """T21: with the tensor and its number format."""
    saved(tmp_path / "model")
    tampered(tmp_path / "model", lambda weights: weights.update({"final_norm.weight": torch.ones(32, dtype=dtype)}))
    kind = str(dtype).removeprefix("torch.")
    with pytest.raises(BundleError, match=rf"final_norm\.weight is of {kind}"):
        load_bundle(tmp_path / "model")


BOMBS = {"context": 10**9, "n_layers": 10**4, "vocab_size": 10**7, "d_ff": 10**7, "d_head": 10**7}
"""The context is beyond the bounds of settings, the others are as large as those allow."""


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_config_that_asks_for_more_than_the_file_holds_is_refused_before_memory_is_taken(
    tmp_path: Path, bomb: str, sealed: bool
) -> None:
    """T21: sums first, then sizes."""
    saved(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    header = json.loads(path.read_text(encoding="utf-8"))
    header["model"][bomb] = BOMBS[bomb]
    path.write_text(json.dumps(header), encoding="utf-8")
    if not sealed:
        unseal(tmp_path / "model")
    resource = pytest.importorskip("resource")  # not on Windows
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(
        MingyueError, match=r"SHA-256|less than" if sealed else f"less than|{BOMBS[bomb]:,}|parameters|{BOMBS[bomb]}"
    ):
        load_bundle(tmp_path / "model")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "kilobytes"


@pytest.mark.parametrize("identity", [10**8, 2**40])
def test_a_token_id_far_outside_any_vocabulary_is_refused(tmp_path: Path, identity: int) -> None:
    """T21: tables have an entry for each id up to the highest."""
    saved(tmp_path / "model")
    unseal(tmp_path / "model")
    path = tmp_path / "model" / "tokenizer.json"
    spec = json.loads(path.read_text(encoding="utf-8"))
    spec["model"]["vocab"]["月"] = identity
    path.write_text(json.dumps(spec), encoding="utf-8")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        load_bundle(tmp_path / "model")


def test_any_change_of_any_file_is_told_before_the_file_is_used(tmp_path: Path) -> None:
    """T21: a config that would be refused for its content is called damaged first."""
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        saved(tmp_path / name)
        path = tmp_path / name / name
        content = path.read_bytes()
        path.write_bytes(content.replace(b"0", b"1", 1) if name != "model.safetensors" else content[:-1] + b"\0")
        with pytest.raises(BundleError, match=rf"{name} is damaged: its SHA-256"):
            load_bundle(tmp_path / name)


@pytest.mark.parametrize("length", [0, 100, 5_000, -4])
def test_a_file_that_is_cut_while_the_model_is_in_use_changes_nothing(tmp_path: Path, length: int) -> None:
    """T21: a map of a file that becomes shorter ends the process (SIGBUS)."""
    saved(tmp_path / "model")
    code = f"""
import os, mingyue
model = mingyue.load("model", threads=1)
before = model.score("床前明月光").total
size = os.path.getsize("model/model.safetensors")
os.truncate("model/model.safetensors", {length} if {length} >= 0 else size + {length})
print(before == model.score("床前明月光").total)
"""
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "True\n"), found.stderr


def test_a_file_that_is_cut_while_it_is_read_is_called_damaged(tmp_path: Path) -> None:
    """T21: between its header and its tensors."""
    saved(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    with WeightsFile(path) as file:
        os.truncate(path, path.stat().st_size - 1)
        last = max(file.stored, key=lambda name: file.stored[name].start)
        with pytest.raises(SafetensorError, match=f"became shorter while it was read: tensor {last}"):
            file.read(last)


def test_weights_are_read_as_the_library_reads_them(tmp_path: Path) -> None:
    """T21: every number format, empty tensors and scalars."""
    dtypes = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16]
    tensors = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in [*dtypes, torch.int8, torch.uint8]}
    tensors |= {"bool": torch.tensor([True, False]), "empty": torch.empty(0, 4), "scalar": torch.tensor(3.5)}
    save_file(tensors, tmp_path / "all.safetensors", metadata={"a": "b"})
    found = read_weights_file(tmp_path / "all.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def test_loading_and_building_draw_no_random_numbers(tmp_path: Path) -> None:
    """T22: the caller's seed gives the same numbers with and without us."""
    before = torch.get_rng_state()
    saved(tmp_path / "model")
    load_bundle(tmp_path / "model")
    saved_pairs(tmp_path / "pairs", None)
    load_bundle(tmp_path / "pairs", EncoderDecoder)
    assert torch.equal(torch.get_rng_state(), before)
