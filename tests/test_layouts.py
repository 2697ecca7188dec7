"""Any axis of any strides gives the result of the packed copy; `out=` may be any memory that is safe to
write, and no other."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest
from helpers import FORMATS, WIDTH, assert_close, assert_same_bits, bound, noise, truth

import online_softmax as osm
from online_softmax import cpu, reference

OPS = ("softmax", "log_softmax", "logsumexp")


def rows_last(a: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """The reduced axes moved to the end and made one."""
    kept = [i for i in range(a.ndim) if i not in axes]
    return a.transpose(*kept, *axes).reshape(*(a.shape[i] for i in kept), -1)


def check(op: str, x: np.ndarray, axis, **options) -> None:
    """`op` of x over `axis` against the reference applied to packed rows."""
    axes = tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else axis
    axes = tuple(sorted(a % x.ndim for a in axes))
    got = getattr(osm, op)(x, axis, **options)
    rows = rows_last(np.ascontiguousarray(x).astype(np.float64), axes)
    expected = truth(op, rows)
    if op != "logsumexp":
        assert got.shape == x.shape
        got = rows_last(got, axes)
    assert_close(got, expected, bound(op, rows, expected, x.dtype), f"{op} {x.shape} {x.strides} axis={axis}")


def layouts(dtype: np.dtype) -> dict[str, np.ndarray]:
    """One logical kind of operand, laid out in every way numpy can."""
    base = noise((6, 7, 18), dtype)
    read_only = base.copy()
    read_only.flags.writeable = False
    # What lies between the elements is NaN: one read too many shows.
    padded = np.full((6, 9, 40), np.nan).astype(dtype)
    padded[:, 1:8, 3:21] = base
    offset = np.empty(base.size + 1, dtype)[1:].reshape(base.shape)
    offset[...] = base
    bytes_ = np.empty(base.nbytes + 1, np.uint8)[1:].view(dtype).reshape(base.shape)
    bytes_[...] = base
    return {
        **{f"transposed{p}": base.transpose(p) for p in permutations(range(3))},
        "fortran": np.asfortranarray(base),
        "negative": base[::-1, ::-1, ::-1],
        "negative last": base[:, :, ::-1],
        "every other": noise((6, 14, 36), dtype)[:, ::2, ::2],
        "every third row": noise((18, 7, 18), dtype)[::3],
        "sub-view": padded[:, 1:8, 3:21],
        "padded batch": padded[:, 1:8, 3:21][::2],
        "broadcast last": np.broadcast_to(base[:, :, :1], base.shape),
        "broadcast first": np.broadcast_to(base[:1], base.shape),
        "broadcast all": np.broadcast_to(base[:1, :1, :1], base.shape),
        "new axes": base[:, None, :, None, :],
        "read-only": read_only,
        "odd address": offset,
        "unaligned": bytes_,
        "sliding": np.lib.stride_tricks.sliding_window_view(noise((120,), dtype), 20)[:60].reshape(6, 10, 20),
        "one column": base[:, :, 4:5],
        "one row": base[2:3],
    }


LAYOUTS = tuple(layouts(FORMATS["f32"]))


def every_axis(ndim: int):
    for size in range(1, ndim + 1):
        yield from combinations(range(ndim), size)
    yield from range(-ndim, 0)
    yield None


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(name, fmt):
    x = layouts(FORMATS[fmt])[name]
    before = x.copy()
    for axis in every_axis(x.ndim):
        for op in OPS:
            check(op, x, axis)
    assert_same_bits(x, before, "the operand")


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_axes_of_four_dimensions(fmt):
    base = noise((3, 4, 5, 17), FORMATS[fmt])
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (0, 2, 1, 3), (1, 0, 3, 2), (2, 3, 0, 1)):
        for axis in every_axis(4):
            check("softmax", base.transpose(order), axis)
            check("logsumexp", base.transpose(order), axis)


@pytest.mark.parametrize("algorithm", [a for a in cpu.ALGORITHMS if a != "naive"])
@pytest.mark.parametrize("isa", cpu.isas())
@pytest.mark.parametrize("fmt", FORMATS)
def test_reduced_axis_not_the_last(fmt, isa, algorithm):
    """Columns around a vector's width, several vectors and a block; rows from one on."""
    for columns in (1, 2, WIDTH - 1, WIDTH, WIDTH + 1, 4 * WIDTH + 1, 127, 300):
        for rows in (1, 2, 5, 33, 257):
            x = noise((2, rows, columns), FORMATS[fmt], seed=rows)
            for op in OPS:
                check(op, x, 1, isa=isa, algorithm=algorithm, threads=2)


