"""Operations of `torch.library`: schema, kernels, shapes, derivatives, vmap and autocast in one place.

An operation is called through its `Op`. Compiled, traced or transformed code sees the registered operation,
`torch.ops.online_softmax.<name>`; a plain eager call goes to the kernel directly.

Derivatives are a `Rule`, a torch.autograd.Function with setup_context, backward and jvp, which is what the
operation's Autograd kernel applies: `torch.library.register_autograd` knows neither forward mode nor the
transforms of torch.func. Rules are written in differentiable operations: derivatives of any order follow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, ClassVar, Final

import torch
from torch.autograd import Function

from . import mode

NAMESPACE: Final = "online_softmax"
_LIBRARY: Final = torch.library.Library(NAMESPACE, "DEF")
_Args = tuple[Any, ...]
#: Casts arguments for autocast to a format: (arguments, device type) -> arguments.
Policy = Callable[[_Args, str], _Args]
_plain: Final = mode.plain


class Rule(Function):
    """The derivatives of an operation: subclasses define setup_context, backward and jvp."""

    op: ClassVar[Op]

    @classmethod
    def bare(cls) -> Callable[..., Any]:
        """Function.apply without what it does in Python (it binds arguments by name and asks for transforms),
        which takes longer than all else in a small call."""
        return super(Function, cls).apply

    @classmethod
    def run(cls, *args: Any) -> Any:
        """The operation with its rule, at the level of torch.func that is being worked on."""
        if not torch._C._are_functorch_transforms_active():
            return cls.apply(*args)
        # The dispatcher has peeled off one level already; Function.apply would look for it again.
        with torch._functorch.autograd_function.enable_single_level_autograd_function():
            return cls.bare()(*args)


def levels() -> contextlib.AbstractContextManager[Any]:
    """Keeps both modes of differentiation on for levels below: a Function turns them off for all."""
    if not torch._C._are_functorch_transforms_active():
        return contextlib.nullcontext()
    stack = contextlib.ExitStack()
    stack.enter_context(torch.enable_grad())
    stack.enter_context(torch.autograd.forward_ad._set_fwd_grad_enabled(True))
    return stack


class _Primals:
    """What a jvp rule sees of its context under torch.func: saved tensors without their tangents of this
    level, which the rule itself is about to make. Those of other levels stay."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ctx, name)
        if name != "saved_tensors":
            return found
        return tuple(
            t if t is None else torch.autograd.forward_ad.unpack_dual(t, level=0).primal for t in found
        )


class Op:
    """One operation.

    Args:
        schema: "name(Tensor x, ...) -> Tensor".
        cpu: the kernel, for tensors in CPU memory.
        cuda: the kernel for CUDA tensors, or None where there is none yet.
        fake: shapes, formats and strides of the results, from tensors without data.
        rule: its derivatives; None for operations that have none.
        vmap: (info, in_dims, *args) -> (results, out_dims).
        policy: what autocast does to the arguments; None for nothing.
        training: what a plain eager call is that wants a gradient, in place of the rule.
    """

    def __init__(
        self,
        schema: str,
        *,
        cpu: Callable[..., Any],
        fake: Callable[..., Any],
        rule: type[Rule] | None = None,
        vmap: Callable[..., Any] | None = None,
        cuda: Callable[..., Any] | None = None,
        policy: Policy | None = None,
        training: Callable[..., Any] | None = None,
    ) -> None:
        self.name = schema.split("(", 1)[0]
        qualified = f"{NAMESPACE}::{self.name}"
        _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        self.overload: Any = getattr(getattr(torch.ops, NAMESPACE), self.name).default
        self.cpu, self.rule, self.policy = cpu, rule, policy
        #: The operation on plain CPU tensors in a call that nothing traces or transforms, with its gradient.
        self.direct: Callable[..., Any] = training or cpu
        _LIBRARY.impl(self.name, cpu, "CPU")
        _LIBRARY.impl(self.name, cuda or _missing(self.name), "CUDA")
        torch.library.register_fake(qualified, fake, lib=_LIBRARY)
        if vmap is not None:
            torch.library.register_vmap(qualified, vmap, lib=_LIBRARY)
        if rule is not None:
            self._differentiable(rule)
        if policy is not None:
            for device, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
                _LIBRARY.impl(self.name, self._autocast(device, key), key)

    def __call__(self, *args: Any) -> Any:
        if _plain():
            wants = mode.look(args)
            if wants is not None:
                if self.policy is not None and torch.is_autocast_enabled("cpu"):
                    args = self.policy(args, "cpu")
                return self.direct(*args) if wants else self.cpu(*args)
        if self.policy is not None:
            device = next(a.device.type for a in args if isinstance(a, torch.Tensor))
            if mode.autocast(device):
                args = self.policy(args, device)
        return self.overload(*args)

    def _differentiable(self, rule: type[Rule]) -> None:
        overload, cpu = self.overload, self.cpu

        def forward(*args: Any) -> Any:
            if mode.plain() and mode.look(args) is not None:
                return cpu(*args)
            with levels(), torch._C._AutoDispatchBelowAutograd():
                return overload(*args)

        jvp = rule.jvp

        def levelled_jvp(ctx: Any, *tangents: Any) -> Any:
            with levels():
                return jvp(_Primals(ctx) if torch._C._are_functorch_transforms_active() else ctx, *tangents)

        rule.op = self
        rule.forward = staticmethod(forward)
        rule.jvp = staticmethod(levelled_jvp)
        _LIBRARY.impl(self.name, rule.run, "Autograd")
        metaclass: Any = type(rule)
        direct: Any = metaclass(rule.__name__, (rule,), {"forward": staticmethod(cpu)})
        if self.direct is cpu:
            self.direct = direct.bare()

    def _autocast(self, device: str, key: str) -> Callable[..., Any]:
        def kernel(*args: Any) -> Any:
            assert self.policy is not None
            with torch._C._ExcludeDispatchKeyGuard(
                torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
            ):
                return self.overload(*self.policy(args, device))

        return kernel


def _missing(name: str) -> Callable[..., Any]:
    def kernel(*args: Any) -> Any:
        raise NotImplementedError(
            f"{name} has no kernel for CUDA tensors yet: tensors in CPU memory, by .cpu(), would do"
        )

    return kernel


def front(t: torch.Tensor | None, dim: int | None) -> torch.Tensor | None:
    """A tensor with the dimension that vmap hides moved to the front, or as it is where it has none."""
    return t if t is None or dim is None else t.movedim(dim, 0)
