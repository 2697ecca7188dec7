"""States at and beyond the ends of what they hold, and arithmetic that changes while a program runs."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import online_softmax as osm

DTYPES = [np.float32, np.float64]


def doubled(state: Any, times: int) -> Any:
    """The state merged with itself, and that again."""
    for _ in range(times):
        state = state.merge(state)
    return state


@pytest.mark.parametrize("dtype", DTYPES)
def test_doubling_ends_in_an_error(dtype: Any) -> None:
    """A state merged with itself over and over is right up to the promised number of elements, and then
    refused."""
    state, most = osm.ExactState.of(np.zeros(1, dtype)), {np.float32: 41, np.float64: 31}[dtype]
    for doublings in range(1, most + 1):
        state = state.merge(state)
        unit = np.spacing(state.lse) / 2
        assert abs(np.longdouble(state.lse) - doublings * np.log(np.longdouble(2))) <= unit * 1.01
    with pytest.raises(ValueError, match=rf"^other makes .*at most 2\*\*{most} of them"):
        doubled(state, 40)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", [0, 1, -1])
@pytest.mark.parametrize("value", [2**62 + 1, 2**63 - 1, -(2**62) - 1, -(2**63)])
def test_sums_out_of_reach_are_refused(dtype: Any, where: int, value: int) -> None:
    whole = osm.ExactState.of(np.zeros(9, dtype))
    sums = whole.a.copy()
    sums[where] = value
    with pytest.raises(ValueError, match="no data has"):
        osm.ExactState(whole.m, sums)
    packed = osm.ExactState._wrap((whole.m, sums)).to_bytes()
    with pytest.raises(ValueError, match="no data has"):
        osm.ExactState.from_bytes(packed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_of_no_maximum_are_refused(dtype: Any) -> None:
    state = osm.ExactState.of(np.full((1, 3), -5, dtype))
    top = np.iinfo(np.int32 if dtype == np.float32 else np.int64).max
    bad = [-1, 3, top, top - 1]  # -0.0, a subnormal number, and NaN of other patterns
    if dtype == np.float32:
        bad += [int(state.key()[0]) + 2**32, 2**40, 2**62]  # past the format
    for key in bad:
        with pytest.raises(ValueError, match="key has an entry that no maximum"):
            state.sums(np.array([key]))
        with pytest.raises(ValueError, match="key has an entry that no maximum"):
            osm.ExactState.from_reduced(np.array([key]), state.a, dtype)


@pytest.mark.parametrize("shape", [2.5, (2.5,), "ab", (3, "a")])
def test_a_shape_that_is_none(shape: Any) -> None:
    with pytest.raises(TypeError, match=r"^shape is .*would do"):
        osm.ExactState.identity(shape)


@pytest.mark.parametrize("shape", [-1, (2, -1)])
def test_a_negative_shape(shape: Any) -> None:
    with pytest.raises(ValueError, match=r"^shape is .*would do"):
        osm.ExactState.identity(shape)


@pytest.mark.parametrize("states", [None, 3])
def test_many_of_no_states(states: Any) -> None:
    for kind in (osm.ExactState, osm.ExactLossState, osm.ExactAttentionState):
        with pytest.raises(TypeError, match=r"^states is a \w+: .*would do"):
            kind.merge_many(states)
    with pytest.raises(TypeError, match=r"^states is a ExactState: .*would do"):
        osm.ExactState.merge_many(osm.ExactState.identity())  # type: ignore[arg-type]


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


glibc = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64",
    reason="needs fesetround of glibc's libm.so.6, and the modes' numbers of x86-64",
)
SETUP = """
import ctypes, numpy as np, online_softmax as osm
from online_softmax import cpu_exact
turn = ctypes.CDLL("libm.so.6").fesetround
x = np.random.default_rng(0).standard_normal((400, 3000), dtype=np.float32) * 8
"""


@glibc
@pytest.mark.parametrize("mode", [0x400, 0x800, 0xC00])
def test_a_rounding_mode_set_later_is_refused(mode: int) -> None:
    code = f"""{SETUP}
