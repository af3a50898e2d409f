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
PATIENCE = 600  # seconds, on a machine that is busy with other things


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


MENDED = {  # what is written, and what the editor's fix makes of it
    "Y[i : 5] = +(X[i + j]), j <= 3": ("Y[i : 5] = +(X[i + j]), j < 4", "Replace `j <= 3` with `j < 4`"),
    "Y[i : N] = X[i]\nZ[i : N] = Y[i];": ("Y[i : N] = X[i];\nZ[i : N] = Y[i];", "Insert `;`"),
    "// é𝔸\nY = exq(X);": ("// é𝔸\nY = exp(X);", "Replace `exq` with `exp`"),
    "Scores = X; Y = Scoers;": ("Scores = X; Y = Scores;", "Replace `Scoers` with `Scores`"),
    "Y = 𝔸;": (None, None),
    "Y[i] = X[i, j]": ("Y[i] = +(X[i, j])", "Replace `X[i, j]` with `+(X[i, j])`"),
    "O[i : N] = +(A[k]), 0 <= k, k < 3;": ("O[i : N] = +(A[k]), k < 3;", "Remove `, 0 <= k`"),
}


async def fixed(client, document, told, number: int, text: str) -> tuple[str | None, str | None]:
    """The text after the first fix that the server offers where it sees a mistake, and the fix's title."""
    change = lsp.TextDocumentContentChangeWholeDocument(text)
    version = lsp.VersionedTextDocumentIdentifier(number, document.uri)
    client.text_document_did_change(lsp.DidChangeTextDocumentParams(version, [change]))
    (mistake,) = (await asyncio.wait_for(told.get(), PATIENCE)).diagnostics
    context = lsp.CodeActionContext([mistake], only=[lsp.CodeActionKind.QuickFix])
    found = await client.text_document_code_action_async(lsp.CodeActionParams(document, mistake.range, context))
    context = lsp.CodeActionContext([mistake], only=[lsp.CodeActionKind.Refactor])
    none = await client.text_document_code_action_async(lsp.CodeActionParams(document, mistake.range, context))
    assert not none
    elsewhere = lsp.Range(lsp.Position(0, 0), lsp.Position(0, 0))
    context = lsp.CodeActionContext([])
    assert not await client.text_document_code_action_async(lsp.CodeActionParams(document, elsewhere, context))
    if not found:
        return None, None
    assert list(found[0].diagnostics) == [mistake] and found[0].kind == lsp.CodeActionKind.QuickFix
    lines = [line.encode("utf-16-le") for line in text.split("\n")]
    for edit in reversed(found[0].edit.changes[document.uri]):
        start, end = edit.range.start, edit.range.end
        before, after = lines[start.line][: 2 * start.character], lines[end.line][2 * end.character :]
        lines[start.line : end.line + 1] = (before + edit.new_text.encode("utf-16-le") + after).split(b"\n\0")
    return "\n".join(line.decode("utf-16-le") for line in lines), found[0].title


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
    found: dict[str, object] = {"wrong": (await asyncio.wait_for(told.get(), PATIENCE)).diagnostics}
    client.text_document_did_change(
        lsp.DidChangeTextDocumentParams(
            lsp.VersionedTextDocumentIdentifier(2, document.uri),
            [lsp.TextDocumentContentChangeWholeDocument(TEXT.replace("    C", "  C"))],
        )
    )
    found["right"] = (await asyncio.wait_for(told.get(), PATIENCE)).diagnostics
    place = lsp.Position(1, 2)
    found["hover"] = await client.text_document_hover_async(lsp.HoverParams(document, place))
    found["definition"] = await client.text_document_definition_async(
        lsp.DefinitionParams(document, lsp.Position(0, 32))
    )
    options = lsp.FormattingOptions(4, True)
    found["format"] = await client.text_document_formatting_async(lsp.DocumentFormattingParams(document, options))
    found["fixes"] = [await fixed(client, document, told, number, text) for number, text in enumerate(MENDED, 3)]
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()
    return found


def test_a_conversation() -> None:
    found = asyncio.run(asyncio.wait_for(conversation(), 3 * PATIENCE))
    (wrong,) = found["wrong"]  # type: ignore[misc]
    assert wrong.range.start == lsp.Position(2, WRONG.split("\n")[1].index("D[k")) and "D" in wrong.message
    assert not found["right"]
    assert "assigned by" in found["hover"].contents.value  # type: ignore[attr-defined]
    assert found["definition"].range.start == lsp.Position(1, 2)  # type: ignore[attr-defined]
    assert found["fixes"] == list(MENDED.values())
    (edit,) = found["format"]  # type: ignore[misc]
    assert edit.new_text == TEXT


@pytest.mark.parametrize("text", ["", "Y = ", "function (", "// only", "Y[i] = §"])
def test_texts_that_are_not_finished(text: str) -> None:
    for offset in range(len(text) + 1):
        features.hover(text, offset), features.definition(text, offset)
    features.mistakes(text)