@pytest.mark.parametrize("fmt", ["f32", "bf16"])
def test_large_columns(fmt):
    """Past the caches, so that blocks of columns and of rows are both cut."""
    check("softmax", noise((700, 1025), FORMATS[fmt]), 0)
    check("logsumexp", noise((700, 1025), FORMATS[fmt]), 0)
    check("softmax", noise((2, 21, 64, 65), FORMATS[fmt]), 1)
    check("softmax", noise((1025, 700), FORMATS[fmt]).T, -1)
    check("log_softmax", noise((65, 40, 50), FORMATS[fmt]), (0, 2))


def test_keepdims_and_shapes():
    x = noise((3, 4, 5), FORMATS["f32"])
    for axis in every_axis(3):
        axes = None if axis is None else axis
        plain, kept = osm.logsumexp(x, axis), osm.logsumexp(x, axis, keepdims=True)
        assert kept.shape == np.sum(x, axis=axes, keepdims=True).shape
        assert np.shape(plain) == np.sum(x, axis=axes).shape
        assert_same_bits(np.reshape(plain, kept.shape), kept)
    assert isinstance(osm.logsumexp(x, None), np.float32)
    assert isinstance(osm.logsumexp(x[0, 0]), np.float32)
    lse, sign = osm.logsumexp(x, (0, 2), keepdims=True, return_sign=True)
    assert lse.shape == sign.shape == (1, 4, 1)


def test_dim_is_axis():
    x = noise((3, 4, 5), FORMATS["f64"])
    for axis in (0, 1, -2, (0, 2), np.int64(1)):
        for op in OPS:
            assert_same_bits(getattr(osm, op)(x, dim=axis), getattr(osm, op)(x, axis))
    assert_same_bits(osm.softmax_topk(x, 2, dim=0).values, osm.softmax_topk(x, 2, 0).values)


def test_no_axes_makes_every_element_a_row():
    x = np.array([[1.0, -np.inf], [np.nan, 2.0]])
    np.testing.assert_array_equal(osm.softmax(x, ()), [[1, np.nan], [np.nan, 1]])
    np.testing.assert_array_equal(osm.logsumexp(x, ()), x)


def test_other_byte_order_and_kinds_of_array(tmp_path):
    x = noise((4, 30), FORMATS["f32"])
    want = osm.softmax(x)
    swapped = osm.softmax(x.astype(">f4"))
    assert swapped.dtype == np.float32
    assert_same_bits(swapped, want)
    assert_same_bits(osm.softmax(x.tolist(), dtype="float32"), want)
    np.save(tmp_path / "x.npy", x)
    assert_same_bits(osm.softmax(np.load(tmp_path / "x.npy", mmap_mode="r")), want)
    record = np.zeros((4, 30), [("tag", "u1"), ("x", "f4")])
    record["x"] = x
    assert_same_bits(osm.softmax(record["x"]), want)
    out = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", np.float32, x.shape)
    assert osm.softmax(x, out=out) is out
    assert_same_bits(np.asarray(out), want)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", [n for n in LAYOUTS if not n.startswith(("broadcast", "sliding", "read"))])
def test_out_is_the_operand(name, fmt):
    for axis in (0, 1, 2, (0, 2), None):
        for op in ("softmax", "log_softmax"):
            x = layouts(FORMATS[fmt])[name]
            axes = tuple(range(x.ndim)) if axis is None else tuple(np.atleast_1d(axis))
            rows = rows_last(np.ascontiguousarray(x).astype(np.float64), axes)
            expected = getattr(reference, op)(rows, axis=-1)
            assert getattr(osm, op)(x, axis, out=x) is x
            got = rows_last(np.ascontiguousarray(x), axes)
            assert_close(got, expected, bound(op, rows, expected, x.dtype), f"{op} {name} {axis}")


