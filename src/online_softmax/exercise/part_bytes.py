"""Part 5: bytes, the time they take, what holds the kernel back, and where the count stops predicting."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from ..traffic import cache, model
from ..traffic.units import rate_text
from .choices import Choice
from .fields import Field
from .questions import Ask, Draw, Grid, Part, Question, Traps, count_of, figure, size_of, time_of

ITEMSIZES: Final = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}
#: Algorithm of the model -> what a row of the tables is called.
NAMES: Final = {
    "naive": "no shift",
    "three_pass": "three passes",
    "online": "online, two passes",
    "cached": "row kept on chip",
}
#: Algorithm of the model -> what to think of where its reads were miscounted.
_READS: Final = {
    "naive": "No term can be divided before the sum is complete: what does that ask of the row?",
    "three_pass": "The maximum, the sum, the quotients: which of them has to look at the row?",
    "online": "The maximum and the sum are found together. Is the row still at hand when they are known?",
    "cached": "After the first pass the row lies on chip: what is left to fetch from memory?",
}
_REGIMES: Final = ("tensor in cache", "rows in cache", "rows past cache")
_DECIDES: Final = (
    ("launches, latency and the instructions an element costs", ""),
    ("the number of passes over memory", "Which pass after the first goes to memory?"),
    (
        "the bandwidth of memory alone",
        "Each element crosses it twice at most; there is more to pay for.",
    ),
    ("the size of the last-level cache", "It is large enough already."),
)
_WHERE: Final = (
    ("the whole tensor fits the cache", ""),
    ("the tensor does not fit, the rows in flight do", ""),
    ("not even the rows in flight fit", ""),
)


@dataclass(frozen=True)
class Setup:
    """Sizes of the part. Bandwidth in bytes/s, `last_level` in bytes, `per_exp` FLOP an exponential "
    "counts."""

    rows: int
    columns: int
    dtype: str
    bandwidth: float
    ridge: int
    per_exp: int
    last_level: int
    resident: int
    short: int
    naive: bool

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return ITEMSIZES[self.dtype]

    def moved(self, algorithm: str) -> model.Traffic:
        """Its traffic, nothing kept between passes."""
        return model.traffic("softmax", algorithm, self.rows, self.columns, self.itemsize)

    @property
    def flops(self) -> int:
        """FLOP an element of `cached`, an exponential counted as the sheet says."""
        moved = self.moved("cached")
        return (self.per_exp * moved.exps + moved.plain_flops) // (self.rows * self.columns)

    @property
    def intensity(self) -> Fraction:
        """FLOP/byte of `cached`."""
        return Fraction(self.flops * self.rows * self.columns, self.moved("cached").total)

    @property
    def regime(self) -> cache.Regime:
        """Where the rows in flight lie."""
        return cache.regime(self.rows, self.columns, self.itemsize, self.last_level, self.resident)


def setup(draw: Draw) -> Setup:
    """Sizes for a seed; the machine is never so balanced that rounding decides."""
    while True:
        found = Setup(
            rows=draw.one((2048, 3072, 4096, 6144, 10240, 16384, 24576, 32768)),
            columns=draw.one((1024, 1536, 2048, 3072, 5120, 6144, 12288, 16384, 32000, 50304)),
            dtype=list(ITEMSIZES)[draw.one((0, 1, 1, 2, 3, 4))],
            bandwidth=draw.one((360, 768, 900, 1555, 1600, 2400, 3350, 4000, 4800, 5300, 8000)) * 1e9,
            ridge=draw.one((4, 6, 9, 12, 16, 20, 28, 42, 50)),
            per_exp=draw.one((4, 6, 8, 10, 16, 20)),
            last_level=draw.one((24, 40, 50, 60, 72, 96, 128, 192)) * 10**6,
            resident=draw.one((132, 264, 528, 1056, 1584)),
            short=draw.one((48, 64, 96, 160, 192)),
            naive=bool(draw.one((0, 1))),
        )
        balance = found.intensity / found.ridge
        shares = (
            Fraction(found.rows * found.columns * found.itemsize, found.last_level),
            Fraction(found.resident * found.columns * found.itemsize, found.last_level),
        )
        if all(abs(share - 1) > Fraction(1, 8) for share in (balance, *shares)):
            return found


