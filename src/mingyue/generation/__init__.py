"""Writing text with a model: sampling, batched decoding with a cache, streams."""

from mingyue.generation.generate import generate, stream
from mingyue.generation.sampling import distribution
from mingyue.generation.window import window_start
from mingyue.generation.writing import Event, Generation

__all__ = ["Event", "Generation", "distribution", "generate", "stream", "window_start"]
