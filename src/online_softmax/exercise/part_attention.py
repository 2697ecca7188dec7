"""Part 6 and the bonus: from softmax to FlashAttention; the logarithm of a probability."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from ..numerics.formats import FORMATS, log
from ..traffic import model
from ..traffic.shapes import Attention
from .equivalence import Law
from .fields import Formula, Number, Order
from .part_update import OLD, TURNED, UNSAFE
from .part_update import SPELLINGS as UPDATE
from .questions import Ask, Draw, Part, Question, figure, size_of

#: Absolute error let pass in a log-probability: two decimals, far below any ln(s) drawn.
_LOG_ERROR: Final = Fraction(1, 200)
_PAIR: Final = {"M": "max(m, x)"}
OUTPUT: Final = Law(
    "O*exp(m - M) + exp(x - M)*v",
    heights=("m", "x"),
    values=("O", "v"),
    sides=(("m", "O"), ("x", "")),
    defined=_PAIR,
)
READ: Final = Law("O/s", sums=("s",), values=("O",))
LOG_SOFTMAX: Final = Law("x - m - log(s)", heights=("x", "m"), sums=("s",))
FLASH: Final = "N^2*d^2/S"
STANDARD: Final = "N*d + N^2"
_ITEMSIZE: Final = 2  # float16 and bfloat16
FLASH_TRAPS: Final = (
    ("N^2*d/S", "a block of S elements holds S/d queries, not S"),
    ("N^2*d", "those are the flops; the number of blocks is smaller than N"),
    ("N^2", "that is standard attention: where has S gone?"),
    ("N*d", "K and V are read more than once"),
)
_KINDS: Final = (
    ("the right value, to about float32's precision", "Is the probability a normal number?"),
    (
        "a value nearby, with an error far above float32's rounding",
        "How many bits has the probability left?",
    ),
    ("-inf", "Is the probability 0 in float32?"),
)
_WHY_LOGS: Final = (
    (
        "the subtractions stay exact where the probability would vanish, and log of 0 would be -inf",
        "",
    ),
    ("log is slower than a subtraction", "True, but the matter is what comes out."),
    ("it needs no maximum", "m is in it."),
    ("cross-entropy has no use for s", "s is in it: log(s)."),
)
LOG_TRAPS: Final = (
    ("x - m + log(s)", "the logarithm of a quotient is a difference"),
    ("x - log(s)", "where has the shift gone?"),
    ("(x - m)/log(s)", "the logarithm of a quotient is a difference"),
    ("x - m - s", "the logarithm of s"),
)


def part(seed: int) -> Part:
    """The part for a seed."""
    draw = Draw(seed, 6)
    shape = Attention(
        batch=1,
        heads=(heads := draw.one((8, 12, 16, 32, 40))),
        kv_heads=heads,
        seq_q=(length := draw.one((2048, 3072, 6144, 8192, 12288, 16384))),
        seq_k=length,
        head_dim=draw.one((64, 96, 128, 256)),
        itemsize=_ITEMSIZE,
        block_q=draw.one((64, 128, 256)),
        block_k=64,
    )
    dtype = ("float16", "bfloat16")[draw.one((0, 1))]
    return Part(
        "6",
        "On to FlashAttention",
        f"Attention over N = {length} queries and as many keys, {heads} heads of d = {shape.head_dim}, in "
        f"{dtype}, without a mask. Scores are Q K^T, weights their softmax, the output is weights times V.",
        (_matrix(draw, shape), _accumulator(draw), _growth(draw, shape)),
    )


def _matrix(draw: Draw, shape: Attention) -> Question:
    moved = model.count("attention", "standard", shape)
    scores, weights = moved["scores"], moved["weights"]
    traffic = scores.read + scores.written + weights.read + weights.written
    why = draw.choice(
        (
            (
                "each weight meets its row of V as soon as it is known, and the weighted sum can be "
                "rescaled later",
                "",
            ),
            ("the weights are sparse, so that few have to be kept", "Here none is masked: all are positive."),
            ("P can be recovered from the output", "It cannot; and the forward pass never needs it again."),
            ("V is read first, and P is small", "P has N x N entries for each head."),
        )
    )
    return Question(
        "6.1",
        "The matrix that need not exist",
        "Computed step by step, scores and weights are two N x N matrices a head, each of which is "
        "written to memory by one kernel and read by the next.",
        (
            Ask(
                "6.1a",
                "One of the two matrices, over all heads:",
                size_of(
                    scores.size,
                    (
                        (Fraction(scores.size, shape.heads), "that is one head"),
                        (Fraction(scores.size, _ITEMSIZE), "those are elements: how many bytes has one?"),
                        (Fraction(scores.size * 2), f"an element has {_ITEMSIZE} bytes"),
                    ),
                    "One element for each query and key, in every head, times the bytes of an element.",
                ),
            ),
            Ask(
                "6.1b",
                "Bytes moved for both, written and read:",
                size_of(
                    traffic,
                    (
                        (Fraction(traffic, 2), "two matrices, each of them written and read"),
                        (Fraction(traffic * 3, 4), "the weights are written and read as well"),
                    ),
                    "The bytes of one matrix, times how often one is written or read.",
                ),
            ),
            Ask("6.1c", "It can be avoided, because", why),
        ),
    )


def _accumulator(draw: Draw) -> Question:
    order = draw.choice(
        (
            ("once, at the end", ""),
            (
                "after every block, with the s of that moment",
                "Possible, but every later block would undo it.",
            ),
            ("before V is read", "s is not known before the last key."),
        )
    )
    return Question(
        "6.2",
        "The output as it goes",
        "Beside (m, s) a query keeps O, the sum of exp(x_i - m) v_i over the keys it has seen; v_i is the "
        "value of key i. A key with score x and value v arrives; M is the new maximum.",
        (
            Ask(
                "6.2a",
                "The new O, from O, m, x, v and M:",
                Formula(
                    OUTPUT,
                    "O",
                    UPDATE | {"o": "O", "V": "v", "acc": "O"},
                    (
                        ("O + exp(x - M)*v", "O is shifted by m, as s is: bring it to the new maximum first"),
                        ("O + exp(x - m)*v", "O is shifted by m, as s is: bring it to the new maximum first"),
                        ("O*exp(M - m) + exp(x - M)*v", TURNED),
                        ("O*exp(m - M) + exp(x - m)*v", OLD),
                        ("O*exp(m - M) + exp(x - M)", "each term is weighed by its value"),
                        ("O*exp(m - M) + v", "and the weight of v?"),
                    ),
                    unsafe=UNSAFE,
                    nudge="O is a sum like s, with a value in each term.",
                ),
            ),
            Ask(
                "6.2b",
                "After the last key, the output from O and s:",
                Formula(
                    READ,
                    "",
                    {"o": "O", "S": "s", "l": "s", "acc": "O"},
                    (
                        ("O*s", "a weighted mean: divided by the sum of the weights"),
                        ("O", "the weights do not sum to 1 yet"),
                    ),
                    nudge="y_i is exp(x_i - m) divided by what?",
                ),
            ),
            Ask("6.2c", "The division is best done", order),
        ),
    )


def _growth(draw: Draw, shape: Attention) -> Question:
    moved = model.count("attention", "flash", shape)
    loads = moved["k"].read + moved["v"].read
    blocks = -(-shape.seq_q // shape.block_q)
    times = draw.one((2, 3, 4))
    return Question(
        "6.3",
        "How the bytes grow",
        f"FlashAttention takes the queries in blocks of {shape.block_q}; for each block all keys and "
        "values are read once. For the orders of growth, one head; N well above d, and on-chip memory for "
        "S elements, d < S < N d.",
        (
            Ask(
                "6.3a",
                "Bytes of K and V read, over all heads:",
                size_of(
                    loads,
                    (
                        (Fraction(loads, 2), "K and V, both"),
                        (Fraction(loads, blocks), "once for each block of queries"),
                        (Fraction(loads, shape.heads), "that is one head"),
                        (
                            Fraction(loads * shape.block_q),
                            "once for each block of queries, not for each query",
                        ),
                    ),
                    "Keys and values of all heads, times the number of blocks of queries.",
                ),
            ),
            Ask(
                "6.3b",
                "Memory traffic of attention computed step by step, up to a constant:",
                Order(
                    STANDARD, (("N*d", "the matrices of 6.1 are moved too"), ("N^2*d", "those are the flops"))
                ),
            ),
            Ask(
                "6.3c",
                "Memory traffic of FlashAttention, up to a constant:",
                Order(
                    FLASH,
                    FLASH_TRAPS,
                    "A block holds about S/d queries: how many blocks, and what does each read?",
                ),
            ),
            Ask(
                "6.3d",
                f"With {times} times the on-chip memory, the traffic of FlashAttention is divided by",
                figure(
                    Fraction(times),
                    ((Fraction(times**2), "S enters once"), (Fraction(1, times), "by what is it divided?")),
                    nudge="See how S enters 6.3c.",
                ),
            ),
        ),
    )


def bonus(seed: int) -> Part:
    """The bonus for a seed."""
    draw = Draw(seed, 7)
    gap, total = draw.one((30, 60, 95, 100, 110, 150, 200)), draw.one((5, 6, 8, 11, 12)) / 4
    fmt = FORMATS["float32"]
    true = -(gap + Fraction(log(Fraction(total))))
    zero = gap > -fmt.exp_zero_below().real
    few = not zero and gap > -fmt.exp_zero_below(flush=True).real
    return Part(
        "bonus",
        "The logarithm of a probability",
        "For cross-entropy, what is wanted of a row is log y_i, not y_i.",
        (
            Question(
                "7.1",
                "Without a quotient",
                "Start from y = exp(x - m) / s for a score x.",
                (
                    Ask(
                        "7.1a",
                        "log y from x, m and s, in a form that neither vanishes nor overflows for large "
                        "scores:",
                        Formula(
                            LOG_SOFTMAX,
                            "",
                            {"x_i": "x", "S": "s"},
                            LOG_TRAPS,
                            nudge="The logarithm of a quotient is a difference.",
                            unsafe="equal on paper, but its exp vanishes or overflows first: take log "
                            "and exp together",
                        ),
                    ),
                    Ask(
                        "7.1b",
                        f"A score lies {gap} below the maximum, and s = {total:g}. Its log y:",
                        Number(
                            true,
                            f"{float(true):.6f}",
                            tolerance=_LOG_ERROR / abs(true),
                            traps=(
                                (Fraction(-gap), "and the normaliser?"),
                                (true + 2 * (-gap - true), "minus log(s), not plus"),
                            ),
                            nudge="Put the numbers into 7.1a; the logarithm is natural.",
                        ),
                    ),
                    Ask(
                        "7.1c",
                        "log(softmax(x)) computed in float32, subnormal numbers kept, gives for it",
                        draw.choice(_KINDS, 2 if zero else 1 if few else 0),
                    ),
                    Ask("7.1d", "Losses are computed from 7.1a, because", draw.choice(_WHY_LOGS)),
                ),
            ),
        ),
    )
