"""The work of the attention benchmark, as data: sizes, dtypes, options, threads, and the bars it is held to.

A case is measured once, all its contenders in the same rounds. Contenders are "ours" and "sdpa" (PyTorch's
scaled_dot_product_attention), with the name of an option behind where a case has several of each. Products at
long sequences take seconds, so heads are fewer there: `HEADS` says how many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks import THREADS
from benchmarks.bars import Bar

OURS, SDPA = "ours", "sdpa"
#: The ceiling of decoding: one read of K and V.
READ = "read of K and V"
DTYPES = ("float32", "bfloat16", "float16")

FAMILIES = ("forward", "training", "decode", "forms", "window", "gradients")
#: Families whose flops are those of a full attention: GFLOP/s and the fraction of the peak are stated.
COUNTED = ("forward", "training", "decode")

WINDOW = 128  # keys a query sees, its own place included
DROPOUT = 0.1
SPREAD = 1e3  # between the first score of a row and the last, where they rise


@dataclass(frozen=True)
class Sizes:
    """(batch, heads, queries, d), (batch, kv_heads, keys, d), (batch, kv_heads, keys, dv)."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    d: int
    dv: int

    def flops(self, causal: bool) -> int:
        """Of both products of a forward, two for a multiply-add, over the pairs that `causal` leaves."""
        q, k = self.queries, self.keys
        pairs = sum(max(0, min(k, i + 1 + k - q)) for i in range(q)) if causal else q * k
        return 2 * self.batch * self.heads * pairs * (self.d + self.dv)


@dataclass(frozen=True)
class Case:
    """One measurement. `shorter`: queries and keys of the second length of the family "window"."""

    family: str
    dtype: str
    sizes: Sizes
    bars: tuple[Bar, ...] = ()
    causal: bool = False
    threads: int = THREADS
    shorter: int = 0

    @property
    def name(self) -> str:
        """For example "forward.bfloat16.1x16x1024.d64.causal.2t"."""
        s = self.sizes
        lengths = str(s.keys) if s.queries == s.keys else f"{s.queries}over{s.keys}"
        heads = str(s.heads) if s.heads == s.kv_heads else f"{s.heads}of{s.kv_heads}"
        parts = [self.family, self.dtype, f"{s.batch}x{heads}x{lengths}", f"d{s.d}"]
        return ".".join([*parts, *(["causal"] if self.causal else []), f"{self.threads}t"])

    @property
    def flops(self) -> int:
        """Of one call. A backward has five products of the forward's two, so a training step 3.5 times."""
        forward = self.sizes.flops(self.causal)
        return forward * 7 // 2 if self.family == "training" else forward


#: Times SDPA at least: family -> dtype -> d -> value.
FASTER = {
    "forward": {
        "bfloat16": {64: 2.5, 128: 2.2},
        "float16": {64: 2.5, 128: 2.5},
        "float32": {64: 1.5, 128: 1.5},
    },
    "training": {
        "bfloat16": {64: 3.0, 128: 3.0},
        "float16": {64: 1.5, 128: 1.5},
        "float32": {64: 1.5, 128: 1.5},
    },
}
OF_PEAK = 0.8  # of a forward in float32
#: dtype -> (times SDPA at least, reads of K and V at most).
DECODE = {"float32": (4.0, 1.25), "bfloat16": (4.5, 1.5), "float16": (7.0, 1.5)}
#: Form -> times our own plain forward at most.
FORMS = {
    "dropout": 1.25,
    "3-D": 1.25,
    "dv != d": 1.25,
    "strided": 1.25,
    "BSHD": 1.25,
    "half masked": 0.6,
    "rising": 1.5,
}
WINDOW_FASTER, WINDOW_LINEAR = 5.0, 1.2
#: What a backward may have beside dq, dk and dv; without bars.
GRADIENTS = ("bias", "bias gradient", "sinks", "lse gradient")

#: Sequence -> (heads of a forward, its threads), and the same of a training step.
HEADS = {1024: (16, (1, 2)), 4096: (4, (1, 2)), 16384: (1, (2,))}
TRAINING = {1024: (16, (1, 2)), 4096: (2, (2,))}
#: With --quick: the same table of work, too small to say anything.
TINY = {1024: 48, 2048: 64, 4096: 80, 8192: 256, 16384: 96, 32768: 128}


def cases(quick: bool = False) -> list[Case]:
    """The table of work; with `quick` tiny, and each case with the first of its thread counts alone."""
    return [*_products(quick), *_decode(quick), *_others(quick)]


def _square(heads: int, length: int, d: int, quick: bool) -> Sizes:
    heads, length = (min(heads, 2), TINY[length]) if quick else (heads, length)
    return Sizes(1, heads, heads, length, length, d, d)


def _products(quick: bool) -> Iterator[Case]:
    """Forward and training steps."""
    for family, table in (("forward", HEADS), ("training", TRAINING)):
        for length, (heads, threads) in table.items():
            for dtype in DTYPES:
                for d in (64, 128):
                    bars = [Bar("faster", SDPA, FASTER[family][dtype][d])]
                    if (family, dtype) == ("forward", "float32"):
                        bars.append(Bar("of peak", "multiply-adds", OF_PEAK))
                    for causal in (False, True):
                        sizes = _square(heads, length, d, quick)
                        for count in threads[:1] if quick else threads:
                            yield Case(family, dtype, sizes, tuple(bars), causal, count)


def _decode(quick: bool) -> Iterator[Case]:
    """One query over a cache: 8 heads of K, one, and a batch of 8, whose caches are as large together."""
    for batch, groups, keys in ((1, 8, 32768), (1, 1, 32768), (8, 8, 4096)):
        sizes = Sizes(batch, 32, groups, 1, TINY[keys] if quick else keys, 128, 128)
        for dtype, (faster, reads) in DECODE.items():
            bars = (Bar("faster", SDPA, faster), Bar("at most", READ, reads))
            for threads in (1,) if quick else (1, 2):
                yield Case("decode", dtype, sizes, bars, threads=threads)


def _others(quick: bool) -> Iterator[Case]:
    """What is held against our own plain call, and the window."""
    forms = tuple(Bar("at most", OURS, value, f"{OURS} {form}") for form, value in FORMS.items())
    for dtype in ("float32", "bfloat16"):
        yield Case("forms", dtype, _square(8, 2048, 64, quick), forms)
    long, short = (TINY[8192], TINY[2048]) if quick else (8192, 2048)
    window = (
        *(Bar("faster", f"{SDPA} {n}", WINDOW_FASTER, f"{OURS} {n}") for n in (short, long)),
        Bar("at most", f"{OURS} {short}", WINDOW_LINEAR, f"{OURS} {long}", long / short),
    )
    for dtype in ("float32", "bfloat16"):
        yield Case("window", dtype, _square(4, 8192, 64, quick), window, causal=True, shorter=short)
    for dtype in ("float32", "bfloat16"):
        yield Case("gradients", dtype, _square(8, 1024, 64, quick))
