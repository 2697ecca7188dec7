"""A subject that can be loaded once: its first call leaves a mark, and where that is its import ends the
process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

MARK = Path(os.environ["DIES_LATER"])
if MARK.exists():
    with MARK.open("a") as lines:
        lines.write("import\n")
    os._exit(3)


def softmax(x: Any, axis: int = -1) -> Any:
    """Ends the process."""
    MARK.write_text("call\n")
    os._exit(4)
