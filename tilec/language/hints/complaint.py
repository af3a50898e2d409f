"""What the parser says of a token that it cannot take."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lark import Token

from tilec.errors import Span
from tilec.language.syntax import token_span


@dataclass(frozen=True)
class Complaint:
    """The token that does not fit, the kinds that would, the tokens before it and the brackets open there."""

    token: Token
    accepted: Collection[str]
    before: list[Token]
    open: list[Token]
    source: str

    @property
    def previous(self) -> Token | None:
        return self.before[-1] if self.before else None

    @property
    def span(self) -> Span:
        return token_span(self.token)
