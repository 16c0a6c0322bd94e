"""The choices of size: the largest model that the time and the text can feed."""

from __future__ import annotations

import pytest

from mingyue.config import TrainSettings
from mingyue.training.sizing import Speed, choose_sizes


def chosen(minutes: float = 10.0, tokens: int = 1_000_000, gflops: float = 150.0, **given: object) -> TrainSettings:
    settings = TrainSettings.from_flat(minutes=minutes, **given)
    return choose_sizes(settings, vocab_size=300, train_tokens=tokens, speed=Speed(gflops * 1e9, 60 * minutes))


def depth(settings: TrainSettings) -> int:
    assert settings.model.depth is not None
    return settings.model.depth


def test_more_time_or_a_faster_machine_never_makes_a_smaller_model() -> None:
    depths = [depth(chosen(minutes)) for minutes in (0.5, 2, 10, 60, 600)]
    assert depths == sorted(depths)
    assert depths[0] < depths[-1]
    assert depth(chosen(gflops=15)) <= depth(chosen(gflops=150)) <= depth(chosen(gflops=15000))


def test_a_small_text_gets_a_small_model_whatever_the_time() -> None:
    assert depth(chosen(600, tokens=5_000)) < depth(chosen(600, tokens=5_000_000))


@pytest.mark.parametrize("context", [16, 64, 100, 1024])
def test_a_batch_is_whole_windows(context: int) -> None:
    settings = chosen(context=context)
    assert settings.batch.batch_tokens is not None
    assert settings.batch.batch_tokens % context == 0
    assert settings.batch.micro_batch_tokens is not None
    assert settings.batch.micro_batch_tokens <= settings.batch.batch_tokens


@pytest.mark.parametrize("minutes", [10, 100, 1000, 3000])
def test_a_large_batch_is_whole_micro_batches(minutes: float) -> None:
    """Else it would fall into micro-batches of one window when its number of windows is prime."""
    batch = chosen(minutes, tokens=50_000_000, gflops=1000).batch
    assert batch.batch_tokens is not None
    assert batch.micro_batch_tokens is not None
    assert batch.batch_tokens % batch.micro_batch_tokens == 0


def test_what_was_given_is_left_alone() -> None:
    settings = chosen(depth=7, context=48, batch_tokens=96, micro_batch_tokens=48)
    model, batch = settings.model, settings.batch
    assert (model.depth, model.context, batch.batch_tokens, batch.micro_batch_tokens) == (7, 48, 96, 48)


def test_less_time_than_two_layers_of_the_dial_need_makes_them_narrower() -> None:
    """Two narrow layers learn faster than one wide one; a width that was given is not touched."""
    widths = [chosen(minutes).model.d_model for minutes in (0.05, 0.2, 0.5, 10)]
    assert widths[0] == 64
    assert widths[-1] is None
    known = [width or 128 for width in widths]
    assert known == sorted(known)
    assert [depth(chosen(minutes)) for minutes in (0.05, 0.2)] == [2, 2]
    assert chosen(0.05, d_model=160, n_heads=5).model.d_model == 160
    assert chosen(0.05, depth=2).model.d_model is None
