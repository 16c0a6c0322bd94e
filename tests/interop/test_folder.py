"""Folders on disk: whole and in shards, damaged, pickled, hostile. (Parity with transformers: test_parity.)"""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mingyue.errors import InteropError, MissingExtraError
from mingyue.interop import load_hf_folder, save_hf_folder, verify_hf

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def folder(ours, tmp_path) -> Path:
    model = ours("qwen3")
    save_hf_folder(tmp_path / "hf", model.config, model.state_dict())
    return tmp_path / "hf"


def in_shards(folder: Path, shards: int = 3) -> dict[str, str]:
    """Cut the weights of a folder as transformers cuts large models; returns the map of names to files."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    places = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(tensors)}
    for shard in set(places.values()):
        save_file({name: tensors[name] for name in tensors if places[name] == shard}, folder / shard)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}), encoding="utf-8")
    return places


def test_what_was_saved_is_loaded(folder, ours):
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", WEIGHTS]
    config, state = load_hf_folder(folder)
    model = ours("qwen3")
    assert config == model.config
    assert all(torch.equal(state[name], weight) for name, weight in model.state_dict().items())


def test_shards_are_one_model(folder):
    config, state = load_hf_folder(folder)
    in_shards(folder)
    again, same = load_hf_folder(folder)
    assert again == config
    assert all(torch.equal(same[name], tensor) for name, tensor in state.items())


def test_saving_over_a_folder_in_shards_leaves_no_trace_of_the_old_model(folder, ours):
    in_shards(folder)
    model = ours("llama")
    save_hf_folder(folder, model.config, model.state_dict())
    assert load_hf_folder(folder)[0] == model.config


def test_a_missing_shard_a_wrong_index_and_a_path_outside_are_named(folder):
    places = in_shards(folder)
    name, shard = next(iter(places.items()))

    def index(**changes: str) -> None:
        (folder / INDEX).write_text(json.dumps({"weight_map": {**places, **changes}}), encoding="utf-8")

    (folder.parent / "elsewhere.safetensors").write_bytes((folder / shard).read_bytes())
    index(**{name: "../elsewhere.safetensors"})
    with pytest.raises(InteropError, match=r"names ../elsewhere.safetensors, which is not a file in"):
        load_hf_folder(folder)
    index(ghost=shard)
    with pytest.raises(InteropError, match=f"tensor ghost is not in {shard}"):
        load_hf_folder(folder)
    (folder / shard).unlink()
    index()
    with pytest.raises(InteropError, match=f"names {shard}, which is not a file"):
        load_hf_folder(folder)
    (folder / INDEX).write_text('{"weight_map": 3}', encoding="utf-8")
    with pytest.raises(InteropError, match="has no weight_map"):
        load_hf_folder(folder)


class Hostile:
    """Writes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_a_pickle_is_refused_with_advice_and_not_opened(folder, name):
    """T12: loading a hostile folder executes nothing."""
    mark = folder / "executed"
    (folder / WEIGHTS).unlink()
    (folder / name).write_bytes(pickle.dumps(Hostile(mark)))
    with pytest.raises(InteropError, match=f"as a pickle \\({name}\\), which can run code") as caught:
        load_hf_folder(folder)
    assert "save_pretrained" in (caught.value.advice or "")
    assert not mark.exists()


def test_a_pickle_beside_safetensors_is_left_alone(folder):
    mark = folder / "executed"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Hostile(mark)))
    load_hf_folder(folder)
    assert not mark.exists()


def test_damage_is_named_by_file(folder):
    whole = (folder / WEIGHTS).read_bytes()
    for damaged in (whole[:-9], whole[:3], b"", b"\xff" * 64):
        (folder / WEIGHTS).write_bytes(damaged)
        with pytest.raises(InteropError, match=r"model.safetensors is damaged"):
            load_hf_folder(folder)
    (folder / WEIGHTS).unlink()
    with pytest.raises(InteropError, match=r"has neither model.safetensors nor model.safetensors.index.json"):
        load_hf_folder(folder)


@pytest.mark.parametrize("content", ["{", "[1]", "\x00"])
def test_a_config_that_is_no_config_is_named(folder, content):
    (folder / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(InteropError, match=r"config.json"):
        load_hf_folder(folder)
    (folder / "config.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(InteropError, match=r"config.json cannot be read"):
        load_hf_folder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(InteropError, match=r"has no config.json: it is not a model of transformers"):
        load_hf_folder(folder)
    with pytest.raises(InteropError, match="is not a folder"):
        load_hf_folder(folder / "nowhere")


def test_a_misfit_names_the_folder_too(folder):
    tensors = load_file(folder / WEIGHTS)
    save_file({**tensors, "model.norm.weight": torch.ones(25)}, folder / WEIGHTS)
    with pytest.raises(InteropError, match=r"hf: tensor model.norm.weight is \[25\], the config asks for \[24\]"):
        load_hf_folder(folder)


def test_what_cannot_be_expressed_or_written_leaves_the_old_folder_as_it_was(folder, ours, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    model = ours("llama", positions="none")
    with pytest.raises(InteropError, match="cannot express positions none"):
        save_hf_folder(folder, model.config, model.state_dict())

    def full(*_args) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mingyue.files.os.fsync", full)
    model = ours("qwen3")
    with pytest.raises(InteropError, match="the disk is full"):
        save_hf_folder(folder, model.config, model.state_dict())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_verify_without_transformers_says_what_to_install(folder, ours, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'mingyue\[hf\]'"):
        verify_hf(folder, ours("qwen3"))


@pytest.mark.parametrize("name", ["config.json", INDEX])
@pytest.mark.parametrize(
    "content",
    ["[" * 100_000 + "]" * 100_000, f'{{"n_head": {"9" * 5_000}}}', "null", "[]", '{"weight_map": {"a": 5}}', ""],
    ids=["deep", "5000 digits", "null", "list", "types", "empty"],
)
def test_hostile_json_is_an_error_of_the_file(folder, name, content):
    """Of any depth and size: never a fault of the program."""
    if name == INDEX:
        in_shards(folder)
    (folder / name).write_text(content, encoding="utf-8")
    with pytest.raises(InteropError):
        load_hf_folder(folder)