q = x[:3, :64].reshape(1, 1, 3, 64)
state = osm.ExactState.of(x[:2])
parts = osm.ExactAttentionState.of(q, q, q)
drawn = osm.sample(x[:2], order="any", return_state=True)
calls = (
    lambda: osm.softmax(x[:2], order="any"),
    lambda: osm.logsumexp(x[:2], order="any"),
    lambda: osm.cross_entropy(x[:2], [0, 1], order="any"),
    lambda: osm.sample(x[:2], order="any"),
    lambda: osm.attention(q, q, q, order="any"),
    lambda: osm.ExactState.of(x[:2]),
    lambda: state.lse,
    lambda: state.prob(x[:2]),
    lambda: parts.output,
    lambda: parts.lse,
    lambda: parts.with_sinks(0.5),
    lambda: osm.ExactAttentionState.of_partial(q[0, 0], np.ones(3), np.zeros(3)),
    lambda: drawn.log_probabilities,
)
for call in calls:
    call()
for call in calls:
    turn({mode})
    try:
        call()
        refused = False
    except RuntimeError as error:
        refused = "to nearest" in str(error)
    turn(0)
    print(int(refused), end="")
for call in calls:
    call()
"""
    assert run(code) == "1" * 13


@glibc
@pytest.mark.parametrize("order", ["row", "any"])
def test_helpers_round_as_their_caller_does(order: str) -> None:
    """Threads that were started while another mode was set make no other bits later."""
    code = f"""{SETUP}
alone = osm.softmax(x, order="{order}", threads=1)
turn(0x800)
osm.softmax(x, threads=3)
turn(0)
print(all((osm.softmax(x, order="{order}", threads=3) == alone).all() for _ in range(5)))
"""
    assert run(code) == "True\n"


def partial(o: float, dtype: Any) -> osm.ExactAttentionState:
    """One super-tile of one query."""
    return osm.ExactAttentionState.of_partial(np.full(2, o, dtype), np.full((), 1.25, dtype), dtype(0.3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_slices_of_a_super_tile_are_small(dtype: Any) -> None:
    """What `beyond` counts on: 2**31 at most, whatever the place of a number between two bins."""
    most = max(abs(partial(s * 1.9999 * 2.0**e, dtype).a).max() for e in range(-40, 40) for s in (1, -1))
    assert 2**30 < most <= 2**31


@pytest.mark.parametrize("dtype", DTYPES)
def test_doubling_attention_ends_in_an_error(dtype: Any) -> None:
    state = partial(1.9999, dtype)
    once = state.output
    state = doubled(state, 31)
    assert (state.output == once).all()
    with pytest.raises(ValueError, match=r"^other makes .*at most 2\*\*31 of them"):
        doubled(state, 40)
    with pytest.raises(ValueError, match=r"^states makes a state of too many super-tiles"):
        osm.ExactAttentionState.merge_many([state] * 40)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [2**62 + 1, 2**63 - 1, -(2**63)])
def test_attention_sums_out_of_reach_are_refused(dtype: Any, value: int) -> None:
    whole = partial(1.5, dtype)
    for at in np.ndindex(whole.a.shape):
        a = whole.a.copy()
        a[at] = value
        sums = whole._sums._replace(a=a)
        with pytest.raises(ValueError, match="no data has"):
            osm.ExactAttentionState.from_bytes(osm.ExactAttentionState._wrap(sums).to_bytes())


def test_partial_sums_need_features() -> None:
    with pytest.raises(ValueError, match=r"^o has shape \(\): features"):
        osm.ExactAttentionState.of_partial(1.0, 1.0, 0.0)


def test_numbers_past_the_format_warn_of_nothing() -> None:
    """Differences of scores that float32 does not hold: -inf, in silence (warnings are errors here)."""
    x = np.array([[3e38, -3e38, 0]], np.float32)
    state = osm.ExactState.of(x)
    assert state.logprob(x).tolist() == [[0, -np.inf, -x[0, 0]]]
    assert osm.cross_entropy(x, [1], order="any") == np.inf
    found = osm.cross_entropy(x, [0], tokens=[[1]], order="any")
    assert found.log_probabilities.tolist() == [[-np.inf]]
