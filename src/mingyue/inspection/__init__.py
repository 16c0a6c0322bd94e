"""Looking inside a model: what it attends to, which vectors it makes, what it would say at each layer, and why.

A `Subject` is a model with its tokenizers, of either architecture; a `Reading` is a text as it reads it; `capture` runs
one forward pass and keeps named values. Each view computes named arrays from these, and can draw and print itself.
"""

from mingyue.inspection.capture import Captured, capture
from mingyue.inspection.subject import Reading, Subject

__all__ = ["Captured", "Reading", "Subject", "capture"]
