"""What stands in for functions of PyTorch while they are swapped: each looks whether it is on, whether this
call can be served, and else calls PyTorch's own.

PyTorch's signatures and its formats of results. A call that PyTorch would refuse goes to PyTorch, which then
says so in its own words.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
import types
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from . import losses, mode, rows, sdpa

NAMES: Final = ("softmax", "log_softmax", "logsumexp", "cross_entropy", "scaled_dot_product_attention")
_LOG: Final = logging.getLogger("online_softmax")
_FLOATS: Final = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
#: Not a reason: PyTorch refuses such a call, or what it gets is none of our business.
_THEIRS: Final = ""


class Flags:
    """Which functions are on. Compiled code guards on these attributes, and so is never out of date."""

    def __init__(self) -> None:
        for name in NAMES:
            setattr(self, name, False)
        #: Whether a stand-in was traced as one piece: then nothing guards on the flags. PyTorch's compiler
        #: does so where torch.nn.CrossEntropyLoss is made within compiled code.
        self.traced_whole = False


FLAGS: Any = Flags()


class _Originals:
    """PyTorch's own, as they were when this module was loaded."""

    softmax = staticmethod(functional.softmax)
    log_softmax = staticmethod(functional.log_softmax)
    cross_entropy = staticmethod(functional.cross_entropy)
    scaled_dot_product_attention = staticmethod(functional.scaled_dot_product_attention)
    multi_head_attention_forward = staticmethod(functional.multi_head_attention_forward)
    torch_softmax = staticmethod(torch.softmax)
    torch_log_softmax = staticmethod(torch.log_softmax)
    logsumexp = staticmethod(torch.logsumexp)


def _inlined(function: Any) -> Any:
    """A second function of the same code. torch.compile takes PyTorch's own as one piece that it calls by
    its name, where ours stands now; this one it looks into."""
    twin = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin


