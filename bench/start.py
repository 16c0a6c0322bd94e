"""Starting: seconds from the start of `mingyue generate` to its first token, beside a pipeline of transformers.

    python bench/start.py [--rounds 5] [--threads 2] [--options "--backend onnxruntime"]

A model of 10 million parameters with random weights (7 layers, width 320, 5,000 words), which the script writes, the
same in both. A command writes one token, greedily, after a prompt of three: `python -m mingyue generate MODEL --prompt
TEXT --max-new-tokens 1`, and a few lines of Python with transformers' text-generation pipeline, offline. The two take
turns, each time in a new process; medians are printed: to the token on standard output, and to the end of the process.
Beside them, for comparison, the time of a Python that only imports torch, and of one that does nothing. The files are
in the memory of the system after the first round, which is not counted. The tokens are compared. Needs the `hf` extra
for the second; it is left out where that is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _turns import spread
from generate import N_NEVER, text_of, write_models

SIZES = {"width": 320, "n_layers": 7}
PROMPT = text_of([N_NEVER + 100, N_NEVER + 2000, N_NEVER + 4000])
PIPELINE = """
import sys
from transformers import pipeline
write = pipeline("text-generation", model=sys.argv[1], device="cpu")
found = write(sys.argv[2], max_new_tokens=1, do_sample=False)
print(found[0]["generated_text"], flush=True)
"""
OURS, THEIRS = "mingyue generate", "transformers pipeline"
FLOORS = {"python, import torch": "import torch; print('ready', flush=True)", "python": "print('ready', flush=True)"}


def timed(command, written, environment) -> tuple[float, float, str]:
    """Seconds to the first character on standard output after `written`, and to the end of the process; the text."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env=environment)
    found, first = b"", None
    n_written = len(written.encode())
    assert process.stdout is not None
    while piece := process.stdout.read(4096):
        found += piece
        if first is None and len(found) > n_written:
            first = time.perf_counter() - start
    errors = process.stderr.read() if process.stderr is not None else b""
    code = process.wait()
    end = time.perf_counter() - start
    text = found.decode().rstrip("\n")
    if code or first is None or not text.startswith(written):
        sys.exit(f"{shlex.join(command)}\nended with {code}; it wrote {text!r}\n{errors.decode(errors='replace')}")
    return first, end, text.removeprefix(written)


def add_tokenizer(folder: Path, ours: Path) -> None:
    """The tokenizer of ours for the folder of transformers."""
    (folder / "tokenizer.json").write_bytes((ours / "tokenizer.json").read_bytes())
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--options", default="", help="further options of `mingyue generate`")
    parser.add_argument("--json", action="store_true", help="print the line of JSON only")
    asked = parser.parse_args()
    threads = {name: str(asked.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONIOENCODING": "utf-8"}
    with tempfile.TemporaryDirectory() as name:
        compare(asked, Path(name), os.environ | threads | offline)


def compare(asked, folder: Path, environment) -> None:
    write_models(folder, **SIZES)
    add_tokenizer(folder / "hf", folder / "ours")
    one_token = ["--prompt", PROMPT, "--max-new-tokens", "1", "--temperature", "0", "--threads", str(asked.threads)]
    options = [*one_token, "--device", "cpu", *shlex.split(asked.options)]
    commands = {OURS: ([sys.executable, "-m", "mingyue", "generate", str(folder / "ours"), *options], PROMPT)}
    if importlib.util.find_spec("transformers") is None:
        print(f"{THEIRS} is left out: transformers is not installed", file=sys.stderr)
    else:
        commands[THEIRS] = ([sys.executable, "-c", PIPELINE, str(folder / "hf"), PROMPT], PROMPT)
    commands |= {name: ([sys.executable, "-c", program], "") for name, program in FLOORS.items()}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    texts: dict[str, set[str]] = {name: set() for name in commands}
    for number in range(asked.rounds + 1):
        for name, (command, written) in commands.items():
            first, end, text = timed(command, written, environment)
            texts[name].add(text)
            if number:
                seconds[name].append((first, end))
    result = {"threads": asked.threads, "rounds": asked.rounds, "seconds": {}}
    for name, times in seconds.items():
        firsts, ends = zip(*times, strict=True)
        result["seconds"][name] = {
            "first_token": round(statistics.median(firsts), 3),
            "end": round(statistics.median(ends), 3),
        }
        if not asked.json:
            print(f"{name:24}first output after {spread(firsts, 2)} s, end after {spread(ends, 2)} s")
    if THEIRS in seconds:
        ratios = [theirs[0] / ours[0] for ours, theirs in zip(seconds[OURS], seconds[THEIRS], strict=True)]
        result |= {
            "ratio": round(statistics.median(ratios), 2),
            "ratios": [round(one, 2) for one in ratios],
            "same_token": texts[OURS] == texts[THEIRS],
        }
        if not asked.json:
            print(f"{OURS} is {spread(ratios, 2)} times as fast to its first token; same token: {result['same_token']}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
