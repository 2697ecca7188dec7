"""Print requirements that pyproject.toml lists, one a line, for `pip install -r`.

    python scripts/requirements.py project extra:test group:lint

`project` stands for the run-time dependencies, `build` for the build system's, `extra:NAME` for an optional
dependency of the package, and `group:NAME` for a dependency group. It lets a tool environment be made without
building the package.
"""

import sys
import tomllib
from pathlib import Path


def requirements(names: list[str]) -> list[str]:
    """The requirements behind `names`, in order; SystemExit naming a name that pyproject.toml lacks."""
    table = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    known: dict[str, list[str]] = {"project": table["project"]["dependencies"]}
    known["build"] = table["build-system"]["requires"]
    known |= {f"extra:{k}": v for k, v in table["project"]["optional-dependencies"].items()}
    known |= {f"group:{k}": v for k, v in table["dependency-groups"].items()}
    for name in names:
        if name not in known:
            raise SystemExit(f"requirements.py: no {name!r} in pyproject.toml; there are {', '.join(known)}")
    return [requirement for name in names for requirement in known[name]]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1:])))
