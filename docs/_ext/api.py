"""The directive `api`: the reference of a module, read from its source.

    .. api:: online_softmax.torch

        softmax log_softmax

documents the names given, or all public names where none are: signatures and docstrings. Nothing is
imported: griffe reads the files of the installed package, so that PyTorch, JAX, Triton and Transformers need
not be there. At the end of a build every name that a module declares public must have been documented.
"""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import Any

import docstrings
import griffe
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

logger = logging.getLogger(__name__)
PACKAGE = "online_softmax"
INDENT = "   "


@cache
def package() -> griffe.Object:
    """The package as griffe reads it, every import followed to where a name is defined."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise RuntimeError("online_softmax is not installed: make docs installs it")
    folder = Path(found.origin).parents[1]
    return griffe.load(PACKAGE, search_paths=[folder], allow_inspection=False, resolve_aliases=True)


def module(path: str) -> griffe.Object:
    """The module of this dotted path; KeyError where there is none."""
    inner = path.removeprefix(PACKAGE).lstrip(".")
    return package()[inner] if inner else package()


def public(path: str) -> list[str]:
    """The names a module offers: those of `__all__`, else what it defines without an underscore."""
    found = module(path)
    declared = found.members.get("__all__")
    if declared is not None and declared.is_alias:
        found = declared.final_target.parent
    if found.exports is not None:
        return [str(name) for name in found.exports if not str(name).startswith("__")]
    return [
        name
        for name, member in found.members.items()
        if not name.startswith("_") and not member.is_alias and not member.is_module and _documented(member)
    ]


def _documented(member: griffe.Object) -> bool:
    return bool(member.docstring) or bool(_comment(member))


def _comment(member: griffe.Object) -> str:
    """What the lines "#: ..." above a constant say."""
    if not member.is_attribute or not member.lineno or not isinstance(member.filepath, Path):
        return ""
    lines = member.filepath.read_text(encoding="utf-8").splitlines()[: member.lineno - 1]
    text: list[str] = []
    while lines and lines[-1].lstrip().startswith("#:"):
        text.insert(0, lines.pop().lstrip()[2:].strip())
    return "\n".join(text)


def _wrapped(member: griffe.Object) -> griffe.Object:
    """Of `name = routed(function)` the function, and that of a submodule which has its name."""
    if member.is_module:  # `from .attention import attention`: Python sees the function, griffe the module
        return member.members[member.name]
    value = getattr(member, "value", None)
    if (
        isinstance(value, griffe.ExprCall)
        and len(value.arguments) == 1
        and hasattr(value.arguments[0], "canonical_path")
    ):
        inner = value.arguments[0].canonical_path.removeprefix(f"{PACKAGE}.")
        found = package()[inner] if value.arguments[0].canonical_path.startswith(PACKAGE) else member
        return found if found.is_function else member
    return member


def _text(member: griffe.Object) -> str:
    """The docstring, or that of the method a method takes the place of, or the comment above a constant."""
    if member.docstring:
        return str(member.docstring.value)
    if member.is_function and member.parent is not None and member.parent.is_class:
        for base in member.parent.mro():
            inherited = base.members.get(member.name)
            if inherited is not None and inherited.docstring:
                return str(inherited.docstring.value)
    if member.is_class:
        for base in member.mro():
            if base.docstring and base.name == member.name:
                return str(base.docstring.value)
    return _comment(member)


def _signature(member: griffe.Object, path: str) -> str:
    """Parameters with annotations that say something, and the result's."""
    shown = []
    kinds = griffe.ParameterKind
    named, positional = False, False
    for parameter in member.parameters:
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is kinds.keyword_only and not named:
            shown.append("*")
        named = named or parameter.kind in (kinds.keyword_only, kinds.var_positional)
        if positional and parameter.kind is not kinds.positional_only:
            shown.append("/")
        positional = parameter.kind is kinds.positional_only
        shown.append(_parameter(parameter, kinds, path, member))
    if positional:
        shown.append("/")
    result = getattr(member, "returns", None)
    said = result is not None and str(result) not in ("Any", "None", "Self")
    return f"({', '.join(shown)})" + (f" -> {_annotation(result, path, member)}" if said else "")