def outs(shape: tuple[int, ...], dtype: np.dtype) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """name: (out, the whole buffer it lies in, filled with 7)."""

    def of(buffer_shape, view):
        buffer = np.full(buffer_shape, 7, dtype)
        return view(buffer), buffer

    a, b, c = shape
    return {
        "contiguous": of(shape, lambda v: v),
        "fortran": of((c, b, a), lambda v: v.T),
        "negative": of(shape, lambda v: v[::-1, :, ::-1]),
        "every other": of((a, 2 * b, 2 * c), lambda v: v[:, ::2, 1::2]),
        "inside": of((a + 2, b + 2, c + 2), lambda v: v[1:-1, 1:-1, 1:-1]),
        "other order": of((b, a, c), lambda v: v.transpose(1, 0, 2)),
        "columns apart": of((a, b, c, 3), lambda v: v[..., 1]),
        "unaligned": of(
            (a * b * c + 1,), lambda v: v.view(np.uint8)[1 : 1 - dtype.itemsize].view(dtype).reshape(shape)
        ),
    }


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", tuple(outs((1, 1, 1), FORMATS["f32"])))
def test_out_elsewhere(name, fmt):
    dtype = FORMATS[fmt]
    x = noise((4, 6, 33), dtype)
    for axis in (-1, 0, 1, (0, 2), None):
        for given in (x, np.asfortranarray(x), x[::-1, :, ::-1]):
            before = given.copy()
            for op in ("softmax", "log_softmax"):
                out, buffer = outs(x.shape, dtype)[name]
                assert getattr(osm, op)(given, axis, out=out) is out
                axes = tuple(range(3)) if axis is None else tuple(a % 3 for a in np.atleast_1d(axis))
                rows = rows_last(given.astype(np.float64), axes)
                expected = getattr(reference, op)(rows, axis=-1)
                got = rows_last(out, axes)
                assert_close(got, expected, bound(op, rows, expected, dtype), f"{op} {name} {axis}")
                if name != "unaligned":
                    untouched = buffer.size - out.size
                    out[...] = 0
                    assert int(np.sum(buffer.astype(np.float64) == 7)) == untouched, "wrote outside out"
            assert_same_bits(given, before, "the operand")


@pytest.mark.parametrize("isa", cpu.isas())
@pytest.mark.parametrize("fmt", FORMATS)
def test_nothing_is_written_past_the_end(fmt, isa):
    dtype = FORMATS[fmt]
    for n in (*range(1, 71), 127, 129, 257):
        for rows in (1, 3):
            x = noise((rows, n), dtype)
            for op in (osm.softmax, osm.log_softmax):
                buffer = np.full(rows * n + 64, 7, dtype)
                op(x, out=buffer[32:-32].reshape(rows, n), isa=isa)
                guard = np.concatenate([buffer[:32], buffer[-32:]]).astype(np.float64)
                assert (guard == 7).all(), f"{rows}x{n}"


#: Operands and results that end, or begin, where the memory of the process does.
AT_THE_EDGE = """
import ctypes, mmap
import numpy as np, online_softmax as osm
from online_softmax import cpu
from helpers import FORMATS, noise
PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)
def fenced():
    memory = mmap.mmap(-1, 4 * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (0, 3):
        assert libc.mprotect(ctypes.c_void_p(start + page * PAGE), ctypes.c_size_t(PAGE), 0) == 0
    return np.frombuffer(memory, np.uint8)[PAGE : 3 * PAGE]
source, target = fenced(), fenced()
for dtype in FORMATS.values():
    for rows, n in [(1, n) for n in (*range(1, 70), 127, 129, 257)] + [(3, 5), (5, 17), (9, 33), (2, 129)]:
        size = rows * n * dtype.itemsize
        for edge in (slice(0, size), slice(2 * PAGE - size, None)):
            x = source[edge].view(dtype).reshape(rows, n)
            out = target[edge].view(dtype).reshape(rows, n)
            x[...] = noise((rows, n), dtype)
            for isa in cpu.isas():
                for axis in (0, 1):
                    osm.softmax(x, axis, out=out, isa=isa)
                    osm.log_softmax(x, axis, out=out, isa=isa)
                    osm.logsumexp(x, axis, isa=isa)
                    osm.softmax_topk(x, 1, axis, isa=isa)
            osm.softmax(x, out=out)
            osm.log_softmax(x)
            osm.logsumexp(x)
            osm.softmax(x, where=x > 0, out=out)
            osm.logsumexp(x, b=x)
            osm.SoftmaxState.of(x)
print("done")
"""


