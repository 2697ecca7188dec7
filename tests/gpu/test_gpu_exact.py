"""order="any" in Triton, in its interpreter: every bit is that of `online_softmax.exact`."""

# ruff: noqa: E402  # what is imported last needs the two libraries
from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("triton", reason="triton is not installed: pip install 'online-softmax[triton]'")
torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'online-softmax[torch]'")

import triton
from exact_cases import rows_of
from gpu_helpers import to_numpy, to_torch
from helpers import FORMATS
from triton import language as tl

from online_softmax import exact
from online_softmax.gpu import any_order, exact_rows, ops
from online_softmax.gpu import exact as law
from online_softmax.traffic import model
from online_softmax.traffic.meter import Meter

FORM = exact.FLOAT32
#: Where a maximum lies: near 0, where doubles take over, and where equal elements are counted.
CENTRES = tuple(sign * 2.0**k + d for k in (19, 20, 29, 30) for sign in (1, -1) for d in (-96, 0, 96))
#: Maxima whose exponents are next to a border of bins, a unit in the last place each way.
BORDERS = tuple(
    float(np.nextafter(np.float32((22 * b + d) * np.log(2)), np.float32(to)))
    for b in (-3, 0, 1, 1000)
    for d in (-1.5, -1, -0.5)
    for to in (-np.inf, np.inf)
)
SPECIAL = (0.0, -0.0, 1e-45, -1e-45, 1.1754942e-38, -1.1754944e-38, np.inf, -np.inf, np.nan, -np.nan)


def bits(x: np.ndarray | torch.Tensor) -> np.ndarray:
    x = np.ascontiguousarray(to_numpy(x) if isinstance(x, torch.Tensor) else x)
    return x.view(f"i{x.itemsize}")


def assert_same(found: torch.Tensor, wanted: np.ndarray) -> None:
    assert np.array_equal(bits(found), bits(wanted))


def expected(x: np.ndarray, dtype: np.dtype) -> dict[str, np.ndarray]:
    """All results of rows, by the definition."""
    x = x.astype(np.float32)
    m, a = exact.state(x, FORM)
    of_rows = (x, m[..., None], a[..., None, :], FORM)
    probabilities = (exact.value(*of_rows).astype(dtype), exact.log_value(*of_rows).astype(dtype))
    return {"m": m, "a": a, "logsumexp": exact.lse(m, a, FORM)} | dict(
        zip(("softmax", "log_softmax"), probabilities, strict=True)
    )


def check(x: np.ndarray, block: int | None = None, ops_checked: tuple[str, ...] = ()) -> None:
    wanted, given = expected(x, x.dtype), to_torch(x)
    states = any_order.state(given, block=block)
    assert_same(states.m, wanted["m"])
    assert_same(states.a, wanted["a"])
    for op in ops_checked or ("softmax", "log_softmax", "logsumexp"):
        assert_same(getattr(ops, op)(given, order="any", block=block), wanted[op])


def adversarial(columns: int, seed: int) -> np.ndarray:
    """Rows below each centre and border, with gaps of up to 50 that crowd where slices end."""
    rng = np.random.default_rng(seed)
    top = np.array(CENTRES + BORDERS + (0.0,) * 8)[:, None]
    gaps = rng.choice([0.0, 1e-3, 15.0, 15.25, 30.5, 31.0, 45.7, 46.0, 120.0], (len(top), columns))
    rows = (top - gaps * rng.uniform(0.98, 1.02, gaps.shape)).astype(np.float32)
    rows[-8:-4, : len(SPECIAL)] = SPECIAL[:6] + (0.0,) * 4
    for row, value in zip(rows[-4:], SPECIAL[6:], strict=True):
        row[rng.integers(columns)] = value
    return np.concatenate([rows, np.full((1, columns), -np.inf, np.float32)])


def test_adversarial_rows() -> None:
    check(adversarial(32, 0))


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_the_rows_of_the_native_kernels(name: str) -> None:
    check(rows_of(name, 37), None, ("softmax", "logsumexp"))


def test_rows_far_out_where_equal_elements_are_counted() -> None:
    top = np.array([2.0**30 + 128, -(2.0**30) - 128, 3e38, -3e38, np.inf, 2.0**30])[:, None]
    x = np.where(np.arange(24) % 5 == 0, top, np.minimum(top, 0) * 1.1 - 7).astype(np.float32)
    check(x)


