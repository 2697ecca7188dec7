"""What PyTorch is doing around a call: whether a kernel may be called directly, and with how many threads.

The registered operations always do the right thing, but the dispatcher takes some tens of microseconds for
one that is written in Python. Where nothing is traced or transformed it has nothing to add.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.autograd import forward_ad

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
_PLAIN_TYPES: Final = (torch.Tensor, torch.nn.Parameter)


def _never(_: torch.Tensor) -> bool:
    return False


#: A tensor of `torch.autograd.grad(is_grads_batched=True)`: of the old vmap, which no global state tells of.
_hides_batch: Final = getattr(torch._C._functorch, "is_legacy_batchedtensor", _never)


def plain() -> bool:
    """Whether nothing traces, transforms or watches calls: no torch.func, no mode, no forward-mode AD, no
    torch.jit.trace."""
    c = torch._C
    return (
        _KNOWN
        and not c._are_functorch_transforms_active()
        and not c._len_torch_dispatch_stack()
        and not c._len_torch_function_stack()
        and forward_ad._current_level < 0
        and c._get_tracing_state() is None
        and not c._dispatch_tls_is_dispatch_key_included(_OLD_VMAP)
    )


def on_cpu(args: tuple[Any, ...]) -> bool:
    """Whether all tensors among the arguments are plain ones in CPU memory."""
    return all(
        a.is_cpu and type(a) in _PLAIN_TYPES and not _hides_batch(a)
        for a in args
        if isinstance(a, torch.Tensor)
    )


def wants_gradient(args: tuple[Any, ...]) -> bool:
    return torch.is_grad_enabled() and any(a.requires_grad for a in args if isinstance(a, torch.Tensor))


def numbers_at_hand(t: torch.Tensor) -> bool:
    """Whether a branch on the tensor's values is possible: nothing traces or transforms it."""
    return not torch.compiler.is_compiling() and plain() and on_cpu((t,))


def threads() -> int:
    """As many as PyTorch uses within an operation."""
    return torch.get_num_threads()
