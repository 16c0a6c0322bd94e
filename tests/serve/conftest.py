"""Small lively models, served on a free port of this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import torch

from mingyue.bundle import save_bundle
from mingyue.config import EncoderDecoderConfig, ModelConfig, ServeSettings
from mingyue.models import build_model
from mingyue.runtime import derive_seed
from mingyue.serve import Catalog, Server
from mingyue.text import train_char

TEXT = "床前明月光，疑是地上霜。举头望明月，低头思故乡。 the quick brown fox jumps over a lazy dog\n"
SMALL = {"d_model": 24, "n_heads": 4, "n_kv_heads": 2, "d_head": 6, "d_ff": 32, "n_layers": 2, "context": 64}
CHAT = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
TOKENIZER = train_char([TEXT])


def lively(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """The same module with large random weights, so that texts are far from ties."""
    with torch.no_grad():
        for name, weight in module.named_parameters():
            noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(derive_seed(seed, name)))
            gain = name.endswith("norm.weight")
            weight.copy_(noise * (0.3 if gain or weight.ndim == 1 else 1.5 / weight.shape[1] ** 0.5) + float(gain))
    return module


def save_text_model(folder: Path, seed: int = 0, **training) -> Path:
    config = ModelConfig(**SMALL, vocab_size=TOKENIZER.vocab_size, positions="rotary")
    module = lively(build_model(config, seed=seed), seed)
    save_bundle(folder, config, module.state_dict(), TOKENIZER, {"steps": 0, "begin_id": 260, **training})
    return folder


def save_pair_model(folder: Path) -> Path:
    config = EncoderDecoderConfig(**SMALL, vocab_size=TOKENIZER.vocab_size, n_encoder_layers=2, tied_output=False)
    module = lively(build_model(config, seed=0))
    save_bundle(folder, config, module.state_dict(), TOKENIZER, {"steps": 0})
    return folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Model folders: `plain`; `begun` with BOS and no bytes in its texts; `talks` with a chat template; `zh-en`."""
    place = tmp_path_factory.mktemp("served")
    return {
        "plain": save_text_model(place / "plain"),
        "begun": save_text_model(place / "begun", 1, starts_with_bos=True, unseen=[[3, 258]]),
        "talks": save_text_model(place / "talks", 2, starts_with_bos=True, chat_template=CHAT),
        "zh-en": save_pair_model(place / "zh-en"),
    }


@pytest.fixture(scope="session")
def serving(folders) -> Callable:
    """`with serving("plain", api_key="x") as server`: those models on a free port; `server.url` is the address."""

    @contextmanager
    def serve(*names: str, **given) -> Iterator[Server]:
        settings = ServeSettings(**{"port": 0, "threads": 1, "device": "cpu", "cache_gib": 0.05, **given})
        server = Server(Catalog.open([folders[name] for name in names], settings), settings)
        with server.running():
            yield server

    return serve


@pytest.fixture(scope="module")
def server(serving) -> Iterator[Server]:
    """All four models, with the default limits."""
    with serving("plain", "begun", "talks", "zh-en") as found:
        yield found


@pytest.fixture
def client(server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as found:
        yield found


@pytest.fixture
def ask(client) -> Callable:
    """`ask(path, **body)`: the answer to a request that must succeed."""

    def post(path: str, **body):
        answer = client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return post


@pytest.fixture
def refused(client) -> Callable:
    """`refused(path, **body)`: (status, error) of a request that must fail."""

    def post(path: str, **body):
        answer = client.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
        error = answer.json()["error"]
        assert answer.status_code >= 400 and set(answer.json()) == {"error"}
        assert set(error) == {"message", "type", "param", "code"} and error["message"]
        return answer.status_code, error

    return post


@pytest.fixture
def events(client) -> Callable:
    """`events(path, **body)`: the chunks of a stream, after its form was checked."""

    def post(path: str, **body):
        with client.stream("POST", path, json={**body, "stream": True}) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = "".join(answer.iter_text()).split("\n\n")
        assert lines[-1] == "" and all(line.startswith("data: ") for line in lines[:-1])
        assert lines[-2] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]

    return post
