"""Chat templates: Jinja in a sandbox, which makes the tokens of a conversation.

The text of a message cannot make special tokens. A template writes them by the names `bos_token` and `eos_token`; while
it is rendered these are markers that no message can know, and the ids are put in their places afterwards.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mingyue.errors import BundleError
from mingyue.parsing import parse_json
from mingyue.serve.errors import ApiError
from mingyue.words import tr

if TYPE_CHECKING:
    from mingyue import api
    from mingyue.text import Tokenizer


@dataclass(frozen=True)
class ChatTemplate:
    """A template with the tokenizer that it belongs to."""

    source: str
    template: Template
    tokenizer: Tokenizer
    starts_with_bos: bool

    def ids(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> list[int]:
        """The tokens of a conversation. Raises `ApiError` where the template refuses it."""
        nonce = secrets.token_hex(16)
        bos, eos = f"\ue000{nonce}b\ue000", f"\ue000{nonce}e\ue000"
        try:
            text = self.template.render(
                messages=[dict(one) for one in messages],
                add_generation_prompt=add_generation_prompt,
                bos_token=bos,
                eos_token=eos,
                raise_exception=_refuse,
            )
        except (
            TemplateError,
            TypeError,
            ValueError,
            OverflowError,
            ArithmeticError,
            LookupError,
            AttributeError,
        ) as error:
            raise ApiError(
                tr("the chat template refuses these messages: {error}", error), param="messages", code="template_error"
            ) from None
        ids: list[int] = []
        for first, piece in enumerate(text.split(bos)):
            ids += [self.tokenizer.bos_id] if first else []
            for second, part in enumerate(piece.split(eos)):
                ids += [self.tokenizer.eos_id] if second else []
                ids += self.tokenizer.encode(part) if part else []
        if self.starts_with_bos and ids[:1] != [self.tokenizer.bos_id]:
            ids.insert(0, self.tokenizer.bos_id)
        return ids


def template_of(model: api.Model) -> ChatTemplate | None:
    """The template in training.json or tokenizer.json, under `chat_template`; None where neither has one.

    Raises `BundleError` for one that is not a template.
    """
    source = model.training.get("chat_template") or parse_json(model.tokenizer.to_json()).get("chat_template")
    if source is None:
        return None
    if not isinstance(source, str):
        raise BundleError(tr("chat_template is not text"))
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    try:
        template = environment.from_string(source)
    except TemplateSyntaxError as error:
        raise BundleError(tr("chat_template is no template: line {line}: {error}", error.lineno, error)) from None
    return ChatTemplate(source, template, model.tokenizer, model.starts_with_bos)


def _refuse(message: str) -> NoReturn:
    """What templates call `raise_exception`."""
    raise TemplateError(message)
