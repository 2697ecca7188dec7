"""The kernels run in Triton's interpreter here: it is chosen before the first import of triton."""

from __future__ import annotations

import os

import pytest

os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def _fast_launches(patched_once: None) -> None:
    pass