def test_neighbours_so_far_apart_that_differences_round() -> None:
    below = np.arange(0, 1024, 64)
    check(np.stack([-(2.0**30) + 64 * (1 - k) - below for k in range(3)]).astype(np.float32))
    check((2.0**30 + 64 - below)[None, 1:].astype(np.float32))


@pytest.mark.parametrize("columns", [0, 1, 2, 3, 15, 16, 17, 33, 64, 70])
def test_lengths(columns: int) -> None:
    check(np.random.default_rng(columns).normal(0, 6, (3, columns)).astype(np.float32))


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_narrow_formats_are_their_upcast(name: str) -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(0, 8, (8, 40)).astype(FORMATS[name])
    x[0, 3], x[1, 4], x[2], x[3] = np.inf, np.nan, -np.inf, x[3] * 1e3
    check(x)


@pytest.mark.parametrize(("columns", "block"), [(1000, 512), (5000, 2048), (5000, None), (9000, None)])
def test_long_rows(columns: int, block: int | None) -> None:
    x = np.random.default_rng(columns).normal(0, 4, (1, columns)).astype(np.float32)
    x[0, columns // 3] = 17
    check(x, block, ("softmax",) if columns > 1000 else ())


@pytest.mark.parametrize("block", [16, 64, 512])
def test_blocks_make_no_difference(block: int) -> None:
    x = np.random.default_rng(3).normal(0, 30, (1, 5 * block // 2)).astype(np.float32)
    check(x, block, ("softmax",))


@pytest.mark.parametrize(("rows", "parts", "warps"), [(1, 1, 1), (4, 2, 8), (2, 64, 4), (8, 128, 2)])
def test_the_cut_of_a_block_makes_no_difference(rows: int, parts: int, warps: int) -> None:
    x = np.random.default_rng(4).normal(0, 9, (4, 128)).astype(np.float32)
    m, a = torch.empty(4), torch.empty((4, 3), dtype=torch.int64)
    constants = {"ROWS": rows, "ALIGN": 1, "BLOCK": 128, "PARTS": parts, "num_warps": warps}
    strides = (1, 128, 0, 1)
    with np.errstate(all="ignore"):
        exact_rows.states[(-(-4 // rows),)](to_torch(x), m, a, 4, 128, 1, *strides, **constants)
    wanted = expected(x, x.dtype)
    assert_same(m, wanted["m"])
    assert_same(a, wanted["a"])


def test_any_axis_and_strides() -> None:
    x = np.random.default_rng(5).normal(0, 9, (3, 2, 5, 2)).astype(np.float32)
    base = to_torch(np.ascontiguousarray(x.transpose(2, 0, 3, 1)))
    view = base.permute(1, 3, 0, 2)  # x's shape, another order in memory
    for dim in (0, 2, 3):
        turned = np.moveaxis(x, dim, -1)
        wanted = expected(turned, x.dtype)
        states = any_order.state(view, dim)
        assert_same(states.m, wanted["m"])
        assert_same(states.a, wanted["a"])
        assert_same(ops.logsumexp(view, dim, order="any"), wanted["logsumexp"])
    for dim in (0, 2):
        made = ops.softmax(view, dim, order="any").movedim(dim, -1)
        assert_same(made, expected(np.moveaxis(x, dim, -1), x.dtype)["softmax"])


def test_in_place() -> None:
    x = np.random.default_rng(6).normal(0, 9, (2, 40)).astype(np.float32)
    for block in (None, 16):
        given = to_torch(x)
        assert ops.softmax(given, order="any", block=block, out=given) is given
        assert_same(given, expected(x, x.dtype)["softmax"])


def test_splits_and_orders_of_merging() -> None:
    rng = np.random.default_rng(7)
    x = adversarial(40, 7)
    wanted, given = expected(x, x.dtype), to_torch(x)
    for _ in range(3):
        shuffled = given[:, torch.from_numpy(rng.permutation(40))]
        cuts = np.sort(rng.choice(np.arange(1, 40), 3, replace=False))
        parts = [any_order.state(part) for part in torch.tensor_split(shuffled, cuts.tolist(), 1)]
        while len(parts) > 1:
            first = parts.pop(rng.integers(len(parts)))
            second = parts.pop(rng.integers(len(parts)))
            parts.append(any_order.merge(first, second))
        assert_same(parts[0].m, wanted["m"])
        assert_same(parts[0].a, wanted["a"])
    assert_same(any_order.lse(parts[0]), wanted["logsumexp"])
    assert_same(any_order.normalize(given, parts[0]), wanted["softmax"])
    assert_same(any_order.normalize(given[:, 9:20], parts[0], log=True), wanted["log_softmax"][:, 9:20])


def test_elements_that_the_states_have_not_seen() -> None:
    """Above the maximum too, up to and beyond where a probability overflows."""
    tops = np.array([0, -3, 40, -(2.0**19), 2.0**19, -(2.0**30), 2.0**30, 3e9, -np.inf, np.nan], np.float32)
    seen = np.stack([tops, tops - 1, tops - 3], -1)
    offsets = np.concatenate([np.arange(85, 93, 0.25), [-130, -88, -87, 0, 1, 60, 300, 1e9, 3e9, 1e38]])
    x = np.concatenate([tops[:, None] + offsets, np.full((10, 1), np.nan), np.full((10, 1), np.inf)], -1)
    x = x.astype(np.float32)
    m, a = exact.state(seen, FORM)
    states = any_order.States(to_torch(m), to_torch(a))
    with np.errstate(all="ignore"):
        wanted = [law(x, m[:, None], a[:, None], FORM) for law in (exact.value, exact.log_value)]
    assert np.isinf(wanted[0]).any()
    assert (wanted[0] > 2.0**127).any()
    for log, right in enumerate(wanted):
        assert_same(any_order.normalize(to_torch(x), states, log=bool(log)), right)


def test_merges_of_all_pairs_of_maxima() -> None:
    tops = np.array((*CENTRES[::2], *BORDERS[::3], *SPECIAL, 3e38, -3e38), np.float32)
    m, a = exact.state(np.stack([tops, np.full_like(tops, -np.inf)], -1), FORM)
    left, right = np.divmod(np.arange(len(m) ** 2), len(m))
    wanted = exact.merge((m[left], a[left]), (m[right], a[right]), FORM)
    given = [any_order.States(to_torch(m[side]), to_torch(a[side])) for side in (left, right)]
    merged = any_order.merge(*given)
    assert_same(merged.m, wanted[0])
    assert_same(merged.a, wanted[1])


def test_more_states_than_a_program_holds() -> None:
    x = np.random.default_rng(8).normal(0, 20, (2, 300, 2)).astype(np.float32)
    m, a = exact.state(x.transpose(1, 0, 2), FORM)
    merged = any_order.merge_many(any_order.States(to_torch(m), to_torch(a)))
    wanted = expected(x.reshape(2, 600), x.dtype)
    assert_same(merged.m, wanted["m"])
    assert_same(merged.a, wanted["a"])


def test_nothing() -> None:
    for shape in ((3, 0), (0, 3)):
        states = any_order.state(torch.empty(shape))
        assert states.m.tolist() == [-np.inf] * shape[0]
        assert states.a.tolist() == [[0, 0, 0]] * shape[0]
        assert ops.logsumexp(torch.empty(shape), order="any").tolist() == [-np.inf] * shape[0]
    none = any_order.States(torch.empty((0, 2)), torch.empty((0, 2, 3), dtype=torch.int64))
    assert any_order.merge_many(none).m.tolist() == [-np.inf] * 2
    assert any_order.merge_many(none).a.tolist() == [[0] * 3] * 2


@triton.jit
def _multiply_add(a, b, c, fused, emulated, N: tl.constexpr):
    lane = tl.arange(0, N)
    x, y, z = tl.load(a + lane), tl.load(b + lane), tl.load(c + lane)
    tl.store(fused + lane, law.fused(x, y, z))
    tl.store(emulated + lane, law.emulated(x, y, z))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_multiply_add_is_rounded_once_in_every_interpreter(dtype: type) -> None:
    rng = np.random.default_rng(9)
    a, b = (rng.normal(0, 1, 512).astype(dtype) for _ in range(2))
    unit = np.finfo(dtype).eps
    a[:256] = 1 + unit * rng.integers(0, 100, 256)  # halfway cases and just beside them
    b[:256] = 1 + unit * rng.integers(0, 100, 256)
    c = (-(a * b) * rng.choice([0, 1, 0.5, unit, 1 / unit, 3e-3], 512)).astype(dtype)
    wanted = exact._fused(a.astype(np.float64), b.astype(np.float64), c.astype(np.float64), np.dtype(dtype))
    fused, emulated = torch.empty(2, 512, dtype=to_torch(a).dtype)
    _multiply_add[(1,)](*map(to_torch, (a, b, c)), fused, emulated, N=512)
    for found in (fused, emulated):
        assert np.array_equal(to_numpy(found), wanted.astype(dtype))
    assert np.any(a * b + c != wanted.astype(dtype))


def test_bytes_moved() -> None:
    x = torch.randn(5, 50)
    for op in ("softmax", "log_softmax", "logsumexp"):
        with Meter() as m:
            getattr(ops, op)(x, order="any")
        wanted = model.traffic(op, "cached", 5, 50, 4)
        assert (m.report.read, m.report.written) == (wanted.read, wanted.written)


@pytest.mark.parametrize("op", [ops.softmax, ops.log_softmax, ops.logsumexp])
def test_orders_that_are_not_built(op) -> None:
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"^order='all' is not built: 'row', 'any' would do$"):
        op(x, order="all")
    with pytest.raises(TypeError, match=r"^order=None is a NoneType: 'row', 'any' would do$"):
        op(x, order=None)
    match = (
        r"^algorithm='naive' with order='any': 'auto', 'cached' or 'online', whose bits are the same, would"
    )
    with pytest.raises(ValueError, match=match):
        op(x, order="any", algorithm="naive")
    with pytest.raises(TypeError, match=r"^x is float64: float32, float16, bfloat16 would do$"):
        op(x.double(), order="any")


@pytest.mark.parametrize(
    ("states", "error", "match"),
    [
        (torch.zeros(3), TypeError, r"left is a Tensor: a pair \(m, a\)"),
        ((0.0, torch.zeros(3)), TypeError, r"left\.m is a float: a torch\.Tensor would do"),
        ((torch.zeros(2).double(), torch.zeros(2, 3).long()), TypeError, r"left\.m .*float64"),
        ((torch.zeros(2), torch.zeros(2, 3)), TypeError, r"left\.a .*float32"),
        ((torch.zeros(2), torch.zeros(2, 4).long()), ValueError, r"left\.a .*\(2, 4\)"),
        ((torch.zeros(3), torch.zeros(3, 3).long()), ValueError, r"right\.m .*\(2,\)"),
    ],
)
def test_what_is_no_state(states, error, match: str) -> None:
    with pytest.raises(error, match=match):
        any_order.merge(states, any_order.States(torch.zeros(2), torch.zeros(2, 3, dtype=torch.int64)))


def test_states_that_are_not_of_the_rows() -> None:
    states = any_order.state(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"states\.m .*\(2,\).*\(3,\)"):
        any_order.normalize(torch.zeros(3, 4), states)


@pytest.mark.parametrize("part", ["m", "a", "logsumexp", "softmax", "log_softmax"])
def test_a_device_that_rounds_otherwise_is_refused(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit of one result of the trial is another."""
    names = {"softmax": "value", "log_softmax": "log_value", "logsumexp": "lse"}
    place = {"m": 0, "a": 1}.get(part)
    law_of = getattr(exact, names.get(part, "state"))

    def another(*arguments):
        result = law_of(*arguments)
        changed = result if place is None else result[place]
        np.ravel(changed).view(f"i{changed.itemsize}")[5] ^= 1
        return result

    any_order.tested.cache_clear()
    monkeypatch.setattr(exact, names.get(part, "state"), another)
    with pytest.raises(RuntimeError, match=rf"^order='any': {part} on cpu differs in bits"):
        ops.softmax(torch.zeros(1, 2), order="any")
    monkeypatch.undo()
    any_order.tested.cache_clear()


def test_the_trial_holds_what_tells_arithmetics_apart() -> None:
    x = any_order.trial()
    m, _ = exact.state(x, FORM)
    assert 1000 < x.size < 1500
    assert np.isnan(m[-1])
    assert np.isposinf(m[-2])
    assert ((np.abs(x) > 0) & (np.abs(x) < FORM.least)).any()
    finite = m[np.isfinite(m)]
    for least, most in itertools.pairwise((0, 2.0**19, 2.0**30, np.inf)):
        assert ((np.abs(finite) >= least) & (np.abs(finite) < most)).any()
