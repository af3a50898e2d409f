"""What a function is lowered to for a GPU that need not be there."""

import tilec


def kernels(f, *specs):
    """The statements of each kernel."""
    return [k.statements for k in f.lower(*specs, target="sm_90").kernels]


def specs(tensors):
    return [tilec.spec(tuple(t.shape), str(t.dtype)[6:]) for t in tensors]


def launches(source, *shapes):
    return kernels(tilec.compile(source, backend="triton"), *(tilec.spec(s) for s in shapes))
