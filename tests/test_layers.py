"""Imports run downward: a module may import what lies in a lower layer, and what lies beside it in its own
package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import online_softmax

ROOT = Path(online_softmax.__path__[0])
PACKAGE = "online_softmax"
#: Lowest first. A part is a module or sub-package right below the package; one missing here fails the test.
# Of : `traffic`, what is pure arithmetic on caches has a lower place of its own: `cpu` chooses algorithms by
# it.
LAYERS = (
    (
        "_core",
        "extras",
        "host",
        "wire",
        "exact",
        "numerics",
        "reference",
        "attention_tiles",
        "loss_rules",
        "linear_plan",
    ),
    ("state", "attention_derivatives", "attention_sums", "exact_sums"),
    ("attention_exact", "attention_formats", "exact_state", "loss_state", "sample_state"),
    ("attention_state", "exact_loss_state", "exact_sample_state"),
    ("ops", "distributed", "streaming", "traffic.count"),
    ("traffic.cache",),
    ("cpu", "gpu"),
    ("cpu_attention", "cpu_exact", "cpu_losses", "cpu_product", "cpu_sampling", "cpu_scans"),
    ("cpu_linear",),
    ("cpu_linear_gradient",),
    ("frontends",),
    ("torch", "jax", "transformers", "scipy"),
    ("traffic", "conformance"),
    ("exercise",),
    ("report",),
    ("cli",),
)
#: These lie above what the package exports, and may import the package itself.
ABOVE = {"report", "cli"}
RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}
#: Parts that may import these of ours and no others, whatever their layer.
ONLY = {
    "extras": set(),
    "host": set(),
    "wire": set(),
    "exact": set(),
    "numerics": set(),
    "reference": set(),
    "state": {"wire"},
    "distributed": {"state"},
    "streaming": {"state"},
    "attention_formats": {"state", "wire"},
    "attention_exact": {"attention_sums", "state", "wire"},
    "attention_sums": {"exact"},
    "attention_tiles": set(),
    "attention_derivatives": {"attention_tiles"},
    "attention_state": {"attention_formats", "state"},
    "exact_state": {"exact", "state", "wire"},
    "loss_rules": set(),
    "linear_plan": set(),
    "loss_state": {"loss_rules", "state"},
    "sample_state": {"state"},
    "exact_sample_state": {"exact", "exact_state", "sample_state"},
    "exact_sums": {"exact"},
    "exact_loss_state": {"exact", "exact_state", "exact_sums", "loss_rules", "loss_state"},
}
#: Parts that may load the native module: its face, the small-call way of the NumPy front end, what times the
#: hardware.
CORE_USERS = {
    "cpu",
    "cpu_attention",
    "cpu_exact",
    "cpu_losses",
    "cpu_product",
    "cpu_sampling",
    "cpu_scans",
    "frontends",
    "traffic",
}
#: Frameworks a caller may not have: only these parts name them, and never when the package is imported.
OPTIONAL = {
    "torch",
    "jax",
    "triton",
    "dask",
    "mpi4py",
    "scipy",
    "onnxruntime",
    "matplotlib",
    "zarr",
    "pyarrow",
    "transformers",
    "array_api_compat",
}
#: What a face and the public module above it may import when they are loaded: their own framework.
FACES = {
    "frontends.torch": {"torch"},
    "frontends.jax": {"jax"},
    "frontends.transformers": {"torch", "transformers"},
}
PUBLIC_FACES = ("torch", "jax", "transformers", "scipy")


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Dotted name below the package -> file."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path, known: set[str]) -> set[str]:
    """Dotted names below the package that a module imports anywhere in its text, lazily or for types
    included.

    The package itself is "": it stands for everything it exports.
    """
    inside = path.stem == "__init__"
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.split(".")[0] == PACKAGE}
        elif isinstance(node, ast.ImportFrom):
            base = (node.module or "").split(".") if node.module else []
            if node.level:
                here = [PACKAGE, *name.split(".")] if name else [PACKAGE]
                drop = node.level - 1 if inside else node.level
                base = here[: len(here) - drop] + base
            if base[:1] == [PACKAGE]:
                found |= {".".join((*base, a.name)) for a in node.names}
    return {_module(full.split(".")[1:], known) for full in found}


def _module(parts: list[str], known: set[str]) -> str:
    """The longest prefix that is a module: the rest are names in it."""
    while parts and ".".join(parts) not in known and parts[0] != "_core":
        parts = parts[:-1]
    return ".".join(parts)


def place(name: str) -> str:
    """What stands in LAYERS for a module: itself, or its package."""
    return name if name in RANK else name.split(".")[0]


def faults(root: Path = ROOT) -> list[str]:
    """Every import that breaks the rules, in words."""
    files = modules(root)
    wrong = []
    for name, path in files.items():
        part = place(name)
        if not name:
            continue  # the package itself exports from all layers below cli
        if part not in RANK:
            wrong.append(f"{name}: in no layer")
            continue
        for target in sorted(imported(name, path, set(files))):
            to = place(target)
            if to == part:
                continue
            if not target:
                if part not in ABOVE:
                    wrong.append(f"{name}: imports the package itself, which imports it")
            elif to not in RANK:
                wrong.append(f"{name}: imports {target}, in no layer")
            elif to == "_core" and part not in CORE_USERS:
                wrong.append(f"{name}: imports _core")
            elif RANK[to] >= RANK[part]:
                wrong.append(f"{name}: imports {target} upward or sideways")
            elif part in ONLY and to not in ONLY[part]:
                wrong.append(f"{name}: imports {target}, where only {sorted(ONLY[part])} are allowed")
    return wrong


def test_no_import_runs_upward() -> None:
    assert faults() == []


def test_the_package_exports_nothing_of_the_command() -> None:
    files = modules()
    exported = imported("", files[""], set(files))
    assert not [m for m in exported if m.split(".")[0] in ABOVE | {"traffic", "conformance", "exercise"}]


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    files = modules()
    graph = {
        name: imported(name, path, set(files)) & set(files) - {name, ""}
        for name, path in files.items()
        if name
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name in done:
            return
        for target in graph[name]:
            # A package's own modules load it first in any case.
            if not name.startswith(f"{target}."):
                visit(target, (*trail, name))
        done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("state.py", "from . import ops", "state: imports ops upward"),
        ("state.py", "def f():\n    from .cpu import info", "state: imports cpu upward"),
        ("reference.py", "import online_softmax.state", "reference: imports state upward"),
        ("ops.py", "from online_softmax import softmax", "ops: imports the package itself"),
        ("ops.py", "from ._core import isas", "ops: imports _core"),
        ("streaming/npy.py", "from ..cpu import state", "streaming.npy: imports cpu upward"),
        ("streaming/npy.py", "from ..numerics import bounds", "streaming.npy: imports numerics, where only"),
        ("cpu.py", "from .frontends import numpy", "cpu: imports frontends upward"),
        ("traffic/model.py", "from ..cli import main", "traffic.model: imports cli upward"),
        ("frontends/torch.py", "from ..traffic import model", "frontends.torch: imports traffic upward"),
        ("new.py", "", "new: in no layer"),
    ],
)
def test_an_upward_import_is_found(tmp_path: Path, name: str, text: str, fault: str) -> None:
    for other in ("", "frontends", "streaming", "traffic", "cli", "numerics"):
        (tmp_path / other).mkdir(exist_ok=True)
        (tmp_path / other / "__init__.py").write_text("", encoding="utf-8")
    for other in ("state.py", "ops.py", "cpu.py"):
        (tmp_path / other).write_text("", encoding="utf-8")
    (tmp_path / name).write_text(text, encoding="utf-8")
    found = faults(tmp_path)
    assert len(found) == 1
    assert found[0].startswith(fault)


def test_the_reference_and_the_bounds_need_nothing_but_arrays() -> None:
    """Their imports from outside: the standard library, numpy, ml_dtypes."""
    allowed = {
        "__future__",
        "collections",
        "dataclasses",
        "decimal",
        "fractions",
        "functools",
        "math",
        "operator",
        "typing",
        "struct",
        "zlib",
        "numpy",
        "ml_dtypes",
    }
    for name, path in modules().items():
        if name.split(".")[0] in {
            "reference",
            "numerics",
            "state",
            "wire",
            "attention_formats",
            "attention_state",
        }:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    assert {a.name.split(".")[0] for a in node.names} <= allowed, name
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    assert (node.module or "").split(".")[0] in allowed, name


def test_frameworks_are_imported_only_when_called() -> None:
    """The kernels of `gpu` are Triton's and work on tensors of PyTorch: its modules import both, the
    face of a framework is that framework's; no other imports them when it is loaded."""
    for name, path in modules().items():
        top = ast.parse(path.read_text(encoding="utf-8")).body
        foreign = {
            n.split(".")[0]
            for node in top
            for n in (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom) and not node.level
                else []
            )
        }
        face = ".".join(name.split(".")[:2])
        allowed = {"torch", "triton"} if name.split(".")[0] == "gpu" else FACES.get(face, set())
        assert not foreign & OPTIONAL - allowed, f"{name} imports {foreign} at its top"
        ours = {n for node in top if isinstance(node, ast.ImportFrom) and node.level for n in _targets(node)}
        assert name.startswith("gpu") or "gpu" not in ours, f"{name} imports gpu at its top"
        if face not in FACES and name not in PUBLIC_FACES:
            assert not ours & {"torch", "jax", "transformers"}, f"{name} imports a face at its top"


def _targets(node: ast.ImportFrom) -> set[str]:
    """First parts of what a relative import names."""
    return {(node.module or a.name).split(".")[0] for a in node.names}
