"""What each library offers of the kit's operations: a module a library, a function an operation.

A function takes the operation's operands and options by the kit's names and calls what the library's
documentation names for the purpose; nothing is emulated. What its signature lacks, the library lacks: such a
call is "not offered" wherever the option differs from its default.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Protocol

from .. import frameworks
from ..cases import NotOffered
from ..operations import OPERATIONS


class Adapter(Protocol):
    """A loaded subject.

    Attributes:
        name: the subject's spec.
        framework: "numpy", "torch" or "jax": the arrays that `call` takes and gives.
        versions: of the libraries behind it, by name.
    """

    @property
    def name(self) -> str: ...
    @property
    def framework(self) -> str: ...
    @property
    def versions(self) -> Mapping[str, str]: ...

    def offers(self, op: str, dtype: str) -> bool:
        """Whether the operation is there at all for operands of this format."""

    def call(self, op: str, arrays: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        """The outputs by name. Raises NotOffered, saying why, and what the subject raises."""


def versions_of(*distributions: str) -> dict[str, str]:
    """Installed versions by the name of the distribution."""
    return {name: metadata.version(name) for name in distributions}


def named_outputs(op: str, value: Any) -> dict[str, Any]:
    """Outputs of `op` by name, of an array or of a tuple of them in the kit's order."""
    found = value if isinstance(value, tuple | list) else (value,)
    return dict(zip(OPERATIONS[op].outputs, found, strict=False))


def settings(op: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of `op` and of what it differentiates: those given, the defaults of the others."""
    asked = OPERATIONS[op]
    forward = OPERATIONS[asked.forward].options if asked.forward else {}
    return {**forward, **asked.options, **options}


def differ(op: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not at their defaults."""
    defaults = OPERATIONS[op].options
    return {name: value for name, value in options.items() if name not in defaults or value != defaults[name]}


@dataclass(frozen=True)
class Library:
    """An adapter made of functions.

    Attributes:
        functions: operation -> what is called with the kit's names. A gradient that is not among them is the
            framework's own differentiation of the forward function.
        refusals, refusal: exceptions, and a pattern of their text, by which the library says that it lacks an
            operation or a format, and not that the input is wrong.
        lacks: why the other operations are not there.
        formats: formats of operands that are served; None for whatever the library takes.
        differentiable: whether the framework differentiates the functions.
    """

    name: str
    framework: str
    versions: Mapping[str, str]
    functions: Mapping[str, Callable[..., Any]]
    refusals: tuple[type[Exception], ...] = ()
    refusal: str = ""
    lacks: str = "the library has no such function"
    formats: frozenset[str] | None = None
    differentiable: bool = True

    def offers(self, op: str, dtype: str) -> bool:
        """Whether there is a function, and the format is served."""
        return self._function(op) is not None and (self.formats is None or dtype in self.formats)

    def call(self, op: str, arrays: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        """Calls the function with every option it has. Raises NotOffered where one differs that it lacks."""
        function = self._function(op)
        if function is None:
            raise NotOffered(self.lacks)
        known = inspect.signature(function).parameters
        for name in (*arrays, *differ(op, options)):
            if name not in known and name not in OPERATIONS[op].cotangents:
                raise NotOffered(f"has no {name}")
        chosen = {name: value for name, value in settings(op, options).items() if name in known}
        try:
            if op in self.functions:
                return named_outputs(op, function(**arrays, **chosen))
            return self._gradient(op, function, arrays, chosen)
        except self.refusals as error:
            if isinstance(error, NotOffered) or not re.search(self.refusal, str(error)):
                raise
            raise NotOffered(str(error).splitlines()[0]) from error

    def _function(self, op: str) -> Callable[..., Any] | None:
        differentiated = self.differentiable and self.framework != "numpy"
        forward = OPERATIONS[op].forward if differentiated else ""
        return self.functions.get(op, self.functions.get(forward))

    def _gradient(
        self, op: str, function: Callable[..., Any], arrays: dict[str, Any], options: dict[str, Any]
    ) -> dict[str, Any]:
        return gradient(op, self.framework, lambda **given: function(**given, **options), arrays)


def gradient(
    op: str, framework: str, function: Callable[..., Any], arrays: Mapping[str, Any]
) -> dict[str, Any]:
    """Outputs of a gradient operation: its forward `function(**arrays)` differentiated by the framework."""
    asked = OPERATIONS[op]
    upstream = [arrays[name] for name in asked.cotangents]
    inputs = {name: value for name, value in arrays.items() if name not in asked.cotangents}
    return named_outputs(op, frameworks.vjp(framework, function, inputs, upstream, asked.wrt))
