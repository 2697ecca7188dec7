"""Losses of the reference: torch's in float64, 50 digits where it has too few, and the rules where it has
none.

Ids (B...) name reports of faults in other libraries, which are kept with the project's cases.
"""

from __future__ import annotations

import itertools

import ml_dtypes
import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from online_softmax import reference

INF, NAN = np.inf, np.nan
U = 2.0**-53
WIDE = np.finfo(np.longdouble).nmant >= 63
#: torch works in float64: sums of up to 24 rows of 7 terms of size up to 20, a few roundings each.
ROUNDING = 24 * 7 * 20 * 4 * U
LN2 = np.log(2.0)

SHAPES = [(6, 5), (5,), (3, 4, 2), (2, 7, 3, 2)]
OPTIONS: dict[str, list[object]] = {
    "weight": [None, True],
    "label_smoothing": [0.0, 0.3, 1.0],
    "ignore": [False, True],
    "reduction": ["none", "mean", "sum"],
}


def noise(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape) * scale


def call(shape: tuple[int, ...], kind: str, weight: object, label_smoothing: float, ignore: bool):
    """(logits, targets, options) of one case."""
    rng = np.random.default_rng(len(shape))
    logits = 3 * rng.normal(size=shape)
    classes = shape[1 if len(shape) > 1 else 0]
    options = {"label_smoothing": label_smoothing}
    if weight:
        options["weight"] = rng.uniform(0.1, 3, classes)
    if kind == "probabilities":
        return logits, rng.uniform(0, 1, shape), options
    targets = rng.integers(0, classes, (*shape[:1], *shape[2:]) if len(shape) > 1 else ())
    if ignore:
        # A class that occurs, so that its rows are ignored whatever else holds.
        options["ignore_index"] = int(targets.flat[0]) if targets.size > 1 else (int(targets) + 1) % classes
    return logits, targets, options


def tensors(options: dict[str, object]) -> dict[str, object]:
    return {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}


