"""Generation: sampling, continuous batching on a cache, streams; translation by beam search or sampling.

Names are imported when they are first used: on the onnxruntime back end generation needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mingyue.lazy import lazy_names

if TYPE_CHECKING:
    from mingyue.generation.backend import Backend
    from mingyue.generation.engine import Engine
    from mingyue.generation.hypotheses import Hypothesis
    from mingyue.generation.prompts import finished, generate, stream, stream_prompts
    from mingyue.generation.request import PromptToken, Request
    from mingyue.generation.rules import TokenRules
    from mingyue.generation.sampling import distribution
    from mingyue.generation.sequence import Event, Generation
    from mingyue.generation.service import BusyError, Job, Service
    from mingyue.generation.torch_backend import TorchBackend
    from mingyue.generation.translating import Translation, translate, translate_ids
    from mingyue.generation.window import window_start

__all__ = [
    "Backend",
    "BusyError",
    "Engine",
    "Event",
    "Generation",
    "Hypothesis",
    "Job",
    "PromptToken",
    "Request",
    "Service",
    "TokenRules",
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

__getattr__ = lazy_names(
    __name__,
    {
        "backend": ("Backend",),
        "engine": ("Engine",),
        "hypotheses": ("Hypothesis",),
        "prompts": ("finished", "generate", "stream", "stream_prompts"),
        "request": ("Request", "PromptToken"),
        "rules": ("TokenRules",),
        "sampling": ("distribution",),
        "sequence": ("Event", "Generation"),
        "service": ("BusyError", "Job", "Service"),
        "torch_backend": ("TorchBackend",),
        "translating": ("Translation", "translate", "translate_ids"),
        "window": ("window_start",),
    },
)
