"""Explain: what a function does, how it is lowered and what that costs, as one page of HTML."""

from tilec.explain.page import Page, explanation_page

__all__ = ["Page", "explanation_page"]
