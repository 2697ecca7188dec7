"""What all tests of the JAX face share."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="package", autouse=True)
def _programs_are_compiled_quickly() -> Iterator[None]:
    """Nearly all time here goes to compiling programs that run once, and less optimised ones give the same
    answers."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
