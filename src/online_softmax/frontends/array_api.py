"""Arrays of other libraries as NumPy arrays over the same memory, and results back in their kind.

DLPack carries them, without a copy; what has no DLPack, or holds a format that NumPy's lacks, is read as
NumPy reads it. Libraries are told apart by array-api-compat, loaded when the first such array comes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from .checks import SERVED, Array

#: DLPack's numbers for devices whose memory the CPU reads: its own, and pinned memory.
_HOST: Final = frozenset({1, 3, 11})
#: DLPack's names for others.
_DEVICES: Final = {
    2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 9: "vpi", 10: "rocm", 12: "extension",
    13: "cuda_managed", 14: "oneapi", 15: "webgpu", 16: "hexagon", 17: "maia",
}  # fmt: skip
#: What an exporter or an importer raises where it cannot.
_CANNOT: Final = (AttributeError, BufferError, NotImplementedError, RuntimeError, TypeError, ValueError)


def full_name(kind: type) -> str:
    """The name of a type as a caller writes it."""
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{kind.__module__.split('.')[0]}.{kind.__qualname__}"


def exported(value: Any) -> bool:
    """Whether `value` is an array of a library that NumPy need not know."""
    kind = type(value)
    if isinstance(value, type):
        return False
    return any(hasattr(kind, name) for name in ("__dlpack__", "__dlpack_device__", "__array_namespace__"))


def namespace(value: Any) -> Any:
    """The array API namespace that `value` belongs to; None for one that has no such."""
    import array_api_compat

    if not array_api_compat.is_array_api_obj(value):
        return None
    return array_api_compat.array_namespace(value)


def read(value: Any, name: str) -> Array:
    """`value` as an ndarray over its memory where DLPack or the buffer protocol allow, else a copy.

    Raises TypeError for one that is not in memory of the CPU, or cannot be read.
    """
    kind = full_name(type(value))
    where = getattr(value, "__dlpack_device__", None)
    if where is not None:
        try:
            device, number = (int(part) for part in where())
        except _CANNOT as error:
            raise TypeError(
                f"{name} is a {kind} that does not tell its device ({error}): CPU memory would do"
            ) from error
        if device not in _HOST:
            place = _DEVICES.get(device, f"DLPack device {device}")
            raise TypeError(f"{name} lies on {place}:{number} (it is a {kind}): CPU memory would do")
    refused = ""
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except _CANNOT as error:  # a format that DLPack lacks, or NumPy's part of it
            refused = f" ({error})"
    try:
        found = np.asarray(value)
    except _CANNOT as error:
        raise TypeError(
            f"{name} is a {kind}, which could be read neither through DLPack{refused} nor by NumPy ({error})"
            f": a dense array in CPU memory would do"
        ) from error
    if found.dtype.kind == "O":
        why = f", and through DLPack not at all{refused}" if refused else ""
        raise TypeError(f"{name} is a {kind}, which NumPy reads as objects{why}: a dense array would do")
    return found


def in_place(value: Any, name: str, seen: Array) -> None:
    """Raises TypeError where `seen`, what `read` made of `value`, is a copy: nothing written there would
    reach `value`. Two copies lie in two places."""
    again = read(value, name)
    if seen.size and seen.__array_interface__["data"][0] != again.__array_interface__["data"][0]:
        raise TypeError(
            f"{name} is a {full_name(type(value))}, of which NumPy gets a copy: an array whose memory it can "
            f"write would do"
        )


def one_device(value: Any, name: str, first: Any, beside: str) -> None:
    """Raises TypeError where two arrays of one library lie on different devices of it."""
    here, there = (getattr(a, "device", None) for a in (value, first))
    if here != there:
        raise TypeError(f"{name} lies on {here} and {beside} on {there}: one device for all would do")


def returned(result: Any, like: Any, library: Any) -> Any:
    """An ndarray or a NumPy scalar as an array of `library`, on the device of `like`.

    Raises TypeError where the library does not hold the result's format.
    """
    import array_api_compat

    made, array = None, np.asarray(result)
    try:
        made = library.from_dlpack(array)
    except _CANNOT:
        try:
            made = library.asarray(array)
        except _CANNOT as error:
            raise TypeError(
                f"the result is {array.dtype}, of which {library.__name__} makes no array ({error}): another "
                f"dtype would do"
            ) from error
    device = array_api_compat.device(like)
    return made if array_api_compat.device(made) == device else array_api_compat.to_device(made, device)


def dtype_name(dtype: Any, library: Any) -> Any:
    """A library's own dtype by NumPy's name for it; anything else as it is."""
    for format in SERVED:
        theirs = getattr(library, format.name, None)
        if theirs is not None and type(theirs) is type(dtype) and theirs == dtype:
            return format.name
    return dtype
