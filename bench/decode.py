"""Writing, batch 1: ours beside `generate` of Hugging Face transformers, the same GPT-2-shaped model, in one run.

    python bench/decode.py [--tokens 240] [--rounds 5] [--threads 2]

6 layers, width 384, 5,000 words; greedy, from a prompt of 8 tokens. The two take turns, so that whatever else the
machine does meets both; medians, and the median of the ratios of neighbours, are printed. Both write all the tokens,
and the weights are the same: the texts are compared. Needs the `hf` extra.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from mingyue.config import GenerateSettings, ModelConfig
from mingyue.generation import generate
from mingyue.models import build_model

SHAPE = {"vocab_size": 5000, "context": 256, "d_model": 384, "n_layers": 6, "n_heads": 6, "d_ff": 1536}
PROMPT = [17, 420, 33, 4999, 1234, 8, 77, 2048]


class Numbers:
    """A tokenizer of nothing: the text of a token is its number."""

    pad_id, bos_id, eos_id, vocab_size = 0, 1, 2, SHAPE["vocab_size"]

    def encode(self, text: str) -> list[int]:
        return [int(number) for number in text.split()]

    def stream(self):
        return self

    def push(self, index: int) -> str:
        return f" {index}"

    def finish(self) -> str:
        return ""


def models():
    """The same random weights in both; Conv1D of transformers stores a matrix transposed."""
    ours = build_model(
        ModelConfig(
            **SHAPE,
            n_kv_heads=6,
            d_head=64,
            positions="learned",
            feedforward="gelu-tanh",
            norm="layer",
            norm_eps=1e-5,
            bias_qkv=True,
            bias_output=True,
            bias_feedforward=True,
        ),
        seed=1,
    ).eval()
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=SHAPE["vocab_size"],
            n_positions=256,
            n_embd=384,
            n_layer=6,
            n_head=6,
            bos_token_id=1,
            eos_token_id=2,
        )
    ).eval()
    weights = theirs.state_dict()
    names = {
        "attention_norm": "ln_1",
        "attention.qkv": "attn.c_attn",
        "attention.output": "attn.c_proj",
        "feedforward_norm": "ln_2",
        "feedforward.inner": "mlp.c_fc",
        "feedforward.output": "mlp.c_proj",
        "embedding": "wte",
        "final_norm": "ln_f",
    }
    with torch.no_grad():
        for name, weight in ours.named_parameters():
            if name == "positions.table":
                weights["transformer.wpe.weight"].copy_(weight)
                continue
            part, kind = name.removeprefix("blocks.").rsplit(".", 1)
            layer, _, inner = part.partition(".")
            place = f"h.{layer}.{names[inner]}" if inner else names[part]
            matrix = weight.ndim == 2 and inner
            weights[f"transformer.{place}.{kind}"].copy_(weight.T if matrix else weight)
    return ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tokens", type=int, default=240)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    ours, theirs = models()
    prompt = " ".join(str(index) for index in PROMPT)

    def write_ours(n_tokens: int) -> list[int]:
        settings = GenerateSettings(temperature=0, max_new_tokens=n_tokens, min_new_tokens=n_tokens)
        return generate(ours, Numbers(), prompt, settings, starts_with_bos=False)[0].ids

    def write_theirs(n_tokens: int) -> list[int]:
        ids = torch.tensor([PROMPT])
        limits = {"max_new_tokens": n_tokens, "min_new_tokens": n_tokens}
        with torch.inference_mode():
            written = theirs.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0, **limits
            )
        return written[0, len(PROMPT) :].tolist()

    def timed(write) -> float:
        start = time.perf_counter()
        assert len(write(asked.tokens)) == asked.tokens
        return time.perf_counter() - start

    same = write_ours(24) == write_theirs(24)  # this also warms both up
    pairs = [(timed(write_ours), timed(write_theirs)) for _ in range(asked.rounds)]
    mine, others = (statistics.median(times) for times in zip(*pairs, strict=True))
    result = {
        "tokens": asked.tokens,
        "threads": asked.threads,
        "ours_tokens_per_second": round(asked.tokens / mine, 1),
        "transformers_tokens_per_second": round(asked.tokens / others, 1),
        "ratio": round(statistics.median(other / one for one, other in pairs), 2),
        "ratios": [round(other / one, 2) for one, other in pairs],
        "same_text": same,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
