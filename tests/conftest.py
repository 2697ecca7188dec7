"""Fixtures of the whole suite."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from helpers import CHOICES
from thinned import EVERY

# A shell that starts the tests in the background has them ignore SIGINT, and so would every child they
# interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what thinned.py says, unless THOROUGH is set or a test was asked for by its name."""
    if os.environ.get("THOROUGH") or any("::" in argument for argument in config.args):
        return
    seen: dict[str, int] = {}
    left: list[pytest.Item] = []
    for item in items:
        name = f"{item.path.name}::{getattr(item, 'originalname', item.name)}"
        seen[name] = seen.get(name, -1) + 1
        if seen[name] % EVERY.get(name, 1):
            left.append(item)
    config.hook.pytest_deselected(items=left)
    gone = set(left)
    items[:] = [item for item in items if item not in gone]


@pytest.fixture(autouse=True)
def _no_choice_from_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CHOICES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def fresh_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a script in a new interpreter with warnings as errors, and returns its exit code and output."""

    def run(script: str, *flags: str, timeout: float = 60, **env: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if k not in CHOICES}
        paths = [p for p in sys.path if p]
        return subprocess.run(
            [sys.executable, "-W", "error", *flags, "-c", script],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**clean, "PYTHONPATH": os.pathsep.join(paths), **env},
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[], str]], str]:
    """What takes long to make is made by one of the processes that share the tests; the others read it."""
    shared = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent

    def once(name: str, make: Callable[[], str]) -> str:
        path = shared / name
        with open(f"{path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                path.write_text(make(), encoding="utf-8")
            return path.read_text(encoding="utf-8")

    return once


@pytest.fixture
def patched_once(monkeypatch: pytest.MonkeyPatch) -> None:
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
