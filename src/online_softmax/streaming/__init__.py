"""Arrays larger than memory: readers, block plans and atomic writers around the mergeable state.

Imports `online_softmax.state` alone; kernels are handed in by the caller.
"""

from .one_pass import OPERATIONS, Kernels, RunResult, run
from .readers import FileError, Header, NpyReader

__all__ = ["OPERATIONS", "FileError", "Header", "Kernels", "NpyReader", "RunResult", "run"]
