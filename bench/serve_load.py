"""`mingyue serve` under load: many streams at once, readers that go away or are slow, and a SIGTERM in the middle.

    python bench/serve_load.py runs/poems --streams 500 --rounds 10

Each round opens all streams at once. Of the readers, a part goes away after a random number of tokens, a part reads
slowly, a part does not stream. Checked: every text that was read to its end equals the one that the model generates
offline, no row and no byte of the cache stays in use, the memory of the server does not grow from round to round, and
after SIGTERM every admitted request is completed. Measured: the time between tokens with 1, 16 and 64 streams. The
server is a process of its own on 127.0.0.1; all counts and times are bounded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import psutil

from mingyue import api
from mingyue.runtime import available_cores

PROMPTS = ("", "The ", "a", "床前", "明月", "In the", "春", "to be")
SEEDS = 8
ROUND_SECONDS = 600.0
FREE_SECONDS = 2.0  # in which the rows of a finished round must be free


@dataclass(frozen=True)
class Job:
    """What one reader asks for, and how it reads."""

    prompt: str
    seed: int
    kind: str  # whole, slow, leaves, not streamed
    after: int = 0  # events after which it leaves


@dataclass
class Found:
    """What the readers of a round saw."""

    ends: Counter[str] = field(default_factory=Counter)
    equal: int = 0
    different: list[Job] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)


class Load:
    """Readers of one server."""

    def __init__(self, url: str, model: str, tokens: int, expected: dict[tuple[str, int], str]) -> None:
        self._host, self._port = url.removeprefix("http://").split(":")
        self._model, self._tokens, self._expected = model, tokens, expected

    async def round(self, jobs: list[Job]) -> Found:
        """Every job at once."""
        found = Found()
        async with asyncio.timeout(ROUND_SECONDS):
            await asyncio.gather(*(self._read(job, found) for job in jobs))
        return found

    async def _read(self, job: Job, found: Found) -> None:
        reader, writer = await asyncio.open_connection(self._host, int(self._port), limit=1 << 20)
        try:
            stream = job.kind != "not streamed"
            body = {"model": self._model, "prompt": job.prompt, "seed": job.seed, "max_tokens": self._tokens}
            content = json.dumps({**body, "stream": stream, "sliding": True}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {self._host}\r\nConnection: close\r\n"
            writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode())
            writer.write(content)
            await writer.drain()
            status = int((await reader.readline()).split()[1])
            while (await reader.readline()).strip():
                pass
            if status != 200:
                found.ends[f"status {status}"] += 1
                return
            text = await (self._stream(job, reader, found) if stream else self._whole(reader))
            if text is None:
                found.ends["left"] += 1
                return
            found.ends["complete"] += 1
            if text == self._expected[job.prompt, job.seed]:
                found.equal += 1
            else:
                found.different.append(job)
        finally:
            writer.close()

    async def _stream(self, job: Job, reader: asyncio.StreamReader, found: Found) -> str | None:
        pieces: list[str] = []
        last, ended = None, False
        while line := await reader.readline():
            if line.startswith(b"data: [DONE]"):
                ended = True
            elif line.startswith(b"data: "):
                now = time.perf_counter()
                if last is not None:
                    found.gaps.append(now - last)
                last = now
                pieces.append(json.loads(line[6:])["choices"][0]["text"])
                if job.kind == "leaves" and len(pieces) > job.after:
                    return None
                if job.kind == "slow":
                    await asyncio.sleep(0.02)
        return "".join(pieces) if ended else "(the stream has no end)"

    async def _whole(self, reader: asyncio.StreamReader) -> str:
        return json.loads(await reader.read())["choices"][0]["text"]

    async def metrics(self) -> dict[str, float]:
        """The counters of the server."""
        reader, writer = await asyncio.open_connection(self._host, int(self._port))
        writer.write(f"GET /metrics HTTP/1.1\r\nHost: {self._host}\r\nConnection: close\r\n\r\n".encode())
        text = (await reader.read()).decode()
        writer.close()
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("mingyue_")]
        return {name.partition("{")[0]: float(value) for name, value in lines}

    async def time_until_free(self) -> float:
        """Seconds until no text holds a row. Raises `SystemExit` if that takes too long."""
        began = time.perf_counter()
        names = ("mingyue_texts_running", "mingyue_texts_waiting", "mingyue_cache_used_bytes")
        while True:
            found = await self.metrics()
            if not any(found[name] for name in names):
                return time.perf_counter() - began
            if time.perf_counter() - began > FREE_SECONDS:
                raise SystemExit(f"rows are still in use: {found}")
            await asyncio.sleep(0.01)


def draw_jobs(count: int, tokens: int, draw: random.Random) -> list[Job]:
    """Readers of every kind, in random order."""
    kinds = ("leaves", "slow", "not streamed", "whole")
    chosen = draw.choices(kinds, weights=(3, 1, 1, 5), k=count)
    return [
        Job(draw.choice(PROMPTS), draw.randrange(SEEDS), kind, draw.randrange(max(1, tokens // 2))) for kind in chosen
    ]


def offline(folder: str, tokens: int, threads: int) -> dict[tuple[str, int], str]:
    """The text of every prompt and seed, as the model generates it without a server."""
    model = api.load(folder, device="cpu", threads=threads)
    found: dict[tuple[str, int], str] = {}
    for seed in range(SEEDS):
        for prompt in PROMPTS:
            (one,) = model.generate([prompt], max_new_tokens=tokens, temperature=1.0, seed=seed)
            found[prompt, seed] = one.text
    return found


def start(folder: str, threads: int) -> tuple[subprocess.Popen[str], str, str]:
    """The server, its address, and the name of the model."""
    command = [sys.executable, "-m", "mingyue", "serve", folder, "--port", "0", "--threads", str(threads)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, encoding="utf-8", env={**os.environ, "LC_ALL": "C"}
    )
    assert process.stdout is not None
    words = process.stdout.readline().split()
    if len(words) < 4:
        raise SystemExit("the server did not start")
    return process, words[3].rstrip("."), words[1]


async def measure(load: Load, process: subprocess.Popen[str], options: argparse.Namespace) -> None:
    """Every part, in order; prints what it finds."""
    draw, server = random.Random(options.seed), psutil.Process(process.pid)
    print("\n| streams | tokens/s | between tokens: p50 | p99 |\n|--|--|--|--|")
    for count in (1, 16, 64):
        gaps: list[float] = []
        began, events = time.perf_counter(), 0
        for _ in range(options.repeats):
            jobs = [Job(draw.choice(PROMPTS), draw.randrange(SEEDS), "whole") for _ in range(count)]
            found = await load.round(jobs)
            check(found, len(jobs))
            gaps += found.gaps
            events += len(found.gaps) + count
        rate = events / (time.perf_counter() - began)
        p50, p99 = statistics.median(gaps), sorted(gaps)[int(0.99 * (len(gaps) - 1))]
        print(f"| {count} | {rate:,.0f} | {1000 * p50:.1f} ms | {1000 * p99:.1f} ms |")
    print(f"\n{options.streams} streams at once, {options.rounds} rounds:\n")
    print("| round | s | complete | equal to offline | left | rows free after | memory of the server |")
    print("|--|--|--|--|--|--|--|")
    memory: list[float] = []
    for number in range(options.rounds):
        began = time.perf_counter()
        found = await load.round(draw_jobs(options.streams, options.tokens, draw))
        seconds = time.perf_counter() - began
        check(found, options.streams)
        free = await load.time_until_free()
        memory.append(server.memory_info().rss / 2**20)
        ends = found.ends
        print(
            f"| {number + 1} | {seconds:.1f} | {ends['complete']} | {found.equal} | {ends['left']} | "
            f"{1000 * free:.0f} ms | {memory[-1]:.0f} MiB |"
        )
    print(f"\nMemory, last round − second round: {memory[-1] - memory[min(1, len(memory) - 1)]:+.1f} MiB")
    jobs = [Job(draw.choice(PROMPTS), draw.randrange(SEEDS), "whole") for _ in range(64)]
    waiting = asyncio.ensure_future(load.round(jobs))
    while (await load.metrics())["mingyue_requests_in_progress"] < len(jobs) + 1:
        await asyncio.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    found = await waiting
    check(found, len(jobs))
    code = await asyncio.to_thread(process.wait, 60)
    print(f"SIGTERM with {len(jobs)} streams in progress: {found.equal} complete and equal, exit code {code}")


def check(found: Found, count: int) -> None:
    """Raise `SystemExit` for a text that is not the offline one, and for a request that was not answered."""
    answered = found.ends["complete"] + found.ends["left"]
    if found.different or answered != count:
        raise SystemExit(f"{len(found.different)} texts differ, {answered} of {count} answered: {found.ends}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", nargs="?", default="runs/demo", help="folder of a decoder-only model")
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=64, help="generated tokens of each text")
    parser.add_argument("--repeats", type=int, default=3, help="rounds of each number of streams that is timed")
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    machine = platform.processor() or platform.machine()
    print(f"{machine}, {available_cores()} cores, server with {options.threads} threads")
    expected = offline(options.run, options.tokens, options.threads)
    process, url, model = start(options.run, options.threads)
    try:
        asyncio.run(measure(Load(url, model, options.tokens, expected), process, options))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


if __name__ == "__main__":
    main()
