"""Where a run is written, and what is said about the machine and the versions behind it."""

from __future__ import annotations

import datetime
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks import CPUS, THREADS
from online_softmax import cpu

RESULTS = Path(__file__).parent / "results"
# Of --quick runs, which measure nothing worth keeping.
SCRATCH = Path(__file__).parent.parent / "out" / "benchmarks"
PACKAGES = (
    "online-softmax",
    "numpy",
    "ml_dtypes",
    "torch",
    "scipy",
    "jax",
    "jaxlib",
    "onnxruntime",
    "onnx",
    "transformers",
)


def versions() -> dict[str, str]:
    """The installed version of each package that takes part, or "not installed"; Python's own first."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def machine() -> dict[str, Any]:
    """What the core sees of the CPU, and what a reader needs to judge the figures."""
    info = cpu.info()
    return {
        "model": info["cpu"],
        "caches": info["caches"],
        "isa": info["isa"],
        "cpus_online": os.cpu_count(),
        "cpus_used": len(CPUS),
        "threads": THREADS,
        "system": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
    }


def folder(quick: bool) -> Path:
    """Where the files of a run are; made if need be."""
    chosen = SCRATCH if quick else RESULTS
    chosen.mkdir(parents=True, exist_ok=True)
    return chosen


def write(name: str, body: dict[str, Any], quick: bool) -> Path:
    """Write <name>.json with the date, machine and versions; returns its path."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    record = {"schema": 1, "date": now, "machine": machine(), "versions": versions(), **body}
    path = folder(quick) / f"{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def read(name: str, quick: bool) -> dict[str, Any] | None:
    """The record <name>.json, None where there is none."""
    path = folder(quick) / f"{name}.json"
    return dict(json.loads(path.read_text())) if path.exists() else None
