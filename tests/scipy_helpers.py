"""What the tests of SciPy's names share."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special


def theirs(name: str) -> Callable[..., Any]:
    """SciPy's function, without its warnings of infinities and NaN."""

    def function(*args: Any, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return getattr(scipy.special, name)(*args, **options)

    return function


def assert_alike(made: Any, expected: Any) -> None:
    """Type, format and shape."""
    if isinstance(expected, tuple):
        assert isinstance(made, tuple)
        for part, like in zip(made, expected, strict=True):
            assert_alike(part, like)
        return
    assert type(made) is type(expected)
    assert made.dtype == expected.dtype
    assert made.shape == expected.shape


def assert_equal(made: Any, expected: Any) -> None:
    """Like `assert_alike`, and equal numbers, NaN included."""
    assert_alike(made, expected)
    for part, like in zip(np.atleast_1d(made), np.atleast_1d(expected), strict=True):
        np.testing.assert_array_equal(part, like)
