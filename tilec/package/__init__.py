"""Packages: programs compiled ahead of time, which load without the compiler. `load` opens one."""

from __future__ import annotations

from tilec.package.launches import PackageError
from tilec.package.loader import Package, load

__all__ = ["Package", "PackageError", "load"]
