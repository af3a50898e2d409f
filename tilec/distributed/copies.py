"""The copies of tensors that ranks hold while a program runs, and the communications that make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilec.distributed.placements import (
    IndexBox,
    Mesh,
    Placements,
    coordinates,
    count,
    hull,
    is_inside,
    overlap,
    peers,
    reduced_size,
    shard_boxes,
)
from tilec.distributed.plan import Communication, TensorCopy
from tilec.ir.program import Program
from tilec.ir.types import ITEM_BYTES, TensorType
from tilec.transforms.util.naming import Names


@dataclass(frozen=True)
class Hop:
    """What ranks along one dimension of the mesh exchange of a tensor."""

    along: int
    have: tuple[IndexBox, ...]
    need: tuple[IndexBox, ...]
    received: tuple[int, ...]


class Copies:
    """What is at hand of each tensor, and what it costs to have more. `home`: how tensors lie where they are made."""

    def __init__(self, program: Program, types: Mapping[str, TensorType], home: dict[str, Placements], mesh: Mesh):
        self.types, self.home, self.mesh = dict(types), home, mesh
        self.places = coordinates(mesh)
        self.ranks = len(self.places)
        self.names = Names.of(program)
        self.copies: dict[str, list[TensorCopy]] = {}
        self.times: dict[str, int] = {}  # the program that has a tensor, or -1
        self.communications: list[Communication] = []
        for name in program.input_names():
            self._place(name, home[name], 0, -1)

    def _place(self, name: str, placements: Placements, ready: int, time: int) -> None:
        """`time`: of the program that has computed it, after which it may be sent."""
        self.home[name], self.times[name] = placements, time
        self.copies[name] = [] if placements.parts else [TensorCopy(name, name, self._boxes(name, placements), ready)]

    def _boxes(self, name: str, placements: Placements) -> tuple[IndexBox, ...]:
        return shard_boxes(self.types[name].shape, placements, self.mesh)

    def _cost(self, tensor: str, need: tuple[IndexBox, ...]) -> int:
        if self._found(tensor, need) is not None:
            return 0
        cost, home = 0, self.home[tensor]
        if not self.copies[tensor]:
            owned = self._boxes(tensor, home)
            cost = sum(max(self._ring(tensor, owned, str(home[m].reduction), m)) for m in home.parts)
        return cost + sum(max(hop.received) for hop in self._hops(tensor, need))

    def _found(self, tensor: str, need: tuple[IndexBox, ...]) -> TensorCopy | None:
        """What is at hand and holds what each rank needs."""
        fits = (c for c in self.copies[tensor] if all(map(is_inside, need, c.boxes)))
        return next(fits, None)

    def _hops(self, tensor: str, need: tuple[IndexBox, ...]) -> list[Hop]:
        """How what each rank needs gets there from where a tensor lies: along one dimension of the mesh after another,
        from the last that divides it, so that what a rank has in between is what is needed of a part of the ones
        before."""
        found, home = [], self.home[tensor]
        have = self._boxes(tensor, home)
        for k, m in reversed(list(enumerate(home.dims))):
            earlier = home.dims[:k]
            outer = self._boxes(tensor, home.without(home.dims[k:]))
            wanted = []
            for r, place in enumerate(self.places):
                box: IndexBox | None = None
                for other, n in zip(self.places, need, strict=True):
                    if all(a == b for d, (a, b) in enumerate(zip(place, other, strict=True)) if d not in earlier):
                        box = hull(box, overlap(outer[r], n))
                assert box is not None, "a rank is like itself"
                wanted.append(box)
            if not all(map(is_inside, wanted, have)):
                found.append(Hop(m, have, tuple(wanted), self._received(tensor, m, have, wanted)))
                have = tuple(wanted)
        return found

    def _received(self, tensor: str, m: int, have: Sequence[IndexBox], need: Sequence[IndexBox]) -> tuple[int, ...]:
        size = ITEM_BYTES[self.types[tensor].dtype]
        return tuple(
            size * sum(count(overlap(have[other], n)) for other in peers(self.mesh, r, m) if other != r)
            for r, n in enumerate(need)
        )

    def _ring(self, tensor: str, owned: Sequence[IndexBox], reduction: str, m: int) -> tuple[int, ...]:
        size, ranks = reduced_size(self.types[tensor].dtype, reduction), self.mesh[m]
        return tuple(2 * -(-size * count(box) * (ranks - 1) // ranks) for box in owned)

    def _reduced(self, tensor: str, before: str, reason: str) -> None:
        """Put a tensor's parts together."""
        home = self.home[tensor]
        owned, source = self._boxes(tensor, home), tensor
        for m in home.parts:
            reduction = str(home[m].reduction)
            hop = Hop(m, (), owned, self._ring(tensor, owned, reduction, m))
            source = self._add(before, source, tensor, "all-reduce", reason, hop, reduction).name
        self.copies[tensor] = [c for c in self.copies[tensor] if c.name == source]

    def _add(self, before, source, tensor, collective, reason, hop: Hop, reduction) -> TensorCopy:
        time = self.times[tensor] + 1
        copy = TensorCopy(self.names.fresh(f"{tensor}_here"), tensor, hop.need, time)
        ends = source, copy.name, time, hop.along, hop.have, hop.need
        self.communications.append(Communication(before, tensor, collective, reason, hop.received, *ends, reduction))
        self.copies[tensor].append(copy)
        return copy
