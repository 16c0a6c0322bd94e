"""How to read a logit lens, by the model: what is decoded, and why low layers predict what they do."""

from __future__ import annotations

from mingyue.words import Words, tr


def read_out(normed: bool) -> Words:
    """How a prediction is decoded from a layer; `normed`: the model has a final norm."""
    norm = tr("after the final norm") if normed else tr("as it is (this model has no final norm)")
    return tr("the residual stream at that layer, {norm}, through the output layer. Layers are counted from 0.", norm)


def low_layers(tied: bool) -> Words:
    """Why low layers predict what they do; `tied`: the output layer is the embedding table."""
    if tied:
        return tr(
            "The embeddings and low layers mostly give the token just read: input and output "
            "share one table (tied), so its own row is the most similar one. Higher layers turn "
            "it into what follows."
        )
    return tr(
        "The embeddings and low layers give tokens that often follow the token just read, as "
        "a bigram model does: they have seen little else. Higher layers add the context."
    )


def about_picture(normed: bool, tied: bool, *, ends_open: bool) -> Words:
    """The note of the grid; `ends_open`: the token after the last column is unknown."""
    how, low, last = read_out(normed), low_layers(tied), Words("", "")
    if ends_open:
        last = tr(" The last column is a prediction: the next token is unknown.")
    return tr("Columns: the token just read. Rows: {how}{last} {low}", how, last, low)


def about_means(normed: bool, tied: bool, known: int) -> Words:
    """The note of the means by layer, over `known` positions whose next token is known."""
    how, low = read_out(normed), low_layers(tied)
    if not known:
        return tr("Rows: {how} {low}", how, low)
    positions = "position" if known == 1 else "positions"
    return tr(
        "Rows: {how} Rank and −log P: means over the {known:,} {positions} where the next token is known. {low}",
        how,
        known,
        positions,
        low,
    )
