"""A language model that makes its loss from hidden states and the weight of its head."""

from __future__ import annotations

import functools
import inspect
import threading
import types
from typing import Any, Final

import torch

from .logits import Logits

#: An attribute of what stands for a forward: the `_Forward` that has put it there.
_PATCH: Final = "_online_softmax_patch"


class LinearLoss:
    """In force from its making until `remove`, or the end of a `with`. See `linear_loss`."""

    def __init__(self, model: Any) -> None:
        # What torch.compile makes of a model has it under this name; there is no public one.
        model = getattr(model, "_orig_mod", model)
        self._head = _head(model)
        self._signature = _signature(model)
        # A call in one thread says nothing about that in another.
        self._calls = threading.local()
        self._active = True
        self._patches = _Forward(model, self._call), _Forward(self._head, self._call_head)

    def remove(self) -> None:
        """The model is as it was. To call it again changes nothing."""
        self._active = False
        for patch in self._patches:
            patch.undo()

    def __enter__(self) -> LinearLoss:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _call(self, forward: Any, *args: Any, **kwargs: Any) -> Any:
        labels = self._signature.bind_partial(*args, **kwargs).arguments.get("labels")
        if not self._active or labels is None:
            return forward(*args, **kwargs)
        before = getattr(self._calls, "labelled", False)
        self._calls.labelled = True
        try:
            return _without_logits(forward(*args, **kwargs))
        finally:
            self._calls.labelled = before

    def _call_head(self, forward: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._active or not getattr(self._calls, "labelled", False):
            return forward(*args, **kwargs)
        return self._deferred(*args, **kwargs)

    def _deferred(self, input: torch.Tensor) -> Logits:
        return Logits(input, self._head.weight, self._head.bias, input.dtype)


class _Forward:
    """Stands for the forward of one module, on the instance, as a method of it. A copy of the module gets a
    method of its own, and calls what was there before: it has weights of its own."""

    def __init__(self, module: Any, call: Any) -> None:
        self._module = module
        self._call = call
        self._own = module.__dict__.get("forward")
        self._below = module.forward
        #: Where a copy of the module finds its copy of what was there before.
        self._key = f"_forward_below_{id(self):x}"
        if self._own is not None:
            module.__dict__[self._key] = self._own
        self._ours = types.MethodType(self._function(), module)
        module.forward = self._ours

    def _function(self) -> Any:
        # A function, and of that name: torch.export asks for its code, pickle for its name.
        def forward(this: Any, *args: Any, **kwargs: Any) -> Any:
            if this is self._module:
                return self._call(self._below, *args, **kwargs)
            below = this.__dict__.get(self._key)
            return (types.MethodType(type(this).forward, this) if below is None else below)(*args, **kwargs)

        functools.update_wrapper(forward, type(self._module).forward)
        if self._own is not None:
            signature = inspect.signature(self._own)
            this = inspect.Parameter("this", inspect.Parameter.POSITIONAL_ONLY)
            forward.__signature__ = signature.replace(  # type: ignore[attr-defined]
                parameters=[this, *signature.parameters.values()]
            )
        forward.__dict__[_PATCH] = self
        return forward

    def undo(self) -> None:
        forward = self._module.__dict__.get("forward")
        above = None
        # What another library has put over it since stays: it calls this, which does nothing any more.
        while forward is not self._ours:
            above = getattr(forward, _PATCH, None)
            if above is None:
                return
            forward = above._own
        self._module.__dict__.pop(self._key, None)
        if above is not None:
            above._replace_below(self._own, self._below)
        elif self._own is None:
            del self._module.forward
        else:
            self._module.forward = self._own

    def _replace_below(self, own: Any, below: Any) -> None:
        self._own, self._below = own, below
        self._module.__dict__.pop(self._key, None)
        if own is not None:
            self._module.__dict__[self._key] = own


def _head(model: Any) -> torch.nn.Linear:
    find = getattr(model, "get_output_embeddings", None)
    if find is None:
        raise TypeError(f"model is a {type(model).__name__}: a PreTrainedModel of Transformers would do")
    head = find()
    if type(head) is not torch.nn.Linear:
        what = "no output embedding" if head is None else f"{type(head).__name__} as its output embedding"
        raise TypeError(f"{type(model).__name__} has {what}: one with a torch.nn.Linear would do")
    return head


def _signature(model: Any) -> inspect.Signature:
    signature = inspect.signature(model.forward)
    if "labels" not in signature.parameters:
        raise TypeError(f"{type(model).__name__}.forward takes no labels: a model with a loss would do")
    return signature


def _without_logits(output: Any) -> Any:
    """The output of the model with None for its logits."""
    if isinstance(output, tuple):
        return tuple(None if isinstance(part, Logits) else part for part in output)
    # Made anew: a field that is None is none of its items, and those of this one cannot be taken out.
    return type(output)(**{name: None if isinstance(part, Logits) else part for name, part in output.items()})