def _annotation(found: Any, path: str, member: griffe.Object) -> str:
    """An annotation whose names of the package are written out, so that each leads to its own entry."""

    def full(name: re.Match[str]) -> str:
        if name[0] in targets().get(path, frozenset()):
            return f"~{path}.{name[0]}"
        try:
            home = member.module.resolve(name[0])
        except griffe.NameResolutionError:
            return name[0]
        return f"~{homes().get(home, home)}" if home.startswith(PACKAGE) else name[0]

    return re.sub(r"(?<![.\w'\"])[A-Za-z]\w+", full, str(found))


def _parameter(parameter: griffe.Parameter, kinds: Any, path: str, member: griffe.Object) -> str:
    stars = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(parameter.kind, "")
    said = parameter.annotation is not None and str(parameter.annotation) != "Any"
    kind = _annotation(parameter.annotation, path, member) if said else ""
    text = stars + parameter.name + (f": {kind}" if kind else "")
    if parameter.default is None or stars:
        return text
    return f"{text} = {parameter.default}" if kind else f"{text}={parameter.default}"


class Api(SphinxDirective):
    """`.. api:: module`, with the names to document, in their order, as its text."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        path = self.arguments[0]
        found = module(path)
        self.env.note_dependency(str(found.filepath))
        names = " ".join(self.content).split()
        lines = [f".. py:currentmodule:: {path}", ""]
        if not names:
            names = public(path)
            if found.docstring:
                lines += docstrings.rest(str(found.docstring.value), self._link(path))
        for name in names:
            member = found.members[name]
            target = _wrapped(member.final_target if member.is_alias else member)
            self.env.note_dependency(str(target.filepath))
            entry = self._object(path, name, target)
            if target.parent is not None and target.parent.path != path and target.parent.path in MODULES:
                entry.insert(1, f"{INDENT}:no-index:")  # its own page has it
            lines += ["", *entry]
        documented(self.env).setdefault(path, {}).setdefault(self.env.docname, set()).update(names)
        return self.parse_text_to_nodes("\n".join(lines) + "\n")

    def _object(self, path: str, name: str, target: griffe.Object) -> list[str]:
        link = self._link(path)
        if target.is_function:
            return self._entry("function", name + _signature(target, path), _text(target), link)
        if target.is_class:
            return self._class(path, name, target, link)
        value = str(getattr(target, "value", None) or "")
        lines = self._entry("data", name, _text(target), link)
        if value and len(value) < 80 and "\n" not in value:
            lines.insert(1, f"{INDENT}:value: {value}")
        return lines

    def _class(self, path: str, name: str, target: griffe.Object, link: docstrings.Link) -> list[str]:
        members = _members(target)
        constructor = target.all_members.get("__init__")
        given = target.parameters if constructor is not None or "dataclass" in target.labels else None
        signature = _signature(target, path) if given is not None else _fields(target, path)
        lines = self._entry("class", name + signature, _text(target), link)
        for member in members:
            entry = self._member(path, member, link)
            lines += ["", *(INDENT + line if line else "" for line in entry)]
        return lines

    def _member(self, path: str, member: griffe.Object, link: docstrings.Link) -> list[str]:
        if member.is_function:
            lines = self._entry("method", member.name + _signature(member, path), _text(member), link)
            for option in ("classmethod", "staticmethod"):
                if option in member.labels:
                    lines.insert(1, f"{INDENT}:{option}:")
            return lines
        kind = "property" if "property" in member.labels else "attribute"
        return self._entry(kind, member.name, _text(member), link)

    def _entry(self, kind: str, signature: str, text: str, link: docstrings.Link) -> list[str]:
        body = docstrings.rest(text, link)
        return [
            f".. py:{kind}:: {signature}",
            *([""] if body[:1] != [""] else []),
            *docstrings.indented(body),
        ]

    def _link(self, path: str) -> docstrings.Link:
        """Names of the page's module, of the package, and dotted ones, become links where public."""

        def link(code: str) -> str | None:
            for owner in (path, PACKAGE):
                if re.fullmatch(r"\w+", code) and code in targets().get(owner, ()):
                    return f":py:obj:`{code} <{owner}.{code}>`"
            owner, _, last = code.rpartition(".")
            owner = owner if owner.startswith(PACKAGE) else f"{PACKAGE}.{owner}"
            if last and last in targets().get(owner, ()):
                return f":py:obj:`{code} <{owner}.{last}>`"
            return None

        return link


