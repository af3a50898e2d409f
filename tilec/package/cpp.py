"""The launcher in C++ and its header: what the manifest says, as functions with a C interface."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilec.package.open_sizes import C_FUNCTIONS, SizeText, c_text

C_TYPES = {
    "float32": "float", "float64": "double", "bool": "uint8_t", "uint8": "uint8_t", "int8": "int8_t",
    "int16": "int16_t", "int32": "int32_t", "int64": "int64_t",
}  # fmt: skip

HEADER_TEXT = """\
/* {title}: kernels for {target}, launched through the CUDA driver. Link with -lcuda. */
#ifndef {guard}
#define {guard}

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

typedef struct {name}_package {name}_package;

/* Loads the kernels that lie in a directory onto a device. Every function returns 0, or else an error. */
int {name}_load(const char *directory, int device, {name}_package **package);
void {name}_unload({name}_package *package);

/* What went wrong in this thread's last call that did not return 0. */
const char *{name}_error(void);
{functions}
#ifdef __cplusplus
}}
#endif

#endif
"""

FUNCTION = """
/* {what}
{arguments}
 * Tensors are contiguous, on the device, and begin at multiples of 16 bytes. `workspace` holds as many bytes as
 * {name}_workspace says ({workspace}), and may be used again once the stream is done; `stream` is a
 * CUstream or cudaStream_t. The call returns once everything is launched. */
size_t {name}_workspace({sizes});
int {name}({package}_package *package,
    {parameters}void *workspace, void *stream);
"""

LAUNCHER = Path(__file__).with_name("launcher.cpp.in")  # what is filled in stands between two `@`

MAPS = r"""CUresult cuTensorMapEncodeTiled(void *, int, unsigned, void *, const uint64_t *, const uint64_t *,
                                const uint32_t *, const uint32_t *, int, int, int, int);
"""

ENCODE = r"""
struct alignas(64) Map {
  unsigned char bytes[128];
};

