"""Settings of the HTTP server: where it listens, who may use it, and its limits."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mingyue.config.base import Settings
from mingyue.config.numbers import Count, Positive, PositiveFloat, Workers

Port = Annotated[int, Field(ge=0, le=65_535)]


class ServeSettings(Settings):
    """Where the server listens, who may use it, and its limits. A request beyond a limit is refused with a reason."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 = every network of this machine (then give --api-key too)."""
    port: Port = 8000
    """Port to listen on; 0 = any free one."""
    api_key: Annotated[str, Field(min_length=1)] | None = None
    """Key that every request except /health must send as `Authorization: Bearer KEY`; better given in the
    environment variable MINGYUE_API_KEY, which other users of the machine cannot see."""
    allowed_host: tuple[str, ...] = ()
    """Host name under which the server is reached, such as models.example.org, besides the names of this machine."""
    cors_origin: tuple[str, ...] = ()
    """Origin of web pages that may use the server, such as https://example.org, besides its own pages."""
    language_pair: tuple[str, ...] = ()
    """Languages of an encoder-decoder model for /translate, as MODEL=SOURCE:TARGET, such as digits=en:de."""
    claims: str | None = None
    """Folder with results of claims, written by `mingyue claims run`, to be read under /api/claims."""
    max_body_bytes: Positive = 4 * 2**20
    """Largest body of a request, in bytes."""
    max_tokens: Positive = 4096
    """Largest number of generated tokens of one text."""
    max_texts: Positive = 128
    """Largest number of texts of one request: prompts × n."""
    max_waiting: Positive = 1024
    """Largest number of texts that wait for a place in the batch; further requests get status 429."""
    max_requests: Positive = 1024
    """Largest number of requests in progress, streams included; further ones get status 429."""
    max_calls: Positive = 64
    """Largest number of requests other than generation (scores, embeddings, views, translations) that wait."""
    cache_gib: PositiveFloat = 1.0
    """Memory for the keys and values of all texts of one model, in GiB; texts beyond it wait."""
    stall_seconds: PositiveFloat = 30.0
    """Time for which a reader may take nothing from a stream before it is disconnected, in seconds."""
    stream_buffer: Positive = 4096
    """Largest number of tokens that a reader may be behind; one that is further behind is disconnected."""
    drain_seconds: PositiveFloat = 30.0
    """Time for requests in progress to complete after SIGTERM or Ctrl-C, in seconds."""
    threads: Workers | None = None
    """Number of CPU threads [default: all available cores]."""
    device: str | None = None
    """cpu, cuda or mps [default: best available]."""
    backend: Literal["torch", "onnxruntime"] | None = None
    """What computes the models, torch or onnxruntime [default: onnxruntime on CPUs, if installed]."""
    weights: Literal["fp32", "int8"] = "fp32"
    """Numbers of the weights: int8 is faster, less exact, and needs onnxruntime."""
    keep_alive_seconds: Count = 15
    """Time for which an idle connection is kept open, in seconds."""
