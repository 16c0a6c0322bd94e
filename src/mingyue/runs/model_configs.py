"""The complete config of a run's model, from the settings in run.toml and the prepared data."""

from __future__ import annotations

from mingyue.config import EncoderDecoderConfig, ModelConfig, TrainSettings
from mingyue.data import PairCorpus
from mingyue.errors import BundleError
from mingyue.models import resolve_config, resolve_pair_config
from mingyue.words import tr


def run_config(settings: TrainSettings, vocab_size: int) -> ModelConfig:
    """The config of a run on text. Raises `BundleError` for a run that was stopped before it chose its sizes."""
    depth, context = settings.model.depth, settings.model.context
    if depth is None or context is None:
        raise _no_sizes()
    return resolve_config(settings.model, vocab_size=vocab_size, depth=depth, context=context)


def pair_config(settings: TrainSettings, corpus: PairCorpus) -> EncoderDecoderConfig:
    """The config of a run on pairs. Raises `BundleError` for a run that was stopped before it chose its sizes."""
    if settings.model.context is None:
        raise _no_sizes()
    return resolve_pair_config(
        settings.model,
        vocab_size=corpus.target_vocab_size,
        source_vocab_size=None if corpus.shared_vocabulary else corpus.source_vocab_size,
        context=settings.model.context,
    )


def _no_sizes() -> BundleError:
    return BundleError(
        tr("the run was stopped before it chose its sizes: there is no model in it yet"),
        advice=tr("Start it again with `mingyue train`, which removes what is there."),
    )
