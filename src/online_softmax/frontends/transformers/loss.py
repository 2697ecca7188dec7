"""A language model that makes its loss from hidden states and the weight of its head."""

from __future__ import annotations

import functools
import inspect
import threading
from typing import Any

import torch

from .logits import Logits


class LinearLoss:
    """In force from its making until `remove`, or the end of a `with`. See `linear_loss`."""

    def __init__(self, model: Any) -> None:
        self._head = _head(model)
        self._model = model
        self._signature = _signature(model)
        # A call in one thread says nothing about that in another.
        self._calls = threading.local()
        self._active = True
        self._forward = _Patch(model, self._wrapped)
        self._head_forward = _Patch(self._head, self._wrapped_head)

    def remove(self) -> None:
        """The model is as it was. To call it again changes nothing."""
        self._active = False
        self._forward.undo()
        self._head_forward.undo()

    def __enter__(self) -> LinearLoss:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _wrapped(self, forward: Any) -> Any:
        @functools.wraps(forward)
        def with_loss(*args: Any, **kwargs: Any) -> Any:
            labels = self._signature.bind_partial(*args, **kwargs).arguments.get("labels")
            if not self._active or labels is None:
                return forward(*args, **kwargs)
            before = getattr(self._calls, "labelled", False)
            self._calls.labelled = True
            try:
                return _without_logits(forward(*args, **kwargs))
            finally:
                self._calls.labelled = before

        return with_loss

    def _wrapped_head(self, forward: Any) -> Any:
        @functools.wraps(forward)
        def deferred(hidden: torch.Tensor) -> Any:
            if not self._active or not getattr(self._calls, "labelled", False):
                return forward(hidden)
            return Logits(hidden, self._head.weight, self._head.bias, hidden.dtype)

        return deferred


class _Patch:
    """The forward of one module, replaced on the instance."""

    def __init__(self, module: Any, wrap: Any) -> None:
        self._module = module
        self._own = module.__dict__.get("forward")
        self._ours = wrap(module.forward)
        module.forward = self._ours

    def undo(self) -> None:
        # What another library has put over it since stays: it calls ours, which does nothing any more.
        if self._module.__dict__.get("forward") is not self._ours:
            return
        if self._own is None:
            del self._module.forward
        else:
            self._module.forward = self._own


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
