"""One statement to carry out: what every rule looks at."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tilec.backends.base import Options
from tilec.backends.common.code import FreshNames, tuple_text
from tilec.backends.common.domain import Domain, build_domain
from tilec.backends.torch.expr.choices import identity_text
from tilec.backends.torch.expr.pieces import in_pieces
from tilec.ir.index import Affine, substitute_affine
from tilec.ir.program import Statement
from tilec.ir.types import TensorType, Types
from tilec.transforms.util.naming import unlike
from tilec.transforms.util.roles import roles

MOST_WRITTEN_CLASSES = 64  # residue classes written out one by one; beyond that values are added where they belong


@dataclass(frozen=True)
class Task:
    """`local`: Python names of the tensors. `returned`: the caller gets the output, so it must own its memory. `fresh`:
    tensors with memory of their own that one statement reads and nobody else. `once`: all that one statement reads and
    nobody else. `room`: of an output, and its type, the name of the contiguous memory that it is to be written to, if
    that is not to be copied."""

    flat: Statement
    defracted: Statement
    types: Types
    local: Mapping[str, str]
    names: FreshNames
    options: Options
    returned: bool
    fresh: frozenset[str] = frozenset()
    once: frozenset[str] = frozenset()
    room: tuple[str, TensorType, str] | None = None

    @property
    def type(self) -> TensorType:
        return self.types[self.flat.output]

    @property
    def out(self) -> str:
        return self.local[self.flat.output]

    @cached_property
    def classes(self) -> tuple[Domain, ...] | None:
        """Domains of the residue classes that have points, cut into pieces; None where they are too many or write no
        plain slices."""
        found_roles = roles(self.defracted)
        moduli = () if found_roles is None else found_roles.classes
        if math.prod(m for _, m in moduli) > MOST_WRITTEN_CLASSES:
            return None
        found: list[Domain] = []
        for residues in residue_classes(moduli):
            s = substitute_affine(self.defracted, {v: Affine.of((), r) for v, r in residues.items()})
            domain = build_domain(s, self.types)
            if domain is not None and domain.target is None:
                return None
            if domain is not None:
                found += in_pieces(domain, self.types)
        return tuple(found)

    @cached_property
    def flat_domain(self) -> Domain | None:
        """The statement as written: its output index may be anything."""
        return build_domain(self.flat, self.types)

    @cached_property
    def covered(self) -> bool:
        """Whether the classes write every element of the output."""
        written = (math.prod(d.extent[v] for v in d.output_variables()) for d in self.classes or ())
        return sum(written) == self.elements

    @property
    def elements(self) -> int:
        return math.prod(self.type.shape)

    @property
    def identity(self) -> str:
        """Python text of what an element holds that no point reaches."""
        return identity_text(self.flat.aggregation, self.type.dtype)

    @property
    def has_room(self) -> bool:
        return self.room is not None and self.room[:2] == (self.flat.output, self.type)

    def unused(self, suffix: str) -> str:
        """A tensor's name that begins with the output's."""
        return unlike(self.flat.output + suffix, self.types)

    def before(self, s: Statement, t: TensorType, suffix: str) -> Task:
        """The task of a statement that makes an intermediate of this type, called after the output."""
        types = {**self.types, s.output: t}
        local = {**self.local, s.output: self.names.fresh(self.out + suffix)}
        return replace(self, flat=s, defracted=s, types=types, local=local, returned=False)

    def allocation(self, filled: bool) -> str:
        """Python text of a new output: `filled` with what unreached elements hold, or uninitialised."""
        kind = f"dtype=torch.{self.type.dtype}, device=device"
        if self.has_room and self.room is not None and self.flat.default is None:
            return self.room[2] + f".fill_({self.identity})" * filled
        if not filled:
            return f"torch.empty({tuple_text(self.type.shape)}, {kind})"
        if self.flat.default is not None:
            default = self.local[self.flat.default]
            same = self.types[self.flat.default].dtype == self.type.dtype
            # in the order of a new output, for which the views that are written to have been laid out
            layout = "memory_format=torch.contiguous_format"
            return f"{default}.clone({layout})" if same else f"{default}.to(torch.{self.type.dtype}, {layout})"
        return f"torch.full({tuple_text(self.type.shape)}, {self.identity}, {kind})"

    def part(self, domain: Domain, tensor: str | None = None) -> str:
        """Python text of the part of the output (or of a tensor of its shape) that a class writes: a view, one
        dimension an output variable."""
        assert domain.target is not None
        return domain.target.text(tensor or self.out, self.type.shape, domain.low, domain.extent)


def residue_classes(moduli: tuple[tuple[str, int], ...]) -> Iterator[dict[str, int]]:
    names = [v for v, _ in moduli]
    for residues in itertools.product(*(range(m) for _, m in moduli)):
        yield dict(zip(names, residues, strict=True))
