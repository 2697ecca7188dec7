"""An array in, the same kind of array out: who serves a call, told by the kinds of its arguments.

A tensor of PyTorch goes to `online_softmax.torch`, an array or tracer of JAX to `online_softmax.jax`, each to
the function of the same name. What DLPack carries or the array API describes is read in place and answered
in its own kind; anything else is NumPy's to read. No framework is loaded to find out: who holds one of its
arrays has loaded it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, Final, NamedTuple, NoReturn, ParamSpec, TypeVar, cast

import numpy as np

from . import array_api
from .array_api import full_name
from .checks import DefaultAxis

P = ParamSpec("P")
R = TypeVar("R")

#: Kinds of arguments that say nothing about who serves a call: NumPy's own, and options.
PLAIN: Final = frozenset(
    {
        np.ndarray, np.float64, np.float32, np.float16, np.int64, np.int32, np.bool_, np.dtype,
        NoneType, bool, int, float, str, list, tuple, DefaultAxis,
    }
)  # fmt: skip
_OPTIONS: Final = PLAIN - {np.ndarray, list, tuple}
#: Options whose lists and tuples are not arrays.
_NOT_ARRAYS: Final = frozenset({"axis", "dim", "window", "origin", "riders", "shard"})
#: What the derivatives' names end with. A framework that differentiates by itself need not have them.
_DERIVATIVES: Final = ("_double_backward", "_backward", "_with_gradient", "_vjp", "_jvp")
#: Modules of frameworks, and their classes of arrays.
_FRAMEWORKS: Final = {"torch": "Tensor", "jax": "Array"}
_NUMPY: Final = (np.ndarray, np.generic)
_SEQUENCES: Final = (list, tuple)
_AS_TENSOR: Final = "torch.from_numpy({0})"
_BY_ITSELF: Final = {
    "torch": "PyTorch differentiates online_softmax.{0} by itself: backward() or torch.autograd.grad of it",
    "jax": "JAX differentiates online_softmax.{0} by itself: jax.grad, jax.vjp or jax.jvp of it",
}
_PACKAGE: Final = __name__.split(".", maxsplit=1)[0]


class _Foreign(NamedTuple):
    """An argument that is no NumPy array, and whose it is."""

    name: str
    value: Any
    #: "torch", "jax", or "array" for those of any other library.
    kind: str
    #: The array API namespace of an "array", where it has one.
    library: Any = None

    @property
    def article(self) -> str:
        return "a jax.Array" if self.kind == "jax" else f"a {full_name(type(self.value))}"


class Served(NamedTuple):
    """A function of NumPy arrays, and what a call of it has to be taken apart by."""

    function: Callable[..., Any]
    name: str
    #: Parameters that may be given by place, and those of them that have no default.
    places: tuple[str, ...]
    needed: tuple[str, ...]
    defaults: dict[str, Any]


def served(function: Callable[..., Any]) -> Served:
    """What `elsewhere` takes for `function`."""
    code = function.__code__
    places = code.co_varnames[: code.co_argcount]
    values = function.__defaults__ or ()
    needed = places[: len(places) - len(values)]
    defaults = dict(zip(places[len(needed) :], values, strict=True)) | (function.__kwdefaults__ or {})
    return Served(function, function.__name__, places, needed, defaults)


def routed(function: Callable[P, R]) -> Callable[P, R]:
    """A function of NumPy arrays that passes calls with other arrays on to who serves them.

    Cost: a look at the type of each argument given.
    """
    here = served(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for value in args:
            if type(value) not in PLAIN:
                break
        else:
            for value in kwargs.values():
                if type(value) not in PLAIN:
                    break
            else:
                return function(*args, **kwargs)
        if len(args) <= len(here.places):
            given: dict[str, Any] = dict(zip(here.places, args, strict=False))
            given.update(kwargs)
            if len(given) == len(args) + len(kwargs):  # else one is given twice, which Python itself refuses
                result = elsewhere(here, given, said=True)
                if result is not NotImplemented:
                    return cast(R, result)
        return function(*args, **kwargs)

    return call


def elsewhere(here: Served, given: Mapping[str, Any], *, said: bool = False) -> Any:
    """What a call with these arguments, by their names, returns where NumPy does not serve it, else
    NotImplemented.

    said: whether the caller gave them all, defaults included, which a face may have others of.

    Raises TypeError for arrays of more than one framework, for arrays not in memory, sparse ones, and for
    what the framework's function does not take.
    """
    foreign, beside = [], []
    for name, value in given.items():
        if type(value) in _OPTIONS:
            continue
        found = None if type(value) in PLAIN else _foreign(name, value)
        if found is None:
            beside.append((name, value))
        else:
            foreign.append(found)
    if not foreign:
        return NotImplemented
    first = foreign[0]
    for other in foreign[1:]:
        if other.kind != first.kind or other.library is not first.library:
            _mixed(other, first)
    if first.kind != "jax":  # jax.numpy takes NumPy's arrays beside its own
        for name, value in beside:
            _beside(name, value, first)
    if first.kind == "array":
        return _through_numpy(here.function, given, foreign)
    return _by_framework(here, given, first, said)


def _foreign(name: str, value: Any) -> _Foreign | None:
    if isinstance(value, _NUMPY):
        return None
    for module, cls in _FRAMEWORKS.items():
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(value, getattr(loaded, cls, ())):
            return _Foreign(name, value, module)
    _refuse(name, value)
    if not array_api.exported(value):
        if hasattr(type(value), "__cuda_array_interface__"):
            raise TypeError(f"{name} lies on a GPU (it is a {full_name(type(value))}): CPU memory would do")
        return None
    return _Foreign(name, value, "array", array_api.namespace(value))


def _refuse(name: str, value: Any) -> None:
    """Arrays whose elements are not side by side in memory, and would be read as something else."""
    sparse = sys.modules.get("scipy.sparse")
    if sparse is not None and sparse.issparse(value):
        raise TypeError(
            f"{name} is a scipy.sparse.{type(value).__name__}: a dense array, {name}.toarray(), would do"
        )
    lazy = sys.modules.get("dask.array")
    if lazy is not None and isinstance(value, getattr(lazy, "Array", ())):
        raise TypeError(
            f"{name} is a dask array, whose blocks may not be in memory: {name}.compute(), or this function "
            f"in dask.array.map_blocks over blocks that hold whole rows, would do"
        )


def _mixed(other: _Foreign, first: _Foreign) -> NoReturn:
    raise TypeError(
        f"{other.name} is {other.article} and {first.name} {first.article}: arrays of one library would do"
    )


def _beside(name: str, value: Any, first: _Foreign) -> None:
    """Refuses arrays of NumPy, and for PyTorch all that would have to be made a tensor, beside those of a
    library that takes its own alone."""
    kind = type(value)
    if first.kind == "torch":
        unlike = kind in _SEQUENCES and name not in _NOT_ARRAYS
        unlike |= hasattr(kind, "__array__") and not isinstance(value, np.generic)
        if not unlike or isinstance(value, sys.modules["torch"].Tensor):
            return
        hint = f" ({_AS_TENSOR.format(name)})" if isinstance(value, np.ndarray) else ""
    elif isinstance(value, np.ndarray) and first.library is not None:
        hint = ""
    else:
        return
    raise TypeError(
        f"{name} is a {full_name(kind)} and {first.name} {first.article}: arrays of one library would "
        f"do{hint}"
    )


def _by_framework(here: Served, given: Mapping[str, Any], first: _Foreign, said: bool) -> Any:
    # As an attribute of the package, which imports it: torch.compile takes that, and no import by name.
    face = getattr(sys.modules[_PACKAGE], first.kind)
    serving = getattr(face, here.name, None)
    if serving is None:
        _no_such(here.name, first, face)
    # Without defaults by place, with one by name: faces have their own order. A default that the caller may
    # not have meant, or that the face does not know, is left out.
    positional = []
    for name in here.needed:
        if name not in given:
            break
        positional.append(given[name])
    options = {}
    for name, value in given.items():
        if name in here.defaults:
            if value is not here.defaults[name] or (said and _takes(serving, name)):
                options[name] = value
        elif name not in here.needed[: len(positional)]:
            options[name] = value
    try:
        return serving(*positional, **options)
    except TypeError as error:
        _unknown_option(serving, options, first, error)
        raise


def _takes(serving: Any, name: str) -> bool:
    code = getattr(serving, "__code__", None)
    return code is not None and name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _no_such(name: str, first: _Foreign, face: Any) -> NoReturn:
    ending = next((e for e in _DERIVATIVES if name.endswith(e)), "")
    of = name.removesuffix(ending)
    if ending and hasattr(face, of):
        would = f"{_BY_ITSELF[first.kind].format(of)} would do"
    else:
        would = f"NumPy arrays would do, online_softmax.{first.kind} has no {name}"
    raise TypeError(f"{name} takes NumPy arrays and {first.name} is {first.article}: {would}")


def _unknown_option(
    serving: Callable[..., Any], options: Mapping[str, Any], first: _Foreign, error: TypeError
) -> None:
    """Raises a TypeError that names an option which the framework's function lacks, where that is why the
    call failed."""
    import inspect

    parameters = inspect.signature(serving).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    optional = [name for name, p in parameters.items() if p.default is not inspect.Parameter.empty]
    for name in options:
        if name not in parameters:
            others = "the arguments are" if name == first.name else f"{first.name} is"
            raise TypeError(
                f"{name} is an option for NumPy arrays and {others} {first.article}, which has "
                f"{', '.join(optional)}: one of these would do"
            ) from error


def _through_numpy(function: Callable[..., Any], given: Mapping[str, Any], foreign: list[_Foreign]) -> Any:
    """The function of NumPy arrays on the memory of other arrays, with results of their kind."""
    library = foreign[0].library
    inside = dict(given)
    for found in foreign:
        array_api.one_device(found.value, found.name, foreign[0].value, foreign[0].name)
        inside[found.name] = array_api.read(found.value, found.name)
        if found.name == "out":
            array_api.in_place(found.value, "out", inside["out"])
    if library is None:
        return _own_out(function(**inside), inside, given)
    if inside.get("dtype") is not None:
        inside["dtype"] = array_api.dtype_name(inside["dtype"], library)
    return _converted(function(**inside), inside.get("out"), given.get("out"), foreign[0].value, library)


def _own_out(result: Any, inside: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """The caller's own `out` where that is the result."""
    return given["out"] if inside.get("out") is not None and result is inside["out"] else result


def _converted(result: Any, written: Any, out: Any, like: Any, library: Any) -> Any:
    """A result with every array in it converted, and the caller's own `out` where that was written."""
    if written is not None and result is written:
        return out
    if isinstance(result, tuple):
        parts = [_converted(part, written, out, like, library) for part in result]
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    if isinstance(result, _NUMPY):
        return array_api.returned(result, like, library)
    return result
