"""The kernels run in Triton's interpreter here: it is chosen before the first import of triton."""

from __future__ import annotations

import importlib.util
import os

import pytest

os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def _patched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch patches triton.language once, not for each call of a device function: a third of the time."""
    if importlib.util.find_spec("triton") is None:
        return
    from triton.runtime import interpreter

    launch, patch = interpreter.GridExecutor.__call__, interpreter._patch_lang
    patched = False

    class Nothing:
        @staticmethod
        def restore() -> None:
            pass

    def launch_once(*args, **kwargs):
        nonlocal patched
        patched = False
        return launch(*args, **kwargs)

    def patch_once(fn):
        nonlocal patched
        if patched and "tl" in fn.__globals__:  # Triton's own device functions see other names for it
            return Nothing
        patched = True
        return patch(fn)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launch_once)
    monkeypatch.setattr(interpreter, "_patch_lang", patch_once)
