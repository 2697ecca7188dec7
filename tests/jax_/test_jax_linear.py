"""Linear cross-entropy of JAX arrays: values, gradients, memory, and what ignored rows may hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.test_util import check_grads

import online_softmax as osm
from online_softmax.frontends.jax.linear import linear_cross_entropy

RNG = np.random.default_rng(0)
HIDDEN, WEIGHT, BIAS = (RNG.standard_normal(shape) for shape in ((3, 4, 6), (11, 6), (11,)))
TARGETS = RNG.integers(0, 11, (3, 4))
TARGETS[1, 2] = -100
COUNTS = RNG.random(11) + 0.1
ROWS = RNG.random((3, 4))
#: Two tokens a chunk.
SMALL = 2 * 4 * 11 * 8
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sum": {"reduction": "sum", "z_loss": 0.1},
    "all": {
        "bias": BIAS, "softcap": 2.0, "temperature": 0.7, "class_weight": COUNTS, "row_weight": ROWS,
        "label_smoothing": 0.1, "smoothing": "megatron",
    },
    "rows": {"reduction": "none", "bias": BIAS},
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_loss_and_gradients_are_those_of_numpys_functions(name: str) -> None:
    options = OPTIONS[name]
    bias = options.get("bias")
    rest = {key: value for key, value in options.items() if key != "bias"}
    right = osm.linear_cross_entropy(HIDDEN, WEIGHT, TARGETS, bias=bias, return_lse=True, **rest)
    d = 1.0 if np.ndim(right.loss) == 0 else RNG.standard_normal(right.loss.shape)
    back = osm.linear_cross_entropy_backward(d, HIDDEN, WEIGHT, TARGETS, bias=bias, **rest)
    with jax.enable_x64(True):

        def ours(hidden: Any, weight: Any, bias: Any) -> Any:
            made = linear_cross_entropy(
                hidden, weight, TARGETS, bias=bias, return_lse=True, memory=SMALL, **rest
            )
            return jnp.sum(made.loss * d), made

        operands = (HIDDEN, WEIGHT, bias)
        argnums = (0, 1) if bias is None else (0, 1, 2)
        compiled = jax.jit(jax.value_and_grad(ours, argnums, has_aux=True))
        (_, made), gradients = compiled(*operands)
    # Sums of 6 products, 11 exponentials and 12 tokens, of sizes up to some ten.
    np.testing.assert_allclose(made.loss, right.loss, rtol=0, atol=2.0**-53 * 2000)
    np.testing.assert_allclose(made.lse, right.lse, rtol=0, atol=2.0**-53 * 2000)
    for made_one, right_one in zip(gradients, back, strict=False):
        np.testing.assert_allclose(made_one, right_one, rtol=0, atol=2.0**-53 * 4000)


def test_formats_and_shapes() -> None:
    half = [a.astype(ml_dtypes.bfloat16) for a in (HIDDEN, WEIGHT)]
    loss, (dh, dw) = jax.value_and_grad(linear_cross_entropy, (0, 1))(*half, TARGETS)
    assert (loss.dtype, dh.dtype, dw.dtype) == (jnp.float32, jnp.bfloat16, jnp.bfloat16)
    right = osm.linear_cross_entropy_with_gradient(*half, TARGETS)
    np.testing.assert_allclose(loss, right.loss, rtol=2.0**-20)
    # One rounding to bfloat16 of what differs by float32's alone.
    for made, truth in ((dh, right.gradients.hidden), (dw, right.gradients.weight)):
        np.testing.assert_allclose(
            np.asarray(made, np.float32), truth.astype(np.float32), rtol=2.0**-7, atol=2.0**-20
        )
    one = linear_cross_entropy(HIDDEN[0, 0], WEIGHT, np.int32(3), reduction="none", return_lse=True)
    assert one.loss.shape == one.lse.shape == ()
    none = linear_cross_entropy(HIDDEN[:0], WEIGHT, TARGETS[:0], empty="zero")
    assert float(none) == 0
    assert np.isnan(linear_cross_entropy(HIDDEN[:0], WEIGHT, TARGETS[:0]))


def test_ignored_rows_may_hold_anything_and_an_index_out_of_range_gives_nan() -> None:
    spoilt = HIDDEN.astype(np.float32)
    spoilt[1, 2] = np.nan
    clean = np.where(np.isnan(spoilt), 0, spoilt)
    both = [jax.value_and_grad(linear_cross_entropy, (0, 1))(h, WEIGHT, TARGETS) for h in (spoilt, clean)]
    for made, right in zip(jax.tree.leaves(both[0]), jax.tree.leaves(both[1]), strict=True):
        assert np.isfinite(made).all()
        np.testing.assert_array_equal(made, right)
    with_lse = linear_cross_entropy(spoilt, WEIGHT, TARGETS, return_lse=True)
    assert np.isfinite(with_lse.loss)
    np.testing.assert_array_equal(np.isnan(with_lse.lse), TARGETS == -100)
    assert np.isnan(linear_cross_entropy(HIDDEN, WEIGHT, np.where(TARGETS == -100, 11, TARGETS)))


def test_derivatives_of_two_orders_and_vmap() -> None:
    with jax.enable_x64(True):
        h, w, b = (jnp.asarray(a) for a in (HIDDEN[:1], WEIGHT[:, :3], BIAS))
        h = h[..., :3]

        @jax.jit
        def ours(h: Any, w: Any, b: Any) -> Any:
            return linear_cross_entropy(h, w, TARGETS[:1], bias=b, memory=SMALL, z_loss=0.1)

        check_grads(ours, (h, w, b), 2, ("fwd", "rev"), rtol=1e-4, atol=1e-4)

        def each(h: Any, t: Any) -> Any:
            return linear_cross_entropy(h, WEIGHT, t, memory=SMALL)

        batched = jax.vmap(each)(jnp.asarray(HIDDEN), jnp.asarray(TARGETS))
        alone = [each(h, t) for h, t in zip(HIDDEN, TARGETS, strict=True)]
        np.testing.assert_allclose(batched, alone, rtol=1e-14)


def temporaries(function: Callable[..., Any], *shapes: tuple[int, ...]) -> int:
    """Bytes that the compiled gradient holds beside operands and results."""
    given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    made = jax.jit(jax.grad(function, (0, 1))).lower(*given).compile().memory_analysis()
    assert made is not None
    return int(made.temp_size_in_bytes)


def test_memory_grows_by_the_tokens_and_not_by_their_logits() -> None:
    classes, features, budget = 4096, 16, 1 << 20

    def loss(hidden: Any, weight: Any) -> Any:
        targets = jnp.zeros(hidden.shape[0], jnp.int32)
        return linear_cross_entropy(hidden, weight, targets, memory=budget)

    few, many = (temporaries(loss, (n, features), (classes, features)) for n in (512, 4096))
    # Hidden, its gradient and copies of both; some numbers a token; and not 4 * classes bytes a token.
    assert many - few <= (4096 - 512) * 4 * (4 * features + 32)
    assert few <= 2 * budget + 4 * classes * features * 4 + 512 * 4 * (4 * features + 32)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"weight": np.zeros((11, 5))}, ValueError, r"weight has shape \(11, 5\)"),
        ({"hidden": np.float32(1)}, ValueError, "hidden has no dimensions"),
        ({"targets": TARGETS * 1.0}, TypeError, "targets holds float"),
        ({"targets": TARGETS[0]}, ValueError, r"targets has shape \(4,\)"),
        ({"bias": BIAS[:3]}, ValueError, r"bias has shape \(3,\)"),
        ({"class_weight": BIAS[:3]}, ValueError, r"class_weight has shape \(3,\)"),
        ({"memory": 0}, ValueError, "memory is 0"),
        ({"reduction": "most"}, ValueError, "reduction is 'most'"),
        ({"softcap": -1.0}, ValueError, r"softcap is -1\.0"),
    ],
)
def test_wrong_calls_name_what_is_wrong(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        linear_cross_entropy(**{"hidden": HIDDEN, "weight": WEIGHT, "targets": TARGETS, **options})
