"""What plans ask of a device, and descriptions of some to plan for where none is at hand."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.errors import Unsupported


@dataclass(frozen=True)
class DeviceInfo:
    """`capability`: major and minor, 90 for 9.0; 0 where kernels are interpreted. `multiprocessors`: how many.
    `shared`: bytes of shared memory that a block may have."""

    name: str
    capability: int
    multiprocessors: int
    shared: int


HOPPER = 90  # the capability of devices with tensor maps and products of warp groups

# by the name of the architecture, with the numbers that NVIDIA gives for one of its devices
DEVICES = {
    "sm_80": DeviceInfo("A100", 80, 108, 163 * 1024),
    "sm_89": DeviceInfo("RTX 4090", 89, 128, 99 * 1024),
    "sm_90": DeviceInfo("H200", HOPPER, 132, 227 * 1024),
}

# How a sum is split decides how it is rounded, and results depend on shapes alone: splits, and the tiles that they
# follow from, are planned for this device, whichever runs them. Limits are those of the device itself.
PLANNED_FOR = DEVICES["sm_90"]
MULTIPROCESSORS = PLANNED_FOR.multiprocessors
REGISTERS = 65536  # of a multiprocessor
TWO_A_MULTIPROCESSOR = 2 * MULTIPROCESSORS  # programs: with fewer, some multiprocessors wait


def check_target(target: str) -> None:
    """Raises Unsupported for an architecture that nothing is known of."""
    if target not in DEVICES:
        raise Unsupported(f"there is no target {target!r}", hint="targets: " + ", ".join(DEVICES))
