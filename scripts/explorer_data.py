"""Writes what the explorer takes from the library: its devices, and the values that both are held to.

    python scripts/explorer_data.py [--check]

explorer/devices.js holds the devices of traffic/devices.toml and the passes of each algorithm,
tests/golden/explorer.json what explorer_values.py makes. `--check` writes nothing and fails where devices.js
differs; the values are compared by tests/test_explorer_data.py. Takes a few seconds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from explorer_values import values

from online_softmax import ops
from online_softmax.traffic import devices
from online_softmax.traffic.count import FLOPS_PER_EXP, LINE
from online_softmax.traffic.predict import ITEMSIZES
from online_softmax.traffic.roofline import of_device

ROOT = Path(__file__).parent.parent
DEVICES = ROOT / "explorer" / "devices.js"
GOLDEN = ROOT / "tests" / "golden" / "explorer.json"
#: Figures whose source the page names.
SOURCED = ("memory_bandwidth", "last_level", "peak.float32", "transcendentals_per_clock", "launch")


def device_table() -> list[dict[str, Any]]:
    """Each device as the floors of rows take it, with the sources of its figures."""
    table = []
    for key in devices.names():
        found = devices.device(key)
        rates = of_device(found, "float32")
        table.append(
            {
                "key": key,
                "name": rates.name,
                "bandwidth": rates.bandwidth,
                "vector_peak": rates.vector_peak,
                "exp_rate": rates.exp_rate,
                "launch": rates.launch,
                "last_level": rates.last_level,
                "units": rates.units,
                "sources": {
                    name: found.figures[name].source
                    + ("" if found.figures[name].checked else " [not read there]")
                    for name in SOURCED
                    if name in found.figures
                },
            }
        )
    return table


def passes_table() -> dict[str, Any]:
    """Operation -> algorithm -> what it does per element, and the statistics it writes a row."""
    return {
        name: {
            algorithm: {
                "reads": passes.reads,
                "writes": passes.writes,
                "exps": passes.exps,
                "flops": passes.flops,
                "statistics": ops.OPERATIONS[name].results(0).statistics,
            }
            for algorithm, passes in ops.OPERATIONS[name].passes.items()
        }
        for name in ("softmax", "logsumexp")
    }


def devices_js() -> str:
    """The text of explorer/devices.js."""
    values = {
        "LINE": LINE,
        "FLOPS_PER_EXP": FLOPS_PER_EXP,
        "ITEMSIZES": dict(ITEMSIZES),
        "PASSES": passes_table(),
        "DEVICES": device_table(),
    }
    text = json.dumps(values, indent=1, allow_nan=False)
    head = "// Made by scripts/explorer_data.py from the library: do not edit.\n"
    return f"{head}globalThis.Explorer = globalThis.Explorer || {{}};\nglobalThis.Explorer.data = {text};\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing, fail where devices.js differs")
    text = devices_js()
    if parser.parse_args().check:
        if DEVICES.read_text(encoding="utf-8") != text:
            raise SystemExit(
                f"{DEVICES.relative_to(ROOT)} is out of date: python scripts/explorer_data.py would do"
            )
        return
    DEVICES.write_text(text, encoding="utf-8")
    lines = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(part, allow_nan=False)}" for key, part in values().items()
    )
    GOLDEN.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
