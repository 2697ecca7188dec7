"""The exercise this library grew from, as software: answer sheets, their grading, a drill.

    from online_softmax.exercise import check_sheet, new_sheet

    sheet = new_sheet(42)            # Markdown, to be filled in with any editor
    report = check_sheet(sheet)      # every answer right, wrong or unanswered, with hints
    print(report.text())

Every seed has other sizes, formats, bandwidths and scores; answers are computed by the library
(`numerics.formats`, `traffic.model`, `state`). Formulas are read by a parser of their own and compared by
algebra and at points (`equivalence`): that needs sympy, of the extra `symbols`. `docs/exercise.md` tells how.
"""

from __future__ import annotations

from .catalogue import PARTS, VERSION
from .drill import Drill, Score
from .report import Report, Result, check_sheet
from .sheet import MAX_SIZE, SheetError, decode, fill_sheet, new_sheet
from .tokens import FormulaError

__all__ = [
    "MAX_SIZE",
    "PARTS",
    "VERSION",
    "Drill",
    "FormulaError",
    "Report",
    "Result",
    "Score",
    "SheetError",
    "check_sheet",
    "decode",
    "fill_sheet",
    "new_sheet",
]
