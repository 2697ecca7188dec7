"""Subjects: what the kit puts its cases to, named by a text.

ours                     this library; ours:ISA.ALGORITHM forces a variant, "*" leaves a part to the
library triton, triton:ALGORITHM this library's Triton kernels, in Triton's interpreter numpy
SciPy and NumPy torch                    PyTorch; torch:compile, torch:chunked, torch:flex jax,
onnxruntime         JAX, ONNX Runtime package.module:callable  anything, with the operation it performs
and the framework whose arrays it takes
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .. import cpu
from . import frameworks
from .child import SubjectError
from .operations import OPERATIONS

if TYPE_CHECKING:
    from .adapters import Adapter

#: Libraries by name -> the framework whose arrays they take.
LIBRARIES: Final = {
    "ours": "numpy",
    "triton": "torch",
    "numpy": "numpy",
    "torch": "torch",
    "jax": "jax",
    "onnxruntime": "numpy",
}
#: Libraries that are modules of that name as well, with their variants: any other name after the colon is a
#: callable's.
MODULES: Final = {"numpy": (), "torch": ("compile", "chunked", "flex"), "jax": ()}


@dataclass(frozen=True)
class Subject:
    """What is tested.

    Attributes:
        spec: the text that names it.
        op: the one operation of a callable; None for a library, which has several.
        framework: "numpy", "torch" or "jax".
    """

    spec: str
    op: str | None = None
    framework: str = "numpy"

    @property
    def custom(self) -> bool:
        """Whether it is somebody's callable."""
        return _is_callable(self.spec)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that its process has to start with."""
        interpreted = {"TRITON_INTERPRET": "1"} if self.spec.partition(":")[0] == "triton" else {}
        return frameworks.environment(self.framework) | interpreted

    def load(self) -> Adapter:
        """The subject, imported and ready to be called; done by the process that calls it.

        Raises SubjectError where its library or module is missing, broken, or has no such variant.
        """
        name, _, rest = self.spec.partition(":")
        module = importlib.import_module(f"{__package__}.adapters.{'callable' if self.custom else name}")
        try:
            made = module.load(self.spec, self.op, self.framework) if self.custom else module.load(rest)
        except (ImportError, ValueError) as error:
            raise SubjectError(str(error)) from error
        return made  # type: ignore[no-any-return]


def _is_callable(spec: str) -> bool:
    name, _, rest = spec.partition(":")
    return name not in LIBRARIES or (bool(rest) and name in MODULES and rest not in MODULES[name])


def parse(spec: str, op: str | None = None, framework: str | None = None) -> Subject:
    """The subject that `spec` names; nothing is imported.

    Args:
        op: the operation that a callable performs; a library takes none.
        framework: whose arrays a callable takes: "numpy", or that of the library it lies in, unless said
        otherwise.

    Raises SubjectError, saying what would do.
    """
    if framework is not None and framework not in frameworks.FRAMEWORKS:
        raise SubjectError(f"framework={framework!r}: one of {', '.join(frameworks.FRAMEWORKS)} would do")
    if op is not None and op not in OPERATIONS:
        raise SubjectError(f"op={op!r}: one of {', '.join(OPERATIONS)} would do")
    name, colon, rest = spec.partition(":")
    if not _is_callable(spec):
        if colon and not rest:
            raise SubjectError(f"subject {spec!r} ends with a colon: {name} would do")
        if framework not in (None, LIBRARIES[name]):
            raise SubjectError(f"framework={framework!r}: {name} takes arrays of {LIBRARIES[name]}")
        return Subject(spec, op, LIBRARIES[name])
    if not name or not rest:
        would = f"one of {', '.join(LIBRARIES)} or package.module:callable would do"
        raise SubjectError(f"subject {spec!r}: {would}")
    if op is None:
        known = ", ".join(OPERATIONS)
        variants_too = (
            f" (variants of {name} are {', '.join(MODULES[name]) or 'none'})" if name in MODULES else ""
        )
        raise SubjectError(
            f"subject {spec!r} is a callable{variants_too}: op has to say what it computes, one of {known}"
        )
    return Subject(spec, op, framework or LIBRARIES.get(name, "numpy"))


def variants(*, naive: bool = False) -> list[Subject]:
    """Ours in every instruction set of this CPU and every algorithm.

    `naive` gives the algorithm of that name alone, which takes no maximum out and fails by design; it is not
    among the others.
    """
    algorithms = ("naive",) if naive else [a for a in cpu.ALGORITHMS if a not in ("naive", "auto")]
    return [Subject(f"ours:{isa}.{algorithm}") for isa in cpu.isas() for algorithm in algorithms]
