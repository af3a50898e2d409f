"""The language server, spoken to by a client of the protocol."""

from __future__ import annotations

import asyncio
import sys

import pytest
from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

from tilec.errors import Span
from tilec.lsp import features

TEXT = """function (A[I, K], B[K, J]) -> (C) {
    C[i, j : I, J] = +(A[i, k] * B[k, j]);
    // ends
}
"""
WRONG = TEXT.replace("B[k, j]", "D[k, j]")


def at(text: str, part: str, more: int = 0) -> int:
    return text.index(part) + more


def test_mistakes() -> None:
    assert features.mistakes(TEXT) == []
    (found,) = features.mistakes(WRONG)
    assert found.severity == "error" and WRONG[found.span.start :].startswith("D[k")
    (found,) = features.mistakes("function (X[N]) -> (Y) { Y[i : N] = 1/2 * X[i]; }")
    assert found.severity == "warning"


def test_hover() -> None:
    assert features.hover(TEXT, at(TEXT, "A[i, k]")) == "**A**: input, `[I, K]`"
    assert "assigned by" in (features.hover(TEXT, at(TEXT, "C[i, j")) or "")
    assert features.hover(TEXT, at(TEXT, "K]")) == "**K**: dimension 1 of `A`, dimension 0 of `B`"
    role = features.hover(TEXT, at(TEXT, "[i, k]", 4)) or ""
    assert "bound by `sum`" in role and "dimension 1 of `A`" in role and "dimension 0 of `B`" in role
    assert "index of the output" in (features.hover(TEXT, at(TEXT, "[i, k]", 1)) or "")
    assert features.hover(TEXT, at(TEXT, "// ends", 4)) is None
    assert features.hover(WRONG, 3) is None


def test_definition() -> None:
    assert features.definition(TEXT, at(TEXT, "A[i, k]")) == Span(at(TEXT, "A[I"), at(TEXT, "A[I") + 1)
    assert features.definition(TEXT, at(TEXT, "(C)", 1)) == Span(at(TEXT, "C[i"), at(TEXT, "C[i") + 1)
    assert features.definition(TEXT, at(TEXT, "I, J]")) == Span(at(TEXT, "I, K"), at(TEXT, "I, K") + 1)


async def conversation() -> dict[str, object]:
    client = LanguageClient("tests", "1")
    told: asyncio.Queue[lsp.PublishDiagnosticsParams] = asyncio.Queue()

    @client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def listen(given: lsp.PublishDiagnosticsParams) -> None:
        told.put_nowait(given)

    await client.start_io(sys.executable, "-m", "tilec", "lsp")
    await client.initialize_async(lsp.InitializeParams(lsp.ClientCapabilities()))
    client.initialized(lsp.InitializedParams())
    document = lsp.TextDocumentIdentifier("file:///a.tile")
    client.text_document_did_open(
        lsp.DidOpenTextDocumentParams(lsp.TextDocumentItem(document.uri, "tile", 1, "// é𝔸\n" + WRONG))
    )
    found: dict[str, object] = {"wrong": (await asyncio.wait_for(told.get(), 60)).diagnostics}
    client.text_document_did_change(
        lsp.DidChangeTextDocumentParams(
            lsp.VersionedTextDocumentIdentifier(2, document.uri),
            [lsp.TextDocumentContentChangeWholeDocument(TEXT.replace("    C", "  C"))],
        )
    )
    found["right"] = (await asyncio.wait_for(told.get(), 60)).diagnostics
    place = lsp.Position(1, 2)
    found["hover"] = await client.text_document_hover_async(lsp.HoverParams(document, place))
    found["definition"] = await client.text_document_definition_async(
        lsp.DefinitionParams(document, lsp.Position(0, 32))
    )
    options = lsp.FormattingOptions(4, True)
    found["format"] = await client.text_document_formatting_async(lsp.DocumentFormattingParams(document, options))
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()
    return found


def test_a_conversation() -> None:
    found = asyncio.run(asyncio.wait_for(conversation(), 120))
    (wrong,) = found["wrong"]  # type: ignore[misc]
    assert wrong.range.start == lsp.Position(2, WRONG.split("\n")[1].index("D[k")) and "D" in wrong.message
    assert not found["right"]
    assert "assigned by" in found["hover"].contents.value  # type: ignore[attr-defined]
    assert found["definition"].range.start == lsp.Position(1, 2)  # type: ignore[attr-defined]
    (edit,) = found["format"]  # type: ignore[misc]
    assert edit.new_text == TEXT


@pytest.mark.parametrize("text", ["", "Y = ", "function (", "// only", "Y[i] = §"])
def test_texts_that_are_not_finished(text: str) -> None:
    for offset in range(len(text) + 1):
        features.hover(text, offset), features.definition(text, offset)
    features.mistakes(text)