def _members(target: griffe.Object) -> list[griffe.Object]:
    """Public methods and properties, the class's own and those of bases in the package, with a docstring."""
    chosen = {}
    for name, member in target.all_members.items():
        found = member.final_target if member.is_alias else member
        if not name.startswith("_") and (found.is_function or "property" in found.labels) and _text(found):
            chosen[name] = found
    return list(chosen.values())


def _fields(target: griffe.Object, path: str) -> str:
    """The fields of a named tuple, as its signature."""
    if not any(str(base).endswith("NamedTuple") for base in target.bases):
        return ""
    fields = [m for m in target.members.values() if m.is_attribute and m.annotation is not None]
    return (
        f"({', '.join(f'{field.name}: {_annotation(field.annotation, path, target)}' for field in fields)})"
    )


@cache
def targets() -> dict[str, frozenset[str]]:
    """The public names of each module that has a page: what docstrings may link to."""
    return {path: frozenset(public(path)) for path in MODULES}


@cache
def homes() -> dict[str, str]:
    """By where a public name is defined, where the reference has it."""
    found: dict[str, str] = {}
    for path in MODULES:
        for name in public(path):
            member = module(path).members[name]
            member = _wrapped(member.final_target if member.is_alias else member)
            found.setdefault(member.path, f"{path}.{name}")
    return found


#: Modules whose every public name is in the reference.
MODULES = (
    PACKAGE,
    *(
        f"{PACKAGE}.{name}"
        for name in (
            "torch", "jax", "scipy", "transformers", "gpu.ops", "reference", "streaming",
            "state", "exact", "numerics.bounds", "numerics.formats", "numerics.verdicts", "numerics.explain",
            "traffic.model", "traffic.shapes", "traffic.count", "traffic.roofline", "traffic.devices",
            "traffic.compare", "traffic.links", "traffic.cache", "traffic.predict", "traffic.kernels",
            "traffic.machine", "traffic.meter", "traffic.compiled",
            "conformance.cases", "conformance.subjects", "conformance.run", "conformance.tolerance",
            "exercise",
        )
    ),
)  # fmt: skip


def documented(env: BuildEnvironment) -> dict[str, dict[str, set[str]]]:
    """By module and page, the names that the pages document; kept with the environment between builds."""
    if not hasattr(env, "online_softmax_api"):
        env.online_softmax_api = {}  # type: ignore[attr-defined]
    return env.online_softmax_api  # type: ignore[attr-defined,no-any-return]


def _forget(_app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    for pages in documented(env).values():
        pages.pop(docname, None)


def _check(_app: Sphinx, env: BuildEnvironment) -> None:
    for path in MODULES:
        known = set().union(*documented(env).get(path, {}).values())
        missing = sorted(set(public(path)) - known)
        if missing:
            logger.warning("%s: not in the reference: %s", path, ", ".join(missing), type="api")


def setup(app: Sphinx) -> dict[str, object]:
    app.add_directive("api", Api)
    app.connect("env-purge-doc", _forget)
    app.connect("env-check-consistency", _check)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
