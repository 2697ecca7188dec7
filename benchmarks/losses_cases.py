"""The work of the loss benchmark, as data: sizes, formats, contenders, and the bars it is held to.

A case is measured once, all its contenders in the same rounds. Logits are normal numbers with a standard
deviation of 4, as those of trained models are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks import THREADS
from benchmarks.bars import Bar

#: The gradient in a fresh array, in one kept by the caller, and in the place of the logits; the loss alone.
OURS, OURS_OUT, OURS_IN_PLACE, OURS_FORWARD = "ours", "ours out=", "ours in place", "ours forward"
TORCH, TORCH_FORWARD, COMPILED, JAX = "torch", "torch forward", "torch.compile", "jax"
#: The head of a language model and its loss.
LINEAR, CHUNKED, PRODUCTS = "linear + cross_entropy", "F.linear_cross_entropy, chunked", "three products"
SOFTMAX_MULTINOMIAL, NUMPY = "softmax + multinomial", "numpy"
#: The faster of both copies: "copy" with ordinary stores and "copy_nt" with non-temporal ones.
COPY, READ = "copy", "read"
COPIES = (COPY, "copy_nt")

FAMILIES = ("loss", "options", "linear", "sample", "scans")
DTYPES = ("float32", "bfloat16")

SPREAD = 4.0
OPTIONS = ("label_smoothing", "weight", "z_loss", "entropy")
SMOOTHING, Z_LOSS = 0.1, 1e-4
SCANS = ("logaddexp", "logcumsumexp", "segment_logsumexp", "window_logsumexp")
WINDOW = 64  # elements
SEGMENT = 128  # elements of a segment on average
TOP_K, TOP_P = 50, 0.9

#: Times PyTorch at least, and what is hoped for.
FASTER = {"float32": (15.0, 23.0), "bfloat16": (12.0, 25.0)}
OPTION_FASTER, OPTION_OF_PLAIN = 15.0, 1.15
COPY_FLOOR = 1.5
#: dtype -> against -> (kind, value, aim).
LINEAR_BARS: dict[str, dict[str, tuple[str, float, float | None]]] = {
    "float32": {LINEAR: ("faster", 1.2, None), PRODUCTS: ("at most", 1.1, None)},
    "bfloat16": {
        LINEAR: ("faster", 2.0, None),
        CHUNKED: ("faster", 10.0, None),
        PRODUCTS: ("at most", 1.05, 0.8),
    },
}
SAMPLE_FASTER, SAMPLE_OF_READ = 5.0, 0.6

#: Rows of the cases of "loss" that torch.compile takes part in: it compiles for as long as others measure.
COMPILED_ROWS = 4096
#: Tokens of `linear` that a slow machine may take instead of the whole.
TOKENS = (2048, 1024, 512, 256, 128, 64)


@dataclass(frozen=True)
class Case:
    """One measurement. shape: (rows, classes); of "linear" (tokens, features, classes).

    kind: of "scans" the function. whole: the tokens that were asked for, where these are fewer.
    """

    family: str
    dtype: str
    shape: tuple[int, ...]
    bars: tuple[Bar, ...] = ()
    kind: str = ""
    threads: int = THREADS
    whole: int | None = None

    @property
    def name(self) -> str:
        """For example "loss.float32.4096x50257"."""
        first = [self.family, *([self.kind] if self.kind else [])]
        return ".".join([*first, self.dtype, "x".join(map(str, self.shape))])

    @property
    def flops(self) -> int | None:
        """Of the three products of a linear layer and its gradients, two for a multiply-add."""
        if self.family != "linear":
            return None
        tokens, features, classes = self.shape
        return 6 * tokens * features * classes


#: (rows, classes) -> with --quick: the same work, too small to say anything.
TINY = {
    (4096, 50257): (24, 1027),
    (2048, 128256): (12, 2051),
    (2048, 50257): (16, 1027),
    (2048, 2048, 50257): (24, 16, 515),
    (256, 128256): (8, 1027),
    (1 << 24,): (1 << 12,),
    (1024, 16384): (8, 300),
    (256, 16384): (4, 300),
}


def fewer_tokens(case: Case, tokens: int) -> Case:
    """A "linear" case with fewer tokens, for machines where the whole would take too long."""
    whole = case.shape[0]
    return case if tokens >= whole else replace(case, shape=(tokens, *case.shape[1:]), whole=whole)


def cases(quick: bool = False) -> list[Case]:
    """The table of work; with `quick` tiny."""
    made = [*_losses(), *_options(), *_linear(), *_samples(), *_scans()]
    return [replace(case, shape=TINY[case.shape]) for case in made] if quick else made


def _losses() -> Iterator[Case]:
    """Loss and gradient of logits, and the loss alone."""
    for dtype in DTYPES:
        faster, aim = FASTER[dtype]
        bars = tuple(
            bar
            for subject in (OURS_OUT, OURS_IN_PLACE)
            for bar in (
                Bar("faster", TORCH, faster, subject, aim=aim),
                Bar("at most", COPY, COPY_FLOOR, subject),
            )
        )
        for shape in ((4096, 50257), (2048, 128256)):
            yield Case("loss", dtype, shape, bars)


def _options() -> Iterator[Case]:
    """Loss and gradient into a kept array with an option each, beside the plain ones."""
    bars = tuple(
        bar
        for option in OPTIONS
        for bar in (
            Bar("faster", f"{TORCH} {option}", OPTION_FASTER, f"{OURS} {option}"),
            Bar("at most", OURS, OPTION_OF_PLAIN, f"{OURS} {option}"),
        )
    )
    for dtype in DTYPES:
        yield Case("options", dtype, (2048, 50257), bars)


def _linear() -> Iterator[Case]:
    """Loss of a linear layer and the gradients of its input and weight."""
    for dtype in DTYPES:
        found = LINEAR_BARS[dtype].items()
        bars = tuple(Bar(kind, against, value, aim=aim) for against, (kind, value, aim) in found)
        yield Case("linear", dtype, (2048, 2048, 50257), bars)


def _samples() -> Iterator[Case]:
    """One token a row."""
    bars = (Bar("faster", SOFTMAX_MULTINOMIAL, SAMPLE_FASTER), Bar("part of", READ, SAMPLE_OF_READ))
    for dtype in DTYPES:
        yield Case("sample", dtype, (256, 128256), bars if dtype == "float32" else ())


def _scans() -> Iterator[Case]:
    """Without bars."""
    shapes: tuple[tuple[int, ...], ...] = ((1 << 24,), (1024, 16384), (1 << 24,), (256, 16384))
    for kind, shape in zip(SCANS, shapes, strict=True):
        yield Case("scans", "float32", shape, kind=kind)
