"use strict";

const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

// Start the language server; highlighting works without it.
async function start() {
  const [command, ...args] = vscode.workspace.getConfiguration("tile").get("server.command");
  client = new LanguageClient("tile", "Tile", { command, args }, { documentSelector: [{ language: "tile" }] });
  try {
    await client.start();
  } catch (error) {
    client = undefined;
    vscode.window.showWarningMessage(
      `Tile: \`${[command, ...args].join(" ")}\` does not start (${error.message}). Run \`pip install "tilec[lsp]"\`, ` +
        "or set tile.server.command to the tilec of your environment."
    );
  }
}

async function stop() {
  const running = client;
  client = undefined;
  await running?.stop();
}

async function restart() {
  await stop();
  await start();
}

async function activate(context) {
  context.subscriptions.push(
    vscode.commands.registerCommand("tile.restartServer", restart),
    vscode.workspace.onDidChangeConfiguration((change) => change.affectsConfiguration("tile.server") && restart())
  );
  await start();
}

module.exports = { activate, deactivate: stop };
