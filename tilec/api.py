"""compile, load, tune, interpret: text in, something that runs out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np
import torch

from tilec.arguments import Spec, by_name, to_array, to_tensors
from tilec.backends import NAMES, has_triton
from tilec.errors import InputMistake, TileError, Unsupported
from tilec.errors.tracebacks import public
from tilec.function import Function
from tilec.ir.evaluate import evaluate
from tilec.language import parse
from tilec.language.hints.comments import quotients_in_comments
from tilec.language.hints.misspelt import misspelt
from tilec.language.hints.quotients import truncated
from tilec.prepare.warn import say
from tilec.specialise import Checked, Specialiser
from tilec.transforms.bind.value_inputs import seed_inputs

PATH = re.compile(r"\s*(?:[~./\w-]*/)?[\w.-]*\.[A-Za-z]\w*\s*")  # a text of one word with a suffix
TEXT = re.compile(r"[\n;{]|[A-Z]\w*'?\s*(\[[^\]]*\])?\s*=[^=]")  # more than a path's characters


@public
def compile(
    source: str,
    *,
    entry: str | None = None,
    backend: str | None = None,
    tune: bool = False,
    exact: bool = False,
    warnings: str = "default",
) -> Function:
    """Compile Tile text to a Function: an operation on tensors, with gradients.

    >>> matmul = tilec.compile("C[i, j] = sum(A[i, k] * B[k, j])")
    >>> a, b = torch.ones(2, 3, requires_grad=True), torch.ones(3, 4)
    >>> matmul(a, b).sum().backward()   # autograd works through it; so do torch.compile, torch.func and CUDA graphs
    >>> a.grad
    tensor([[4., 4., 4.],
            [4., 4., 4.]])

    A statement says which points contribute to which element. Index variables (lower case) take all integers at which
    every access is inside its tensor; those that do not stand on the left are aggregated over, by `sum prod max min
    mean logsumexp any all argmax argmin`. Sizes are named in a head and may be left out where, as above, each output
    index is also the index of an input:

    >>> smooth = tilec.compile("function (X[N]) -> (Y) { Y[i : N/2] = sum(X[2*i + j]), j < 2; }")
    >>> smooth(torch.arange(6.0))
    tensor([1., 5., 9.])
    >>> print(smooth.grad(), end="")   # a Function too
    function (X[N], DY) -> (DX) {
        DX[2*i + j : N] = +(DY[i]), j < 2;
    }

    Args:
        source: Tile text: functions, or a list of statements, whose inputs are the names that it reads, in order.
        entry: The function to compile where the text holds several (default: the last).
        backend: "torch" (operations of torch, on any device), "triton" (generated kernels, on CUDA tensors) or None:
            triton where the inputs are on a GPU, torch elsewhere.
        tune: On the first call with new shapes or types, measure the candidates for each kernel and keep the choices on
            disk, gradients included. Where the torch backend serves a call there are none, and nothing happens.
        exact: Forbid re-association in recurrences: every state is then computed from the one before it by the
            operations in the text, in their order, as an eager loop would. Otherwise a step that is affine in a
            semiring (`a*h + b`, `max(c, d + h)`, `logaddexp(c, d + h)`) may be composed with others where that is
            faster, which rounds differently.
        warnings: "error" raises what would be a TileWarning, at once or at the call whose sizes show it. It holds for
            gradients too.

    Returns:
        A Function, for inputs of any shapes that the text allows: it is specialised at the first call with new ones.

    Raises:
        TileError: The text is no Tile program: the subclass, the place and the hint say what is wrong.
        InputMistake: An option that does not exist, backend="torch" with `tune`, a path in the place of a text.
    """
    return _compile(source, "<tile>", entry, backend, tune, exact, warnings)


@public
def load(
    path: str | PathLike[str],
    *,
    entry: str | None = None,
    backend: str | None = None,
    tune: bool = False,
    exact: bool = False,
    warnings: str = "default",
) -> Function:
    """Compile the Tile text in a file; errors name the file.

    Args:
        path: The file, in UTF-8.
        entry: This and the other options are those of `compile`.
        backend: As for `compile`.
        tune: As for `compile`.
        exact: As for `compile`.
        warnings: As for `compile`.

    Returns:
        A Function.

    Raises:
        TileError: The text is no Tile program.
        InputMistake: The file cannot be read.
    """
    return _compile(read(path), str(path), entry, backend, tune, exact, warnings)


def read(path: str | PathLike[str]) -> str:
    """Text of a Tile file."""
    if TEXT.search(str(path)):
        hint = "write tilec.compile(text); tilec.load(path) reads a file"
        raise InputMistake("this is Tile text, and load takes the path of a file", hint=hint)
    if not isinstance(path, (str, PathLike)):
        raise InputMistake(f"load takes the path of a file; got {type(path).__name__}")
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputMistake(f"{path} is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise InputMistake(f"cannot read {path}: {getattr(error, 'strerror', error)}") from None


def _compile(
    source: str, filename: str, entry: str | None, backend: str | None, tune: bool, exact: bool, warnings: str
) -> Function:
    if not isinstance(source, str):
        hint = "write tilec.load(path)" if isinstance(source, PathLike) else None
        if callable(source):
            hint = "write tilec.from_torch(function, *examples) to translate a function of torch"
        raise InputMistake(f"the source must be a string of Tile; got {type(source).__name__}", hint=hint)
    if backend not in (None, *NAMES):
        raise InputMistake(f"no backend is called {backend!r}", hint="backends: " + ", ".join(NAMES))
    if warnings not in ("default", "error"):
        raise InputMistake(f'warnings is "default" or "error"; got {warnings!r}')
    if tune and backend == "torch":
        raise InputMistake("the torch backend has nothing to tune", hint="leave backend or tune out")
    try:
        program = parse(source, filename=filename, entry=entry)
    except TileError as error:
        if filename == "<tile>" and PATH.fullmatch(source):
            hint = f"write tilec.load({source.strip()!r})"
            raise InputMistake(f"{source.strip()!r} is a path, and compile takes Tile text", hint=hint) from None
        raise error.located(source, filename) from None
    strict = warnings == "error"
    for mistake in (*misspelt(program, source), *truncated(program), *quotients_in_comments(source)):
        say(mistake, source, filename, strict)
    checked = Checked(strict)
    return Function.of(Specialiser(program, source, filename, backend, None, tune, exact, checked=checked))


@public
def tune(function: Function, *args: object, gradients: bool = False, **named: object) -> None:
    """Tune a function, and its gradient where asked, for arguments of these shapes and types on the current GPU.

    Choices are kept on disk, for later runs too. Functions that have already been called with these shapes keep what
    they run.

    Args:
        function: What to tune.
        args: As for a call, by position; specs stand for random data.
        gradients: Tune the gradient's kernels too.
        named: As for a call, by name.

    Raises:
        Unsupported: There is no GPU: tuned choices hold only where they were measured.
        InputMistake: Arguments that the function does not take, or a function of the torch backend.
        TileError: What a call with these arguments raises.
    """
    if function.backend == "torch":
        raise InputMistake("the torch backend has nothing to tune", hint="leave backend out")
    if not torch.cuda.is_available():
        raise Unsupported("there is no GPU to tune for", hint="tuned choices hold for the device they were measured on")
    inputs = _on_device(by_name(function.inputs, args, named) if named else args, "cuda")
    tuned = function.tuned()
    results = tuned(*inputs)
    if gradients:
        results = results if isinstance(results, tuple) else (results,)
        tuned.grad()(*inputs, *(torch.ones_like(r) for r in results))


@public
def build(
    function: Function,
    *args: object,
    target: str,
    directory: str | PathLike[str],
    gradients: bool = False,
    name: str | None = None,
    also: Sequence[Sequence[object]] = (),
    **named: object,
) -> Path:
    """Compile a function, and its gradient where asked, ahead of time into a package. No GPU is needed.

    A package holds cubins, a manifest, a launcher in C++ with its header, and a loader for Python. `tilec.package.load`
    opens it, and so does the `package.py` in it where tilec is not installed.

    Args:
        function: What to build.
        args: As for `Function.lower`, by position. Inputs of the package have these shapes and types and are
            contiguous.
        target: The architecture, such as "sm_90".
        directory: Where the files go; it is made if need be.
        gradients: Build the gradient too.
        name: That of the C functions (default: the function's).
        also: Arguments of other shapes and types that the package takes too; kernels that serve several are in it once.
        named: As for `Function.lower`, by name.

    Returns:
        The directory.

    Raises:
        Unsupported: An unknown target, or something in the program that only torch does.
        InputMistake: A name that cannot be one in C, or arguments that the function does not take.
        TileError: What `lower` with these arguments raises.
    """
    given = by_name(function.inputs, args, named) if named else args
    if not has_triton():
        raise Unsupported("Triton is not installed, and it compiles the kernels of packages")
    from tilec.package.build import write_package

    return write_package(function, given, target, directory, gradients, name, also)


def _on_device(args: Sequence[object], device: str) -> list[object]:
    """Random tensors in the place of specs: normal ones, and integers that may stand in an index."""
    largest = max((n for a in args if isinstance(a, Spec) for n in a.shape), default=1)

    def made(spec: Spec) -> torch.Tensor:
        dtype = getattr(torch, spec.dtype)
        if dtype.is_floating_point:
            return torch.randn(spec.shape, device=device, dtype=torch.float32).to(dtype)
        above = 2 if dtype is torch.bool else min(largest, torch.iinfo(dtype).max)
        return torch.randint(0, max(1, above), spec.shape, device=device).to(dtype)

    return [made(a) if isinstance(a, Spec) else a.to(device) if isinstance(a, torch.Tensor) else a for a in args]


@public
def interpret(source: str, *arrays: object, **named: object) -> np.ndarray | tuple[np.ndarray, ...]:
    """The slow exact meaning of a program: every point enumerated in float64 and int64, sharing no code with a backend.

    >>> tilec.interpret("C[i] = sum(A[i, k])", np.ones((2, 3)))
    array([3., 3.])

    Args:
        source: Tile text.
        arrays: The inputs in order: NumPy arrays, CPU tensors or numbers, of the shapes that the text declares.
        named: Inputs by name.

    Returns:
        One NumPy array for each output, of the shapes that the text gives them; one output bare, several as a tuple.

    Raises:
        TileError: The text is no Tile program, or the inputs do not fit it.
        Unsupported: bfloat16, which NumPy has not, or more memory than there is.
    """
    try:
        program = parse(source)
        names = program.input_names()
        given = by_name(names, arrays, named) if named else arrays
        tensors = to_tensors(names, given, seed_inputs(program)).tensors
        if any(t.dtype is torch.bfloat16 for t in tensors):
            raise Unsupported("NumPy has no bfloat16", hint="pass float64: the oracle computes in it")
        results = evaluate(program, [to_array(n, t) for n, t in zip(names, tensors, strict=True)])
    except MemoryError:
        raise Unsupported("the program needs more memory than there is") from None
    except TileError as error:
        raise error.located(source) from None
    return results[0] if len(results) == 1 else results
