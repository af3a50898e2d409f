"""What a Hopper kernel does with its sums: takes them again where they may be wrong, stores them, adds up shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilec.backends.triton.hopper_design import Design, Lines, joined, spell
from tilec.backends.triton.hopper_form import Variable, coefficients
from tilec.backends.triton.hopper_tiles import advance, box_text, start


def staging(w: Lines, d: Design) -> None:
    """Where a tile waits for its copy to the output."""
    if d.out is not None:
        w(f"staged = gl.allocate_shared_memory(out_map.dtype, [{', '.join(box_text(d.out))}], out_map.layout)")


def finish(w: Lines, d: Design) -> None:
    if d.exact:
        _again(w, d)
    if d.scaled and not d.split:
        w("sums = sums * scale")
    if d.out is not None:
        if d.specialise:
            w("tma.store_wait(pendings=0)")
        else:
            staging(w, d)
        w("staged.reshape([BM, BN]).store(sums.to(out_map.dtype))", "fence_async_shared()")
        w(f"copy_out(out_map, [{', '.join(spell(dim.form) for dim in d.out.dims)}], staged)")
        if not d.specialise:
            w("tma.store_wait(pendings=0)")
        return
    w(
        "WIDE: gl.constexpr = 128 // out.dtype.element_ty.primitive_bitwidth if BN * out.dtype.element_ty.primitive_bitwidth >= 128 else 1"
    )
    w("ACROSS: gl.constexpr = BN // WIDE if BN // WIDE < 32 else 32")
    w("flat: gl.constexpr = gl.BlockedLayout([1, WIDE], [32 // ACROSS, ACROSS], [gl.num_warps(), 1], [1, 0])")
    w("values = gl.convert_layout(sums.to(out.dtype.element_ty), flat)")
    inside = _spread(w, d, "flat")
    names = {v.name: f"{v.name}_i" for v in d.problem.rows + d.problem.columns}
    if d.split:
        row, column = (_flat_index(group, names) for group in (d.problem.rows, d.problem.columns))
        rows, columns = (
            joined([f"{v.name}_n" for v in group], "*", "1") for group in (d.problem.rows, d.problem.columns)
        )
        batch = _flat_index(d.problem.batch, {}) if d.problem.batch else "0"
        batches = joined([f"{v.name}_n" for v in d.problem.batch], "*", "1")
        w(
            f"at = (outer * ({batches}) + ({batch})).to(gl.int64) * ({rows})",
            f"place = ((at + ({row})) * ({columns}))[:, None] + ({column})[None, :]",
        )
    else:
        place = _offsets(d, "out", names)
        w(f"place = {joined([t for t in place if t], '+', '0')}")
    w(f"gl.store(out + place, values, mask={inside})")


def _flat_index(group: Sequence[Variable], names: Mapping[str, str]) -> str:
    text = ""
    for v in group:
        shown = names.get(v.name, v.name)
        text = f"({text}) * {v.name}_n + {shown}" if text else shown
    return text or "0"


def _spread(w: Lines, d: Design, layout: str) -> str:
    """Each row's and column's variables as vectors, `<name>_i`; what says that they are in range, guards of the output included."""
    terms: dict[str, list[str]] = {"m": [], "n": []}
    for group, letter, size, axis in ((d.problem.rows, "m", "BM", 1), (d.problem.columns, "n", "BN", 0)):
        w(f"{letter} = gl.arange(0, {size}, layout=gl.SliceLayout({axis}, {layout}))")
        below = ""
        for v in reversed(group):
            w(f"{v.name}_i = {v.name} + {letter}{below} % B_{v.name}")
            below += f" // B_{v.name}"
            terms[letter].append(f"({v.name}_i < {v.name}_n)")
    for axis in d.guards:
        form = d.problem.out[axis]
        letter = "m" if any(form.coefficient(v.name) for v in d.problem.rows) else "n"
        shown = {v.name: f"{v.name}_i" for v in d.problem.rows + d.problem.columns}
        terms[letter].append(f"({spell(form, shown)} < out_size_{axis})")
    w(f"row_in = {joined(terms['m'], '&', 'm >= 0')}", f"column_in = {joined(terms['n'], '&', 'n >= 0')}")
    return "row_in[:, None] & column_in[None, :]"


def _offsets(d: Design, side: str, names: Mapping[str, str]) -> tuple[str, str, str]:
    """Element offsets of an operand: the scalar part, that of the rows, that of the columns."""
    scalar: list[str] = [f"{side}_base"]
    row: list[str] = []
    column: list[str] = []
    for name in d.symbols(side):
        shown = names.get(name, name)
        stride = f"{side}_{name}"
        term = shown if stride in d.ones else f"{shown}.to(gl.int64) * {stride}"
        vector = shown != name and name[0] in "rc"
        (row if vector and name[0] == "r" else column if vector else scalar).append(term)
    return (
        " + ".join(scalar),
        f"({' + '.join(row)})[:, None]" if row else "",
        f"({' + '.join(column)})[None, :]" if column else "",
    )


def _again(w: Lines, d: Design) -> None:
    """Where the tile may meet points outside an operand and a sum is not finite: the sum over the valid points alone, one by one."""
    w(f"suspect = {joined(_suspicions(d), '|', '')}")
    with w.block("if suspect:"):
        w('wrong = gl.max(gl.max(gl.where(gl.abs(sums) < float("inf"), 0, 1), 1), 0)')
        with w.block("if wrong != 0:"):
            w("sums = gl.zeros((BM, BN), gl.float32, mma)")
            _spread(w, d, "mma")
            start(w, d)
            with w.block("for t in range(steps):"):
                with w.block("for e in range(BK):"):
                    below, valid = "", []
                    for v in reversed(d.problem.summed):
                        w(f"{v.name}_i = {v.name} + e{below} % B_{v.name}")
                        below += f" // B_{v.name}"
                        if v.name in d.boxed:
                            valid.append(f"({v.name}_i < {v.name}_n)")
                    names = {v.name: f"{v.name}_i" for v in d.problem.rows + d.problem.columns + d.problem.summed}
                    for side, vector in (("left", "row_in"), ("right", "column_in")):
                        tests = [vector, *valid]
                        for axis in d.loose[side]:
                            w(f"{side}_{axis}_at = {spell(d.forms[side][axis], names)}")
                            tests.append(f"({side}_{axis}_at >= 0) & ({side}_{axis}_at < {side}_size_{axis})")
                        w(f"{side}_ok = {joined(tests, '&', '')}")
                        place = " + ".join(t.split("[", 1)[0] for t in _offsets(d, side, names) if t)
                        w(f"{side}_value = gl.load({side} + ({place}), mask={side}_ok, other=0.0).to(gl.float32)")
                    w("both = left_ok[:, None] & right_ok[None, :]")
                    w("sums += gl.where(both, left_value[:, None] * right_value[None, :], 0.0)")
                advance(w, d)


def _suspicions(d: Design) -> list[str]:
    """Scalar tests, one of which holds where a tile meets a point outside an operand."""
    sizes = {v.name for v in d.problem.rows + d.problem.columns}
    summed = {v.name for v in d.problem.summed}
    found = [f"({name}_n % B_{name} != 0)" for name in d.tails]
    for side in ("left", "right"):
        for axis in d.loose[side]:
            form = d.forms[side][axis]
            low, high = str(int(form.constant)), str(int(form.constant))
            for name, c in coefficients(form):
                first, last = name, name
                if name in sizes:
                    last = f"gl.minimum({name} + B_{name}, {name}_n) - 1"
                elif name in summed:
                    first, last = "0", f"{name}_n - 1"
                if c < 0:
                    first, last = last, first
                low += f" + {c} * ({first})"
                high += f" + {c} * ({last})"
            found.append(f"({low} < 0) | ({high} >= {side}_size_{axis})")
    return found


TOTAL = '''"""The shares of a sum, added in order."""
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["total"])
def {name}(parts, out, total, {sizes}, {strides}{scale}, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < total
    sums = tl.load(parts + i, mask=inside, other=0.0)
    for k in range(1, SPLIT):
        sums += tl.load(parts + (k * total.to(tl.int64) + i), mask=inside, other=0.0)
'''


def total(d: Design) -> tuple[str, str, list[str], list[str]]:
    """The text of the kernel that adds the shares; its name, and its sizes and strides in order."""
    order = (*d.problem.batch, *d.problem.rows, *d.problem.columns)
    sizes = [f"{v.name}_n" for v in order]
    strides = [f"out_{s}" for s in (*d.symbols("out"), "base") if f"out_{s}" not in d.ones]
    name = f"{d.name}_total"
    w = Lines(1)
    for v in reversed(order):
        w(f"{v.name} = i % {v.name}_n", f"i = i // {v.name}_n")
    terms = [s if f"out_{s}" in d.ones else f"{s}.to(tl.int64) * out_{s}" for s in d.symbols("out")]
    w(f"place = {joined(['out_base', *terms], '+', '')}")
    w(f"tl.store(out + place, (sums{' * scale' if d.scaled else ''}).to(out.dtype.element_ty), mask=inside)")
    text = TOTAL.format(
        name=name, sizes=", ".join(sizes), strides=", ".join(strides), scale=", scale" if d.scaled else ""
    )
    return text + "\n".join(w.lines) + "\n", name, sizes, strides
