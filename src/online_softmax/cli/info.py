"""`online-softmax info`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from .. import __version__, cpu


def _lines(values: Mapping[str, Any], indent: str = "") -> list[str]:
    lines = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{name}:", *_lines(value, indent + "  ")]
        else:
            text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            lines.append(f"{indent}{name}: {text}")
    return lines


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what is in force and why: instruction set, threads, algorithm, caches, pool."""
    values = {"version": __version__, **cpu.info()}
    print(json.dumps(values, indent=2, default=str) if as_json else "\n".join(_lines(values)))
