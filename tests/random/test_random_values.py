"""Random programs: the same answer from the source, after every pass, and on the torch backend."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from support.programs import AGGREGATIONS, FAMILIES, PHASES, Case, Options, programs
from support.scale import scaled
from support.stages import REFUSALS, check

from tilec.backends.torch.matmul import keyed
from tilec.ir.evaluate import evaluate
from tilec.language import parse
from tilec.transforms.lower import keyed_sums

COUNTS = {
    "mixed": 28, "contractions": 28, "elementwise": 18, "smooth": 14, "special": 14, "chains": 12, "quasi-affine": 18,
    "keyed": 18,
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_every_stage_and_the_backend_agree(family, monkeypatch):
    monkeypatch.setattr(keyed, "FEWEST_OF_KEY", 0)
    monkeypatch.setattr(keyed_sums, "LEAST_SIDE", 1)

    @settings(max_examples=scaled(COUNTS[family]), phases=PHASES)
    @given(programs(FAMILIES[family]))
    def agree(case: Case):
        check(parse(case.source), list(case.inputs.values()))

    agree()


FEATURES = {
    "contraction", "elementwise", "reshape", "gather", "scatter", "simple_reduce", "nested", "guard", "?:", "in", "pad",
    "%", "clamp", "extremum", "constraint", "default", "rational index", "scattered output", "sizes left out",
    "second constraint", "accesses in both branches", "binding list",
    "size statement", "integer input as size", "index as value", "index()", "draw",
    *(a for names in AGGREGATIONS.values() for a in names),
}  # fmt: skip
HARDER = {"second constraint", "accesses in both branches", "binding list"}


def test_the_programs_hold_every_feature_and_mean_something():
    features: Counter = Counter()
    varied, harder = [], []

    @settings(max_examples=300, phases=PHASES)
    @given(programs(Options()))
    def collect(case: Case):
        features.update(case.features)
        harder.append(bool(case.features & HARDER))
        try:
            results = evaluate(parse(case.source), list(case.inputs.values()))
        except REFUSALS:
            results = ()
        varied.append(any(r.size and (r != r.flat[0]).any() for r in results))

    collect()
    rare = {name: features[name] for name in FEATURES if features[name] < 4}
    assert not rare, f"hardly ever drawn: {rare}"
    assert np.mean(harder) >= 1 / 3, "too few programs with what people stumble over"
    assert np.mean(varied) > 0.35, "most programs have constant results"
