"""A kernel named in words, with arguments described in words, run once under a meter."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from ...extras import require
from .metering import Meter
from .record import OutOfBounds

#: Formats by short name, with PyTorch's.
DTYPES: Final = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "i1": "bool",
}
_TOO_LARGE: Final = 2**40
#: What the text of a kernel file may raise while it is imported.
_FAILURES: Final = (
    ImportError,
    SyntaxError,
    NameError,
    AttributeError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AssertionError,
    RuntimeError,
    OSError,
    SystemExit,
)
_TENSOR = re.compile(r"(\w+)\[\s*((?:\d{1,30}\s*(?:,\s*\d{1,30}\s*)*)?)\](?::(\d{1,30}))?")


@dataclass(frozen=True)
class Tensor:
    """A tensor to make: standard normal numbers, or whole numbers from 0 to `below` - 1."""

    dtype: str
    shape: tuple[int, ...]
    below: int | None

    def make(self, rng: np.random.Generator) -> Any:
        """The tensor, on the CPU. MissingExtra without PyTorch, MemoryError where it does not fit."""
        torch = require("torch", "torch", "making tensors for a kernel")
        wide = self.dtype == "f64"
        if self.dtype[0] in "iu":
            values: Any = rng.integers(0, self.below or 2, self.shape, dtype=np.int64)
        else:
            values = rng.standard_normal(self.shape, dtype=np.float64 if wide else np.float32)
        return torch.from_numpy(np.asarray(values)).to(getattr(torch, DTYPES[self.dtype]))


def parse_grid(text: str) -> tuple[int, ...]:
    """Programs along one to three axes: "64" or "8,4". ValueError for anything else."""
    parts = text.split(",")
    if len(parts) > 3 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"--grid: {text!r}: one to three positive whole numbers, as 64 or 8,4, would do")
    return tuple(map(int, parts))


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip().isidentifier() or not value.strip():
        raise ValueError(f"{option}: {text!r}: NAME=VALUE would do")
    return name.strip(), value.strip()


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(text.lower(), text))
    except (ValueError, SyntaxError):
        return text


def parse_argument(text: str) -> tuple[str, Tensor | int | float | None]:
    """The parameter's name, and what it is given. ValueError, naming --arg, for what is none of these:

    x=f32[64,4096]        a tensor of normal numbers
    labels=i64[64]:4096   whole numbers from 0 to 4095; without the bound 0 and 1
    n=4096, eps=1e-5, bias=None
    """
    name, value = _pair(text, "--arg")
    match = _TENSOR.fullmatch(value)
    if match is None:
        number = _literal(value)
        if number is not None and not isinstance(number, (bool, int, float)):
            raise ValueError(f"--arg: {text!r}: a tensor as f32[64,4096], a number or None would do")
        return name, number
    dtype, sizes, below = match.groups()
    if dtype not in DTYPES:
        raise ValueError(f"--arg: {name}: {dtype!r} is no format: {', '.join(DTYPES)} would do")
    if below is not None and (dtype[0] not in "iu" or int(below) < 1):
        raise ValueError(f"--arg: {text!r}: a bound of 1 or more, and only for whole numbers, would do")
    shape = tuple(int(size) for size in sizes.split(",") if size.strip())
    if math.prod(shape) >= _TOO_LARGE or (below is not None and int(below) >= _TOO_LARGE):
        raise ValueError(f"--arg: {name}: sizes and bounds below 2^40 would do")
    return name, Tensor(dtype, shape, None if below is None else int(below))


def parse_constexpr(text: str) -> tuple[str, Any]:
    """ "BLOCK=1024", "CAUSAL=True", "ACTIVATION=relu": a Python literal, or else the text itself."""
    name, value = _pair(text, "--constexpr")
    return name, _literal(value)


def _collect(pairs: Iterable[tuple[str, Any]], option: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{option}: {name} is given twice")
        found[name] = value
    return found


def _import(target: str) -> ModuleType:
    """The module of this name, or in this file; it may import what lies beside it, as under python itself.

    The file is the user's: an error of the usual kinds, or an exit, is said in one line with its name. One of
    the file's own making passes with its traceback.
    """
    path = Path(target)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise ValueError(f"{target}: no such file")
    if not is_file and not all(part.isidentifier() for part in target.split(".")):
        raise ValueError(f"{target!r}: the name of a module, or of a .py file, would do")
    sys.path.insert(0, str(path.absolute().parent) if is_file else os.getcwd())
    try:
        return _from_file(path) if is_file else importlib.import_module(target)
    except _FAILURES as error:
        raise ValueError(f"{target}: cannot be imported: {type(error).__name__}: {error}") from error


def _from_file(path: Path) -> ModuleType:
    name = f"metered_{path.stem}"  # the file may be called as a module that is loaded
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("no loader for it")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_kernel(target: str) -> Any:
    """The kernel MODULE:NAME or FILE.py:NAME, as Triton's interpreter runs it; no autotuning around it.

    Sets TRITON_INTERPRET=1 for this process. Raises ValueError for an unknown module, file or name, for
    something that is no kernel, and where Triton was imported in another mode; MissingExtra without Triton.
    """
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise ValueError(f"{target!r}: MODULE:KERNEL or FILE.py:KERNEL would do")
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError("TRITON_INTERPRET: triton is imported already without it; set it to 1 before")
    os.environ["TRITON_INTERPRET"] = "1"
    require("triton", "triton", "the meter")
    interpreter = require("triton.runtime.interpreter", "triton", "the meter")
    module = _import(place)
    if not hasattr(module, name):
        kernels = [key for key, value in vars(module).items() if hasattr(value, "arg_names")]
        raise ValueError(f"{place} has no {name!r}: {', '.join(kernels) or 'it has no kernel'}")
    kernel = getattr(module, name)
    while not isinstance(kernel, interpreter.InterpretedFunction):
        kernel = getattr(kernel, "fn", None)
        if not hasattr(kernel, "arg_names"):
            raise ValueError(f"{target}: no @triton.jit kernel that the interpreter runs")
    return kernel


def _check_names(kernel: Any, given: Mapping[str, Any], constexprs: Mapping[str, Any]) -> None:
    """ValueError unless each parameter is given once, in its own way."""
    interpreter = require("triton.runtime.interpreter", "triton", "the meter")
    constant = set(interpreter.GridExecutor(kernel.fn, kernel.arg_names, (1,)).constexprs)
    names = ", ".join(kernel.arg_names)
    for option, found in (("--arg", given), ("--constexpr", constexprs)):
        for name in found:
            if name not in kernel.arg_names:
                raise ValueError(f"{option}: {kernel.__name__} has no parameter {name!r}: {names}")
            if (name in constant) != (option == "--constexpr"):
                other = "--constexpr" if name in constant else "--arg"
                raise ValueError(f"{option}: {name!r} of {kernel.__name__}: {other} {name}=... would do")
    parameters = inspect.signature(kernel.fn).parameters
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in given and name not in constexprs:
            option = "--constexpr" if name in constant else "--arg"
            raise ValueError(f"{option}: {name!r} of {kernel.__name__} is not given")


def run(
    target: str,
    *,
    grid: str,
    arguments: Iterable[str],
    constexprs: Iterable[str] = (),
    seed: int = 0,
    log: bool = False,
) -> Meter:
    """Run the kernel once under a meter and return that.

    Args:
        target: see `load_kernel`.
        grid, arguments, constexprs: see `parse_grid`, `parse_argument`, `parse_constexpr`.
        seed: of the tensors' values.
        log: keep the accesses for a replay.

    Raises ValueError for each wrong word, for a kernel without tensors, an access out of bounds and a kernel
    that fails; MissingExtra where Triton or PyTorch is missing.
    """
    programs = parse_grid(grid)
    given = _collect(map(parse_argument, arguments), "--arg")
    constants = _collect(map(parse_constexpr, constexprs), "--constexpr")
    kernel = load_kernel(target)
    _check_names(kernel, given, constants)
    rng = np.random.default_rng(seed)
    values = {name: value.make(rng) if isinstance(value, Tensor) else value for name, value in given.items()}
    failure = require("triton.runtime.errors", "triton", "the meter").InterpreterError
    meter = Meter(log=log)
    try:
        with meter:
            kernel[programs](**values, **constants)
    except OutOfBounds as error:
        raise ValueError(f"out of bounds: {error}") from error
    except (failure, SystemExit) as error:
        raise ValueError(f"kernel {kernel.__name__!r} fails under the interpreter: {error}") from error
    return meter
