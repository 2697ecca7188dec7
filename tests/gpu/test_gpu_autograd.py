"""What torch keeps beside a tensor's memory: gradients, versions, a lazy sign."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from online_softmax.gpu import ops  # noqa: E402


def negated() -> torch.Tensor:
    """-1, -2, -3, -4, as a view whose sign torch applies when it is read."""
    values = torch.complex(torch.zeros(4), torch.tensor([1.0, 2.0, 3.0, 4.0])).conj().imag
    assert values.is_neg()
    return values


def test_a_lazy_sign_is_applied():
    x = negated()
    plain = x.resolve_neg().clone()
    assert torch.equal(ops.softmax(x), ops.softmax(plain))
    assert torch.equal(ops.logsumexp(x), ops.logsumexp(plain))
    assert ops.softmax_topk(x, 1).indices.tolist() == [0]
    assert torch.equal(ops.softmax_backward(x, x), ops.softmax_backward(plain, plain))
    rows = torch.stack([plain] * 4)
    assert torch.equal(ops.logsumexp_backward(rows, x, x), ops.logsumexp_backward(rows, plain, plain))
    with pytest.raises(ValueError, match="out is a view that torch negates"):
        ops.softmax(plain, out=negated())


def test_a_gradient_that_would_be_lost_is_refused():
    x = torch.zeros(4, requires_grad=True)
    for call in (lambda: ops.softmax(x), lambda: ops.logsumexp(x), lambda: ops.softmax_topk(x, 1)):
        with pytest.raises(ValueError, match="x requires a gradient, which is not recorded here"):
            call()
    with pytest.raises(ValueError, match="out requires a gradient"):
        ops.softmax(x.detach(), out=torch.zeros(4, requires_grad=True))
    with torch.no_grad():
        assert ops.softmax(x).tolist() == [0.25] * 4
    assert ops.softmax(x.detach()).tolist() == [0.25] * 4


def test_autograd_knows_of_what_was_overwritten():
    x = torch.zeros(4, requires_grad=True)
    y = x.exp()
    ops.softmax(y.detach(), out=y.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_sparse_result_is_refused():
    with pytest.raises(TypeError, match=r"out has layout torch\.sparse_coo"):
        ops.softmax(torch.ones(4, 8), out=torch.ones(4, 8).to_sparse())


def test_launches_of_sizes_that_cannot_be():
    for rows, columns in ((-3, 4), (3, -4)):
        with pytest.raises(ValueError, match="sizes of at least 0 would do"):
            ops.launches("softmax", "online", rows, columns, torch.float32)
