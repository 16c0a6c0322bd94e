"""Translating with a beam: ours beside `generate` of Hugging Face Marian, the same weights, in one run.

    python bench/translate.py [--lines 1000] [--beam 4] [--rounds 3] [--threads 2] [--batch 64]
    python bench/translate.py --run runs/en-de --source test.en

Without a run: random weights in Marian's own shape, the same in both; the end mark is never likely, so each line
takes as many steps as its source has tokens (lengths like those of captions: 6 to 28, 15 on average). With a run: ours
translates the lines of the file; Marian has random weights and the sizes of the model, and in each batch writes as many
tokens as our longest translation in it. Both see lines sorted by length, in batches of the same size. The two take
turns; medians and the median of the ratios are printed. Needs the `hf` extra.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path

import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel

from mingyue import load_translator
from mingyue.config import EncoderDecoderConfig, TranslateSettings
from mingyue.data.pairs import read_lines
from mingyue.data.report import ReadReport
from mingyue.generation import translate_ids
from mingyue.interop import to_marian
from mingyue.models import build_model

PAD, BOS, EOS = 0, 1, 2


def marian_config(d_model, n_layers, n_encoder_layers, n_heads, d_ff, vocab_size, context) -> EncoderDecoderConfig:
    return EncoderDecoderConfig(
        vocab_size=vocab_size,
        context=context,
        d_model=d_model,
        n_layers=n_layers,
        n_encoder_layers=n_encoder_layers,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        d_head=d_model // n_heads,
        d_ff=d_ff,
        positions="sinusoidal",
        sinusoid_layout="halves",
        feedforward="relu",
        norm="layer",
        norm_eps=1e-5,
        norm_placement="post",
        final_norm=False,
        bias_qkv=True,
        bias_output=True,
        bias_feedforward=True,
        embedding_scale=True,
        output_bias=True,
        initialisation="xavier",
    )


def marian(config, model) -> MarianMTModel:
    values, tensors = to_marian(config, model.state_dict(), pad_id=PAD, start_id=BOS, eos_id=EOS)
    theirs = MarianMTModel(MarianConfig(**values))
    theirs.load_state_dict(tensors, strict=False)
    theirs.tie_weights()
    theirs.generation_config = GenerationConfig(
        pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=BOS, bad_words_ids=[[PAD]]
    )
    return theirs.eval()


def never_ending(config):
    """Random weights that never end by themselves."""
    model = build_model(config, seed=1).eval()
    with torch.no_grad():
        model.output.bias[EOS] = -1e4
    return model


def generate(theirs, batches, lengths, beam):
    """Their translations, batch after batch, of the given lengths."""
    written = []
    with torch.inference_mode():
        for batch, length in zip(batches, lengths, strict=True):
            longest = max(map(len, batch))
            ids = torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in batch])
            out = theirs.generate(
                ids,
                attention_mask=(ids != PAD).long(),
                num_beams=beam,
                max_new_tokens=length,
                min_new_tokens=length,
                length_penalty=0.6,
            )
            written += out[:, 1:].tolist()
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--run")
    parser.add_argument("--source")
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    for name, value in {"d-model": 256, "layers": 3, "heads": 8, "d-ff": 1024, "vocab": 8192}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    settings = TranslateSettings(beam=asked.beam, batch_size=asked.batch)
    if asked.run:
        translator = load_translator(asked.run, threads=asked.threads)
        lines = list(read_lines(Path(asked.source), None, ReadReport()))[: asked.lines]
        sources = [[*translator.source_tokenizer.encode(line), EOS] for line in lines]
        ours, own = translator.module, translator.config
        shape = marian_config(
            own.d_model, own.n_layers, own.n_encoder_layers, own.n_heads, own.d_ff, own.vocab_size, own.context
        )
        theirs = marian(shape, never_ending(shape))
    else:
        draw = random.Random(1)
        lengths = [min(28, max(6, round(draw.gauss(15, 4)))) for _ in range(asked.lines)]
        sources = [[*(draw.randrange(3, asked.vocab) for _ in range(length)), EOS] for length in lengths]
        shape = marian_config(asked.d_model, asked.layers, asked.layers, asked.heads, asked.d_ff, asked.vocab, 256)
        ours = never_ending(shape)
        theirs = marian(shape, ours)
        settings = settings.replace(extra_tokens=0)
    sources.sort(key=len)
    batches = [sources[at : at + asked.batch] for at in range(0, len(sources), asked.batch)]

    def write_ours():
        found = translate_ids(ours, sources, settings, bos_id=BOS, eos_id=EOS, pad_id=PAD)
        return [best[0].ids for best in found]

    written = write_ours()
    limits = [max(map(len, written[at : at + asked.batch])) for at in range(0, len(sources), asked.batch)]
    generate(theirs, batches[:1], limits[:1], asked.beam)  # warm
    times = []
    for _ in range(asked.rounds):
        start = time.perf_counter()
        write_ours()
        middle = time.perf_counter()
        others = generate(theirs, batches, limits, asked.beam)
        times.append((middle - start, time.perf_counter() - middle))
    mine, their_time = (statistics.median(column) for column in zip(*times, strict=True))
    result = {
        "lines": len(sources),
        "beam": asked.beam,
        "batch": asked.batch,
        "threads": asked.threads,
        "tokens_written": sum(map(len, written)),
        "ours_lines_per_second": round(len(sources) / mine, 1),
        "marian_lines_per_second": round(len(sources) / their_time, 1),
        "ratio": round(statistics.median(other / one for one, other in times), 2),
        "ratios": [round(other / one, 2) for one, other in times],
    }
    if not asked.run:  # lines of the longest length in their batch were searched for by the same rules
        even = [number for number, ids in enumerate(written) if len(ids) == limits[number // asked.batch]]
        same = sum(list(written[number]) == others[number][: len(written[number])] for number in even)
        result["same_text"] = f"{same} of {len(even)}"
    print(json.dumps(result))


if __name__ == "__main__":
    main()
