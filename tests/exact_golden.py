"""What the golden files of "the same bits" hold: families of rows, and the digest of what a path makes of
them.

A digest is the SHA-256 of the bytes, little-endian and in C order, of five arrays one after another: m, a,
log-sum-exp, probabilities, log-probabilities. The rows of float16 and bfloat16 have states and log-sum-exps
of float32; their probabilities are rounded to the format once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import exact_rows
import numpy as np
from exact_rows import DTYPES, Array

from online_softmax.exact import Format, format_of

FOLDER: Final = Path(__file__).parent / "golden"


class Results(NamedTuple):
    """What a path makes of rows (r, n): (r,), (r, slices), (r,), (r, n), (r, n)."""

    m: Array
    a: Array
    lse: Array
    y: Array
    log_y: Array


#: Rows (r, n) to results.
Path_ = Callable[[Array], Results]


def families(dtype: np.dtype[Any]) -> dict[str, Array]:
    """Rows (r, n) of a dtype, by name."""
    form = format_of(dtype)
    made = {
        "scores": exact_rows.moderate((24, 257), 11, dtype),
        "short": exact_rows.moderate((64, 3), 12, dtype),
        "long": exact_rows.moderate((1, 6000), 13, dtype),
        "ties": exact_rows.ties((16, 100), 14, dtype),
    }
    if form.dtype == dtype:
        made |= {
            "wide": exact_rows.wide((128, 31), 15, dtype),
            "offset": exact_rows.offset((96, 33), 16, dtype),
            "edges": exact_rows.edge_rows((300, 9), 17, form),
            "bins": exact_rows.bin_rows((64, 65), 18, form),
        }
    else:
        with np.errstate(over="ignore"):
            made["edges"] = exact_rows.edge_rows((300, 9), 17, form).astype(dtype)
    return made


def digest(results: Results, form: Format, dtype: np.dtype[Any]) -> str:
    """Of one family. The arrays have the dtypes they are to have, or it is no digest."""
    expected = (form.dtype, np.dtype(np.int64), form.dtype, dtype, dtype)
    sha = hashlib.sha256()
    for array, wanted in zip(results, expected, strict=True):
        if array.dtype != wanted:
            raise TypeError(f"{array.dtype} where {wanted} is due")
        plain = np.ascontiguousarray(array)
        unsigned = plain.view(f"u{plain.dtype.itemsize}")
        sha.update(unsigned.astype(unsigned.dtype.newbyteorder("<")).tobytes())
    return sha.hexdigest()


def file_of(form: Format) -> Path:
    return FOLDER / (form.name.replace("/", "-") + ".json")


def golden(form: Format) -> dict[str, dict[str, str]]:
    """dtype -> family -> digest, as the file has them."""
    return dict(json.loads(file_of(form).read_text(encoding="utf-8"))["sha256"])


def digests(path: Path_, form: Format, names: tuple[str, ...] | None = None) -> dict[str, dict[str, str]]:
    """The same by a path, of all dtypes of a format or of those named."""
    return {
        name: {family: digest(path(rows), form, dtype) for family, rows in families(dtype).items()}
        for name, dtype in DTYPES.items()
        if format_of(dtype) is form and (names is None or name in names)
    }
