"""Cross-entropy on arrays of any layout: the bits are those of the plain array, whatever the strides, the
threads and the memory that the gradient goes to.

Ids (B...) name reports of faults in other libraries, which are kept with the project's cases.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import EXP_UNITS, EXP_UNITS_OF_16_BITS, LOG_UNITS, assert_close, assert_same_bits
from loss_cases import INF, NAN, Array, every_format, every_isa, hold, operands

import online_softmax as osm

RICH = {"label_smoothing": 0.1, "z_loss": 0.01, "reduction": "none"}


# ---- bits


@every_isa
@every_format
def test_threads_do_not_show_in_the_bits(fmt: str, isa: str) -> None:
    for shape in ((7, 40_000), (300, 800), (30_000, 9), (210_000, 1), (2, 400, 300)):
        logits, targets = operands(fmt, shape, seed=3)
        options = {"label_smoothing": 0.1, "isa": isa, "riders": ("entropy", "rank")}
        first, *others = (
            osm.cross_entropy_with_gradient(logits, targets, threads=n, **options) for n in (1, 2, 3)
        )
        for other in others:
            assert_same_bits(other.gradient, first.gradient, f"{shape}")
            for name in ("loss", "lse", "entropy", "rank"):
                assert_same_bits(getattr(other.loss, name), getattr(first.loss, name), f"{shape} {name}")


@every_isa
@every_format
def test_a_row_does_not_depend_on_its_neighbours(fmt: str, isa: str) -> None:
    for n in (1, 3, 31, 33, 257, 1030):
        logits, targets = operands(fmt, (7, n), seed=n)
        for options in ({}, {"label_smoothing": 0.1}, {"softcap": 2.0}):
            together = osm.cross_entropy_with_gradient(
                logits, targets, reduction="none", return_lse=True, isa=isa, **options
            )
            for i in range(7):
                alone = osm.cross_entropy_with_gradient(
                    logits[i], targets[i], reduction="none", return_lse=True, isa=isa, **options
                )
                assert_same_bits(alone.gradient, together.gradient[i])
                assert_same_bits(alone.loss.loss, together.loss.loss[i])
                assert_same_bits(alone.loss.lse, together.loss.lse[i])


# ---- layouts


def layouts(logits: Array) -> dict[str, Array]:
    """The same numbers at other strides."""
    n, classes = logits.shape
    wide = np.zeros((2 * n, 3 * classes), logits.dtype)
    wide[::2, ::3] = logits
    padded = np.zeros((n, classes + 5), logits.dtype)
    padded[:, 2:-3] = logits
    moved = np.zeros(logits.nbytes + 1, np.uint8)[1:].view(logits.dtype).reshape(n, classes)
    moved[...] = logits
    return {
        "columns": np.asfortranarray(logits),
        "negative": np.ascontiguousarray(logits[::-1, ::-1])[::-1, ::-1],
        "negative rows": np.ascontiguousarray(logits[::-1])[::-1],
        "steps": wide[::2, ::3],
        "padded": padded[:, 2:-3],
        "odd address": moved,
    }


@every_isa
@every_format
def test_layouts(fmt: str, isa: str) -> None:
    logits, targets = operands(fmt, (9, 77))
    logits[3, 5], logits[4, 6] = NAN, -INF
    p = operands(fmt, (9, 77), "probabilities")[1]
    for options in ({}, RICH, {"softcap": 2.0, "reduction": "none"}):
        for labels in (targets, p):
            want = osm.cross_entropy_with_gradient(logits, labels, isa=isa, **options)
            for name, laid in layouts(logits).items():
                for given in (labels, np.asfortranarray(np.repeat(labels, 2, 0))[::2]):
                    got = osm.cross_entropy_with_gradient(laid, given, isa=isa, **options)
                    assert_same_bits(got.loss, want.loss, name)
                    assert_same_bits(np.ascontiguousarray(got.gradient), want.gradient, name)
                back = osm.cross_entropy_backward(1.0, laid, labels, isa=isa, **options)
                assert_same_bits(np.ascontiguousarray(back), want.gradient, name)


@every_isa
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_any_axis(isa: str, axis: int) -> None:
    logits = operands("f32", (5, 6, 7))[0]
    moved = np.moveaxis(logits, axis, 1)
    targets = np.arange(moved.shape[0] * moved.shape[2]).reshape(moved.shape[0], -1) % moved.shape[1]
    for options in ({}, RICH, {"softcap": 2.0}):
        want = osm.cross_entropy_with_gradient(np.ascontiguousarray(moved), targets, isa=isa, **options)
        got = osm.cross_entropy_with_gradient(logits, targets, axis=axis, isa=isa, **options)
        assert_same_bits(got.loss, want.loss)
        assert_same_bits(np.ascontiguousarray(np.moveaxis(got.gradient, axis, 1)), want.gradient)
    p = np.random.default_rng(0).uniform(0, 1, logits.shape)
    hold(np.ascontiguousarray(moved), np.ascontiguousarray(np.moveaxis(p, axis, 1)), isa=isa)
    got = osm.cross_entropy(logits, p, axis=axis, isa=isa)
    assert_same_bits(got, osm.cross_entropy(moved, np.moveaxis(p, axis, 1), isa=isa))


@every_isa
def test_b118_b119_b120_layouts_that_others_read_wrong(isa: str) -> None:
    rng = np.random.default_rng(5)
    turned = rng.standard_normal((4, 2, 8)).astype(np.float32).transpose(1, 0, 2)
    labels = rng.integers(0, 4, (2, 8))
    hold(turned, labels, isa=isa, reduction="none")
    assert_same_bits(
        osm.cross_entropy(turned, labels, reduction="none", isa=isa),
        osm.cross_entropy(turned.copy(), labels, reduction="none", isa=isa),
    )
    column = np.broadcast_to(rng.standard_normal((2, 10, 1)).astype(np.float32), (2, 10, 4))
    alike = osm.cross_entropy(column, np.broadcast_to([[3], [7]], (2, 4)), reduction="none", isa=isa)
    assert_same_bits(alike, np.repeat(alike[:, :1], 4, axis=1))
    hold(column, np.broadcast_to([[3], [7]], (2, 4)), isa=isa, reduction="none")
    big, many = rng.standard_normal((4, 12)).astype(np.float32), np.array([0, 9, 5, 9, 1, 9, 2, 9])
    apart = osm.cross_entropy_with_gradient(big[:, ::2], many[::2], isa=isa)
    whole = osm.cross_entropy_with_gradient(big[:, ::2].copy(), many[::2].copy(), isa=isa)
    assert_same_bits(apart.loss, whole.loss)
    assert_same_bits(apart.gradient, whole.gradient)
    # One row for all, and one number for a whole row.
    row = rng.standard_normal(33).astype(np.float32)
    hold(np.broadcast_to(row, (5, 33)), np.arange(5), isa=isa, reduction="none")
    hold(np.broadcast_to(row[:5, None], (5, 33)), np.arange(5), isa=isa, reduction="none")


# ---- in place, out, read-only


@every_isa
@every_format
def test_in_place_and_out(fmt: str, isa: str) -> None:
    for shape, classes in (((9, 77), None), ((3, 77, 5), 1), ((5, 1030), None), ((9, 77), 0)):
        logits = operands(fmt, shape)[0]
        rows = np.moveaxis(logits, 1 if classes is None else classes, -1).shape
        targets = np.arange(int(np.prod(rows[:-1]))).reshape(rows[:-1]) % rows[-1]
        for options in ({}, RICH, {"softcap": 2.0}, {"riders": ("rank",), "tokens": targets[..., None]}):
            options = {"return_lse": True, **options, "axis": classes, "isa": isa}
            want = osm.cross_entropy_with_gradient(logits, targets, **options)
            for fresh, target in enumerate((logits.copy(), np.empty_like(logits), np.zeros_like(logits.T).T)):
                given = target if fresh == 0 else logits
                before = logits.copy()
                got = osm.cross_entropy_with_gradient(given, targets, out=target, **options)
                assert got.gradient is target
                assert_same_bits(np.ascontiguousarray(target), want.gradient)
                for mine, theirs in zip(np.atleast_1d(got.loss[0]), np.atleast_1d(want.loss[0]), strict=True):
                    assert_same_bits(mine, theirs)
                assert_same_bits(logits, before)
            if "riders" in options:
                assert_same_bits(got.loss.log_probabilities, want.loss.log_probabilities)
                continue
            target = logits.copy()
            del options["return_lse"]
            osm.cross_entropy_backward(1.0, target, targets, out=target, **options)
            assert_same_bits(target, want.gradient)
    # A view of every second row of the caller's memory: nothing between is written.
    logits, targets = operands(fmt, (4, 33))
    room = np.full((8, 40), 5, logits.dtype)
    osm.cross_entropy_backward(1.0, logits, targets, out=room[::2, 3:36], isa=isa)
    assert_same_bits(
        np.ascontiguousarray(room[::2, 3:36]), osm.cross_entropy_backward(1.0, logits, targets, isa=isa)
    )
    assert (room[1::2] == 5).all()
    assert (room[:, :3] == 5).all()
    assert (room[:, 36:] == 5).all()


@pytest.mark.parametrize("fmt", ["f64", "f32"])
def test_memory_at_odd_addresses(fmt: str) -> None:
    """Past 8 MiB gradients go around the caches, by stores that take no address but an aligned one."""
    for shape in ((9, 70), (75, 30_000)):
        logits, targets = operands(fmt, shape)
        want = osm.cross_entropy_backward(1.0, logits, targets)
        for offset in (1, logits.itemsize // 2)[: 2 if shape[0] < 10 else 1]:
            room = np.zeros(logits.nbytes + 8, np.uint8)
            moved = room[offset : offset + logits.nbytes].view(logits.dtype).reshape(shape)
            assert osm.cross_entropy_backward(1.0, logits, targets, out=moved) is moved
            assert_same_bits(moved.copy(), want)
            moved[...] = logits
            osm.cross_entropy_backward(1.0, moved, targets, out=moved)
            assert_same_bits(moved.copy(), want)
            assert (room[:offset] == 0).all()
            assert (room[offset + logits.nbytes :] == 0).all()


def test_operands_are_read_only() -> None:
    for kind in ("indices", "probabilities"):
        logits, targets = operands("f32", kind=kind)
        given = [logits, targets, np.ones(21), np.ones(7)]
        before = [a.copy() for a in given]
        for a in given:
            a.flags.writeable = False
        for options in ({}, {"softcap": 2.0}, {"label_smoothing": 0.1}):
            osm.cross_entropy_with_gradient(logits, targets, weight=given[2], row_weight=given[3], **options)
        for a, b in zip(given, before, strict=True):
            np.testing.assert_array_equal(a, b)


# ---- calls at the same time, and shapes at the ends


@pytest.mark.parametrize("fmt", ["f32", "bf16"])
def test_many_threads_give_the_bits_of_one(fmt: str) -> None:
    small, labels = operands(fmt, (6, 130))
    large, many = operands(fmt, (40, 9000))
    p = operands(fmt, (40, 130), "probabilities")
    columns, at = operands(fmt, (3, 500, 130))
    calls = [
        lambda: osm.cross_entropy(small, labels),
        lambda: osm.cross_entropy_backward(1.0, small, labels),
        lambda: osm.cross_entropy_with_gradient(large, many, threads=2).gradient,
        lambda: osm.cross_entropy_with_gradient(large, many, label_smoothing=0.1, threads=2).gradient,
        lambda: osm.cross_entropy(large, many, riders=("entropy",), threads=2).entropy,
        lambda: osm.cross_entropy_backward(1.0, *p),
        lambda: osm.cross_entropy_with_gradient(columns, at, softcap=2.0).gradient,
        lambda: osm.cross_entropy(large, many, shard=(0, 9000), label_smoothing=0.1).scores,
        lambda: osm.cross_entropy(small, labels, kl_to=small, tokens=labels[:, None]).log_probabilities,
    ]
    wanted = [call() for call in calls]
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        order = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(calls)), 3))
        start.wait()
        for i in order:
            assert_same_bits(np.asarray(calls[i]()), np.asarray(wanted[i]), f"call {i}")

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, seed) for seed in range(8)]:
            done.result()


@every_isa
@every_format
def test_a_class_alone_is_certain(fmt: str, isa: str) -> None:
    """One class: loss 0, gradient 0, lse the logit; many rows of it go over threads."""
    logits = operands(fmt, (250_000, 1))[0]
    targets = np.zeros(250_000, int)
    targets[::7] = -100
    logits[::14] = NAN
    made = osm.cross_entropy_with_gradient(
        logits, targets, reduction="none", riders=("entropy", "rank"), isa=isa, threads=2, label_smoothing=0.1
    )
    assert (made.loss.loss == 0).all()
    assert (made.gradient == 0).all()
    lse, row = made.loss.lse, logits[:, 0].astype(made.loss.lse.dtype)
    finite = ~np.isnan(row)
    assert_same_bits(lse[targets == 0], row[targets == 0])
    # Of an ignored row the lse is a sum like any other: an exponential, its logarithm, and what is added.
    exp = EXP_UNITS_OF_16_BITS if logits.itemsize == 2 else EXP_UNITS
    allowed = np.finfo(lse.dtype).eps / 2 * (exp + LOG_UNITS + 2 + 2 * np.abs(np.where(finite, row, 0)))
    assert_close(lse, row.astype(np.float64), allowed)
    assert_close(made.loss.entropy, np.where(finite, 0.0, NAN), allowed)
    np.testing.assert_array_equal(made.loss.rank, np.where(targets == 0, 0, -1))
    back = osm.cross_entropy_backward(1.0, logits, targets, reduction="none", dlse=2.0, isa=isa)
    np.testing.assert_array_equal(back[finite], np.full((finite.sum(), 1), 2))


@every_isa
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_many_rows_of_few_classes(isa: str, classes: int) -> None:
    logits, targets = operands("f32", (100_003, classes))
    targets[::3] = -100
    made = osm.cross_entropy_with_gradient(logits, targets, reduction="none", isa=isa, threads=2)
    for i in (0, 1, 49_999, 50_002, 100_001, 100_002):
        alone = osm.cross_entropy_with_gradient(logits[i], targets[i], reduction="none", isa=isa)
        assert_same_bits(made.gradient[i], alone.gradient)
        assert_same_bits(made.loss[i], alone.loss)
    turned = osm.cross_entropy_with_gradient(
        np.asfortranarray(logits), targets, reduction="none", isa=isa, threads=3
    )
    assert_same_bits(np.ascontiguousarray(turned.gradient), made.gradient)
    assert_same_bits(turned.loss, made.loss)
