"""Generation: sampling, batched decoding with a cache, streams; translation by beam search or sampling."""

from mingyue.generation.generate import finished, generate, stream
from mingyue.generation.hypotheses import Hypothesis
from mingyue.generation.sampling import distribution
from mingyue.generation.sequence import Event, Generation
from mingyue.generation.translating import Translation, translate, translate_ids
from mingyue.generation.window import window_start

__all__ = [
    "Event",
    "Generation",
    "Hypothesis",
    "Translation",
    "distribution",
    "finished",
    "generate",
    "stream",
    "translate",
    "translate_ids",
    "window_start",
]
