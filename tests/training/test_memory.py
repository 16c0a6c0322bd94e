"""Whether a run fits: refused before it starts, with both numbers and what would fit; the estimate."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from mingyue import train
from mingyue.config import EncoderDecoderConfig, TrainSettings
from mingyue.errors import SettingsError
from mingyue.models import resolve_config, resolve_pair_config, sizes
from mingyue.runtime import Runtime
from mingyue.training import memory_check
from mingyue.training.memory import MicroBatch, step_memory
from mingyue.training.memory_check import check_memory, free_memory, offers

CPU = Runtime(torch.device("cpu"), torch.float32, 1)
LONG = {"preset": "modern", "depth": 4, "d_model": 256, "n_layers": 4, "context": 131_072, "batch_tokens": 131_072}


def bytes_of(settings: TrainSettings, *, vocabulary: int = 9222) -> int:
    """As a run on text asks for it."""
    context, batch = settings.model.context, settings.batch
    assert context is not None
    config = resolve_config(settings.model, vocab_size=vocabulary, depth=settings.model.depth or 4, context=context)
    rows = max(1, (batch.batch_tokens or context) // context)
    micro = min(rows, max(1, (batch.micro_batch_tokens or context) // context))
    documents = not settings.data.attend_across_documents
    return step_memory(config, settings, MicroBatch(micro, context, micro < rows, documents), CPU).total


def settings_of(**given: object) -> TrainSettings:
    return TrainSettings.from_flat(**LONG | given)


def test_explicit_attention_at_131_072_tokens_is_refused_with_both_numbers_and_with_what_fits() -> None:
    """Dropout on attention has no fused kernel on CPUs: one head's weights alone are 131,072² × 4 = 68.7 GB."""
    settings = settings_of(attention_dropout=0.1)
    assert bytes_of(settings) > 3 * 4 * 8 * 131_072**2 * 4  # three matrices a layer and head
    with pytest.raises(SettingsError) as caught:
        check_memory(settings, bytes_of, 20 << 30)
    assert re.search(r"about [\d,.]+ GiB of memory.*20\.0 GiB are free", caught.value.message)
    assert caught.value.advice is not None
    assert "--attention-dropout 0 " in caught.value.advice
    assert "--window" in caught.value.advice


@pytest.mark.parametrize(
    ("given", "free", "expected"),
    [
        ({"window": 1024}, 8 << 30, "--recompute"),
        ({"context": 256, "batch_tokens": 65_536, "micro_batch_tokens": 32_768}, 1 << 30, "--micro-batch-tokens"),
        ({"context": 4096, "batch_tokens": 4096, "chunked_loss": False}, 700 << 20, "--chunked-loss"),
        ({"context": 16_384, "batch_tokens": 16_384, "attend_across_documents": False}, 3 << 30,
         "--attend-across-documents"),
    ],
)  # fmt: skip
def test_what_is_offered_fits_and_is_an_option_of_the_program(given, free, expected) -> None:
    settings = settings_of(**given)
    assert bytes_of(settings) > free
    found = offers(settings, bytes_of, free)
    assert any(options.startswith(expected) for options, _ in found), found
    for options, size in found:
        words = options.split()
        names = [word[2:].replace("-", "_") for word in words if word.startswith("--")]
        values = re.split(r"--[a-z-]+ ?", options)[1:]
        changes = {name: value.strip() or True for name, value in zip(names, values, strict=True)}
        assert bytes_of(settings.with_flat(**changes)) == size <= free


def test_where_no_single_change_is_enough_two_are_offered() -> None:
    settings = settings_of(context=64, batch_tokens=256, micro_batch_tokens=256)

    def estimate(changed: TrainSettings) -> int:
        tokens = changed.batch.micro_batch_tokens
        return tokens if tokens is not None and changed.batch.recompute else 1000

    assert ("--recompute --micro-batch-tokens 64", 64) in offers(settings, estimate, 100)
    assert all(options.startswith("--recompute ") for options, _ in offers(settings, estimate, 100))


