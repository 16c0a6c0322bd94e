"""Scores of text: its likelihood under a model, how much of it is copied or repeated, its quality as a translation."""

from mingyue.scoring.copying import CopyReport, copy_report
from mingyue.scoring.likelihood import Score, TokenScore, score, token_logprobs, window_starts
from mingyue.scoring.repetition import Loop, Repetition, repetition
from mingyue.scoring.repetition_report import RepetitionReport, repetition_report
from mingyue.scoring.translation import TranslationScores, has_four_grams, translation_scores

__all__ = [
    "CopyReport",
    "Loop",
    "Repetition",
    "RepetitionReport",
    "Score",
    "TokenScore",
    "TranslationScores",
    "copy_report",
    "has_four_grams",
    "repetition",
    "repetition_report",
    "score",
    "token_logprobs",
    "translation_scores",
    "window_starts",
]