def _method(name: str) -> Any:
    """torch.softmax and such as methods of tensors, which have no stand-ins."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if "input" in kwargs:
            kwargs = dict(kwargs)
            args = (kwargs.pop("input"), *args)
        return getattr(args[0], name)(*args[1:], **kwargs)

    return staticmethod(call)


class _Traced(_Originals):
    """The same for compiled code."""

    softmax = staticmethod(_inlined(functional.softmax))
    log_softmax = staticmethod(_inlined(functional.log_softmax))
    cross_entropy = staticmethod(_inlined(functional.cross_entropy))
    multi_head_attention_forward = staticmethod(_inlined(functional.multi_head_attention_forward))
    torch_softmax = _method("softmax")
    torch_log_softmax = _method("log_softmax")
    logsumexp = _method("logsumexp")


def _theirs() -> type[_Originals]:
    return _Traced if torch.compiler.is_compiling() else _Originals


def _stand_ins() -> tuple[type, ...]:
    """Tensors that stand for others while PyTorch traces: there is no public name for them. Where they are
    not found such calls go to PyTorch."""
    found = []
    for module, name in (("fake_tensor", "FakeTensor"), ("functional_tensor", "FunctionalTensor")):
        try:
            found.append(getattr(importlib.import_module(f"torch._subclasses.{module}"), name))
        except (ImportError, AttributeError):
            continue
    return tuple(found)


_STAND_INS: Final = _stand_ins()
_TYPES: Final = (torch.Tensor, torch.nn.Parameter, *_STAND_INS)
_INNER: Final = ("torch._decomp", "torch._refs", "torch._meta_registrations")
_MAY_HAVE_NAMES: Final = hasattr(torch.Tensor, "has_names")  # dimensions had, until PyTorch 2.12
_TOLD: Final[set[tuple[str, str]]] = set()
_TELLING: Final = threading.Lock()


@torch.compiler.assume_constant_result
def _told(name: str, why: str) -> bool:
    """Logs a reason the first time; in compiled code when that is traced."""
    with _TELLING:
        if (name, why) in _TOLD:
            return False
        _TOLD.add((name, why))
    _LOG.warning("%s: %s; PyTorch's own is called, here and wherever that is so again", name, why)
    return True


def _on(name: str, x: Any) -> bool:
    """Whether a function is on. `x`: its first argument."""
    if type(x) in _STAND_INS:
        # PyTorch decomposes its own operations into these functions: that is not code to be changed.
        if str(sys._getframe(2).f_globals.get("__name__")).startswith(_INNER):
            return False
        FLAGS.traced_whole = True
    return bool(getattr(FLAGS, name))


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get("input")


def _refused(name: str, why: str | None) -> bool:
    """Whether a call goes to PyTorch."""
    if why is None:
        return False
    if why != _THEIRS:
        _told(name, why)
    return True


def _tensor_reason(x: Any) -> str | None:
    """Why an operand is not served."""
    if not isinstance(x, Tensor):
        return _THEIRS
    if type(x) not in _TYPES:
        return f"a tensor of the class {type(x).__name__}"
    if x.layout is not torch.strided:
        return f"a tensor of layout {x.layout}"
    if x.device.type != "cpu":
        return f"a tensor on {x.device.type}"
    if _MAY_HAVE_NAMES and x.has_names():
        return "a tensor with names of dimensions"
    return None


def _format_reason(x: Tensor) -> str | None:
    return None if x.dtype in _FLOATS else f"a tensor of {x.dtype}"


def _is_dim(dim: Any, ndim: int) -> bool:
    bound = max(ndim, 1)
    return isinstance(dim, int) and not isinstance(dim, bool) and -bound <= dim < bound


# ---- softmax and its log


def _map_reason(x: Any, dim: Any, dtype: Any) -> str | None:
    why = _tensor_reason(x)
    if why is not None:
        return why
    if dim is None:
        return "no dim, which PyTorch then guesses"
    if not _is_dim(dim, x.ndim):
        return _THEIRS
    if dtype is None:
        return _format_reason(x) if x.dtype.is_floating_point else _THEIRS
    if not isinstance(dtype, torch.dtype) or x.dtype.is_complex:
        return _THEIRS
    return None if dtype in _FLOATS else f"dtype={dtype}"


def softmax(input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    if not _on("softmax", input) or _refused("softmax", _map_reason(input, dim, dtype)):
        return _theirs().softmax(input, dim, _stacklevel + 1, dtype)
    return rows.softmax(input if dtype is None else input.to(dtype), dim)


def log_softmax(input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    if not _on("log_softmax", input) or _refused("log_softmax", _map_reason(input, dim, dtype)):
        return _theirs().log_softmax(input, dim, _stacklevel + 1, dtype)
    return rows.log_softmax(input if dtype is None else input.to(dtype), dim)


def _map_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any] | None:
    """input, dim and dtype of torch.softmax(input, dim, dtype=None); None where there is more or less."""
    given = dict(zip(("input", "dim", "dtype"), args, strict=False))
    if len(args) > 3 or any(name in given or name not in ("input", "dim", "dtype") for name in kwargs):
        return None
    given.update(kwargs)
    if "input" not in given or "dim" not in given:
        return None
    return given["input"], given["dim"], given.get("dtype")


def torch_softmax(*args: Any, **kwargs: Any) -> Any:
    on = _on("softmax", _first(args, kwargs))
    call = _map_call(args, kwargs) if on else None
    if call is None or _refused("softmax", _map_reason(*call)):
        if on and "out" in kwargs:
            _told("softmax", "out=")
        return _theirs().torch_softmax(*args, **kwargs)
    x, dim, dtype = call
    return rows.softmax(x if dtype is None else x.to(dtype), dim)


def torch_log_softmax(*args: Any, **kwargs: Any) -> Any:
    on = _on("log_softmax", _first(args, kwargs))
    call = _map_call(args, kwargs) if on else None
    if call is None or _refused("log_softmax", _map_reason(*call)):
        if on and "out" in kwargs:
            _told("log_softmax", "out=")
        return _theirs().torch_log_softmax(*args, **kwargs)
    x, dim, dtype = call
    return rows.log_softmax(x if dtype is None else x.to(dtype), dim)


# ---- logsumexp


def _sum_reason(x: Any, dim: Any, keepdim: Any) -> str | None:
    why = _tensor_reason(x)
    if why is not None:
        return why
    many = tuple(dim) if isinstance(dim, tuple | list) else (dim,)
    if not isinstance(keepdim, bool) or not all(_is_dim(d, x.ndim) for d in many):
        return _THEIRS
    if not many:
        return "dim=(), which PyTorch takes for all"
    if len({d % max(x.ndim, 1) for d in many}) != len(many):
        return _THEIRS
    return _format_reason(x)


def logsumexp(*args: Any, **kwargs: Any) -> Any:
    if not _on("logsumexp", _first(args, kwargs)):
        return _theirs().logsumexp(*args, **kwargs)
    given = dict(zip(("input", "dim", "keepdim"), args, strict=False))
    rest = {name: value for name, value in kwargs.items() if name not in given}
    given.update(rest)
    why: str | None = _THEIRS
    if len(args) <= 3 and len(rest) == len(kwargs) and "input" in given and "dim" in given:
        keepdim = given.get("keepdim", False)
        if not given.keys() - {"input", "dim", "keepdim"}:
            why = _sum_reason(given["input"], given["dim"], keepdim)
        elif "out" in given:
            why = "out="
        if not _refused("logsumexp", why):
            return rows.logsumexp(given["input"], given["dim"], keepdim=keepdim)
    return _theirs().logsumexp(*args, **kwargs)


# ---- cross-entropy


def _loss_reason(
    x: Any, target: Any, weight: Any, legacy: bool, ignore_index: Any, reduction: Any, smoothing: Any
) -> str | None:
    for t in (x, target) if weight is None else (x, target, weight):
        why = _tensor_reason(t)
        if why is not None:
            return why
    if legacy:
        return "size_average and reduce, which are deprecated"
    numbers = isinstance(ignore_index, int) and isinstance(smoothing, int | float)
    if not numbers or reduction not in ("none", "mean", "sum") or not 0 <= smoothing <= 1:
        return _THEIRS
    if not x.ndim or not x.dtype.is_floating_point:
        return _THEIRS
    if smoothing == 1:
        return "label_smoothing=1"
    at = 1 if x.ndim > 1 else 0
    why = _format_reason(x)
    if why is None:
        why = _target_reason(x, target, at, ignore_index)
    return _weight_reason(x, weight, at) if why is None else why


def _target_reason(x: Tensor, target: Tensor, at: int, ignore_index: int) -> str | None:
    if not x.shape[at]:
        return "logits without classes"
    if target.dtype.is_floating_point:
        if target.shape != x.shape or ignore_index >= 0:
            return _THEIRS
        if target.dtype != x.dtype:
            return f"class probabilities of {target.dtype} for logits of {x.dtype}"
        if mode.numbers_at_hand(target) and bool((target.detach() < 0).any()):
            return "class probabilities below 0"
        return None
    if target.shape != x.shape[:at] + x.shape[at + 1 :] or target.dtype not in (torch.int64, torch.uint8):
        return _THEIRS
    return None


def _weight_reason(x: Tensor, weight: Tensor | None, at: int) -> str | None:
    if weight is None:
        return None
    if weight.dtype != x.dtype or weight.shape != x.shape[at : at + 1]:
        return _THEIRS
    if weight.requires_grad:
        return "a weight that requires a gradient"
    if mode.numbers_at_hand(weight) and not bool(torch.isfinite(weight.detach()).all()):
        return "a weight that is not finite"
    return None


def cross_entropy(
    input: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: Any = -100,
    reduce: Any = None, reduction: Any = "mean", label_smoothing: Any = 0.0,
) -> Any:  # fmt: skip
    if _on("cross_entropy", input):
        legacy = size_average is not None or reduce is not None
        why = _loss_reason(input, target, weight, legacy, ignore_index, reduction, label_smoothing)
        if not _refused("cross_entropy", why):
            loss = losses.cross_entropy(
                input, target, weight=weight, ignore_index=ignore_index, label_smoothing=label_smoothing,
                reduction=reduction,
            )  # fmt: skip
            # Autocast has PyTorch compute a loss in float32; else it has the format of its logits.
            return loss if torch.is_autocast_enabled("cpu") else loss.to(input.dtype)
    return _theirs().cross_entropy(
        input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
    )


# ---- attention


def scaled_dot_product_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: Any = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    call = (query, key, value, attn_mask, dropout_p, is_causal)
    options = {"scale": scale, "enable_gqa": enable_gqa}
    if _on("scaled_dot_product_attention", query):
        why = None
        for t in call[:3] if attn_mask is None else call[:4]:
            why = _tensor_reason(t) if why is None else why
        if why is None:
            why = sdpa.unserved(*call, **options)
        if not _refused("scaled_dot_product_attention", why):
            return sdpa.scaled_dot_product_attention(*call, **options)
    return _theirs().scaled_dot_product_attention(*call, **options)


def multi_head_attention_forward(*args: Any, **kwargs: Any) -> Any:
    """PyTorch's own in any case: compiled code has to see what it calls."""
    return _theirs().multi_head_attention_forward(*args, **kwargs)


#: Where each goes: module, name there, what stands in, PyTorch's own.
PLACES: Final[tuple[tuple[Any, str, Any, Any], ...]] = (
    (functional, "softmax", softmax, _Originals.softmax),
    (functional, "log_softmax", log_softmax, _Originals.log_softmax),
    (functional, "cross_entropy", cross_entropy, _Originals.cross_entropy),
    (functional, "scaled_dot_product_attention", scaled_dot_product_attention,
     _Originals.scaled_dot_product_attention),
    (functional, "multi_head_attention_forward", multi_head_attention_forward,
     _Originals.multi_head_attention_forward),
    (torch, "softmax", torch_softmax, _Originals.torch_softmax),
    (torch, "log_softmax", torch_log_softmax, _Originals.torch_log_softmax),
    (torch, "logsumexp", logsumexp, _Originals.logsumexp),
)  # fmt: skip
