"""Reshapes that leave elements where they are: of intermediates and of inputs, without a kernel."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from tilec.backends.common.code import python_name, tuple_text
from tilec.backends.triton.fusion.read_through import is_reshape, keeps_order
from tilec.backends.triton.plan.plan import (
    Allocate,
    Launch,
    Repeat,
    Step,
    SubPlan,
    TiledLoop,
    TorchLines,
)
from tilec.backends.triton.plan.sizes import contiguous
from tilec.ir.at_sizes import named_sizes
from tilec.ir.index import Affine, linear
from tilec.ir.program import Access, Program, Statement, reads
from tilec.ir.rational import as_int
from tilec.ir.types import TensorType
from tilec.transforms.util.tiled import Start


def reshape_steps(s: Statement, flat: Program, types: Mapping[str, TensorType]) -> list[Step] | None:
    """The steps of `s` where it is all elements, in order, of an intermediate, whose memory it takes; else None."""
    if not is_reshape(s, flat, types):
        return None
    assert isinstance(s.body, Access)
    return [reshape_view(s.output, s.body.tensor, types[s.output])]


def reshape_view(output: str, source: str, wanted: TensorType) -> TorchLines:
    line = f"{python_name(output)} = {python_name(source)}.view({tuple_text([str(n) for n in wanted.shape])})"
    return TorchLines((line,), (source,), (output,), (output,), (wanted.dtype,), named_sizes(wanted.shape))


def reshaped_inputs(
    flat: Program,
    types: Mapping[str, TensorType],
    strides: Mapping[str, tuple[int, ...]],
    grouped: Collection[str],
    chained: Collection[str],
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The statements of no group that give an input another shape, where strides say how to read it: the input and
    these. Where it does not lie in order, kernels of chains alone read it so."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    others = {n for s in flat.statements if s.output not in chained for n in reads(s)}
    for s in flat.statements:
        if s.output in {*grouped, *chained, *flat.outputs} or not keeps_order(s, types):
            continue
        assert isinstance(s.body, Access)
        if s.body.tensor not in flat.input_names():
            continue
        if strides[s.body.tensor] == contiguous(types[s.body.tensor].shape):
            found[s.output] = s.body.tensor, contiguous(types[s.output].shape)
        elif s.output not in others:
            steps = zip(s.body.index, strides[s.body.tensor], strict=True)
            place = sum((linear(e) * step for e, step in steps), Affine())
            if place.is_affine and place.is_integral and not place.constant:
                own = (linear(e).bare for e in s.index or ())
                found[s.output] = s.body.tensor, tuple(as_int(place.coefficient(v or "")) for v in own)
    return found


def over_sources(
    steps: Iterable[Step], sources: Mapping[str, str], view: Callable[[str, str], TorchLines]
) -> Iterator[Step]:
    """The steps, whose kernels are given inputs in the place of what has their elements in another shape (`sources`);
    all else is given a `view`, which is made where it is first read."""
    there: set[str] = set()
    for step in steps:
        match step:
            case Launch():
                yield step.given(sources)
                continue
            case Repeat(launches=launches):
                yield replace(step, launches=tuple(launch.given(sources) for launch in launches))
                continue
        for name in [n for n in _read_as_tensors(step) if n in sources and n not in there]:
            there.add(name)
            yield view(name, sources[name])
        yield step


def _read_as_tensors(step: Step) -> tuple[str, ...]:
    match step:
        case TorchLines(reads=read):
            return read
        case Allocate(fill=str() as content):
            return (content,)
        case SubPlan(inputs=inputs):
            return inputs
        case TiledLoop(calls=calls):
            return tuple([x.tensor for call in calls for x in call.sources if not isinstance(x, Start)])
    return ()
