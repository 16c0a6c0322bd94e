"""Inspection of a model: what it attends to, which vectors it computes, what each layer would predict.

A `Subject` is a model of either architecture with its tokenizers; a `Reading` is a text as that model reads it;
`capture` runs one forward pass and keeps named values. Each view is a module: it computes named arrays, makes tables
and charts of them, and declares its options for the command line (`COMMAND`).
"""

from mingyue.inspection.capture import Captured, capture
from mingyue.inspection.subject import Reading, Subject

__all__ = ["Captured", "Reading", "Subject", "capture"]
