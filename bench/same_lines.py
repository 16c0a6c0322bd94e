"""The same lines whatever the batch: translations of a file with batches of 1, 30 and 64, greedy and with a beam.

    python bench/same_lines.py [runs/en-de test.en] [--lines 1000] [--threads 2]

Without a run: 50 random lines and random weights.
A line may differ only by a near-tie: greedy, two tokens within 1e-4 nats at the first place where the texts part; with
a beam, two translations whose scores are within 1e-4. Prints the count of each; exits with 1 if any other differs.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

import torch

from mingyue import load_translator
from mingyue.config import ModelSettings, TranslateSettings
from mingyue.data.pairs import read_lines
from mingyue.data.report import ReadReport
from mingyue.generation import translate_ids
from mingyue.models import build_model, resolve_pair_config

BATCHES = (1, 30, 64)
NEAR = 1e-4
PAD, BOS, EOS = 0, 1, 2


def gap_at_first_difference(model, source, one, other) -> float:
    """Nats between the two tokens where the texts part, under the model, without cache or batch."""
    place = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if place is None:  # one is the beginning of the other
        return float("inf")
    ids = torch.tensor([[BOS, *one[:place]]])
    with torch.inference_mode():
        logs = model(torch.tensor([source]), ids)[0, -1].log_softmax(dim=-1)
    return abs(float(logs[one[place]] - logs[other[place]]))


def given(asked):
    """The model of a run and the lines of a file, or random ones."""
    if asked.run is None:
        settings = ModelSettings(preset="translate-small")
        config = resolve_pair_config(settings, vocab_size=4096, source_vocab_size=None, context=256)
        draw = random.Random(1)
        sources = [[*(draw.randrange(3, 4096) for _ in range(draw.randint(3, 25))), EOS] for _ in range(50)]
        return build_model(config, seed=1).eval(), sources
    translator = load_translator(asked.run, threads=asked.threads)
    lines = list(read_lines(asked.source, None, ReadReport()))[: asked.lines]
    encode = translator.source_tokenizer.encode
    return translator.module, [[*encode(line), EOS] for line in lines if line.strip()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("run", nargs="?")
    parser.add_argument("source", nargs="?")
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    model, sources = given(asked)
    wrong = 0
    for beam in (1, 4):
        found = {}
        for batch in BATCHES:
            start = time.perf_counter()
            found[batch] = [
                best[0]
                for best in translate_ids(
                    model,
                    sources,
                    TranslateSettings(beam=beam, batch_size=batch),
                    bos_id=BOS,
                    eos_id=EOS,
                    pad_id=PAD,
                )
            ]
            print(
                f"beam {beam}, batch {batch}: {len(sources)} lines in {time.perf_counter() - start:.1f} s", flush=True
            )
        for batch in BATCHES[1:]:
            near = other = 0
            for source, one, two in zip(sources, found[1], found[batch], strict=True):
                if one.ids == two.ids:
                    continue
                gap = (
                    gap_at_first_difference(model, source, one.ids, two.ids)
                    if beam == 1
                    else abs(one.score - two.score)
                )
                near, other = (near + 1, other) if gap <= NEAR else (near, other + 1)
            wrong += other
            print(f"beam {beam}: batch {batch} against batch 1: {near} near-ties, {other} other differences")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
