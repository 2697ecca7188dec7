"""Draws that merge, with log-probabilities whose bits do not depend on how a vocabulary was cut."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import exact
from .exact_state import ExactState
from .sample_state import Draws

Array = exact.Array


class ExactSampleState(Draws):
    """One draw a row from what was seen of its logits, with order="any": `SampleState`, whose law is an
    `ExactState` of the scores. Its log-probabilities are that state's, bit for bit, whatever the order of
    merges.

    Attributes: those of `SampleState`; logit is a score, logit / temperature in the states' dtype.
    """

    __slots__ = ()
    _kind = ExactState
    _how = "return_state=True, order='any'"

    @property
    def law(self) -> ExactState:
        law: ExactState = self._law
        return law

    @property
    def log_probabilities(self) -> Array:
        """Natural log of the tokens' probabilities under all that was seen; NaN where there is no token."""
        return log_probabilities(self.tokens, self._logit, self._law)


def log_probabilities(tokens: Array, scores: Array, law: Any) -> Array:
    """Of tokens with these scores, in the states' dtype; NaN where the token is -1."""
    form = exact.format_of(law.dtype)
    found = exact.log_value(scores.astype(form.dtype), law.m, law.a, form)
    return np.where(tokens >= 0, found, form.dtype.type(np.nan))
