"""Programs before and after binding and flattening, compared by the oracle."""

from __future__ import annotations

import numpy as np

from tilec.arguments import size_value, types_of
from tilec.ir.evaluate import evaluate
from tilec.ir.infer import infer
from tilec.ir.program import Program
from tilec.ir.verify import verify
from tilec.language import parse, show
from tilec.transforms.bind.bind import bind, size_inputs
from tilec.transforms.lower.flatten import flatten


def bound(source: str, *arrays) -> Program:
    """The program of a source, bound to these inputs and verified."""
    program = parse(source)
    verify(program)
    names = program.input_names()
    values = {name: size_value(name, arrays[names.index(name)]) for name in size_inputs(program)}
    result = bind(program, types_of(names, arrays), values)
    verify(result, bound=True)
    return result


def flat(source: str, *arrays) -> Program:
    """The program of a source, bound and flattened."""
    program = bound(source, *arrays)
    result = flatten(program, types_of(program.input_names(), arrays))
    verify(result, bound=True)
    return result


def statements(program: Program) -> list[str]:
    """The text of each statement."""
    return [line.strip() for line in show(program).splitlines()[1:-1]]


def same_meaning(source: str, *arrays) -> tuple[np.ndarray, ...]:
    """Check that binding and flattening change no output, no inferred type and nothing in the round trip."""
    expected = evaluate(parse(source), arrays)
    for stage in (bound, flat):
        program = stage(source, *arrays)
        assert parse(show(program)) == program, show(program)
        types = infer(program, types_of(program.input_names(), arrays))
        for name, want, got in zip(program.outputs, expected, evaluate(program, arrays), strict=True):
            assert types[name].shape == want.shape, (stage.__name__, name)
            assert want.dtype == got.dtype, (stage.__name__, name, show(program))
            np.testing.assert_allclose(
                got, want, rtol=1e-12, atol=1e-12, equal_nan=True, err_msg=f"{stage.__name__}\n{show(program)}"
            )
    return expected
