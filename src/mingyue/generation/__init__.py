"""Generation: sampling, continuous batching on a cache, streams; translation by beam search or sampling.

Names are imported when they are first used: on the onnxruntime back end generation needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mingyue.generation.backend import Backend
    from mingyue.generation.engine import Engine
    from mingyue.generation.hypotheses import Hypothesis
    from mingyue.generation.prompts import finished, generate, stream, stream_prompts
    from mingyue.generation.request import Request, TokenScore
    from mingyue.generation.rules import TokenRules
    from mingyue.generation.sampling import distribution
    from mingyue.generation.sequence import Event, Generation
    from mingyue.generation.service import BusyError, Job, Service
    from mingyue.generation.torch_backend import TorchBackend
    from mingyue.generation.translating import Translation, translate, translate_ids
    from mingyue.generation.window import window_start

_HOMES = {
    "Backend": "backend",
    "BusyError": "service",
    "Engine": "engine",
    "Event": "sequence",
    "Generation": "sequence",
    "Hypothesis": "hypotheses",
    "Job": "service",
    "Request": "request",
    "Service": "service",
    "TokenRules": "rules",
    "TokenScore": "request",
    "TorchBackend": "torch_backend",
    "Translation": "translating",
    "distribution": "sampling",
    "finished": "prompts",
    "generate": "prompts",
    "stream": "prompts",
    "stream_prompts": "prompts",
    "translate": "translating",
    "translate_ids": "translating",
    "window_start": "window",
}

__all__ = [
    "Backend",
    "BusyError",
    "Engine",
    "Event",
    "Generation",
    "Hypothesis",
    "Job",
    "Request",
    "Service",
    "TokenRules",
    "TokenScore",
    "TorchBackend",
    "Translation",
    "distribution",
    "finished",
    "generate",
    "stream",
    "stream_prompts",
    "translate",
    "translate_ids",
    "window_start",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name in _HOMES:
        return getattr(import_module(f"mingyue.generation.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'mingyue.generation' has no attribute {name!r}")
