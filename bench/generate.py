"""Writing: ours beside llama.cpp, transformers and CTranslate2, the same GPT-2-shaped weights in all, in one run.

    python bench/generate.py [--tokens 240] [--rounds 5] [--threads 2] [--batch 1 16] [--peers llama.cpp transformers]
    python bench/generate.py --backend torch onnxruntime --weights fp32 int8

6 layers, width 384, 5,000 words, context 256; prompts of 8 tokens; greedy, and sampled from the 50 likeliest. Each
program runs in a process of its own, with the same number of threads, and they take turns, so that whatever else the
machine does meets all of them. Printed are medians, and the medians of the ratios of neighbours. No text ends early,
since the end mark is never likely. The greedy texts are compared with ours; where one differs, how far apart the two
tokens are at the first difference, by our model.

- ours: `mingyue.load` and `generate`, once for each `--backend` and `--weights`.
- llama.cpp: its server inside the process (xllamacpp, from PyPI); a batch is one request of many prompts, with as many
  slots. The weights are fp32, keys and values fp16, as is its default, and fastest; "llama.cpp, fp32 cache" keeps those
  in fp32 too. It computes GELU in fp16: its logits are up to 0.002 nats away from those of the others, so texts
  may differ where two tokens are that near. The wheels for Linux are built for AVX2, whatever the processor has.
- transformers: `generate` of GPT2LMHeadModel.
- CTranslate2: `Generator`; and with weights in int8.

Needs the `hf` extra; gguf and xllamacpp for llama.cpp; ctranslate2. Who is not installed is left out.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import sys
import tempfile
from pathlib import Path

from _turns import Contestant, figures, limit_threads, present, table, take_turns

VOCABULARY, CONTEXT, WIDTH, LAYERS, D_HEAD = 5000, 256, 384, 6, 64
N_PROMPT = 8
SPECIAL = ["<pad>", "<s>", "</s>"]
N_NEVER = len(SPECIAL) + 256
"""The ids of special tokens and of bytes come first; the others are one character each, from this one on."""
FIRST = 0x4E00
TOP_K = 50
OURS, LLAMA, EXACT_LLAMA = "ours", "llama.cpp", "llama.cpp, fp32 cache"


def text_of(ids) -> str:
    return "".join(chr(FIRST + index - N_NEVER) for index in ids)


def ids_of(text) -> list[int]:
    return [ord(character) - FIRST + N_NEVER for character in text]


def prompts(n) -> list[list[int]]:
    """Different prompts of ordinary tokens."""
    n_ordinary = VOCABULARY - N_NEVER
    return [
        [N_NEVER + (977 * (row * N_PROMPT + i) + 13 * row) % n_ordinary for i in range(N_PROMPT)] for row in range(n)
    ]


def make_model(width=WIDTH, n_layers=LAYERS):
    """Random weights, larger in the blocks than those that training begins with: the text then never repeats one token.

    The special tokens and the bytes have no embedding: their logits are 0, far below the likely ones.
    """
    import torch

    from mingyue.config import ModelConfig
    from mingyue.models import build_model

    config = ModelConfig(
        vocab_size=VOCABULARY,
        context=CONTEXT,
        d_model=width,
        n_layers=n_layers,
        n_heads=width // D_HEAD,
        n_kv_heads=width // D_HEAD,
        d_head=D_HEAD,
        d_ff=4 * width,
        positions="learned",
        feedforward="gelu-tanh",
        norm="layer",
        norm_eps=1e-5,
        bias_qkv=True,
        bias_output=True,
        bias_feedforward=True,
    )
    model = build_model(config, seed=1).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.startswith(("blocks", "positions")) and weight.ndim == 2:
                weight.mul_(4)
        model.embedding.weight[:N_NEVER] = 0
    return model


def write_models(folder: Path, **sizes) -> None:
    """The model as a folder of ours, with a tokenizer of characters, and as one of transformers, without."""
    from mingyue.bundle import save_bundle
    from mingyue.interop import save_hf_folder
    from mingyue.text import train_char

    tokenizer = train_char([text_of(range(N_NEVER, VOCABULARY))])
    assert tokenizer.encode(text_of([VOCABULARY - 1])) == [VOCABULARY - 1]
    model = make_model(**sizes)
    save_bundle(folder / "ours", model.config, model.state_dict(), tokenizer, {"starts_with_bos": False})
    save_hf_folder(folder / "hf", model.config, model.state_dict(), family="gpt2")


# Each maker gives a function of (ids of the prompts, whether greedy, number of tokens) → ids of the texts.


def ours(folder: Path, threads, options):
    """Ours, as a user calls it. What differs between versions of the product belongs here."""
    import mingyue

    model = mingyue.load(folder / "ours", device="cpu", threads=threads, **options)

    def write(rows, greedy, n_tokens):
        choice = {"temperature": 0} if greedy else {"temperature": 1, "top_k": TOP_K}
        texts = [text_of(row) for row in rows]
        return [text.ids for text in model.generate(texts, max_new_tokens=n_tokens, batch_size=len(rows), **choice)]

    return write


def check_options(options) -> None:
    import mingyue

    if unknown := sorted(options.keys() - inspect.signature(mingyue.load).parameters.keys()):
        sys.exit(f"mingyue.load of this version has no {' and no '.join(unknown)}")


def llama(folder: Path, threads, exact):
    import xllamacpp

    path = folder / f"{'exact' if exact else 'default'}.gguf"
    write_gguf(folder / "hf", path)
    servers = {}

    def start(slots):
        settings = xllamacpp.CommonParams()
        settings.model.path = str(path)
        settings.n_parallel, settings.n_ctx = slots, slots * CONTEXT
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
        settings.cache_ram_mib = 0  # no prompt is kept for later requests
        settings.verbosity = -1
        if exact:
            settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
            settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        return xllamacpp.Server(settings)

    def write(rows, greedy, n_tokens):
        if len(rows) not in servers:
            servers[len(rows)] = start(len(rows))
        choice = {"samplers": ["top_k"], "top_k": 1}
        if not greedy:
            choice = {"samplers": ["top_k", "temperature"], "top_k": TOP_K, "temperature": 1.0, "seed": 1}
        request = {"prompt": rows, "n_predict": n_tokens, "ignore_eos": True, "cache_prompt": False, **choice}
        answer = servers[len(rows)].handle_completions(request)
        if "choices" not in answer:
            raise RuntimeError(answer)
        return [ids_of(one["text"]) for one in sorted(answer["choices"], key=lambda one: one["index"])]

    return write


def write_gguf(source: Path, path: Path) -> None:
    """The folder of transformers as a GGUF file, fp32; Conv1D stores its matrices transposed, GGUF does not."""
    import gguf
    from safetensors.numpy import load_file

    whole = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}
    of_block = {
        "ln_1": "attn_norm",
        "attn.c_attn": "attn_qkv",
        "attn.c_proj": "attn_output",
        "ln_2": "ffn_norm",
        "mlp.c_fc": "ffn_up",
        "mlp.c_proj": "ffn_down",
    }
    file = gguf.GGUFWriter(path, "gpt2")
    file.add_file_type(gguf.LlamaFileType.ALL_F32)
    file.add_context_length(CONTEXT)
    file.add_embedding_length(WIDTH)
    file.add_feed_forward_length(4 * WIDTH)
    file.add_block_count(LAYERS)
    file.add_head_count(WIDTH // D_HEAD)
    file.add_layer_norm_eps(1e-5)
    kinds = gguf.TokenType
    file.add_tokenizer_model("llama")
    file.add_token_list(
        [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *map(chr, range(FIRST, FIRST + VOCABULARY - N_NEVER))]
    )
    file.add_token_types([kinds.CONTROL] * len(SPECIAL) + [kinds.BYTE] * 256 + [kinds.NORMAL] * (VOCABULARY - N_NEVER))
    file.add_token_scores([0.0] * VOCABULARY)
    file.add_bos_token_id(1)
    file.add_eos_token_id(2)
    file.add_add_bos_token(False)
    file.add_add_space_prefix(False)
    for name, tensor in load_file(source / "model.safetensors").items():
        part, kind = name.removeprefix("transformer.").rsplit(".", 1)
        if part in whole:
            file.add_tensor(f"{whole[part]}.{kind}", tensor)
        elif part.startswith("h."):
            _, layer, inner = part.split(".", 2)
            file.add_tensor(f"blk.{layer}.{of_block[inner]}.{kind}", tensor.T.copy() if tensor.ndim == 2 else tensor)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def transformers(folder: Path, threads):
    import torch
    from transformers import GenerationConfig, GPT2LMHeadModel
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.set_num_threads(threads)
    model = GPT2LMHeadModel.from_pretrained(folder / "hf", local_files_only=True).eval()
    model.generation_config = GenerationConfig(pad_token_id=0)

    def write(rows, greedy, n_tokens):
        choice = {"do_sample": False} if greedy else {"do_sample": True, "top_k": TOP_K, "temperature": 1.0}
        ids = torch.tensor(rows)
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n_tokens, **choice)
        return out[:, N_PROMPT:].tolist()

    return write


def ctranslate2(folder: Path, threads, compute_type):
    import ctranslate2
    from ctranslate2.converters.transformers import GPT2Loader
    from transformers import GPT2LMHeadModel
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    spec = GPT2Loader().get_model_spec(GPT2LMHeadModel.from_pretrained(folder / "hf", local_files_only=True).eval())
    spec.register_vocabulary([*SPECIAL, *map(str, range(len(SPECIAL), VOCABULARY))])
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = SPECIAL
    spec.validate()
    spec.optimize(quantization=compute_type)
    place = folder / f"ctranslate2-{compute_type}"
    place.mkdir(exist_ok=True)
    spec.save(str(place))
    model = ctranslate2.Generator(str(place), compute_type=compute_type, intra_threads=threads, inter_threads=1)

    def write(rows, greedy, n_tokens):
        found = model.generate_batch(
            [[str(index) for index in row] for row in rows],
            max_length=n_tokens,
            sampling_topk=1 if greedy else TOP_K,
            include_prompt_in_result=False,
        )
        return [one.sequences_ids[0] for one in found]

    return write


PEERS = {
    LLAMA: (llama, False),
    EXACT_LLAMA: (llama, True),
    "transformers": (transformers,),
    "CTranslate2": (ctranslate2, "float32"),
    "CTranslate2, int8": (ctranslate2, "int8"),
}


def agreement(model, rows, mine, theirs) -> str:
    """How many texts are equal, and where the others first differ: how far apart the two tokens are there."""
    import torch

    distances = []
    for row, one, other in zip(rows, mine, theirs, strict=True):
        if one != other:
            at = next(i for i, (token, another) in enumerate(zip(one, other, strict=True)) if token != another)
            with torch.inference_mode():
                logits = model(torch.tensor([[*row, *one[:at]]]))[0, -1]
            distances.append((logits[one[at]] - logits[other[at]]).abs().item())
    found = f"{len(rows) - len(distances)} of {len(rows)} texts equal"
    if distances:
        apart = " to ".join(f"{distance:.1e}" for distance in sorted({min(distances), max(distances)}))
        found += f"; at the first difference of the others, the two tokens are {apart} nats apart"
    return found


def name_of(options) -> str:
    return ", ".join([OURS, *options.values()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tokens", type=int, default=240)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=[name for name in PEERS if name != EXACT_LLAMA])
    parser.add_argument("--backend", nargs="+", help="ours: torch, onnxruntime; default: what the product chooses")
    parser.add_argument("--weights", nargs="+", choices=("fp32", "int8"), help="ours; default: fp32")
    parser.add_argument("--json", action="store_true", help="print the line of JSON only")
    asked = parser.parse_args()
    if asked.tokens > CONTEXT - N_PROMPT:
        parser.error(f"--tokens {asked.tokens} do not fit: the context has {CONTEXT}, the prompt {N_PROMPT}")
    choices = {name: values for name in ("backend", "weights") if (values := getattr(asked, name))}
    variants = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    check_options(choices)
    limit_threads(asked.threads)
    with tempfile.TemporaryDirectory() as name:
        compare(asked, variants, Path(name))


def compare(asked, variants, folder: Path) -> None:
    write_models(folder)
    result = {"tokens": asked.tokens, "threads": asked.threads, "rounds": asked.rounds, "tasks": {}, "texts": {}}
    for batch in asked.batch:
        compare_batch(asked, variants, folder, batch, result)
    print(json.dumps(result, ensure_ascii=False))


def compare_batch(asked, variants, folder: Path, batch: int, result) -> None:
    """Processes of their own for each batch size: the threads of two servers of llama.cpp in one process disturb each
    other, and cost it three quarters of its speed."""
    mine = [Contestant(name_of(options), ours, folder, asked.threads, options) for options in variants]
    peers = [Contestant(name, PEERS[name][0], folder, asked.threads, *PEERS[name][1:]) for name in asked.peers]
    contestants = present([*mine, *peers])
    if mine[0] not in contestants:
        sys.exit(1)
    names = [one.name for one in mine if one in contestants]
    rows = prompts(batch)  # reading them also warms everyone up
    written = {one.name: one(rows, True, asked.tokens)[1] for one in contestants}
    for one in contestants:
        lengths = {len(ids) for ids in one(rows, False, asked.tokens)[1]} | set(map(len, written[one.name]))
        if lengths != {asked.tokens}:
            sys.exit(f"{one.name} wrote texts of {sorted(lengths)} tokens, not of {asked.tokens}")
    reference, *others = written
    model = make_model()
    texts = {name: agreement(model, rows, written[reference], written[name]) for name in others}
    tasks = [(rows, greedy, asked.tokens) for greedy in (True, False)]
    for (_, greedy, _), seconds in zip(tasks, take_turns(contestants, tasks, asked.rounds), strict=True):
        heading = f"batch {batch}, {'greedy' if greedy else f'top-k {TOP_K}'}"
        result["tasks"][heading] = figures(seconds, batch * asked.tokens, names)
        if not asked.json:
            print(f"\n{heading}\n{table(seconds, batch * asked.tokens, 'tokens', names)}", flush=True)
    result["texts"][batch] = texts
    if not asked.json:
        print(f"\ngreedy texts beside those of {reference}, batch {batch}")
        print("\n".join(f"{name}: {line}" for name, line in texts.items()), flush=True)
    for one in contestants:
        one.close()


if __name__ == "__main__":
    main()
