"""Fields that clients send and this server has no use for: the value that asks for nothing is accepted, no other."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from mingyue.words import tr


class Body(BaseModel):
    """Base of all requests: unknown fields are refused, and values are taken as they are, not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True, protected_namespaces=())


class Takes(WrapValidator):
    """Says in our words what a field takes, in place of what each type of a union misses."""

    def __init__(self, words: str) -> None:
        def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:  # noqa: ANN401  (whatever was sent)
            try:
                return handler(value)
            except ValidationError:
                raise ValueError(words) from None

        super().__init__(check)


_OFF = Field(description="Accepted at this value only: the server does not do it.")
_NOT_DONE = Takes(tr("this server does not do it; leave the field out"))
OnlyNull = Annotated[None, _OFF, _NOT_DONE]
OnlyFalse = Annotated[Literal[False] | None, _OFF, _NOT_DONE]
OnlyEmptyText = Annotated[Literal[""] | None, _OFF, _NOT_DONE]
OnlyNoTool = Annotated[Literal["none", "auto"] | None, _OFF, _NOT_DONE]
OnlyDefaultTier = Annotated[Literal["auto", "default"] | None, _OFF, _NOT_DONE]
OnlyEmptyList = Annotated[list[Any] | None, Field(max_length=0, description=_OFF.description), _NOT_DONE]
