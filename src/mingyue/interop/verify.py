"""Verification of an export: the target runtime loads it and computes the same logits."""

from __future__ import annotations

import importlib.util
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from mingyue.errors import InteropError, MissingExtraError
from mingyue.models import DecoderOnly
from mingyue.words import tr

TOLERANCE = 1e-4
_ROWS, _MAX_TOKENS = 2, 256


@dataclass(frozen=True)
class Verification:
    """Result of the comparison: the largest `difference` of the fp32 logits of `tokens` random ids."""

    runtime: str
    tokens: int
    difference: float
    tolerance: float


@torch.no_grad()
def verify_hf(folder: Path, model: DecoderOnly, *, tolerance: float = TOLERANCE, seed: int = 1) -> Verification:
    """Load `folder` in transformers and compare its logits with those of `model`, both in fp32 on the CPU.

    Raises `InteropError` when transformers cannot load the folder, reports missing or unexpected weights, or differs by
    more than `tolerance`; `MissingExtraError` without transformers.
    """
    if importlib.util.find_spec("transformers") is None:
        raise MissingExtraError(tr("transformers is not installed"), advice=tr("Install it: pip install 'mingyue[hf]'"))
    import transformers

    with _quiet():
        try:
            reference, report = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
            )
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise InteropError(tr("transformers cannot load {folder}: {error}", folder, error)) from error
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        for name in sorted(map(str, report.get(problem, ()))):
            raise InteropError(
                tr(
                    "{folder}: transformers reports {problem}, the first is {name}",
                    folder,
                    problem.replace("_", " "),
                    name,
                )
            )
    config = model.config
    n_tokens = min(config.context, _MAX_TOKENS)
    ids_BT = torch.randint(config.vocab_size, (_ROWS, n_tokens), generator=torch.Generator().manual_seed(seed))
    theirs = reference.eval()(ids_BT).logits
    ours = _fp32_copy(model)(ids_BT)
    difference = (ours - theirs).abs().max().item()
    if not difference <= tolerance:  # also true for NaN
        raise InteropError(
            tr(
                "{folder}: logits in transformers differ by {difference:.2e} from this model's, more "
                "than {tolerance:.0e}",
                folder,
                difference,
                tolerance,
            ),
            advice=tr("Do not use this folder. Please report it with the model's config.json."),
        )
    return Verification(f"transformers {transformers.__version__}", ids_BT.numel(), difference, tolerance)


def _fp32_copy(model: DecoderOnly) -> DecoderOnly:
    """A copy in fp32 on the CPU, in evaluation mode."""
    copy = DecoderOnly(model.config)
    copy.load_state_dict({name: weight.detach().float().cpu() for name, weight in model.state_dict().items()})
    return copy.eval()


@contextmanager
def _quiet() -> Generator[None, None, None]:
    """Silence the progress bars and messages of transformers."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
