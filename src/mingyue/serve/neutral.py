"""Fields that clients send and this server has no use for: the value that asks for nothing is accepted, no other."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Body(BaseModel):
    """Base of all requests: unknown fields are refused, and values are taken as they are, not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True, protected_namespaces=())


_OFF = Field(description="Accepted at this value only: the server does not do it.")
OnlyNull = Annotated[None, _OFF]
OnlyFalse = Annotated[Literal[False] | None, _OFF]
OnlyEmptyText = Annotated[Literal[""] | None, _OFF]
OnlyNoTool = Annotated[Literal["none", "auto"] | None, _OFF]
OnlyDefaultTier = Annotated[Literal["auto", "default"] | None, _OFF]
OnlyEmptyList = Annotated[list[Any] | None, Field(max_length=0, description=_OFF.description)]