def test_what_fits_starts_and_the_check_can_be_switched_off() -> None:
    settings = settings_of(window=1024)
    check_memory(settings, bytes_of, bytes_of(settings))
    check_memory(settings, bytes_of, None)  # a device that does not say
    check_memory(settings.with_flat(memory_check=False), bytes_of, 1)
    with pytest.raises(SettingsError):
        check_memory(settings, bytes_of, bytes_of(settings) - 1)


def test_a_run_is_refused_before_anything_is_trained_and_leaves_no_folder(tmp_path, monkeypatch) -> None:
    text = tmp_path / "text.txt"
    text.write_text("床前明月光，疑是地上霜。\n" * 60, encoding="utf-8")
    given = {"sources": [str(text)], "out": str(tmp_path / "run"), "steps": 1, "depth": 1, "context": 32, "threads": 1}
    monkeypatch.setattr("mingyue.runs.run.free_memory", lambda *_, **__: 1 << 20)
    with pytest.raises(SettingsError, match=r"of memory, and 1 MiB are free"):
        train(**given)
    assert not (tmp_path / "run").exists()
    train(**given, memory_check=False)


def test_free_memory_knows_the_limit_of_a_container(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(memory_check, "_CGROUPS", tmp_path)
    unlimited = free_memory(torch.device("cpu"))
    assert unlimited is not None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert memory_check._container_left(tmp_path) is not None
    assert not list(memory_check._container_left(tmp_path))
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.stat").write_text("anon 700\ninactive_file 200\n")
    assert free_memory(torch.device("cpu")) == 1000000 - 1000 + 200
    assert free_memory(torch.device("cpu"), processes=2) == (1000000 - 1000 + 200) // 2


# --- the estimate -----------------------------------------------------------------------------------------------------


def test_a_window_and_fused_attention_take_memory_in_proportion_to_the_text() -> None:
    for window in (None, 1024):
        sizes_at = [bytes_of(settings_of(context=n, batch_tokens=n, window=window)) for n in (32_768, 65_536, 131_072)]
        assert sizes_at[2] - sizes_at[1] == pytest.approx(2 * (sizes_at[1] - sizes_at[0]), rel=1e-6)


def test_131_072_tokens_in_a_window_fit_20_gib() -> None:
    assert bytes_of(settings_of(window=1024)) < 20 << 30
    assert bytes_of(settings_of(window=1024, recompute=True)) < bytes_of(settings_of(window=1024)) / 2


def test_the_parts_are_those_of_the_model() -> None:
    settings = settings_of(context=512, batch_tokens=2048, micro_batch_tokens=512)
    config = resolve_config(settings.model, vocab_size=500, depth=4, context=512)
    found, counted = step_memory(config, settings, MicroBatch(1, 512, accumulates=True), CPU), sizes(config)
    assert found.weights == found.gradients == counted.weight_bytes()
    assert found.activations == counted.activation_bytes(1, 512, logits=False)
    assert found.working >= 3 * 512 * 500 * 4  # log-probabilities, their gradient, that of the logits
    alone = step_memory(config, settings, MicroBatch(1, 512), CPU)
    assert found.total > alone.total  # gradients of earlier micro-batches


def test_pairs_and_ranks_that_share() -> None:
    settings = TrainSettings.from_flat(context=64, parallel="sharded")
    config = resolve_pair_config(settings.model, vocab_size=4096, source_vocab_size=None, context=64)
    assert isinstance(config, EncoderDecoderConfig)
    one = step_memory(config, settings, MicroBatch(8, 64), CPU)
    quarter = Runtime(torch.device("cpu"), torch.float32, 1, world_size=4)
    four = step_memory(config, settings, MicroBatch(8, 64), quarter)
    assert four.weights == one.weights // 4
    assert four.activations == one.activations