def part(seed: int) -> Part:
    """The part for a seed."""
    draw = Draw(seed, 5)
    size = setup(draw)
    return Part(
        "5",
        "Bytes and time",
        f"A softmax over R = {size.rows} rows of C = {size.columns} elements in {size.dtype}, one block of "
        f"threads a row, on a machine with a memory bandwidth of {rate_text(size.bandwidth)} and a ridge "
        f"point of {size.ridge} FLOP/byte. Until 5.5, assume that no cache keeps anything from one pass to "
        "the next. MB are 10^6 bytes, MiB are 2^20.",
        (
            _sizes(size),
            _traffic(size),
            _times(size),
            _roofline(draw, size),
            _caches(draw, size),
        ),
    )


def _sizes(size: Setup) -> Question:
    row, tensor = size.columns * size.itemsize, size.moved("cached")["x"].size
    others = tuple(
        (Fraction(size.columns * other), f"how many bytes has an element of {size.dtype}?")
        for other in (1, 2, 4, 8)
        if other != size.itemsize
    )
    return Question(
        "5.1",
        "How large",
        "",
        (
            Ask(
                "5.1a",
                "One row:",
                size_of(row, others, "The elements of one row, times the bytes of an element."),
            ),
            Ask(
                "5.1b",
                "The whole tensor:",
                size_of(
                    tensor,
                    tuple((value * size.rows, hint) for value, hint in others),
                    "The rows, times the bytes of one row.",
                ),
            ),
        ),
    )


def _algorithms(size: Setup) -> tuple[str, ...]:
    return tuple(name for name in NAMES if name != "naive" or size.naive)


def _traffic(size: Setup) -> Question:
    cells = []
    for name in _algorithms(size):
        moved = size.moved(name)
        reads, writes = moved.reads or 0, moved.writes or 0
        tensor = moved["x"].size
        cells.append(
            (
                count_of(
                    reads,
                    ((Fraction(reads + writes), "the write is no read: it has its own column"),),
                    _READS[name],
                ),
                count_of(writes, nudge="How often is the result written?"),
                count_of(
                    reads + writes,
                    ((Fraction(reads), "the write of the result goes over it once more"),),
                    "Reads and writes together.",
                ),
                size_of(
                    moved.total,
                    (
                        (Fraction(reads * tensor), "the result is written too"),
                        (Fraction(tensor), "that is the tensor once"),
                        (
                            Fraction((reads + writes) * size.columns * size.itemsize),
                            "that is one row: there are R of them",
                        ),
                    ),
                    "The bytes of the tensor, times how often it is traversed.",
                ),
            )
        )
    return Question(
        "5.2",
        "What is moved",
        "Every pass over the row reads it from memory, except where it is kept on chip; the result is "
        "written once.",
        grid=Grid(
            "variant",
            tuple(NAMES[name] for name in _algorithms(size)),
            ("reads", "writes", "traversals", "total bytes"),
            tuple(cells),
        ),
    )


def _times(size: Setup) -> Question:
    base, cells = size.moved("three_pass"), []
    for name in _algorithms(size):
        moved = size.moved(name)
        speedup = Fraction(base.total, moved.total)
        reads = Fraction(base.read, moved.read)
        traps: Traps = ((1 / speedup, "how many times faster, not how much of the time is left"),)
        if reads != speedup:
            traps += ((reads, "the write is part of both times"),)
        fields: tuple[Field, ...] = (
            time_of(
                moved.seconds(size.bandwidth),
                (
                    (Fraction(moved.read / size.bandwidth), "the bytes written take time too"),
                    (Fraction(8 * moved.total / size.bandwidth), "the bandwidth is in bytes, not bits"),
                ),
            ),
            figure(speedup, traps, kind="times", nudge="The other's time divided by its own."),
        )
        cells.append(fields)
    return Question(
        "5.3",
        "How long it takes at least",
        "The time to move the bytes of 5.2, and how many times as fast that is as three passes.",
        grid=Grid(
            "variant",
            tuple(NAMES[name] for name in _algorithms(size)),
            ("least time", "speedup over three passes"),
            tuple(cells),
        ),
    )


