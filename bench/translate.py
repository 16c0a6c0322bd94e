"""Translating with a beam: ours beside Marian of transformers and CTranslate2, the same weights, in one run.

    python bench/translate.py [--lines 1000] [--beam 4] [--rounds 3] [--threads 2] [--batch 64] [--peers CTranslate2]
    python bench/translate.py --backend torch onnxruntime --weights fp32 int8
    python bench/translate.py --run runs/en-de --source test.en

Without a run: random weights in Marian's own shape, the same in all; the end mark is never likely, so each line
takes as many steps as its source has tokens (lengths like those of captions: 6 to 28, 15 on average). With a run: ours
translates the lines of the file; the others have random weights and the sizes of the model, and in each batch write as
many tokens as our longest translation in it. All see lines sorted by length, in batches of the same size. Each program
runs in a process of its own, and they take turns; medians and the medians of the ratios of neighbours are printed.
The texts are compared where a line has the longest source of its batch: only there all search by the same rules.

Needs the `hf` extra, and ctranslate2; who is not installed is left out. Ours runs once for each `--backend` and
`--weights`.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import random
import sys
import tempfile
from pathlib import Path

from _turns import Contestant, figures, limit_threads, present, table, take_turns

PAD, BOS, EOS = 0, 1, 2
N_NEVER = 3 + 256
"""The ids of special tokens and of bytes come first; the others are one character each, from this one on."""
FIRST = 0x4E00
NO_END = -1e4
"""Logit of the special tokens of random weights."""


def text_of(ids) -> str:
    return "".join(chr(FIRST + index - N_NEVER) for index in ids)


def ids_of(text) -> list[int]:
    return [ord(character) - FIRST + N_NEVER for character in text]


def shape_of(d_model, n_layers, n_encoder_layers, n_heads, d_ff, vocab_size, context) -> dict:
    """A config that Marian can express."""
    return {
        "vocab_size": vocab_size,
        "context": context,
        "d_model": d_model,
        "n_layers": n_layers,
        "n_encoder_layers": n_encoder_layers,
        "n_heads": n_heads,
        "n_kv_heads": n_heads,
        "d_head": d_model // n_heads,
        "d_ff": d_ff,
        "positions": "sinusoidal",
        "sinusoid_layout": "halves",
        "feedforward": "relu",
        "norm": "layer",
        "norm_eps": 1e-5,
        "norm_placement": "post",
        "final_norm": False,
        "bias_qkv": True,
        "bias_output": True,
        "bias_feedforward": True,
        "embedding_scale": True,
        "output_bias": True,
        "initialisation": "xavier",
    }


def never_ending(shape):
    """Random weights, the same at every call, that never end by themselves and write ordinary tokens only."""
    import torch

    from mingyue.config import EncoderDecoderConfig
    from mingyue.models import build_model

    model = build_model(EncoderDecoderConfig(**shape), seed=1).eval()
    with torch.no_grad():
        model.output.bias[: min(N_NEVER, shape["vocab_size"] // 2)] = NO_END
    return model


def write_model(folder: Path, shape) -> None:
    """The random weights as a folder of ours, with a tokenizer of characters."""
    from mingyue.bundle import save_bundle
    from mingyue.text import train_char

    tokenizer = train_char([text_of(range(N_NEVER, shape["vocab_size"]))])
    assert tokenizer.encode(text_of([shape["vocab_size"] - 1])) == [shape["vocab_size"] - 1]
    model = never_ending(shape)
    save_bundle(folder, model.config, model.state_dict(), tokenizer, {})


# Each maker gives a function without arguments that translates all lines, for ours into (texts, numbers of tokens),
# for the others into ids. The others get batches of sources that end with EOS, and the length of each batch's texts.


def ours(folder, threads, options, lines, settings):
    """Ours, as a user calls it. What differs between versions of the product belongs here."""
    import mingyue

    model = mingyue.load_translator(folder, device="cpu", threads=threads, **options)

    def translate():
        found = [best[0] for best in model.translate(lines, **settings)]
        return [one.text for one in found], [len(one.tokens) for one in found]

    return translate


def sources_of(folder, threads, lines):
    """For the parent, which loads no model: the sizes of the model, and the ids of the lines with EOS."""
    import mingyue

    model = mingyue.load_translator(folder, device="cpu", threads=threads)
    own, encode = model.config, model.source_tokenizer.encode
    shape = shape_of(
        own.d_model, own.n_layers, own.n_encoder_layers, own.n_heads, own.d_ff, own.vocab_size, own.context
    )
    return lambda: (shape, [[*encode(line), EOS] for line in lines])


def check_options(options) -> None:
    import mingyue

    if unknown := sorted(options.keys() - inspect.signature(mingyue.load_translator).parameters.keys()):
        sys.exit(f"mingyue.load_translator of this version has no {' and no '.join(unknown)}")


def marian(shape):
    from transformers import GenerationConfig, MarianConfig, MarianMTModel

    from mingyue.interop import to_marian

    model = never_ending(shape)
    values, tensors = to_marian(model.config, model.state_dict(), pad_id=PAD, start_id=BOS, eos_id=EOS)
    theirs = MarianMTModel(MarianConfig(**values))
    theirs.load_state_dict(tensors, strict=False)
    theirs.tie_weights()
    theirs.generation_config = GenerationConfig(
        pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=BOS, bad_words_ids=[[PAD]]
    )
    return theirs.eval()


def transformers(shape, threads, batches, lengths, beam):
    import torch

    torch.set_num_threads(threads)
    theirs = marian(shape)

    def translate():
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

    return translate


def ctranslate2(shape, threads, batches, lengths, beam, compute_type):
    """Converted as BART is: Marian's own converter drops the last token, for which Marian has its padding."""
    import ctranslate2
    from ctranslate2.converters.transformers import BartLoader

    theirs = marian(shape)
    theirs.config.normalize_before = theirs.config.normalize_embedding = False
    spec = BartLoader().get_model_spec(theirs)
    tokens = ["<pad>", "<s>", "</s>", *map(str, range(3, shape["vocab_size"]))]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = tokens[:3]
    spec.config.decoder_start_token = tokens[BOS]
    spec.validate()
    spec.optimize(quantization=compute_type)
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        model = ctranslate2.Translator(folder, compute_type=compute_type, intra_threads=threads, inter_threads=1)

    def translate():
        written = []
        for batch, length in zip(batches, lengths, strict=True):
            found = model.translate_batch(
                [[tokens[index] for index in row] for row in batch],
                beam_size=beam,
                length_penalty=0.6,
                max_decoding_length=length,
                min_decoding_length=length,
            )
            written += [[number_of[token] for token in one.hypotheses[0]] for one in found]
        return written

    number_of = {token: number for number, token in enumerate(tokens)}
    return translate


