"""Measuring text: how likely a model finds it, and how much of it was copied."""

from mingyue.scoring.copying import CopyReport, copy_report
from mingyue.scoring.likelihood import Score, TokenScore, score, token_logprobs, window_starts

__all__ = ["CopyReport", "Score", "TokenScore", "copy_report", "score", "token_logprobs", "window_starts"]
