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
    (found,) = (
        node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == function
    )
    assert found.decorator_list, "a test of one case"
