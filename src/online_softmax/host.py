"""What the system tells of this CPU. Nothing is measured here."""

from __future__ import annotations

import platform
from pathlib import Path


def caches() -> dict[str, int]:
    """Bytes of each data cache of the first core, as Linux tells; empty elsewhere."""
    sizes: dict[str, int] = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind = (index / "type").read_text().strip()
        size = (index / "size").read_text().strip()
        if kind != "Instruction" and size.endswith("K"):
            sizes[f"L{(index / 'level').read_text().strip()}"] = int(size[:-1]) * 1024
    return sizes


def model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
