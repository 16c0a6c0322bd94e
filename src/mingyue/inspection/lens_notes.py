"""How to read a logit lens, by the model: what is decoded, and why low layers predict what they do."""

from __future__ import annotations

from mingyue.words import Words


def read_out(normed: bool) -> Words:
    """How a prediction is decoded from a layer; `normed`: the model has a final norm."""
    norm = (
        Words("after the final norm", "经过最终归一化")
        if normed
        else Words("as it is (this model has no final norm)", "原样（这个模型没有最终归一化）")
    )
    return Words(
        f"the residual stream at that layer, {norm.en}, through the output layer. Layers are counted from 0.",
        f"该层的残差流，{norm.zh}，再经过输出层。层从 0 数起。",
    )


def low_layers(tied: bool) -> Words:
    """Why low layers predict what they do; `tied`: the output layer is the embedding table."""
    if tied:
        return Words(
            "The embeddings and low layers mostly give the token just read: input and output share one table (tied), "
            "so its own row is the most similar one. Higher layers turn it into what follows.",
            "嵌入和低层给出的多半就是刚读到的 token：输入和输出共用一张嵌入表（绑定），与它最相似的正是它自己的那一行；"
            "较高的层才把它变成后面的 token。",
        )
    return Words(
        "The embeddings and low layers give tokens that often follow the token just read, as a bigram model does: they "
        "have seen little else. Higher layers add the context.",
        "嵌入和低层给出的是常跟在刚读到的 token 后面的 token，类似二元（bigram）模型：那里还几乎没有别的信息；"
        "较高的层才加入上下文。",
    )


def about_picture(normed: bool, tied: bool, *, ends_open: bool) -> Words:
    """The note of the grid; `ends_open`: the token after the last column is unknown."""
    how, low, last = read_out(normed), low_layers(tied), Words("", "")
    if ends_open:
        last = Words(
            " The last column is a prediction: the next token is unknown.", "最后一列是预测：后面的 token 未知。"
        )
    return Words(
        f"Columns: the token just read. Rows: {how.en}{last.en} {low.en}",
        f"列：刚读到的 token。行：{how.zh}{last.zh}{low.zh}",
    )


def about_means(normed: bool, tied: bool, known: int) -> Words:
    """The note of the means by layer, over `known` positions whose next token is known."""
    how, low = read_out(normed), low_layers(tied)
    if not known:
        return Words(f"Rows: {how.en} {low.en}", f"行：{how.zh}{low.zh}")
    positions = "position" if known == 1 else "positions"
    return Words(
        f"Rows: {how.en} Rank and −log P: means over the {known:,} {positions} where the next token is known. {low.en}",
        f"行：{how.zh}名次和 −log P 是已知下一个 token 的 {known:,} 个位置上的平均。{low.zh}",
    )
