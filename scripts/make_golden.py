"""Writes tests/golden/: what every path that promises the same bits must make of rows of whole numbers.

    python scripts/make_golden.py [--check]

The digests are those of tests/exact_model.py, the law in fractions, and of nothing that rounds by a machine's
own arithmetic. `--check` writes nothing and fails where a file differs. Another digest is another format: it
needs another name. Takes about half a minute of CPU time.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import exact_golden  # noqa: E402
import exact_model  # noqa: E402

from online_softmax.exact import FLOAT32, FLOAT64, Format, format_of  # noqa: E402

ROWS = "tests/exact_golden.py: families; made by a hash of whole numbers (tests/exact_rows.py)"
ORDER = "little-endian bytes of m, a (int64), log-sum-exp, probabilities, log-probabilities; C order"


def by_model(rows: exact_golden.Array) -> exact_golden.Results:
    """Rows through the law in fractions."""
    form = format_of(rows.dtype)
    wide = rows.astype(form.dtype)
    lists = wide.tolist()
    states = [exact_model.state(row, form) for row in lists]
    of = form.dtype.type
    y = [[exact_model.value(x, s, form) for x in row] for row, s in zip(lists, states, strict=True)]
    log_y = [[exact_model.log_value(x, s, form) for x in row] for row, s in zip(lists, states, strict=True)]
    return exact_golden.Results(
        np.array([s[0] for s in states], of),
        np.array([s[1] for s in states], np.int64),
        np.array([exact_model.lse(s, form) for s in states], of),
        np.array(y, of).astype(rows.dtype),
        np.array(log_y, of).astype(rows.dtype),
    )


def text(form: Format) -> str:
    """A golden file's content."""
    body = {
        "format": form.name,
        "made by": "scripts/make_golden.py from tests/exact_model.py",
        "rows": ROWS,
        "order": ORDER,
        "sha256": exact_golden.digests(by_model, form),
    }
    return json.dumps(body, indent=1) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    differs = []
    for form in (FLOAT32, FLOAT64):
        file, made = exact_golden.file_of(form), text(form)
        if check and (not file.exists() or file.read_text(encoding="utf-8") != made):
            differs.append(file.name)
        elif not check:
            file.parent.mkdir(exist_ok=True)
            file.write_text(made, encoding="utf-8")
    for name in differs:
        print(f"{name} is not what the model makes", file=sys.stderr)
    return 1 if differs else 0


if __name__ == "__main__":
    raise SystemExit(main())
