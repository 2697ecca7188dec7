"""What PyTorch is doing around a call: whether a kernel may be called directly, and with how many threads.

The registered operations always do the right thing, but the dispatcher takes some tens of microseconds for
one that is written in Python. Where nothing is traced or transformed it has nothing to add.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import torch
from torch.autograd import forward_ad

from ... import cpu

# There is no public question for these. Where one is missing every call goes through the dispatcher.
_NAMES: Final = (
    "_are_functorch_transforms_active",
    "_len_torch_dispatch_stack",
    "_len_torch_function_stack",
    "_get_tracing_state",
    "_dispatch_tls_is_dispatch_key_included",
    "_dispatch_key_parse",
)
_KNOWN: Final = all(hasattr(torch._C, name) for name in _NAMES) and hasattr(forward_ad, "_current_level")
#: Set within the vmap of batched gradients (torch.autograd.grad with is_grads_batched), which is not that of
#: torch.func.
_OLD_VMAP: Final = torch._C._dispatch_key_parse("VmapMode") if _KNOWN else None
PLAIN_TYPES: Final = frozenset((torch.Tensor, torch.nn.Parameter))


def _unknown(*_: Any) -> bool:
    return True


# Names of this module: a call of one costs half of what finding it in torch._C does.
_transforms, _dispatch_modes, _function_modes, _tracing, _key_included = (
    getattr(torch._C, name, _unknown) for name in _NAMES[:5]
)
_Tensor: Final = torch.Tensor
_is_compiling: Final = torch.compiler.is_compiling
_is_grad_enabled: Final = torch.is_grad_enabled


def plain() -> bool:
    """Whether nothing traces, transforms or watches calls: no torch.compile (which may trace a backward
    alone), no torch.func, no mode, no forward-mode AD, no torch.jit.trace."""
    return (
        _KNOWN
        and not _is_compiling()
        and not _transforms()
        and not _dispatch_modes()
        and not _function_modes()
        and forward_ad._current_level < 0
        and _tracing() is None
        and not _key_included(_OLD_VMAP)
    )


def eager(x: Any) -> bool:
    """Whether x is a tensor like any other in a call that nothing traces or transforms. What autocast does to
    x, and whether it wants a gradient, is not asked."""
    return type(x) is _Tensor and plain() and not x.is_neg() and not x.is_nested


def on_cpu(args: tuple[Any, ...]) -> bool:
    """Whether all tensors among the arguments are plain ones in CPU memory."""
    return look(args) is not None


def look(args: tuple[Any, ...]) -> bool | None:
    """Whether a gradient is wanted of a call with these arguments; None where a tensor among them is not a
    plain one in CPU memory."""
    wants = False
    for a in args:
        if isinstance(a, _Tensor):
            # Zeros without memory, which forward mode makes: the dispatcher gives them some.
            if type(a) not in PLAIN_TYPES or not a.is_cpu or a._is_zerotensor():
                return None
            wants = wants or a.requires_grad
    return wants and _is_grad_enabled()


def autocast(device: str) -> bool:
    """Whether autocast is on; "meta", which it does not know, has none."""
    return device != "meta" and torch.is_autocast_enabled(device)


@functools.lru_cache(maxsize=64)
def _plan(threads: int) -> Any:
    return cpu.plan_of(None, "auto", threads, "exact")


def plan() -> Any:
    """How the core carries out a call that PyTorch's number of threads alone says something about."""
    return _plan(torch.get_num_threads())


def numbers_at_hand(t: torch.Tensor) -> bool:
    """Whether a branch on the tensor's values is possible: nothing traces or transforms it."""
    return plain() and on_cpu((t,))


def threads() -> int:
    """As many as PyTorch uses within an operation."""
    return torch.get_num_threads()
