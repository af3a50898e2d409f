"""All workloads, by name."""

from __future__ import annotations

from tilec.bench.suite import attention, convolutions, indexing, kernels, losses, norms, products, scans, windows
from tilec.bench.suite.workload import Workload

MODULES = (attention, convolutions, products, norms, losses, indexing, windows, kernels, scans)
WORKLOADS: dict[str, Workload] = {w.name: w for module in MODULES for w in module.WORKLOADS}
