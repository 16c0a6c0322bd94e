"""The measure of both sides of a comparison: held-out loss of a saved model, nats a character.

    python bench/_held_out_loss.py TEXT --windows 64 --run RUN
    python bench/_held_out_loss.py TEXT --windows 64 --nanogpt FOLDER --checkpoint ckpt.pt

The last tenth of the characters, cut into windows that do not overlap; no context is carried from one to the next; the
sum of −log P over all characters but the first, divided by their number. One function sums, whatever model gives the
logits. Characters that the training part lacks count in full (ours spells them in bytes, nanoGPT gets one id for all of
them, which is easier); the loss without them is printed too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from _beside import PeerText, Text
from torch import Tensor

from mingyue.bundle import load_bundle

_ROWS = 64


@torch.inference_mode()
def target_nats(logits_of: Callable[[Tensor], Tensor], ids: np.ndarray, windows: int) -> np.ndarray:
    """−log P of each id but the first, [N − 1], in double; `logits_of` takes ids [B, T] and gives [B, T, V]."""
    inputs, targets = torch.from_numpy(ids[:-1].astype(np.int64)), torch.from_numpy(ids[1:].astype(np.int64))
    whole = len(inputs) // windows * windows
    found = []
    for start in range(0, whole, _ROWS * windows):
        stop = min(start + _ROWS * windows, whole)
        found.append(_nats(logits_of, inputs[start:stop].view(-1, windows), targets[start:stop]))
    if whole < len(inputs):
        found.append(_nats(logits_of, inputs[None, whole:], targets[whole:]))
    return torch.cat(found).numpy()


def _nats(logits_of: Callable[[Tensor], Tensor], inputs_BT: Tensor, targets_N: Tensor) -> Tensor:
    logits_NV = logits_of(inputs_BT).float().flatten(0, 1)
    return F.cross_entropy(logits_NV, targets_N, reduction="none").double()


def measure_run(text: Text, folder: Path, windows: int) -> dict[str, Any]:
    """The loss of the model of a run of ours with a tokenizer of characters."""
    bundle = load_bundle(folder / "model")
    model = bundle.model.eval()
    known = set(text.train)
    ids = np.asarray(bundle.tokenizer.encode(text.held_out))
    tokens_of = {character: len(bundle.tokenizer.encode(character)) for character in set(text.held_out)}
    lengths = np.array([tokens_of[character] for character in text.held_out])  # rare ones are spelled in bytes
    if lengths.sum() != len(ids):
        sys.exit(
            f"{len(ids)} tokens are not those of {len(text.held_out)} characters: only --tokenizer char is measured"
        )
    seen = np.repeat([character in known for character in text.held_out], lengths)
    return _summary(text, target_nats(model, ids, windows), seen[1:])


def measure_peer(text: Text, folder: Path, checkpoint: Path, windows: int) -> dict[str, Any]:
    """The loss of a checkpoint of nanoGPT, by its own model.py."""
    sys.path.insert(0, str(folder))
    from model import GPT, GPTConfig  # type: ignore[import-not-found]

    saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
    model = GPT(GPTConfig(**saved["model_args"]))
    model.load_state_dict(saved["model"])
    model.eval()
    ids = PeerText(text).held_out
    nats = target_nats(lambda ids_BT: model(ids_BT, ids_BT)[0], ids, windows)  # with targets it gives all logits
    known = set(text.train)
    seen = np.array([character in known for character in text.held_out])
    return {**_summary(text, nats, seen[1:]), "iteration": saved["iter_num"]}


def _summary(text: Text, nats: np.ndarray, seen: np.ndarray) -> dict[str, Any]:
    known = set(text.train)
    characters = len(text.held_out) - 1
    unseen = sum(character not in known for character in text.held_out[1:])
    return {
        "loss": nats.sum() / characters,
        "characters": characters,
        "unseen": unseen,
        "loss_without_unseen": nats[seen].sum() / (characters - unseen),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--windows", type=int, required=True)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--checkpoint", type=Path)
    asked = parser.parse_args()
    text = Text.read(asked.text)
    if asked.run is not None:
        found = measure_run(text, asked.run, asked.windows)
    else:
        found = measure_peer(text, asked.nanogpt, asked.checkpoint, asked.windows)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
