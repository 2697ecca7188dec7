"""The work that is measured, as data: what, on which shape, in which regime, and the bars it is held to.

A workload is measured once, with every contender in the same rounds; each of its goals reads one of our
contenders from that measurement and compares it with its bars.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}

OURS_OUT, OURS_FRESH, OURS_FAST = "ours out=", "ours", "ours fast out="
TORCH_OUT, TORCH_FRESH = "torch out=", "torch"
SCIPY, JAX, ORT_OUT, ORT_FRESH = "scipy", "jax", "onnxruntime out=", "onnxruntime"
OURS = (OURS_OUT, OURS_FRESH, OURS_FAST)
PEERS = (TORCH_OUT, TORCH_FRESH, SCIPY, JAX, ORT_OUT, ORT_FRESH)


@dataclass(frozen=True)
class Bar:
    """One requirement on a contender of ours.

    kind "peer": the median time of `against` over ours is at least `value`.
    kind "ceiling": the best median of the ceiling `against` ("copy" or "read") over ours is at least `value`.
    kind "error": our worst relative error is below `value`.
    """

    kind: str
    against: str
    value: float


@dataclass(frozen=True)
class Goal:
    """A contender of ours and the bars it must reach."""

    subject: str
    bars: tuple[Bar, ...] = ()


@dataclass(frozen=True)
class Workload:
    """One operation on one array, over `axis`.

    `layout` "transposed": the array is the `.T` of a C-order array of the reversed shape.
    """

    op: str
    dtype: str
    shape: tuple[int, ...]
    regime: str
    goals: tuple[Goal, ...]
    axis: int = -1
    layout: str = "contiguous"

    @property
    def name(self) -> str:
        """For example "softmax.float32.8192x4096" or "softmax.float32.8192x4096.axis0"."""
        parts = [self.op, self.dtype, "x".join(map(str, self.shape))]
        parts += [f"axis{self.axis}"] if self.axis != -1 else []
        parts += [self.layout] if self.layout != "contiguous" else []
        return ".".join(parts)

    @property
    def nbytes(self) -> int:
        """Bytes of the input."""
        return prod(self.shape) * ITEMSIZE[self.dtype]

    @property
    def ceiling(self) -> str:
        """The ceiling it is measured against: "read" where the operation reduces, else "copy"."""
        return "read" if self.op == "logsumexp" else "copy"


def _peer(against: str, value: float) -> Bar:
    return Bar("peer", against, value)


def _of_copy(value: float) -> Bar:
    return Bar("ceiling", "copy", value)


# Which part of the machine a row lives in on a CPU with 48 KiB of L1 and 1 to 2 MiB of L2 a core. The tensors
# are in memory throughout: that is where time is bytes.
SHAPES: dict[tuple[int, ...], str] = {
    (65536, 128): "row in registers",
    (16384, 1024): "row in L1",
    (8192, 4096): "row in L1",
    (1024, 50257): "row in L2",
    (512, 128256): "row in L2",
    (16, 1048576): "row past L2",
    (1, 100_000_000): "row past L2",
}


def _float32_goals(shape: tuple[int, ...], regime: str) -> tuple[Goal, ...]:
    if regime == "row in L2":
        return Goal(OURS_OUT, (_peer(TORCH_OUT, 2.0), _of_copy(0.7))), Goal(OURS_FRESH)
    if regime == "row past L2":
        error = (Bar("error", "float64", 1e-6),) if shape[0] == 1 else ()
        return Goal(OURS_OUT, (_peer(TORCH_OUT, 2.0), _of_copy(0.55), *error)), Goal(OURS_FRESH)
    return (
        Goal(OURS_OUT, (_peer(TORCH_OUT, 2.5), _peer(ORT_OUT, 1.7), _of_copy(0.8))),
        Goal(OURS_FRESH, (_peer(TORCH_FRESH, 4.0), _of_copy(0.6))),
    )


_BFLOAT16_GOALS = (
    Goal(OURS_OUT, (_peer(TORCH_OUT, 2.5), _of_copy(0.5))),
    Goal(OURS_FAST, (_peer(TORCH_OUT, 4.0), _of_copy(0.7))),
)
_FLOAT16_GOALS = (Goal(OURS_OUT, (_peer(TORCH_OUT, 2.3), _of_copy(0.45))),)
_AXIS_GOALS = (Goal(OURS_OUT, (_peer(TORCH_OUT, 4.0), _of_copy(0.45))), Goal(OURS_FRESH))


def _logsumexp_goals(dtype: str) -> tuple[Goal, ...]:
    read = Bar("ceiling", "read", 0.8 if dtype == "float32" else 0.5)
    return (Goal(OURS_FRESH, (_peer(TORCH_FRESH, 10.0), _peer(SCIPY, 30.0), read)),)


def _workloads() -> tuple[Workload, ...]:
    # Shape by shape, so that one array of scores serves every dtype.
    by_shape = []
    for shape, regime in SHAPES.items():
        by_shape.append(Workload("softmax", "float32", shape, regime, _float32_goals(shape, regime)))
        by_shape.append(Workload("softmax", "bfloat16", shape, regime, _BFLOAT16_GOALS))
        by_shape.append(Workload("softmax", "float16", shape, regime, _FLOAT16_GOALS))
        by_shape += [
            Workload("logsumexp", dtype, shape, regime, _logsumexp_goals(dtype)) for dtype in ITEMSIZE
        ]
    return (
        *by_shape,
        Workload("log_softmax", "float32", (8192, 4096), "row in L1", (Goal(OURS_OUT), Goal(OURS_FRESH))),
        Workload("softmax", "float32", (4096, 8192), "strided axis", _AXIS_GOALS, axis=0),
        Workload("softmax", "float32", (8, 21, 512, 512), "strided axis", _AXIS_GOALS, axis=1),
        Workload(
            "softmax",
            "float32",
            (8192, 4096),
            "transposed input",
            (Goal(OURS_OUT), Goal(OURS_FRESH, (_peer(TORCH_FRESH, 8.0),))),
            layout="transposed",
        ),
    )


WORKLOADS = _workloads()


def shrink(workload: Workload, limit: int = 1 << 18) -> Workload:
    """The same workload on at most `limit` elements, for trying the harness: its longest axis is cut."""
    shape = list(workload.shape)
    while prod(shape) > limit:
        longest = shape.index(max(shape))
        shape[longest] = max(1, min(shape[longest] // 2, shape[longest] * limit // prod(shape) + 1))
    return Workload(
        workload.op,
        workload.dtype,
        tuple(shape),
        workload.regime,
        workload.goals,
        workload.axis,
        workload.layout,
    )
