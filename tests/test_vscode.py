"""The folder for VS Code: its manifest is what packaging asks for, its code starts the language server, and the slow
variant packages it with vsce."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

import tilec
from tilec.cli import main

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "editors" / "vscode"
MANIFEST = json.loads((FOLDER / "package.json").read_text())

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")


def test_manifest() -> None:
    """What vsce checks before it packages: names, version, engine, the files that are named, readme."""
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", MANIFEST["name"]) and re.fullmatch(r"[a-z0-9-]+", MANIFEST["publisher"])
    assert MANIFEST["version"] == tilec.__version__ and MANIFEST["license"] == "Apache-2.0"
    found = re.fullmatch(r"\^(\d+)\.(\d+)\.0", MANIFEST["engines"]["vscode"])
    assert found and (int(found[1]), int(found[2])) >= (
        1,
        82,
    )  # what the client asks for; languages activate since 1.74
    given = MANIFEST["contributes"]
    files = [
        MANIFEST["main"],
        *(g["path"] for g in given["grammars"]),
        *(x["configuration"] for x in given["languages"]),
    ]
    assert all((FOLDER / file).is_file() for file in files) and (FOLDER / "README.md").stat().st_size > 500
    assert {g["language"] for g in given["grammars"]} == {x["id"] for x in given["languages"]} == {"tile"}
    language = json.loads((FOLDER / given["languages"][0]["configuration"]).read_text())
    assert language["comments"]["lineComment"] == "//" and ["[", "]"] in language["brackets"]


def test_the_server_is_a_command_of_tilec(capsys: pytest.CaptureFixture[str]) -> None:
    program, *arguments = MANIFEST["contributes"]["configuration"]["properties"]["tile.server.command"]["default"]
    assert program == "tilec"
    with pytest.raises(SystemExit) as left:
        main([*arguments, "--help"])
    assert left.value.code == 0 and "language server" in capsys.readouterr().out


VSCODE = """
const configuration = { get: (name) => ({ "server.command": ["python", "-m", "tilec", "lsp"] })[name] };
const told = [];
let commands = {}, listener;
module.exports = {
  told, change: (section) => listener({ affectsConfiguration: (s) => section.startsWith(s) }), commands_: commands,
  workspace: { getConfiguration: (s) => (s === "tile" ? configuration : undefined),
               onDidChangeConfiguration: (f) => { listener = f; return {}; } },
  commands: { registerCommand: (name, f) => { commands[name] = f; return {}; } },
  window: { showWarningMessage: (text) => told.push(text) },
};
"""
CLIENT = """
const log = [];
class LanguageClient {
  constructor(id, name, server, options) { log.push(["new", id, server, options]); }
  async start() { log.push(["start"]); if (LanguageClient.broken) throw new Error("no such file"); }
  async stop() { log.push(["stop"]); }
}
module.exports = { LanguageClient, log };
"""
SCRIPT = """
const vscode = require("vscode"), { LanguageClient, log } = require("vscode-languageclient/node");
const extension = require(process.argv[2]);
(async () => {
  const context = { subscriptions: [] };
  await extension.activate(context);
  const first = log.splice(0);
  await vscode.commands_["tile.restartServer"]();
  const second = log.splice(0);
  await vscode.change("editor.fontSize"); const ignored = log.splice(0);
  await vscode.change("tile.server.command"); const third = log.splice(0);
  await extension.deactivate(); await extension.deactivate();
  const last = log.splice(0);
  LanguageClient.broken = true;
  await extension.activate(context); await extension.deactivate();
  console.log(JSON.stringify({ first, second, ignored, third, last, told: vscode.told, broken: log,
                               subscriptions: context.subscriptions.length }));
})();
"""


@needs_node
def test_the_extension_starts_the_server(tmp_path: Path) -> None:
    """Its code beside stand-ins for VS Code and the protocol's client."""
    for name, text in (("vscode/index.js", VSCODE), ("vscode-languageclient/node.js", CLIENT)):
        (tmp_path / "node_modules" / name).parent.mkdir(parents=True)
        (tmp_path / "node_modules" / name).write_text(text)
    shutil.copy(FOLDER / "extension.js", tmp_path)
    (tmp_path / "script.js").write_text(SCRIPT)
    command = ["node", str(tmp_path / "script.js"), str(tmp_path / "extension.js")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found = json.loads(done.stdout)
    server = {"command": "python", "args": ["-m", "tilec", "lsp"]}
    new = ["new", "tile", server, {"documentSelector": [{"language": "tile"}]}]
    assert found["first"] == [new, ["start"]] and found["subscriptions"] == 4
    assert found["second"] == found["third"] == [["stop"], new, ["start"]] and found["ignored"] == []
    assert found["last"] == [["stop"]] and found["broken"] == [new, ["start"]]
    (told,) = found["told"]
    assert "`python -m tilec lsp` does not start (no such file)" in told and "tile.server.command" in told


@needs_npm
@pytest.mark.slow
def test_packaging(tmp_path: Path) -> None:
    """vsce makes a package of a copy of the folder, with the client in it and nothing else of the checkout."""
    folder = tmp_path / "editors" / "vscode"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("node_modules", "*.vsix", "LICENSE"))
    shutil.copy(ROOT / "LICENSE", tmp_path)
    reach = subprocess.run(["npm", "view", "@vscode/vsce", "version"], capture_output=True, text=True, cwd=tmp_path)
    if reach.returncode:
        pytest.skip("the registry of npm cannot be reached")
    done = subprocess.run(["npm", "run", "package"], capture_output=True, text=True, cwd=folder, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    (package,) = folder.glob("tile-*.vsix")
    with zipfile.ZipFile(package) as archive:
        names = set(archive.namelist())
    own = {n for n in names if n.startswith("extension/") and "/node_modules/" not in n}
    assert own == {
        f"extension/{n}"
        for n in (
            *("package.json", "extension.js", "language-configuration.json", "readme.md", "LICENSE.txt"),
            "syntaxes/tile.tmLanguage.json",
        )
    }
    assert "extension/node_modules/vscode-languageclient/lib/node/main.js" in names
    assert "extension/node_modules/vscode-languageclient/node.js" in names