def test_nothing_is_touched_past_either_end(fresh_python):
    """A load or store one element too far ends the process."""
    done = fresh_python(AT_THE_EDGE, timeout=120)
    assert done.stdout.split() == ["done"], f"exit code {done.returncode}: {done.stderr}"


def test_interleaved_memory_is_disjoint():
    buffer = np.zeros((5, 64), np.float32)
    buffer[:, ::2] = noise((5, 32), FORMATS["f32"])
    want = osm.softmax(buffer[:, ::2].copy())
    before = buffer[:, ::2].copy()
    osm.softmax(buffer[:, ::2], out=buffer[:, 1::2])
    assert_same_bits(buffer[:, ::2], before)
    np.testing.assert_allclose(buffer[:, 1::2], want, rtol=2.0**-20)


@pytest.mark.parametrize("op", [osm.softmax, osm.log_softmax])
@pytest.mark.parametrize(
    ("x", "out"),
    [
        pytest.param(lambda b: b[:-1], lambda b: b[1:], id="one row on"),
        pytest.param(lambda b: b[1:], lambda b: b[:-1], id="one row back"),
        pytest.param(lambda b: b[:, :-1], lambda b: b[:, 1:], id="one column on"),
        pytest.param(lambda b: b, lambda b: b[::-1], id="reversed"),
        pytest.param(lambda b: b, lambda b: b.T, id="transposed"),
        pytest.param(lambda b: b.ravel()[:20], lambda b: b.ravel()[1:21], id="one element on"),
        pytest.param(lambda b: b.ravel()[:16], lambda b: b.ravel()[15:31], id="one element shared"),
        pytest.param(lambda b: b.ravel()[:20], lambda b: b.ravel()[:40:2], id="same start, other stride"),
        pytest.param(lambda b: np.broadcast_to(b[0], b.shape), lambda b: b, id="operand broadcast from out"),
    ],
)
def test_partial_overlap_is_refused(op, x, out):
    buffer = noise((16, 16), FORMATS["f32"])
    before = buffer.copy()
    with pytest.raises(ValueError, match="out overlaps x"):
        op(x(buffer), out=out(buffer))
    assert_same_bits(buffer, before)


@pytest.mark.parametrize("shape", [(8,), (3, 8), (4, 3, 8)])
def test_mask_layouts(shape):
    x = noise(shape, FORMATS["f32"])
    rng = np.random.default_rng(2)
    full = rng.random(shape) < 0.6
    masks = [
        full,
        np.asfortranarray(full),
        full[..., ::-1],
        rng.random(shape[-1]) < 0.5,
        np.array(True),
        True,
        False,
    ]
    masks += [np.repeat(full, 2, axis=-1)[..., ::2], full.tolist()]
    masks += [rng.random((*shape[:-1], 1)) < 0.5, rng.random((1,) * len(shape)) < 0.5]
    for where in masks:
        for axis in (*range(-len(shape), 0), None):
            axes = tuple(range(x.ndim)) if axis is None else (axis % x.ndim,)
            keep = rows_last(np.broadcast_to(np.asarray(where), shape), axes)
            rows = rows_last(x.astype(np.float64), axes)
            inside = np.where(keep, rows, -np.inf)
            for op in OPS:
                expected = getattr(reference, op)(rows, axis=-1, where=keep)
                got = getattr(osm, op)(x, axis, where=where)
                got = got if op == "logsumexp" else rows_last(got, axes)
                assert_close(
                    got, expected, bound(op, inside, expected, x.dtype), f"{op} {np.shape(where)} {axis}"
                )
