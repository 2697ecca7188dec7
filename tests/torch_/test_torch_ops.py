"""Every operation in torch.ops.online_softmax passes torch.library.opcheck."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from row_cases import noise

import online_softmax.torch as ost

assert ost.softmax  # loads the operations


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return noise(*shape, dtype=dtype).requires_grad_()


def places(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


# The options that attention's operations have at their ends, and those of the losses.
_ATTENTION = (None, None, None, None, None, None, None, 0.0, -1, 0, False, 0.0, None)
_LOSS = (1, -100, 0.1, False, 0.0, 0.0, 1.0, 1, False)


def _q(grad: bool = True) -> torch.Tensor:
    return noise(1, 2, 4, 8).requires_grad_(grad)


def _rows() -> list[tuple[Any, ...]]:
    where = noise(5) > -1
    return [
        (leaf(4, 5), [1], None),
        (noise(4, 5, dtype=torch.float32).t().requires_grad_(), [0, 1], where.unsqueeze(-1)),
        (noise(3, 7, dtype=torch.bfloat16), [1], None),
    ]


def _draws() -> list[tuple[Any, ...]]:
    return [
        (noise(4, 5), torch.tensor(7), torch.tensor(1.0), None, None, None, 1, 0, 0, 0),
        (noise(4, 5), torch.tensor(-7), torch.rand(5), torch.tensor(2), torch.tensor(0.5), None, 0, 3, 1, 2),
    ]


def _attention_done() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ops.online_softmax.attention(_q(False), _q(False), _q(False), None, None, *_ATTENTION)


def _attention_backward() -> list[tuple[Any, ...]]:
    output, lse = _attention_done()
    return [(_q(), None, _q(), _q(), _q(), None, None, output, lse, False, *_ATTENTION)]


EXAMPLES: dict[str, Callable[[], list[tuple[Any, ...]]]] = {
    "softmax": _rows,
    "log_softmax": _rows,
    "logsumexp": _rows,
    "logsumexp_weights": _rows,
    "softmax_any": _rows,
    "log_softmax_any": _rows,
    "logsumexp_any": _rows,
    "logsumexp_weights_any": _rows,
    "logsumexp_weighted": lambda: [(leaf(4, 5), leaf(4, 5), [1]), (noise(4, 5), leaf(4, 5), [0, 1])],
    "softmax_topk": lambda: [(leaf(4, 5), 2, 1), (leaf(4, 5, dtype=torch.float32), 3, 0)],
    "logaddexp": lambda: [(leaf(4, 5), leaf(4, 5)), (noise(5).expand(4, 5), noise(4, 5))],
    "logaddexp_backward": lambda: [(leaf(4, 5), leaf(4, 5), leaf(4, 5))],
    "window_logsumexp": lambda: [(leaf(4, 5), 0, 1, True), (leaf(4, 5), 2, 0, False)],
    "window_logsumexp_backward": lambda: [
        (leaf(4, 5), leaf(4, 5), 0, 1, True), (leaf(4, 5), leaf(4, 5), 2, 0, False)
    ],
    "window_products": lambda: [(leaf(4, 5), leaf(4, 5), leaf(4, 5), 3, 1, False)],
    "segment_logsumexp": lambda: [
        (leaf(5, 2), places(0, 2, 5), False, 2, 0), (leaf(2, 3), places(0, 0, 2), True, 3, 1)
    ],
    "segment_softmax": lambda: [
        (leaf(5, 2), places(0, 2, 5), False, 2, 0), (leaf(2, 3), places(0, 0, 2), True, 3, 1)
    ],
    "segment_logsumexp_backward": lambda: [(leaf(2, 2), leaf(5, 2), places(0, 2, 5), False, 2, 0)],
    "segment_softmax_backward": lambda: [(leaf(5, 2), leaf(5, 2), places(0, 2, 5), False, 2, 0)],
    "sample": _draws,
    "sample_any": _draws,
    "attention": lambda: [(_q(), _q(), _q(), None, None, *_ATTENTION)],
    "attention_any": lambda: [(_q(), _q(), _q(), None, None, *_ATTENTION)],
    "attention_backward": _attention_backward,
    "attention_double_backward": lambda: [
        (_q(), None, _q(), _q(), _q(), None, None, _q(False), _q(False), _q(False), None, None, *_ATTENTION)
    ],
    "attention_jvp": lambda: [
        (_q(), _q(), _q(), None, None, _q(False), None, _q(False), None, None, *_ATTENTION)
    ],
    "attention_keep": lambda: [(torch.tensor(5), 1, 2, 3, 4, None, None, 0.5, None)],
    "attention_stored": lambda: [
        (_q(False), _q(False), _q(False), None, None, None, None, None, *_ATTENTION)
    ],
    "attention_stored_any": lambda: [
        (_q(False), _q(False), _q(False), None, None, None, None, None, *_ATTENTION)
    ],
    "cross_entropy": lambda: [(leaf(3, 5), places(0, 2, 4), None, None, 0, *_LOSS)],
    "cross_entropy_backward": lambda: [
        (torch.ones((), dtype=torch.float64), None, leaf(3, 5), places(0, 2, 4), None, None, *_LOSS)
    ],
    "cross_entropy_any": lambda: [
        (leaf(3, 5), places(0, 2, 4), None, None, None, 1, *_LOSS),
        (noise(3, 5), places(0, 2, 4), None, None, places(0, 1, 2).unsqueeze(1), 0, *_LOSS),
    ],
    "cross_entropy_any_backward": lambda: [
        (torch.ones((), dtype=torch.float64), None, leaf(3, 5), places(0, 2, 4), None, None, *_LOSS)
    ],
    "cross_entropy_report": lambda: [
        (noise(3, 5), places(0, 2, 4), None, None, None, None, 0, *_LOSS)
    ],
    "linear_cross_entropy": lambda: [
        (leaf(3, 4), leaf(5, 4), places(0, 2, 4), None, None, None, None, 0, 0, 1 << 20, 0.0, *_LOSS)
    ],
    "linear_cross_entropy_any": lambda: [
        (noise(3, 4), noise(5, 4), places(0, 2, 4), noise(5), None, None, 1, 1 << 20, *_LOSS),
    ],
    "linear_cross_entropy_backward": lambda: [
        (
            torch.ones((), dtype=torch.float64), None, leaf(3, 4), leaf(5, 4), places(0, 2, 4), None, None,
            None, 1 << 20, 0.0, *_LOSS,
        )
    ],
}  # fmt: skip


def registered() -> list[str]:
    names = torch._C._dispatch_get_all_op_names()
    return sorted(name.split("::")[1] for name in names if name.startswith("online_softmax::"))


@pytest.mark.parametrize("name", registered())
def test_opcheck(name: str) -> None:
    assert name in EXAMPLES, f"{name} is registered and has no example here"
    for args in EXAMPLES[name]():
        found = torch.library.opcheck(getattr(torch.ops.online_softmax, name), args)
        assert set(found.values()) == {"SUCCESS"}


def test_no_example_is_left_over() -> None:
    assert set(EXAMPLES) == set(registered())
