"""From torch code to Tile text: how people who know PyTorch get to know the language.

A function or module is captured by `torch.export`; every operation of the graph that is a contraction, elementwise, a
reduction, a view or an indexing becomes a statement.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from tilec.api import compile as compile_source
from tilec.errors import Unsupported
from tilec.errors.tracebacks import public
from tilec.function import Function
from tilec.language.format import format_source

__all__ = ["from_torch"]


@public
def from_torch(function: Callable, *examples: object, dynamic: bool = True, **options: object) -> Function:
    """Translate a function or module of torch to a Tile Function.

        f = tilec.from_torch(lambda x, w: torch.softmax(x @ w, -1), torch.randn(4, 3), torch.randn(3, 5))
        print(f)

    Args:
        function: Called with `examples`. A module's parameters and buffers become further inputs, after the
            examples' tensors, in the order of `named_parameters()` and `named_buffers()`.
        examples: Tensors or `tilec.spec(...)` for the inputs of the Function; anything else is a constant.
        dynamic: Sizes that the code does not fix get names, and the Function takes others than the examples'.
            Sizes of 0 and 1 stay what they are.
        options: As of `tilec.compile`.

    Returns:
        A Function. Its outputs are the tensors that `function` returns, in order; its text is to be read and edited.

    Raises:
        InputMistake: `function` cannot be called.
        Unsupported: The code holds operations that have no translation; all are named, with their lines. The same for
            code that `torch.export` cannot capture (branches on values of tensors).
    """
    make: Callable[..., Function] = compile_source
    return make(format_source(_text(function, examples, dynamic)), **options)


def _text(function: Callable, examples: tuple[object, ...], dynamic: bool) -> str:
    """Sizes are left open where that can be; a failure is told as it is with fixed ones."""
    from tilec.torch_import.capture import capture  # here, since `import tilec` should not wait for them
    from tilec.torch_import.translate import translate

    if dynamic:
        with suppress(Unsupported):
            return translate(capture(function, examples, dynamic=True))
    return translate(capture(function, examples, dynamic=False))
