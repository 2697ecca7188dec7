"""Optional libraries: loaded when a call needs them, and named with the extra that brings them where
missing."""

from __future__ import annotations

import importlib
from typing import Any


class MissingExtra(ImportError):
    """A library of an optional extra is not installed; the message names both."""


def require(module: str, extra: str, purpose: str) -> Any:
    """The module, imported. MissingExtra, naming the extra and what it is needed for, where it is not
    installed.

    A failure inside an installed module is not hidden: it passes through as it is.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtra(
            f"{purpose} needs {error.name}, which is not installed: pip install 'online-softmax[{extra}]'"
        ) from error


def require_plots() -> Any:
    """matplotlib, said to be missing before minutes of work and not after."""
    return require("matplotlib", "plots", "a plot")
