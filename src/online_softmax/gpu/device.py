"""Where kernels run."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import numpy as np
import torch
import triton

from . import state

#: Whether the kernels run in Triton's interpreter, on the CPU.
INTERPRETED: Final = not isinstance(state.exp, triton.JITFunction)


def warp_size() -> int:
    """Threads of a warp."""
    if INTERPRETED:
        return 32
    return int(triton.runtime.driver.active.get_current_target().warp_size)


def of(x: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Kernels go to the device of x. The interpreter's numpy warns where a GPU does not."""
    return np.errstate(all="ignore") if INTERPRETED else torch.cuda.device(x.device)