def _roofline(draw: Draw, size: Setup) -> Question:
    b, below = size.itemsize, size.intensity < size.ridge
    return Question(
        "5.4",
        "What holds it back",
        f"Count an exponential as {size.per_exp} FLOP. With the row kept on chip, each element takes one "
        "exponential and three plain operations: a difference, an addition to the sum, a product at the "
        "end.",
        (
            Ask(
                "5.4a",
                "FLOP an element:",
                count_of(
                    size.flops,
                    ((Fraction(size.per_exp), "and the plain ones?"),),
                    "One exponential as counted above, and the plain operations.",
                ),
            ),
            Ask(
                "5.4b",
                "The intensity of that variant:",
                figure(
                    size.intensity,
                    (
                        (2 * size.intensity, "an element is read, and written: bytes of both count"),
                        (Fraction(size.flops), "a byte, not an element"),
                        (Fraction(size.flops, 2), f"an element has {b} bytes each way"),
                        (1 / size.intensity, "FLOP for each byte, not bytes for each FLOP"),
                    ),
                    kind="flop/byte",
                    nudge="5.4a, divided by the bytes an element moves.",
                ),
            ),
            Ask(
                "5.4c",
                "On this machine the kernel is bound by",
                Choice(
                    ("memory", "compute"),
                    frozenset({0 if below else 1}),
                    nudge="Below the ridge point the arithmetic waits for the bytes.",
                    lettered=False,
                ),
            ),
            Ask(
                "5.4d",
                "Ridge point divided by intensity:",
                figure(
                    size.ridge / size.intensity,
                    ((size.intensity / size.ridge, "the other way round"),),
                    kind="times",
                    nudge="The ridge point is given above.",
                ),
            ),
        ),
    )


def _caches(draw: Draw, size: Setup) -> Question:
    found = size.regime
    limit, short = (
        found.deciding_row_bytes,
        model.traffic("softmax", "cached", size.rows, size.short, size.itemsize),
    )
    where = draw.choice(
        _WHERE,
        _REGIMES.index(found.name),
        "Compare R rows, and the rows in flight, with the cache.",
    )
    decides = draw.choice(_DECIDES)
    return Question(
        "5.5",
        "When passes do not decide",
        f"Now let there be a last-level cache of {size.last_level // 10**6} MB, and {size.resident} rows "
        "in flight at a time.",
        (
            Ask(
                "5.5a",
                "The row size from which on the rows in flight no longer fit it, so that each pass goes "
                "to memory:",
                size_of(
                    limit,
                    (
                        (
                            Fraction(size.last_level, size.rows),
                            "only the rows in flight share the cache at a time",
                        ),
                    ),
                    "The cache, shared out among the rows in flight.",
                ),
            ),
            Ask(
                "5.5b",
                f"In columns of {size.dtype}:",
                figure(
                    Fraction(limit, size.itemsize),
                    (
                        (Fraction(limit), "that is bytes")
                        if size.itemsize > 1
                        else (Fraction(limit, 2), "bytes an element?"),
                    ),
                    nudge="Bytes of a row divided by bytes an element.",
                ),
            ),
            Ask("5.5c", "For the R and C above,", where),
            Ask(
                "5.5d",
                f"Now C = {size.short} (R as before). The whole tensor:",
                size_of(
                    short["x"].size,
                    ((Fraction(size.short * size.itemsize), "that is one row"),),
                    "The rows, times the bytes of one short row.",
                ),
            ),
            Ask(
                "5.5e",
                f"A row of {size.short} elements lies in the innermost caches. What decides the time?",
                decides,
            ),
        ),
    )