int encode(Map *map, CUdeviceptr address, int type, unsigned rank, const uint64_t *shape, const uint64_t *strides,
           const uint32_t *box, int swizzle) {
  const uint32_t ones[5] = {1, 1, 1, 1, 1};
  CHECK(cuTensorMapEncodeTiled(map, type, rank, (void *)address, shape, strides, box, ones, 0, swizzle, 2, 0));
  return 0;
}
"""


def header_text(manifest: Mapping[str, Any]) -> str:
    name = manifest["name"]
    functions = "".join(_declaration(name, e) for e in manifest["entries"])
    title = f"{name}, built by tilec {manifest['tilec']}"
    return HEADER_TEXT.format(
        title=title, target=manifest["target"], guard=f"{name.upper()}_H", name=name, functions=functions
    )


def _declaration(package: str, entry: Mapping[str, Any]) -> str:
    rows = [(f"{d} {t['name']}", f"{t['dtype']}[{', '.join(map(str, t['shape']))}]") for d, t in _tensors(entry)]
    rows += [(n, f"of the class of {like}: other sizes are an error") for n, like in entry.get("sizes", {}).items()]
    arguments = "\n".join(f" *   {what}: {shape}" for what, shape in rows)
    parameters = "".join(f"{p},\n    " for p in (*_sizes(entry), *(_parameter(d, t) for d, t in _tensors(entry))))
    what = "The gradient." if "wrt" in entry else "The function."
    return FUNCTION.format(
        what=what,
        arguments=arguments,
        workspace=entry["workspace"],
        name=entry["name"],
        package=package,
        sizes=", ".join(_sizes(entry)) or "void",
        parameters=parameters,
    )


def _sizes(entry: Mapping[str, Any]) -> list[str]:
    """The parameters that are open sizes."""
    return [f"int64_t {n}" for n in entry.get("sizes", ())]


def _tensors(entry: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """What the C function takes: inputs that are read, then outputs that there are."""
    inputs = [("input", i) for i in entry["inputs"] if not i["ignored"]]
    return [*inputs, *(("output", o) for o in entry["outputs"] if o is not None)]


def _parameter(direction: str, t: Mapping[str, Any]) -> str:
    const = "const " if direction == "input" else ""
    return f"{const}{C_TYPES.get(t['dtype'], 'void')} *{c_name(direction, t['name'])}"


def c_name(direction: str, name: str) -> str:
    """A tensor's name in C, which no word of C's is."""
    return f"{'in' if direction == 'input' else 'out'}_{name.replace(chr(39), '_').replace('.', '_')}"


def launcher_text(manifest: Mapping[str, Any]) -> str:
    name = manifest["name"]
    maps = any(kind == "map" for e in manifest["entries"] for s in e["steps"] for kind, _ in s.get("arguments", ()))
    open_sizes = any("sizes" in e for e in manifest["entries"])
    kernels = "".join(f'  {{"{k["file"]}", "{k["symbol"]}", {k["shared"]}}},\n' for k in manifest["kernels"])
    tables, uploads = "", ""
    for number, rows in enumerate(manifest["tables"]):
        values = [str(n) for row in rows for n in row]
        tables += f"const int32_t TABLE_{number}[] = {{{', '.join(values)}}};\n"
        uploads += (
            f"  CUdeviceptr table_{number};\n  CHECK(cuMemAlloc_v2(&table_{number}, sizeof TABLE_{number}));\n"
            f"  p->tables.push_back(table_{number});\n"
            f"  CHECK(cuMemcpyHtoD_v2(table_{number}, TABLE_{number}, sizeof TABLE_{number}));\n"
        )
    wanted = int(manifest["target"].removeprefix("sm_"))
    major, minor = divmod(wanted, 10)
    runs = f"major == {major} && minor {'==' if wanted >= 90 else '>='} {minor}"
    filled = {
        "SIZES": C_FUNCTIONS if open_sizes else "",
        "MAPS": MAPS if maps else "",
        "ENCODE": ENCODE if maps else "",
        "KERNELS": kernels or '  {"", "", 0},\n',
        "COUNT": str(len(manifest["kernels"])),
        "TABLES": tables,
        "UPLOADS": uploads,
        "RUNS": runs,
        "NAME": name,
        "TARGET": manifest["target"],
    }
    loading = "\n" + LAUNCHER.read_text(encoding="utf-8")
    for hole, text in filled.items():
        loading = loading.replace(f"@{hole}@", text)
    top = f'// Launches the kernels of {name}; see the header.\n#include "{name}.h"\n\n'
    headers = ("cmath", "cstdio", "initializer_list", "string", "utility", "vector")
    top += "".join(f"#include <{h}>\n" for h in headers if open_sizes or h in ("cstdio", "string", "vector"))
    return top + loading + "".join(_function(name, e) for e in manifest["entries"])


def _function(package: str, entry: Mapping[str, Any]) -> str:
    name = entry["name"]
    parameters = "".join(f"{p},\n    " for p in (*_sizes(entry), *(_parameter(d, t) for d, t in _tensors(entry))))
    unused = "".join(f"(void){n}; " for n in entry.get("sizes", ()))
    given = ", ".join(_sizes(entry)) or "void"
    lines = [
        f"\nsize_t {name}_workspace({given}) {{ {unused}return {entry['workspace']}; }}\n",
        f"int {name}({package}_package *p,\n    {parameters}void *workspace, void *stream) {{",
        "  CUstream on = (CUstream)stream;",
        *(f"  (void){n};" for n in ("on", "workspace", *(c_name(d, t["name"]) for d, t in _tensors(entry)))),
        *_conditions(entry),
        "  Current current(p->context);",
        '  if (current.code) return failed("the context", current.code);',
    ]
    for step in entry["steps"]:
        lines += ["  {", *(f"    {line}" for line in _STEPS[step["step"]](step, entry)), "  }"]
    return "\n".join([*lines, "  return 0;", "}"]) + "\n"


def _conditions(entry: Mapping[str, Any]) -> list[str]:
    """An error for sizes that are not of the class that the kernels were built for."""
    sizes = ", ".join(f'{{"{n.removeprefix("size_")}", {n}}}' for n in entry.get("sizes", ()))
    return [
        f'  if (!{c_text(text)}) return outside("{entry["name"]}", "{text.replace("size_", "")}", {{{sizes}}});'
        for text in entry.get("conditions", ())
    ]


def _address(place: Sequence[Any] | None, entry: Mapping[str, Any]) -> str:
    if place is None:
        return "0"
    space, number, offset = place
    if space == "workspace":
        base = "workspace"
    elif space == "table":
        base = f"p->tables[{number}]"
    else:
        base = c_name(space, entry[f"{space}s"][number]["name"])
    return f"(CUdeviceptr){base}" + (f" + {offset}" if offset else "")


def _fill(step: Mapping[str, Any], entry: Mapping[str, Any]) -> list[str]:
    given = f"{step['pattern']}ull, {step['item']}, {step['count']}, on"
    return [f"if (int error = fill({_address(step['to'], entry)}, {given})) return error;"]


def _copy(step: Mapping[str, Any], entry: Mapping[str, Any]) -> list[str]:
    ends = f"{_address(step['to'], entry)}, {_address(step['from'], entry)}"
    return [f"CHECK(cuMemcpyDtoDAsync_v2({ends}, {step['bytes']}, on));"]


def _launch(step: Mapping[str, Any], entry: Mapping[str, Any]) -> list[str]:
    lines, names = [], []
    for number, (kind, value) in enumerate(step["arguments"]):
        name = f"a{number}"
        names.append(f"&{name}")
        if kind == "pointer":
            lines.append(f"CUdeviceptr {name} = {_address(value, entry)};")
        elif kind == "map":
            lines += _map(name, value, entry)
        elif kind == "f32":
            lines.append(f"float {name} = {_float(value)};")
        else:
            lines.append(f"{'int32_t' if kind == 'i32' else 'int64_t'} {name} = {value};")
    lines.append(f"void *parameters[] = {{{', '.join(names) or 'nullptr'}}};")
    x, y, z = step["grid"]
    how = f"{step['threads']}, {step['shared']}, {'true' if step['cooperative'] else 'false'}"
    call = f"launch(p->functions[{step['kernel']}], {x}, {y}, {z}, {how}, on, parameters)"
    if step["counter"] is None and step["repeat"] == 1:
        return [*lines, f"if (int error = {call}) return error;"]
    counting = [] if step["counter"] is None else [f"  a{step['counter']} = moment;"]
    loop = f"for (int moment = 0; moment < {step['repeat']}; ++moment) {{"
    return [*lines, loop, *counting, f"  if (int error = {call}) return error;", "}"]


def _map(name: str, how: Mapping[str, Any], entry: Mapping[str, Any]) -> list[str]:
    rank = len(how["shape"])
    shape = ", ".join(map(_unsigned, reversed(how["shape"])))
    strides = ", ".join([*(_unsigned(s * how["item"]) for s in reversed(how["strides"][:-1])), "0"])
    box = ", ".join(map(str, reversed(how["box"])))
    arrays = f"uint64_t {name}_shape[] = {{{shape}}}, {name}_strides[] = {{{strides}}};"
    described = f"{how['type']}, {rank}, {name}_shape, {name}_strides, {name}_box, {how['swizzle']}"
    return [
        f"Map {name};",
        f"const {arrays}",
        f"const uint32_t {name}_box[] = {{{box}}};",
        f"if (int error = encode(&{name}, {_address(how['of'], entry)}, {described})) return error;",
    ]


def _unsigned(n: int | SizeText) -> str:
    return f"(uint64_t)({n})" if isinstance(n, SizeText) else str(n)


def _float(value: float | SizeText) -> str:
    if isinstance(value, SizeText):
        return f"(float){value}"
    if math.isnan(value):
        return '__builtin_nanf("")'
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inff()"
    return f"{float(value).hex()}f"


_STEPS = {"fill": _fill, "copy": _copy, "launch": _launch}
