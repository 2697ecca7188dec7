"""Wrong calls, each with the message it gets before any work."""

# ruff: noqa: E402  # what is imported last needs the two libraries
from __future__ import annotations

import re
from collections.abc import Callable

import pytest

pytest.importorskip("triton", reason="triton is not installed: pip install 'online-softmax[triton]'")
torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'online-softmax[torch]'")

from online_softmax.gpu import ops

X = torch.zeros(2, 20)
ROWS = torch.zeros(2)
NAMED = "'naive', 'three_pass', 'online', 'cached', 'auto' would do"

WRONG: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no tensor": (lambda: ops.softmax([1.0]), TypeError, "x is a list: a torch.Tensor would do"),
    "format": (
        lambda: ops.softmax(X.double()),
        TypeError,
        "x is float64: float32, float16, bfloat16 would do",
    ),
    "integers": (
        lambda: ops.logsumexp(X.int()),
        TypeError,
        "x is int32: float32, float16, bfloat16 would do",
    ),
    "sparse": (lambda: ops.softmax(X.to_sparse()), TypeError, "x has layout torch.sparse_coo"),
    "nowhere": (lambda: ops.softmax(X.to("meta")), ValueError, "x is on meta: a tensor on a GPU would do"),
    "no dimensions": (
        lambda: ops.softmax(torch.tensor(1.0)),
        ValueError,
        "x has no dimensions: at least one would do, for example x.reshape(1)",
    ),
    "dim": (
        lambda: ops.softmax(X, 2),
        ValueError,
        "dim=2 is out of range for 2 dimensions: -2 to 1 would do",
    ),
    "dims": (lambda: ops.softmax(X, (0, 1)), TypeError, "dim=(0, 1) is a tuple: an int would do"),
    "bool dim": (lambda: ops.softmax(X, True), TypeError, "dim=True is a bool: an int would do"),
    "algorithm": (
        lambda: ops.softmax(X, algorithm="fast"),
        ValueError,
        f"algorithm='fast' is unknown to softmax: {NAMED}",
    ),
    "algorithm of an empty tensor": (
        lambda: ops.logsumexp(X[:0], algorithm="best"),
        ValueError,
        f"algorithm='best' is unknown to logsumexp: {NAMED}",
    ),
    "algorithm of a gradient": (
        lambda: ops.softmax_backward(X, X, algorithm="naive"),
        ValueError,
        "algorithm='naive' is unknown to softmax_backward: 'online', 'cached', 'auto' would do",
    ),
    "block": (
        lambda: ops.softmax(X, block=24),
        ValueError,
        "block=24: a power of two from 16 to 16384, or None, would do",
    ),
    "small block": (lambda: ops.softmax(X, block=8), ValueError, "block=8: a power of two"),
    "large block": (lambda: ops.softmax(X, block=32768), ValueError, "block=32768: a power of two"),
    "kind of block": (lambda: ops.softmax(X, block=16.0), TypeError, "block=16.0 is a float: a power of two"),
    "out": (lambda: ops.softmax(X, out=[0.0]), TypeError, "out is a list: a torch.Tensor would do"),
    "shape of out": (
        lambda: ops.softmax(X, out=torch.zeros(20, 2)),
        ValueError,
        "out has shape (20, 2): (2, 20), that of x, would do",
    ),
    "format of out": (
        lambda: ops.softmax(X, out=X.half()),
        TypeError,
        "out is torch.float16: torch.float32, that of x, would do",
    ),
    "place of out": (
        lambda: ops.softmax(X, out=X.to("meta")),
        ValueError,
        "out is on meta: cpu, where x is, would do",
    ),
    "expanded out": (
        lambda: ops.softmax(X, out=torch.zeros(20).expand(2, 20)),
        ValueError,
        "out has strides (0, 1), by which its elements share memory: distinct ones would do",
    ),
    "k": (
        lambda: ops.softmax_topk(X, 21),
        ValueError,
        "k=21: 0 to 20 would do for rows of 20 columns",
    ),
    "negative k": (lambda: ops.softmax_topk(X, -1), ValueError, "k=-1: 0 to 20 would do"),
    "kind of k": (lambda: ops.softmax_topk(X, 1.5), TypeError, "k=1.5 is a float: an int would do"),
    "bool k": (lambda: ops.softmax_topk(X, True), TypeError, "k=True is a bool: an int would do"),
    "shape of dy": (
        lambda: ops.softmax_backward(X, X.T),
        ValueError,
        "dy has shape (20, 2): (2, 20), that of y, would do",
    ),
    "format of dy": (
        lambda: ops.log_softmax_backward(X, X.half()),
        TypeError,
        "dy is torch.float16: torch.float32, that of y, would do",
    ),
    "y": (lambda: ops.softmax_backward(X.double(), X), TypeError, "y is float64: float32, float16"),
    "shape of lse": (
        lambda: ops.logsumexp_backward(X, torch.zeros(20), ROWS),
        ValueError,
        "lse has shape (20,): (2,), that of a float32 value for each row of x, would do",
    ),
    "format of dlse": (
        lambda: ops.logsumexp_backward(X, ROWS, ROWS.half()),
        TypeError,
        "dlse is torch.float16: torch.float32, that of a float32 value for each row of x, would do",
    ),
    "lse": (
        lambda: ops.logsumexp_backward(X, None, ROWS),
        TypeError,
        "lse is a NoneType: a torch.Tensor would do",
    ),
    "format of launches": (
        lambda: ops.launches("softmax", "auto", 2, 20, torch.float64),
        TypeError,
        "dtype=torch.float64: torch.float32, torch.float16, torch.bfloat16 would do",
    ),
    "operation of launches": (
        lambda: ops.launches("attention", "auto", 2, 20, torch.float32),
        ValueError,
        "op='attention' is unknown: 'softmax', 'log_softmax'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_told_what_would_do(name: str) -> None:
    call, error, message = WRONG[name]
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        call()


@pytest.mark.parametrize("shift", [1, 20, 21])
def test_an_out_that_overlaps_in_part_is_refused(shift: int) -> None:
    memory = torch.zeros(70)
    x, out = memory[:40].view(2, 20), memory[shift : shift + 40].view(2, 20)
    with pytest.raises(ValueError, match=r"^out overlaps x in part: the memory of x itself, with the same"):
        ops.softmax(x, out=out)
    assert (memory == 0).all()


def test_an_out_of_other_strides_over_the_same_memory_is_refused() -> None:
    x = torch.zeros(4, 4)
    with pytest.raises(ValueError, match=r"^out overlaps x in part"):
        ops.softmax(x, out=x.T)


def test_without_the_interpreter_the_cpu_is_refused(fresh_python) -> None:
    script = (
        "import torch\n"
        "from online_softmax.gpu import ops\n"
        "try:\n    ops.softmax(torch.zeros(2, 3))\nexcept ValueError as error:\n    print(error)\n"
    )
    done = fresh_python(script, TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "x is on cpu: a tensor on a GPU would do "
        "(or one on the CPU, with TRITON_INTERPRET=1 set before Python starts)\n"
    )


@pytest.mark.parametrize("missing", ["triton", "torch"])
def test_what_is_not_installed_is_named_with_its_extra(missing: str, fresh_python) -> None:
    script = (
        f"import sys\nsys.modules[{missing!r}] = None\n"
        "from online_softmax.extras import MissingExtra\n"
        "try:\n    import online_softmax.gpu\nexcept MissingExtra as error:\n    print(error)\n"
    )
    done = fresh_python(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        f"online_softmax.gpu needs {missing}, which is not installed: "
        f"pip install 'online-softmax[{missing}]'\n"
    )
