"""Any function of a person: operands by position, optional arrays and options by keyword where its signature
has them."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..cases import NotOffered
from ..operations import OPERATIONS
from . import Adapter, differ, gradient, named_outputs, settings

#: What an axis is called where a signature does not say.
_AXIS: Final = {"numpy": "axis", "torch": "dim", "jax": "axis"}
_UNEXPECTED: Final = re.compile(r"unexpected keyword argument '(\w+)'")


class TargetError(ValueError):
    """What a target names cannot be loaded or called; the message says which part of it."""


def load(target: str, op: str, framework: str) -> Adapter:
    """The adapter of "package.module:callable" for one operation.

    Raises TargetError where the module cannot be imported, has no such attribute, or that cannot be called.
    """
    return Custom(target, framework, op, _found(target))


def _found(target: str) -> Callable[..., Any]:
    module, colon, path = target.partition(":")
    if not module or not colon or not path:
        raise TargetError(f"target {target!r}: package.module:callable would do")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise TargetError(f"target {target!r}: importing {module} failed: {error}") from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise TargetError(f"target {target!r}: {module} has no {path}")
        found = getattr(found, name)
    if not callable(found):
        raise TargetError(f"target {target!r} is a {type(found).__name__}: a callable would do")
    return found  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Custom:
    """An adapter around one function.

    A gradient of PyTorch or JAX asks for the forward function, which the framework differentiates. One of
    NumPy is a function of the gradient's operands. The result is an array, or a tuple of them in the kit's
    order.
    """

    name: str
    framework: str
    op: str
    function: Callable[..., Any]

    @property
    def versions(self) -> Mapping[str, str]:
        """The framework's version, where the function's own package has none."""
        from . import versions_of

        return versions_of(self.framework)

    def offers(self, op: str, dtype: str) -> bool:
        """Whether it is the operation that the function was named for; formats are tried."""
        return op == self.op

    def call(self, op: str, arrays: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        """Calls the function. Raises NotOffered for what its signature lacks, and what it raises."""
        if op != self.op:
            raise NotOffered(f"was named for {self.op}")
        asked = OPERATIONS[op]
        differentiated = bool(asked.forward) and self.framework != "numpy"
        operands = OPERATIONS[asked.forward].operands if differentiated else asked.operands
        keywords = self._keywords(op, options)
        for name in arrays:
            if name in asked.optional:
                self._has(name)

        def called(**given: Any) -> Any:
            rest = {name: value for name, value in given.items() if name not in operands}
            return self.function(*(given[name] for name in operands), **rest, **keywords)

        try:
            if differentiated:
                return gradient(op, self.framework, called, arrays)
            return named_outputs(op, called(**arrays))
        except TypeError as error:
            # A built-in function without a signature says only now what it lacks.
            lacking = _UNEXPECTED.search(str(error)) if self._names() is None else None
            if lacking is None:
                raise
            raise NotOffered(f"has no {lacking[1]}") from error

    def _keywords(self, op: str, options: Mapping[str, Any]) -> dict[str, Any]:
        chosen = differ(op, options)
        if "axis" in OPERATIONS[op].options:
            # Always given: functions disagree about its default.
            axis = chosen.pop("axis", settings(op, options)["axis"])
            name = self._axis_name()
            if name is not None:
                chosen[name] = axis
            elif axis != OPERATIONS[op].options["axis"]:
                raise NotOffered("has neither axis nor dim")
        for name in chosen:
            self._has(name)
        return chosen

    def _axis_name(self) -> str | None:
        names = self._names()
        if names is None:
            return _AXIS[self.framework]
        return next((name for name in ("axis", "dim") if name in names), None)

    def _has(self, name: str) -> None:
        names = self._names()
        if names is not None and name not in names:
            raise NotOffered(f"has no {name}")

    def _names(self) -> frozenset[str] | None:
        """Names that can be given by keyword; None where any can, or where there is no signature to read."""
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except ValueError:
            return None
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
            return None
        return frozenset(p.name for p in parameters if p.kind in kinds)
