"""What tests/thinned.py leaves out is there to be left out."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from thinned import EVERY


@pytest.mark.parametrize("name", EVERY)
def test_each_name_is_a_family_of_cases(name: str) -> None:
    file, function = name.split("::")
    (path,) = Path(__file__).parent.rglob(file)
    here = [n for n in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(n, ast.FunctionDef)]
    (found,) = (node for node in here if node.name == function)
    cases = {node.name for node in here for made in node.decorator_list if "params=" in ast.unparse(made)}
    taken = {argument.arg for argument in found.args.args}
    assert found.decorator_list or cases & taken, "a test of one case"
