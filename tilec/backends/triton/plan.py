"""What a program is made of once it is planned for given layouts: allocations, launches, calls of torch, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilec.ir.program import Statement
from tilec.ir.types import TensorType


def python_name(name: str) -> str:
    """A tensor's name as a Python name: the prime and the dot of workspaces become `_`."""
    return name.replace("'", "_").replace(".", "_")


@dataclass(frozen=True)
class Setting:
    """What a plan depends on beside types and strides. `precision`: torch.get_float32_matmul_precision(). `library`:
    may torch's own products and convolutions serve where they are exact? `capability` and `shared`: of the device, the
    compute capability (0: interpreted) and the bytes of shared memory that a block may have. `misaligned`: inputs whose
    first element is not at a multiple of 16 bytes. `known`: says what tuning found for a product. `exact`: recurrences
    are computed in their own order. `multiprocessors`: of the device."""

    precision: str = "highest"
    library: bool = False
    capability: int = 90
    shared: int = 227 * 1024
    misaligned: tuple[str, ...] = ()
    known: Callable[..., Mapping[str, int | str] | None] | None = None
    exact: bool = False
    multiprocessors: int = 132


@dataclass(frozen=True)
class Descriptor:
    """A TMA tensor map over a view of a tensor: `offset` elements from its first one, `shape`, `strides` in elements
    (the last is 1), boxes of `block`; `layout` is the text of the Gluon layout."""

    tensor: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]
    layout: str


@dataclass(frozen=True)
class Pointer:
    """The address of a tensor's first element."""

    tensor: str


@dataclass(frozen=True)
class Launch:
    """One kernel launch. `text` is the source of the kernel's file: equal texts are compiled once, so sizes are
    arguments. `arguments` and then `constants` (tl.constexpr) are the parameters in the order of the signature.
    `fusion`: may a product and a sum be rounded once? `together`: all programs run at once, as they wait for each
    other. `sociable`: one launch with its neighbours, where none needs another, is wanted."""

    kernel: str
    text: str
    grid: tuple[int, int, int]
    arguments: tuple[tuple[str, object], ...]
    constants: tuple[tuple[str, object], ...]
    warps: int
    stages: int
    statements: tuple[str, ...]
    fusion: bool = True
    together: bool = False
    sociable: bool = False


@dataclass(frozen=True)
class Repeat:
    """One kernel launched `count` times in turn: its argument `counter` is 0, 1, ..., count - 1."""

    launch: Launch
    counter: str
    count: int


@dataclass(frozen=True)
class Allocate:
    """A new contiguous tensor; `fill` is what it holds first: nothing known (None), a number, or the elements of the
    tensor of that name."""

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    fill: float | int | bool | str | None = None


@dataclass(frozen=True)
class Table:
    """A constant tensor of integers, made once a plan."""

    tensor: str
    rows: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class TorchLines:
    """Python lines over torch: `reads` and `writes` name the tensors, which are local variables of the lines."""

    lines: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    statements: tuple[str, ...]


@dataclass(frozen=True)
class Release:
    """These intermediates are read no more."""

    tensors: tuple[str, ...]


@dataclass(frozen=True)
class Prepared:
    """A tensor that a statement's kernel reads beside inputs. Others may ask for the same, or for one over the same
    points, so how it is made is said when all steps are there (`prepared.py`): none is left in a plan. `alone`: steps
    that make it by itself; types and strides are those of the views that its statement indexes."""

    statement: Statement
    types: Mapping[str, TensorType]
    strides: Mapping[str, tuple[int, ...]]
    wide: bool
    alone: Callable[[], Sequence[Step]]


Step = Allocate | Prepared | Launch | Repeat | Table | TorchLines | Release


@dataclass(frozen=True)
class Plan:
    """Steps in order; `comments` are the Tile statements that a step's outputs come from."""

    steps: tuple[Step, ...]
    outputs: tuple[str, ...]

    def launches(self) -> Sequence[Launch]:
        """Every kernel, in order; one that is launched again and again stands once."""
        return [s.launch if isinstance(s, Repeat) else s for s in self.steps if isinstance(s, Launch | Repeat)]
