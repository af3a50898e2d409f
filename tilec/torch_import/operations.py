"""Every operation of torch that has a translation, and the handler that writes it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tilec.torch_import import elementwise, indexing, layers, sums, windows

OPERATIONS: dict[Any, Callable] = {
    **elementwise.HANDLERS,
    **indexing.HANDLERS,
    **sums.HANDLERS,
    **windows.HANDLERS,
    **layers.HANDLERS,
    operator.getitem: indexing.item,
}
