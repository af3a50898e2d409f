"""The command gallery: operations written in Tile, to read and to start from."""

from __future__ import annotations

import argparse

from tilec import gallery


def add(commands) -> None:
    parser = commands("gallery", _gallery, "list operations written in Tile, or print one")
    parser.add_argument("name", nargs="?", help="print this operation; without it, list them")
    parser.add_argument("--find", metavar="TEXT", default="", help="list those that have to do with it")
    parser.add_argument("--grad", action="store_true", help="print the gradient of the operation, as Tile")


def _gallery(args: argparse.Namespace) -> int:
    if args.name is None:
        return _list(args.find)
    entry = gallery.entry(args.name)
    print(f"// {entry.title}")
    if args.grad:
        print(gallery.load(args.name).grad())
    else:
        print(entry.source, end="")
    return 0


def _list(text: str) -> int:
    found = gallery.find(text)
    width = max(map(len, found), default=0)
    for kind in sorted({gallery.entry(name).kind for name in found}):
        print(kind)
        for name in found:
            if (entry := gallery.entry(name)).kind == kind:
                print(f"  {name:{width}}  {entry.title}")
    return 0 if found else 1
