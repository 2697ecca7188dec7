"""What the tests of `sample` share: its noise and its filters written out once more, and a chi-square."""

from __future__ import annotations

import math

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_STEP = 0x6A09E667F3BCC909
_WORD = (1 << 64) - 1
#: Standard deviations of a statistic that a fixed seed may land at.
MOST = 4.5


def _mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _WORD
    return x ^ x >> 31


def words(seed: int, draw: int, row: int, token: int) -> tuple[int, int, int]:
    """Bits of v = 1 - u of a token, by the definition in docs/sampling.md: 16, 64 and 64 more."""
    h = _mix(seed + _GOLDEN & _WORD)
    h = _mix(h + _mix(draw + 2 * _GOLDEN & _WORD) & _WORD)
    h = _mix(h + _mix(row + 3 * _GOLDEN & _WORD) & _WORD)
    start, twist, fine, finer = (_mix(h + i * _GOLDEN & _WORD) for i in (1, 2, 3, 4))
    block, place = divmod(token, 32)
    lane, half = place % 16, place // 16
    at = start + (8 * block + lane // 2) * _STEP & _WORD
    product = at * (at ^ twist)
    word = (product & _WORD) ^ product >> 64
    leading = word >> 32 * (lane % 2) + 16 * half & 0xFFFF
    more = _mix(fine ^ _mix(token + finer & _WORD))
    last = _mix(finer ^ _mix(token + fine & _WORD))
    return leading, more, last


def gumbel(seed: int, draw: int, row: int, token: int) -> float:
    """The noise of a token, by the definition in docs/sampling.md, with 144 bits of u."""
    leading, more, last = words(seed, draw, row, token)
    v = math.ldexp(leading << 64 | more, -80)
    if leading == 0 and more < 1 << 53:
        v = math.ldexp((more << 64 | last) + 0.5, -144)
    u = math.ldexp((1 << 80) - (leading << 64 | more), -80)
    return -math.log(-math.log(u) if v > 0.5 else -math.log1p(-v))


def kept(
    row: np.ndarray, temperature: float, top_k: int | None, top_p: float | None, min_p: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Which tokens of a row the filters leave, and the logits over the temperature, by sorting."""
    z = row.astype(np.float64) / (temperature or 1.0)
    order = np.lexsort((np.arange(z.size), -z))
    if top_k is not None:
        order = order[:top_k]
    weights = np.exp(z - z.max())
    if top_p is not None and top_p < 1:
        sums = np.cumsum(weights[order])
        order = order[: np.searchsorted(sums, top_p * sums[-1]) + 1]
    if min_p is not None:
        order = order[weights[order] >= min_p]
    mask = np.zeros(z.size, bool)
    mask[order] = True
    return mask & (z > -np.inf), z


def log_probabilities(z: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Of every token, among those of the mask."""
    with np.errstate(divide="ignore"):
        top = z[mask].max()
        return np.where(mask, (z - top) - math.log(math.fsum(np.exp(z[mask] - top))), -np.inf)


def deviation(counts: np.ndarray, p: np.ndarray) -> float:
    """How far counts lie from probabilities p, in standard deviations of their chi-square (Wilson and
    Hilferty's cube root). Cells that expect fewer than 10 are one."""
    expected = p * counts.sum()
    rare = expected < 10
    seen = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    seen, expected = seen[expected > 0], expected[expected > 0]
    freedom = seen.size - 1
    x = float(np.sum((seen - expected) ** 2 / expected))
    return ((x / freedom) ** (1 / 3) - 1 + 2 / (9 * freedom)) / math.sqrt(2 / (9 * freedom))