@pytest.mark.parametrize("kind", ["indices", "probabilities"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_option_is_torchs(shape: tuple[int, ...], kind: str) -> None:
    for weight, smoothing, ignore, reduction in itertools.product(*OPTIONS.values()):
        if ignore and kind == "probabilities":
            continue
        logits, targets, options = call(shape, kind, weight, smoothing, ignore)
        label = f"weight={weight} smoothing={smoothing} ignore={ignore} {reduction}"
        leaf = torch.from_numpy(logits).requires_grad_()
        loss = F.cross_entropy(leaf, torch.as_tensor(targets), reduction=reduction, **tensors(options))
        got = reference.cross_entropy(logits, targets, reduction=reduction, **options)
        assert np.shape(got) == tuple(loss.shape), label
        np.testing.assert_allclose(got, loss.detach(), rtol=0, atol=ROUNDING, err_msg=label)
        dloss = noise(*loss.shape, seed=1)
        (dx,) = torch.autograd.grad(loss, leaf, torch.as_tensor(dloss))
        made = reference.cross_entropy_vjp(logits, targets, dloss, reduction=reduction, **options)
        assert made.shape == logits.shape
        np.testing.assert_allclose(made, dx, rtol=0, atol=ROUNDING, err_msg=label)


def composed(logits: torch.Tensor, targets: np.ndarray, z_loss: float, reduction: str, **options: object):
    """(loss, lse) with the z-loss, which torch has not, for class indices (n,)."""
    rows = F.cross_entropy(logits, torch.from_numpy(targets), reduction="none", **tensors(options))
    lse = torch.logsumexp(logits, 1)
    kept = torch.from_numpy(targets != options.get("ignore_index", -100))
    rows = rows + z_loss * torch.where(kept, lse**2, 0.0)
    if reduction == "none":
        return rows, lse
    weight = torch.as_tensor(options.get("weight", np.ones(logits.shape[1])))
    return rows.sum() / (weight[targets] * kept).sum() if reduction == "mean" else rows.sum(), lse


@pytest.mark.parametrize("reduction", OPTIONS["reduction"])
def test_z_loss_and_the_gradient_of_the_lse(reduction: str) -> None:
    for weight, smoothing, ignore, _ in itertools.product(*list(OPTIONS.values())[:3], [0]):
        logits, targets, options = call((6, 5), "indices", weight, smoothing, ignore)
        leaf = torch.from_numpy(logits).requires_grad_()
        loss, lse = composed(leaf, targets, 0.3, reduction, **options)
        got = reference.cross_entropy(
            logits, targets, z_loss=0.3, reduction=reduction, return_lse=True, **options
        )
        for a, b in zip(got, (loss, lse), strict=True):
            np.testing.assert_allclose(a, b.detach(), rtol=0, atol=ROUNDING)
        dloss, dlse = noise(*loss.shape, seed=1), noise(6, seed=2)
        (dx,) = torch.autograd.grad((loss, lse), leaf, (torch.as_tensor(dloss), torch.from_numpy(dlse)))
        made = reference.cross_entropy_vjp(
            logits, targets, dloss, dlse=dlse, z_loss=0.3, reduction=reduction, **options
        )
        np.testing.assert_allclose(made, dx, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("softcap", [None, 2.5])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("reduction", OPTIONS["reduction"])
def test_linear_is_the_loss_of_the_product(reduction: str, bias: bool, softcap: float | None) -> None:
    for weight, smoothing, ignore in itertools.product(*list(OPTIONS.values())[:3]):
        _, targets, options = call((6, 5), "indices", weight, smoothing, ignore)
        leaves = [
            torch.from_numpy(noise(*s, seed=i)).requires_grad_() for i, s in enumerate(((6, 4), (5, 4), (5,)))
        ]
        hidden, matrix, offset = leaves if bias else (*leaves[:2], torch.zeros(5, dtype=torch.float64))
        logits = hidden @ matrix.T + offset
        logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        loss, lse = composed(logits, targets, 0.1, reduction, **options)
        arrays = [a.detach().numpy() for a in leaves]
        given = {
            "bias": arrays[2] if bias else None,
            "softcap": softcap,
            "z_loss": 0.1,
            "reduction": reduction,
        }
        given |= {("class_weight" if k == "weight" else k): v for k, v in options.items()}
        got = reference.linear_cross_entropy(*arrays[:2], targets, return_lse=True, **given)
        for a, b in zip(got, (loss, lse), strict=True):
            np.testing.assert_allclose(a, b.detach(), rtol=0, atol=ROUNDING)
        dloss, dlse = noise(*loss.shape, seed=5), noise(6, seed=6)
        wanted = torch.autograd.grad(
            (loss, lse), leaves[: 3 if bias else 2], (torch.as_tensor(dloss), torch.from_numpy(dlse))
        )
        made = reference.linear_cross_entropy_vjp(*arrays[:2], targets, dloss, dlse=dlse, **given)
        assert (made.bias is None) == (not bias)
        for a, b in zip(made, wanted, strict=False):
            # The sums run over features or rows besides: four to six terms more each.
            np.testing.assert_allclose(a, b, rtol=0, atol=6 * ROUNDING)


def test_linear_takes_probabilities_and_further_dimensions() -> None:
    hidden, matrix, p = noise(2, 3, 4), noise(5, 4, seed=1), np.abs(noise(2, 3, 5, seed=2))
    logits = np.moveaxis(hidden @ matrix.T, -1, 1)
    expected = reference.cross_entropy(logits, np.moveaxis(p, -1, 1), reduction="none")
    got = reference.linear_cross_entropy(hidden, matrix, p, reduction="none")
    # The logits of the one were rounded to float64 on the way.
    np.testing.assert_allclose(got, expected, rtol=0, atol=ROUNDING)
    made = reference.linear_cross_entropy_vjp(hidden, matrix, p, np.ones((2, 3)), reduction="none")
    dx = reference.cross_entropy_vjp(logits, np.moveaxis(p, -1, 1), np.ones((2, 3)), reduction="none")
    np.testing.assert_allclose(made.hidden, np.moveaxis(dx, 1, -1) @ matrix, rtol=0, atol=ROUNDING)


def test_to_the_last_place() -> None:
    units = (1.02 if WIDE else 16) * U
    x, weight, eps = [0.0, -37.0, -3.0], [0.5, 2.0, 1.5], 0.25
    with mpmath.workdps(60):
        lse = mpmath.log(mpmath.fsum(mpmath.exp(v) for v in x))
        uniform = mpmath.fsum(w * (lse - v) for w, v in zip(weight, x, strict=True)) * eps / 3
        for target in range(3):
            truth = weight[target] * (lse - mpmath.mpf(x[target]))
            got = reference.cross_entropy([x], [target], weight=weight, reduction="sum")
            assert abs(mpmath.mpf(float(got)) - truth) <= units * truth
            smooth = reference.cross_entropy(
                [x], [target], weight=weight, label_smoothing=eps, reduction="sum"
            )
            truth = (1 - mpmath.mpf(eps)) * truth + uniform
            assert abs(mpmath.mpf(float(smooth)) - truth) <= units * truth
        # p - 1 of a class that has nearly all: even the wide float holds but the rounding of p there.
        rest = [mpmath.exp(v) for v in (-45, -50)]
        truth = -mpmath.fsum(rest) / (1 + mpmath.fsum(rest))
        got = reference.cross_entropy_vjp([[0.0, -45.0, -50.0]], [0], 1.0)[0, 0]
        assert abs(mpmath.mpf(float(got)) - truth) <= units * abs(truth)


@pytest.mark.parametrize(
    ("logits", "targets", "options", "expected"),
    [
        pytest.param([[1e8, 1e8]], [1], {}, LN2, id="B143"),
        pytest.param(
            [[1.0, 2, 3]] * 3,
            [0, 255, 1],
            {"ignore_index": 255, "reduction": "none"},
            [2 + np.log1p(np.exp(-1) + np.exp(-2)), 0, 1 + np.log1p(np.exp(-1) + np.exp(-2))],
            id="B162",
        ),
        pytest.param([[5.0, 0.0], [0.0, 0.0]], [-100, 0], {}, LN2, id="B163"),
        pytest.param([[1.0, 2.0, 3.0]], [[0.0, 0.0, 0.0]], {}, 0.0, id="B164"),
        pytest.param(np.zeros((4, 3)), [0] * 4, {}, np.log(3), id="B175"),
        pytest.param([[-INF, 0.0]], [[0.0, 1.0]], {}, 0.0, id="B178"),
        pytest.param([[0.0, 0.0, -INF]], reference.softmax([[0.0, 0.0, -INF]]), {}, LN2, id="B179"),
        pytest.param([[0.0, -INF]], [0], {}, 0.0, id="B180"),
        pytest.param([[0.0, -INF]], [0], {"label_smoothing": 0.1}, INF, id="B180 smoothed"),
        pytest.param([[0.0, -INF]], [1], {}, INF, id="a target without probability"),
        pytest.param([[0.0, -INF]], [1], {"weight": [1.0, 0.0], "reduction": "sum"}, 0.0, id="no weight"),
        pytest.param([[0.0, INF]], [1], {}, NAN, id="+inf"),
        pytest.param([[-INF, -INF]], [0], {}, NAN, id="all -inf"),
        pytest.param([[NAN, 0.0], [0.0, 0.0]], [-100, 0], {}, LN2, id="NaN in an ignored row"),
        pytest.param([[NAN, 0.0], [0.0, 0.0]], [-100, 0], {"z_loss": 1.0}, LN2 + LN2**2, id="ignored z-loss"),
    ],
)
def test_values_known_by_hand(logits: object, targets: object, options: dict, expected: object) -> None:
    got = reference.cross_entropy(logits, targets, **options)
    # A logarithm and a sum: two roundings of float64 in what is expected.
    np.testing.assert_allclose(got, expected, rtol=4 * U, atol=0)


def test_b091_b095_b166_b167_a_mean_over_nothing() -> None:
    empty = np.zeros((0, 10)), np.zeros(0, int)
    assert reference.cross_entropy(*empty, reduction="none").shape == (0,)
    ignored = np.zeros((2, 3)), [-100, -100]
    for logits, targets in (empty, (np.zeros((0, 5, 4)), np.zeros((0, 4), int)), ignored):
        assert np.isnan(reference.cross_entropy(logits, targets))
        assert reference.cross_entropy(logits, targets, empty="zero") == 0
        assert reference.cross_entropy(logits, targets, reduction="sum") == 0
        for rule in ("nan", "zero"):
            dx = reference.cross_entropy_vjp(logits, targets, 1.0, empty=rule)
            np.testing.assert_array_equal(dx, np.zeros_like(logits))
    assert np.isnan(reference.cross_entropy(np.zeros((0, 3)), np.zeros((0, 3))))
    # All the weights 0: 0/0 likewise.
    assert np.isnan(reference.cross_entropy([[1.0, 2.0]], [0], weight=[0.0, 1.0]))
    assert reference.cross_entropy([[1.0, 2.0]], [0], weight=[0.0, 1.0], empty="zero") == 0


def test_b118_b119_b120_any_layout() -> None:
    logits, targets = noise(2, 4, 8).transpose(1, 0, 2), np.arange(8).reshape(2, 4).T % 2
    rows = np.moveaxis(logits, 1, -1)
    wide = np.broadcast_to(np.arange(8) % 2, (4, 8))
    got = reference.cross_entropy(logits, wide, reduction="none")
    np.testing.assert_array_equal(got, reference.cross_entropy(logits.copy(), wide.copy(), reduction="none"))
    each = -np.take_along_axis(reference.log_softmax(rows), wide[..., None], -1)[..., 0]
    np.testing.assert_array_equal(got, each)
    assert targets.shape == (4, 2)
    column = np.broadcast_to(noise(2, 10, 1), (2, 10, 4))
    losses = reference.cross_entropy(column, np.broadcast_to([[3], [7]], (2, 4)), reduction="none")
    np.testing.assert_array_equal(losses, losses[:, :1] * np.ones(4))
    big, labels = noise(4, 12), np.array([0, 9, 5, 9, 1, 9, 2, 9])
    args = (big[:, ::2], labels[::2])
    copies = tuple(a.copy() for a in args)
    assert reference.cross_entropy(*args) == reference.cross_entropy(*copies)
    np.testing.assert_array_equal(
        reference.cross_entropy_vjp(*args, 1.0), reference.cross_entropy_vjp(*copies, 1.0)
    )


def test_b142_the_gradient_of_a_class_that_is_nearly_sure() -> None:
    # p = 0.9995 of two classes: the logits are log(p / (1 - p)) apart.
    p = 0.9995
    got = reference.cross_entropy_vjp([[np.log(p / (1 - p)), 0.0]], [0], 1.0)
    # The logit is rounded: u times its size of 7.6 and the roundings of 1 - p, which cancel.
    np.testing.assert_allclose(got, [[-5e-4, 5e-4]], rtol=8 * U + U / (1 - p), atol=0)


@pytest.mark.parametrize(
    ("logits", "targets", "ignore", "place"),
    [
        pytest.param((3, 5), [0, 1, -4], -1, r"targets\[2\] = -4", id="B157"),
        pytest.param((3, 2), [1, 2, 0], -100, r"targets\[1\] = 2", id="B160"),
        pytest.param((1, 3), [-1], -100, r"targets\[0\] = -1", id="B164"),
        pytest.param((2, 3, 2), [[0, 1], [2, 3]], -100, r"targets\[1, 1\] = 3", id="two dimensions"),
        pytest.param((3,), 7, -100, "targets = 7", id="one row"),
        pytest.param((1, 3), np.array([2**63 + 1], np.uint64), -100, "9223372036854775809", id="uint64"),
    ],
)
def test_labels_out_of_range(logits: tuple[int, ...], targets: object, ignore: int, place: str) -> None:
    for call in (
        lambda: reference.cross_entropy(np.zeros(logits), targets, ignore_index=ignore),
        lambda: reference.cross_entropy_vjp(np.zeros(logits), targets, 1.0, ignore_index=ignore),
    ):
        with pytest.raises(IndexError, match=place):
            call()


def test_b170_the_mean_of_indices_and_of_probabilities() -> None:
    logits, weight = noise(2, 3), [25.0, 25.0, 100.0]
    rows = reference.cross_entropy(logits, [0, 2], reduction="none")
    by_index = reference.cross_entropy(logits, [0, 2], weight=weight)
    by_row = reference.cross_entropy(logits, np.eye(3)[[0, 2]], weight=weight)
    # PyTorch's two rules: the weights' sum, and the number of rows.
    np.testing.assert_allclose(by_index, (25 * rows[0] + 100 * rows[1]) / 125, rtol=4 * U)
    np.testing.assert_allclose(by_row, (25 * rows[0] + 100 * rows[1]) / 2, rtol=4 * U)


def test_b171_b172_a_weighted_mean_and_a_mean_over_rows() -> None:
    # Two classes: a loss of L needs logits log(e^L - 1) apart.
    losses = np.array([1.0, 3.0])
    logits = np.array([[0.0, np.log(np.expm1(1.0))], [np.log(np.expm1(3.0)), 0.0]])
    np.testing.assert_allclose(reference.cross_entropy(logits, [0, 1], reduction="none"), losses, rtol=4 * U)
    got = reference.cross_entropy(logits, [0, 1], weight=[1.0, 3.0])
    np.testing.assert_allclose(got, 2.5, rtol=4 * U)
    unbalanced = reference.cross_entropy(logits[[0, 0, 0, 1]], [0, 0, 0, 1])
    np.testing.assert_allclose(unbalanced, (3 * 1 + 3) / 4, rtol=4 * U)


def test_b176_a_bias_counts_and_a_loss_is_not_negative() -> None:
    got = reference.linear_cross_entropy([[1.0]], [[0.0], [0.0]], [0], bias=[0.0, 10.0])
    np.testing.assert_allclose(got, 10 + np.log1p(np.exp(-10)), rtol=2 * U)


def test_b177_the_gradient_of_the_classifier_in_bfloat16() -> None:
    rng = np.random.default_rng(0)
    hidden, matrix = (rng.normal(size=s).astype(ml_dtypes.bfloat16) for s in ((1024, 128), (32, 128)))
    targets = rng.integers(0, 32, 1024)
    got = reference.linear_cross_entropy_vjp(hidden, matrix, targets, 1.0).weight
    leaf = torch.from_numpy(matrix.astype(np.float64)).requires_grad_()
    states = torch.from_numpy(hidden.astype(np.float64))
    F.cross_entropy(states @ leaf.T, torch.from_numpy(targets)).backward()
    # Sums of 1024 terms of size up to 4/1024, from logits of up to 50 that are sums of 128.
    np.testing.assert_allclose(got, leaf.grad, rtol=0, atol=4 * (1024 + 128 * 50) * U)


def test_ignored_rows_are_not_read() -> None:
    hidden, matrix = noise(4, 3), noise(5, 3, seed=1)
    targets = np.array([1, -100, 2, -100])
    made = reference.linear_cross_entropy_vjp(hidden, matrix, targets, 1.0, bias=np.zeros(5), z_loss=0.1)
    hidden[1::2] = [[NAN] * 3, [INF] * 3]
    again = reference.linear_cross_entropy_vjp(hidden, matrix, targets, 1.0, bias=np.zeros(5), z_loss=0.1)
    for a, b in zip(made, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not again.hidden[1::2].any()
    assert np.isfinite(reference.linear_cross_entropy(hidden, matrix, targets))
    logits = noise(4, 5)
    logits[1::2] = [[NAN] * 5, [INF] * 5]
    assert np.isfinite(reference.cross_entropy(logits, targets))
    dx = reference.cross_entropy_vjp(logits, targets, [1.0, NAN, 1.0, INF], reduction="none")
    assert np.isfinite(dx).all()
    assert not dx[1::2].any()


def test_gradients_at_infinities() -> None:
    # The loss is +inf, its slope is not: probability less target.
    np.testing.assert_array_equal(reference.cross_entropy_vjp([[0.0, -INF]], [1], 1.0), [[1, -1]])
    np.testing.assert_array_equal(reference.cross_entropy_vjp([[0.0, -INF]], [0], 1.0), [[0, 0]])
    for row in ([NAN, 0.0], [INF, 0.0], [-INF, -INF]):
        np.testing.assert_array_equal(reference.cross_entropy_vjp([row], [0], 1.0), [[NAN, NAN]])
    # The lse of a row all -inf has gradient 0, here of one whose loss does not count.
    got = reference.cross_entropy_vjp([[-INF, -INF]], [-100], 1.0, dlse=[1.0])
    np.testing.assert_array_equal(got, [[0, 0]])


X, T = np.zeros((2, 3)), [0, 1]


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda: reference.cross_entropy(0.0, 0), ValueError, "logits has no dimensions"),
        (lambda: reference.cross_entropy(X * 1j, T), TypeError, "logits holds"),
        (lambda: reference.cross_entropy(X, [0]), ValueError, r"targets has shape \(1,\)"),
        (lambda: reference.cross_entropy(X, [0.0, 1.0]), ValueError, "targets has shape .* float64"),
        (lambda: reference.cross_entropy(X, [True, False]), TypeError, "targets holds bool"),
        (lambda: reference.cross_entropy(X, T, weight=[1.0]), ValueError, "^weight has shape"),
        (lambda: reference.cross_entropy(X, T, label_smoothing=1.5), ValueError, "label_smoothing=1.5"),
        (lambda: reference.cross_entropy(X, T, z_loss=NAN), ValueError, "z_loss=nan"),
        (lambda: reference.cross_entropy(X, T, ignore_index=0.5), TypeError, "ignore_index=0.5"),
        (lambda: reference.cross_entropy(X, X, ignore_index=1), ValueError, "ignore_index=1"),
        (lambda: reference.cross_entropy(X, T, reduction="avg"), ValueError, "reduction='avg'"),
        (lambda: reference.cross_entropy(X, T, empty="no"), ValueError, "empty='no'"),
        (lambda: reference.cross_entropy_vjp(X, T, [1.0, 2.0]), ValueError, "dloss has shape"),
        (lambda: reference.linear_cross_entropy(X, np.zeros((4, 2)), T), ValueError, "weight has shape"),
        (lambda: reference.linear_cross_entropy(X, X, T, bias=[0.0]), ValueError, "bias has shape"),
        (lambda: reference.linear_cross_entropy(X, X, T, softcap=-1), ValueError, "softcap=-1"),
        (lambda: reference.linear_cross_entropy(X, X, T, softcap=0.0), ValueError, "softcap=0.0"),
        (lambda: reference.linear_cross_entropy(X, X, T, class_weight=X), ValueError, "class_weight has"),
        (lambda: reference.linear_cross_entropy_vjp(X, X, T, 1.0, dlse=[1.0] * 3), ValueError, "dlse has"),
    ],
)
def test_wrong_calls_name_the_argument(call: object, error: type[Exception], names: str) -> None:
    with pytest.raises(error, match=names):
        call()
