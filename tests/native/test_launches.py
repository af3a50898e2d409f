"""Plans that are launched without Python, by a library that stands for the CUDA driver, and what is launched so."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.fresh import run_fresh

import tilec
from tilec.backends.triton.plan.plan import Launch, Pointer
from tilec.backends.triton.runtime.compiled import compile_for, interpreting
from tilec.backends.triton.runtime.launcher import CompiledKernel, Launched, _parameters

DRIVER = r"""
#include <stdint.h>
/* A kernel adds: y[k] = x[k] * scale + step for k < count, of (x, y, count, step, scale) and two further pointers. */
static int context_of_0;
static _Thread_local void *current; /* a thread has none at first */
int cuCtxGetCurrent(void **context) { *context = current; return 0; }
int cuCtxSetCurrent(void *context) { current = context; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = device ? 0 : &context_of_0; return 0; }
int cuStreamIsCapturing(void *stream, int *capturing) { *capturing = 0; return 0; }
int cuTensorMapReplaceAddress(void *map, void *address) {
  *(void **)map = address;
  return current != &context_of_0 ? 201 : (uintptr_t)map % 64;
}
int cuGetErrorName(int code, const char **name) { *name = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "?"; return 0; }
static int add(void **p) {
  const float *x = *(float **)p[0];
  float *y = *(float **)p[1], scale = *(float *)p[4];
  int count = *(int32_t *)p[2];
  int64_t step = *(int64_t *)p[3];
  for (int k = 0; k < count; ++k) y[k] = x[k] * scale + step;
  return *(void **)p[5] || *(void **)p[6];
}
int cuLaunchKernel(uintptr_t kernel, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned one, unsigned two,
                   unsigned shared, void *stream, void **parameters, void **extra) {
  if (current != &context_of_0) return 201;
  if (kernel == 9) return 700;
  if (kernel == 7) { /* of a tensor map over x, whose last element is a number to add, and y */
    const char *map = parameters[0];
    const float *x = *(float **)map;
    float *y = *(float **)parameters[1];
    for (int k = 0; k < 3; ++k) y[k] = x[k] + map[127];
    return 0;
  }
  if (x != 2 || y != 3 || z != 4 || threads != 128 || one != 1 || two != 1 || shared != 48 || extra) return 1;
  return add(parameters);
}
int cuLaunchCooperativeKernel(uintptr_t kernel, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned one,
                              unsigned two, unsigned shared, void *stream, void **parameters) {
  return add(parameters);
}
"""
PLANS = """
import sys
from concurrent.futures import ThreadPoolExecutor
import torch
from tilec.native import native

library = native()
library.use_driver(sys.argv[1])
byte, number = torch.empty(0, dtype=torch.uint8), torch.empty(0)


def added(kernel, source, target, scale, together=False, grid=(2, 3, 4)):
    arguments = [source, target, ("i32", 6), ("i64", 2), ("fp32", scale), ("i64", 0), ("i64", 0)]
    return "launch", kernel, list(grid), 128, 48, together, arguments


def double(tensors, stream):
    assert stream == 0
    tensors["twice"] = 2 * tensors["once"]


steps = [  # input 0, an output 1, another 2; the first product in the workspace
    added(1, ("tensor", 0), ("workspace", 512), 3.0),
    ("empty", 1, [2, 3], number),
    added(8, ("workspace", 512), ("tensor", 1), 1.0),
    added(8, ("tensor", 1), ("tensor", 1), 1.0, True),
    added(1, ("tensor", 0), ("tensor", 1), 1.0, False, (2, 0, 4)),  # which the driver refuses
    ("python", double, [("once", 1)], [("twice", 2)]),
    ("free", [0]),
]
plan = library.plan(byte, 1024, 3, steps, [2, 1])
x = torch.arange(6.0).view(2, 3)
for _ in range(3):
    twice, once = plan(x)
    assert torch.equal(once, 3 * x + 6) and torch.equal(twice, 6 * x + 12) and x.sum() == 15
open_steps = [("empty", 1, [(0,), 3], number), added(8, ("workspace", (1,)), ("tensor", 1), (2,), grid=(2, (3,), 4))]
open_steps.insert(0, added(1, ("tensor", 0), ("workspace", (1,)), 3.0))
open_plan = library.plan(byte, 0, 2, open_steps, [1])
for own in ((2, 0, 1.0, 3), (2, 512, 2.0, 3), (5, 256, 1.0, 0)):  # with no programs nothing is launched
    (found,) = open_plan.filled(1024, own, [])(x)
    assert found.shape == (own[0], 3) and (not own[3] or torch.equal(found, own[2] * (3 * x + 2) + 2))
mapped = [("map", (0, 8, bytes(127) + b"\\x05")), ("tensor", 1)]
steps = [("empty", 1, [3], number), ("launch", 7, [1, 1, 1], 128, 0, False, mapped)]
for x in (torch.arange(6.0), torch.arange(6.0) + 10):
    assert torch.equal(library.plan(byte, 0, 2, steps, [1])(x)[0], x[2:5] + 5)
with ThreadPoolExecutor(1) as new_thread:  # the map is its first use of the device
    assert torch.equal(new_thread.submit(lambda: library.plan(byte, 0, 2, steps, [1])(x)[0]).result(), x[2:5] + 5)
try:
    library.plan(byte, 0, 1, [added(9, ("tensor", 0), ("tensor", 0), 1.0)], [])(x)
except RuntimeError as error:
    print(str(error).splitlines()[0])
"""


def test_steps(library, tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None
    (tmp_path / "driver.c").write_text(DRIVER)
    made = tmp_path / "libdriver.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", made, tmp_path / "driver.c"], check=True)
    done = run_fresh(PLANS, str(made))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "a kernel was not launched: CUDA_ERROR_ILLEGAL_ADDRESS\n"


@pytest.mark.skipif(interpreting(), reason="nothing is compiled while kernels are interpreted")
@pytest.mark.parametrize(
    ("source", "inputs"),
    [
        ("Y = X * S", [tilec.spec((1000,)), 2.5]),
        (
            "function (X[N, F]) -> (Y) { M[n : N] = >(X[n, f]); Y[n, f : N, F] = X[n, f] - M[n]; }",
            [tilec.spec((7, 33))],
        ),
        ("Y[k] = +(X[k, i])", [tilec.spec((1, 4096))]),
    ],
)
def test_parameters(source: str, inputs: list) -> None:
    """What is handed over is what the compiled kernel takes, two pointers of Triton's after it."""
    plan = tilec.compile(source).lower(*inputs, backend="triton", target="sm_90")._executable.plan
    for launch in (step for step in plan.steps if isinstance(step, Launch)):
        kernel = compile_for(launch, dict.fromkeys(launch.tensors, "float32"), "sm_90")
        launched = Launched(launch)
        made = SimpleNamespace(function=7, metadata=kernel.metadata, src=kernel.src, asm=kernel.asm)
        launched._compiled_kernel = CompiledKernel(made, _parameters(made, launch), (), 7)
        found = launched.compiled()
        assert found is not None
        function, threads, shared, together, values = found
        assert (function, threads, together) == (7, 32 * launch.warps, launch.cooperative)
        assert shared == kernel.metadata.shared
        addresses = [v.tensor for _, v in values if isinstance(v, Pointer)]
        assert addresses == [v.tensor for _, v in launch.arguments if isinstance(v, Pointer)]
        numbers = [v for _, v in values[:-2] if not isinstance(v, Pointer)]
        assert numbers == [v for _, v in launch.arguments if not isinstance(v, Pointer) and v != 1]
