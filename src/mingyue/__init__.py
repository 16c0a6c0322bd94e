"""Mingyue 明月: a Transformer you can see through."""

__version__ = "0.1.0"
