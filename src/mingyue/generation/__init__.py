"""Writing text with a model: sampling, batched decoding with a cache, streams; translating by beam search."""

from mingyue.generation.generate import generate, stream
from mingyue.generation.hypotheses import Hypothesis
from mingyue.generation.sampling import distribution
from mingyue.generation.translating import Translation, translate, translate_ids
from mingyue.generation.window import window_start
from mingyue.generation.writing import Event, Generation

__all__ = [
    "Event",
    "Generation",
    "Hypothesis",
    "Translation",
    "distribution",
    "generate",
    "stream",
    "translate",
    "translate_ids",
    "window_start",
]
