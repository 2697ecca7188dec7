"""Calls of linear cross-entropy, their right values by the reference, and how far a result may be off."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from online_softmax import reference

BF16 = np.dtype(ml_dtypes.bfloat16)
UNIT = {np.dtype(np.float16): 2.0**-11, BF16: 2.0**-8, np.dtype(np.float32): 2.0**-24}
#: Options of a call that go to it as they are.
PLAIN = ("softcap", "temperature", "label_smoothing", "smoothing", "z_loss", "reduction", "ignore_index")


def unit(dtype: Any) -> float:
    """Of rounding to nearest."""
    return UNIT.get(np.dtype(dtype), 2.0**-53)


def tiny(dtype: Any) -> float:
    """Half the spacing of subnormal numbers, with the least normal number where these may be flushed."""
    return float(ml_dtypes.finfo(dtype).tiny)


@dataclass
class Case:
    """Operands and options; `kind` of the targets: "index", "ignored" (every third row), "probabilities"."""

    tokens: int
    classes: int
    features: int
    dtype: Any = np.float32
    kind: str = "index"
    bias: bool = False
    class_weight: bool = False
    row_weight: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    weight_dtype: Any = None

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        normal = rng.standard_normal
        self.hidden = normal((self.tokens, self.features)).astype(self.dtype)
        self.weight = normal((self.classes, self.features)).astype(self.weight_dtype or self.dtype)
        self.offset = normal(self.classes).astype(self.dtype) if self.bias else None
        self.of_class = rng.uniform(0.5, 2, self.classes) if self.class_weight else None
        self.of_row = rng.uniform(0.5, 2, self.tokens) if self.row_weight else None
        self.targets: Any = rng.integers(0, self.classes, self.tokens)
        if self.kind == "ignored":
            self.targets[::3] = -100
        if self.kind == "probabilities":
            self.targets = rng.dirichlet(np.ones(self.classes), self.tokens)
            self.targets[:, 0] = 0

    @property
    def arguments(self) -> dict[str, Any]:
        """Keywords of a call."""
        return {
            "bias": self.offset,
            "class_weight": self.of_class,
            "row_weight": self.of_row,
        } | {name: self.options[name] for name in PLAIN if name in self.options}

    # ---- the right values

    @property
    def wide(self) -> np.dtype[Any]:
        doubles = np.float64 in (self.hidden.dtype, self.weight.dtype)
        return np.dtype(np.float64 if doubles else np.float32)

    def _reference(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Operands and options for the reference: a temperature scales hidden, bias and cap, and what
        Megatron's smoothing shares out among the others is PyTorch's of a larger number."""
        t = self.options.get("temperature", 1.0)
        e = self.options.get("label_smoothing", 0.0)
        if self.options.get("smoothing") == "megatron":
            e = e * self.classes / (self.classes - 1)
        cap = self.options.get("softcap")
        options = {
            "bias": None if self.offset is None else self.offset.astype(np.float64) / t,
            "softcap": None if cap is None else cap / t,
            "class_weight": self.of_class,
            "label_smoothing": e,
            "z_loss": self.options.get("z_loss", 0.0),
            "reduction": "none",
        }
        return (self.hidden.astype(np.float64) / t, self.weight, self.targets), options

    @property
    def row_factors(self) -> np.ndarray:
        """What the loss of each row counts in the result."""
        rows = np.ones(self.tokens) if self.of_row is None else self.of_row
        if self.options.get("reduction", "mean") != "mean":
            return rows
        if self.kind == "probabilities":
            return rows / rows.sum()
        kept = self.targets >= 0
        each = (
            np.ones(self.tokens) if self.of_class is None else self.of_class[np.where(kept, self.targets, 0)]
        )
        return rows / (each * rows)[kept].sum()

    def right(self) -> tuple[Any, np.ndarray]:
        """(loss as reduced, lse of the rows)."""
        operands, options = self._reference()
        rows, lse = reference.linear_cross_entropy(*operands, **options, return_lse=True)
        weighted = rows * self.row_factors
        return (weighted if self.options.get("reduction") == "none" else weighted.sum()), lse

    def right_gradients(self, dloss: Any = 1.0, dlse: Any = None) -> tuple[np.ndarray, np.ndarray, Any]:
        """Of hidden, weight and bias."""
        operands, options = self._reference()
        t = self.options.get("temperature", 1.0)
        made = reference.linear_cross_entropy_vjp(*operands, dloss * self.row_factors, dlse=dlse, **options)
        return made.hidden / t, made.weight, None if made.bias is None else made.bias / t

    # ---- bounds

    def _scores(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Scores, their probabilities, their slopes by the logits, and how far a row's scores may be off."""
        t, cap = self.options.get("temperature", 1.0), self.options.get("softcap")
        h, w = self.hidden.astype(np.float64), self.weight.astype(np.float64)
        offset = np.zeros(self.classes) if self.offset is None else self.offset.astype(np.float64)
        raw, size = h @ w.T + offset, np.abs(h) @ np.abs(w).T + np.abs(offset)
        z = raw if cap is None else cap * np.tanh(raw / cap)
        slope = np.ones_like(raw) if cap is None else 1 / np.cosh(raw / cap) ** 2
        p = np.exp(z / t - np.logaddexp.reduce(z / t, axis=1)[:, None])
        off = unit(self.wide) * ((self.features + 2) * size + 16 * np.abs(z)) / t
        return z / t, p, slope / t, off.max(axis=1)

    def _coefficients(self) -> np.ndarray:
        e = self._reference()[1]["label_smoothing"]
        weights = np.ones(self.classes) if self.of_class is None else self.of_class
        if self.kind == "probabilities":
            return weights * ((1 - e) * self.targets + e / self.classes)
        hot = (self.targets[:, None] == np.arange(self.classes)) * (1 - e)
        return weights * (hot + e / self.classes) * (self.targets >= 0)[:, None]

    def loss_error(self) -> tuple[Any, np.ndarray]:
        """Bounds of the loss and of the lse: scores that are off, and roundings of float32 in what is made
        of them."""
        z, _p, _slope, off = self._scores()
        lse = np.abs(np.logaddexp.reduce(z, axis=1))
        u = unit(self.wide)
        of_lse = off + 16 * u * (1 + lse)
        count = self._coefficients().sum(axis=1)
        z_loss = self.options.get("z_loss", 0.0)
        span = np.abs(z).max(axis=1) + lse
        rows = count * (2 * off + 16 * u * (1 + span)) + z_loss * (2 * lse + 1) * of_lse
        rows = rows * self.row_factors
        return (rows if self.options.get("reduction") == "none" else rows.sum()), of_lse

    def gradient_errors(
        self, dloss: Any = 1.0, dlse: Any = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Bounds of the gradients of hidden, weight and bias before they are rounded to their formats."""
        z, p, slope, off = self._scores()
        u, z_loss = unit(self.wide), self.options.get("z_loss", 0.0)
        c, factors = self._coefficients(), np.abs(dloss * self.row_factors)
        lse = np.abs(np.logaddexp.reduce(z, axis=1))
        kept = np.ones(self.tokens) if self.kind == "probabilities" else (self.targets >= 0).astype(float)
        pull = factors * kept * (c.sum(axis=1) + 2 * z_loss * (lse + 1))
        pull = pull + (0 if dlse is None else np.abs(dlse))
        size = (pull[:, None] * p + (factors * kept)[:, None] * c) * slope
        cap = self.options.get("softcap")
        wrong = size * ((2 + (0 if cap is None else 2 / cap)) * off + 64 * u)[:, None]
        h, w = np.abs(self.hidden.astype(np.float64)), np.abs(self.weight.astype(np.float64))
        taken = np.where(size.any(axis=1), 1.0, 0.0)[:, None]
        h = np.where(taken > 0, h, 0)
        return (
            wrong @ w + (self.classes + 2) * u * (size @ w),
            wrong.T @ h + (self.tokens + 2) * u * (size.T @ h),
            wrong.sum(axis=0) + 4 * u * size.sum(axis=0),
        )


def check_loss(case: Case, loss: Any, lse: Any = None) -> None:
    """`loss` and `lse` are within their bounds of what the reference says."""
    right, right_lse = case.right()
    bound, lse_bound = case.loss_error()
    assert np.asarray(loss).dtype == case.wide
    assert (np.abs(np.asarray(loss, np.float64) - right) <= bound).all()
    if lse is not None:
        assert lse.dtype == case.wide
        assert (np.abs(lse.astype(np.float64) - right_lse) <= lse_bound).all()


def check_gradients(case: Case, made: Any, dloss: Any = 1.0, dlse: Any = None) -> None:
    """All three are within their bounds, with one rounding to their formats."""
    right, bounds = case.right_gradients(dloss, dlse), case.gradient_errors(dloss, dlse)
    formats = (case.hidden.dtype, case.weight.dtype, case.hidden.dtype)
    for got, value, bound, dtype in zip(made, right, bounds, formats, strict=True):
        if value is None:
            assert got is None
            continue
        assert got.dtype == dtype
        assert got.shape == value.shape
        rounding = 0.0 if dtype == case.wide else unit(dtype)
        most = bound * (1 + rounding) + rounding * np.abs(value) + tiny(dtype)
        assert (np.abs(got.astype(np.float64) - value) <= most).all()


def all_pairs(axes: dict[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Choices of one value an axis, so that every two values of two axes meet in one of them."""
    names = list(axes)
    left = {
        (a, i, b, j)
        for a, b in itertools.combinations(names, 2)
        for i in range(len(axes[a]))
        for j in range(len(axes[b]))
    }
    found = []
    while left:
        a, i, b, j = min(left)
        chosen = {a: i, b: j}
        for name in names:
            if name not in chosen:
                news = [len(_pairs(names, chosen | {name: value}) & left) for value in range(len(axes[name]))]
                chosen[name] = news.index(max(news))
        left -= _pairs(names, chosen)
        found.append({name: axes[name][chosen[name]] for name in names})
    return found


def _pairs(names: Sequence[str], chosen: dict[str, int]) -> set[tuple[str, int, str, int]]:
    there = [name for name in names if name in chosen]
    return {(a, chosen[a], b, chosen[b]) for a, b in itertools.combinations(there, 2)}
