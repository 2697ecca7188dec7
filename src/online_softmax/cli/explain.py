"""`online-softmax explain`."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ..numerics.explain import explain


def _parse(numbers: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The row of "1,2,-inf". ValueError where a part is no number."""
    row = []
    for part in numbers.replace(",", " ").split():
        try:
            number = float(part)
        except ValueError:
            raise ValueError(
                f"row: {part!r} is no number: numbers with commas, as 1,2,-inf, would do"
            ) from None
        if math.isinf(number) and "inf" not in part.lower():
            raise ValueError(f"row: {part} is past float64: up to 1.79e308, or inf, would do")
        row.append(number)
    return np.array(row, dtype=np.float64)


def _load(file: Path, index: int) -> np.ndarray[Any, np.dtype[Any]]:
    """One row of the array of a .npy file, seen as rows of its last axis."""
    try:
        array = np.lib.format.open_memmap(file, mode="r")
    except ValueError as error:
        raise ValueError(
            f"--file: {file} is no array file: {error}; a .npy file of numbers would do"
        ) from None
    if not array.ndim:
        raise ValueError(f"--file: {file} holds a single number: an array of rows would do")
    rows = array.reshape(-1, array.shape[-1]) if array.size else array.reshape(0, 0)
    if not 0 <= index < len(rows):
        raise ValueError(f"--row: {index} is out of range: {file} holds {len(rows)} rows, counted from 0")
    return np.asarray(rows[index])


def _plain(value: Any) -> Any:
    """JSON has no infinities and no NaN: they become the strings "inf", "-inf", "nan"."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


def command(
    numbers: Annotated[
        str | None,
        typer.Argument(
            metavar="ROW",
            help="Numbers with commas: 1,2,3,1000. Before a negative first number write --: explain -- -1,2",
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", help="Array file (.npy) instead of ROW.")] = None,
    row: Annotated[int | None, typer.Option("--row", help="Which row of the file, from 0 (0).")] = None,
    dtype: Annotated[
        str, typer.Option(help="Format computed in: float64, float32, float16, bfloat16.")
    ] = "float32",
    algorithm: Annotated[str, typer.Option(help="batch, streaming, blocked or tree.")] = "streaming",
    block: Annotated[int | None, typer.Option(help="Entries of a block: blocked, tree (128).")] = None,
    events: Annotated[int, typer.Option(min=0, help="New maxima to print.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all new maxima.")] = False,
) -> None:
    """What happens in one row: maxima, rescales, what is lost, and the error beside its bound.

    Negative first numbers need `--` before them: online-softmax explain --dtype float16 -- -1,2
    """
    if (numbers is None) == (file is None):
        raise ValueError("row: numbers (1,2,3) or --file scores.npy would do, one of them")
    if row is not None and file is None:
        raise ValueError("--row: it names a row of --file, which is not given")
    given = _parse(numbers or "") if file is None else _load(file, row or 0)
    found = explain(given, dtype, algorithm, block)
    if as_json:
        print(json.dumps(_plain(asdict(found)), indent=2, allow_nan=False))
    else:
        print(found.text(events=events))
