"""The server: the protocol's messages on one side, `features` on the other. Needs pygls (`pip install tilec[lsp]`)."""

from __future__ import annotations

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer

from tilec.errors import Span, TileError
from tilec.language.format import format_source
from tilec.lsp import features
from tilec.version import __version__

SEVERITIES = {"error": lsp.DiagnosticSeverity.Error, "warning": lsp.DiagnosticSeverity.Warning}


def server() -> LanguageServer:
    """Diagnostics on opening and every change, hover, go to definition, formatting, fixes that hints propose."""
    found = LanguageServer("tilec", __version__)

    @found.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    @found.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def check(given: lsp.DidOpenTextDocumentParams | lsp.DidChangeTextDocumentParams) -> None:
        uri = given.text_document.uri
        source = found.workspace.get_text_document(uri).source
        told = [_diagnostic(source, m) for m in features.mistakes(source)]
        found.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, told))

    @found.feature(lsp.TEXT_DOCUMENT_HOVER)
    def hover(given: lsp.HoverParams) -> lsp.Hover | None:
        source = found.workspace.get_text_document(given.text_document.uri).source
        text = features.hover(source, _offset(source, given.position))
        return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, text)) if text else None

    @found.feature(lsp.TEXT_DOCUMENT_DEFINITION)
    def definition(given: lsp.DefinitionParams) -> lsp.Location | None:
        uri = given.text_document.uri
        source = found.workspace.get_text_document(uri).source
        span = features.definition(source, _offset(source, given.position))
        return lsp.Location(uri, _range(source, span)) if span else None

    @found.feature(lsp.TEXT_DOCUMENT_CODE_ACTION, lsp.CodeActionOptions([lsp.CodeActionKind.QuickFix]))
    def code_action(given: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        uri = given.text_document.uri
        source = found.workspace.get_text_document(uri).source
        asked = Span(_offset(source, given.range.start), _offset(source, given.range.end))
        if given.context.only and not any(_within(lsp.CodeActionKind.QuickFix, kind) for kind in given.context.only):
            return []
        return [_fix(uri, source, m) for m in features.mistakes(source) if m.edits and _meet(m.span, asked)]

    @found.feature(lsp.TEXT_DOCUMENT_FORMATTING)
    def formatting(given: lsp.DocumentFormattingParams) -> list[lsp.TextEdit] | None:
        source = found.workspace.get_text_document(given.text_document.uri).source
        try:
            text = format_source(source)
        except TileError:
            return None
        return [lsp.TextEdit(_range(source, Span(0, len(source))), text)] if text != source else []

    return found


def _diagnostic(source: str, m: features.Mistake) -> lsp.Diagnostic:
    return lsp.Diagnostic(_range(source, m.span), m.message, severity=SEVERITIES[m.severity], source="tilec")


def _fix(uri: str, source: str, m: features.Mistake) -> lsp.CodeAction:
    """A hint's edits, as what the editor offers at the mistake."""
    edits = [lsp.TextEdit(_range(source, e.span), e.text) for e in m.edits]
    return lsp.CodeAction(
        features.title(source, m.edits),
        lsp.CodeActionKind.QuickFix,
        [_diagnostic(source, m)],
        is_preferred=True,
        edit=lsp.WorkspaceEdit({uri: edits}),
    )


def _within(kind: str, wider: str) -> bool:
    return wider == "" or kind == wider or kind.startswith(f"{wider}.")


def _meet(a: Span, b: Span) -> bool:
    """Does a place or a selection touch a span?"""
    return a.start <= b.stop and b.start <= a.stop


def _position(source: str, offset: int) -> lsp.Position:
    """Lines from 0, and UTF-16 units from 0, as the protocol counts."""
    before = source[:offset]
    line = before[before.rfind("\n") + 1 :]
    return lsp.Position(before.count("\n"), len(line.encode("utf-16-le")) // 2)


def _range(source: str, span: Span) -> lsp.Range:
    return lsp.Range(_position(source, span.start), _position(source, span.stop))


def _offset(source: str, at: lsp.Position) -> int:
    lines = source.split("\n")
    line = lines[at.line] if at.line < len(lines) else ""
    units = line.encode("utf-16-le")[: 2 * at.character].decode("utf-16-le", "ignore")
    return sum(len(text) + 1 for text in lines[: at.line]) + len(units)


def main() -> None:
    """Serve on standard input and output."""
    server().start_io()