PEERS = {
    "transformers": (transformers,),
    "CTranslate2": (ctranslate2, "float32"),
    "CTranslate2, int8": (ctranslate2, "int8"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--run")
    parser.add_argument("--source")
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--backend", nargs="+", help="ours: torch, onnxruntime; default: what the product chooses")
    parser.add_argument("--weights", nargs="+", choices=("fp32", "int8"), help="ours; default: fp32")
    parser.add_argument("--json", action="store_true", help="print the line of JSON only")
    for name, value in {"d-model": 256, "layers": 3, "heads": 8, "d-ff": 1024, "vocab": 8192}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    choices = {name: values for name in ("backend", "weights") if (values := getattr(asked, name))}
    variants = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    check_options(choices)
    limit_threads(asked.threads)
    with tempfile.TemporaryDirectory() as name:
        compare(asked, variants, Path(name))


def given_lines(asked):
    """The lines of the file, sorted by length; the sizes of the model, and the ids of the lines."""
    from mingyue.data.pairs import read_lines
    from mingyue.data.report import ReadReport

    lines = list(read_lines(Path(asked.source), None, ReadReport()))[: asked.lines]
    reader = Contestant("reader", sources_of, asked.run, asked.threads, lines)
    shape, sources = reader()[1]
    reader.close()
    pairs = sorted(zip(sources, lines, strict=True), key=lambda pair: len(pair[0]))
    return [line for _, line in pairs], shape, [source for source, _ in pairs]


def random_lines(asked):
    """The same with random tokens."""
    draw = random.Random(1)
    lengths = sorted(min(28, max(6, round(draw.gauss(15, 4)))) for _ in range(asked.lines))
    sources = [[draw.randrange(N_NEVER, asked.vocab) for _ in range(length)] for length in lengths]
    shape = shape_of(asked.d_model, asked.layers, asked.layers, asked.heads, asked.d_ff, asked.vocab, 256)
    return [text_of(source) for source in sources], shape, [[*source, EOS] for source in sources]


def compare(asked, variants, folder: Path) -> None:
    settings = {"beam": asked.beam, "batch_size": asked.batch}
    lines, shape, sources = given_lines(asked) if asked.run else random_lines(asked)
    if not asked.run:
        write_model(folder / "ours", shape)
        settings["extra_tokens"] = 0
    model = asked.run or folder / "ours"
    mine = [
        Contestant(", ".join(["ours", *options.values()]), ours, model, asked.threads, options, lines, settings)
        for options in variants
    ]
    if mine[0].missing is not None:
        sys.exit(f"{mine[0].name}: {mine[0].missing}")
    texts, n_tokens = mine[0]()[1]  # this also warms it up
    # Ours begins with the longest lines: its batches are counted from the end.
    cuts = [max(0, len(sources) - at - asked.batch) for at in range(0, len(sources), asked.batch)]
    spans = list(zip(cuts, [len(sources), *cuts[:-1]], strict=True))
    batches = [sources[start:end] for start, end in spans]
    lengths = [max(n_tokens[start:end]) for start, end in spans]
    peers = [
        Contestant(name, PEERS[name][0], shape, asked.threads, batches, lengths, asked.beam, *PEERS[name][1:])
        for name in asked.peers
    ]
    contestants = present([*mine, *peers])
    written = {one.name: one()[1] for one in contestants[1:]}
    seconds = take_turns(contestants, [()], asked.rounds)[0]
    names = [one.name for one in mine if one in contestants]
    result = {
        "lines": len(sources),
        "beam": asked.beam,
        "batch": asked.batch,
        "threads": asked.threads,
        "tokens_written": sum(n_tokens),
        "lines_per_second": figures(seconds, len(sources), names),
    }
    if not asked.run:
        order = [line for start, end in spans for line in range(start, end)]
        longest = {
            line
            for (start, end), n in zip(spans, lengths, strict=True)
            for line in range(start, end)
            if n_tokens[line] == n
        }
        result["same_text"] = {}
        for name, found in written.items():
            theirs = found[0] if name in names else dict(zip(order, map(text_of, found), strict=True))
            chosen = range(len(lines)) if name in names else longest
            same = sum(theirs[line] == texts[line] for line in chosen)
            result["same_text"][name] = f"{same} of {len(chosen)}"
    if not asked.json:
        print(table(seconds, len(sources), "lines", names))
        for name, found in result.get("same_text", {}).items():
            print(f"the same text as {contestants[0].name}: {name}, {found} lines")
        print()
    print(json.dumps(result, ensure_ascii=False))


if __name__ == "__main__":
    main()
