"""What linear cross-entropy needs beside operands and results: plans by a budget, peaks, long offsets."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linear_cases import BF16, Case, check_gradients, check_loss, unit

import online_softmax as osm
from online_softmax import cpu_linear_gradient, linear_plan
from online_softmax.linear_plan import Sizes

SIZES = Sizes(
    tokens=150, classes=600, features=20, item=4, hidden_item=4, gathered=False, mapped=False, each=False,
    per_class=0, memory=0,
)  # fmt: skip
#: Memory, with the tokens of a chunk of all classes, and the tiles of a second sweep.
BUDGETS = [
    (1 << 26, 150, (150, 600)),
    (200_000, 38, (150, 64)),
    (40_000, 8, (150, 16)),
    (16_000, 3, (75, 16)),
]


@pytest.mark.parametrize(("memory", "chunk", "tile"), BUDGETS)
def test_pieces_follow_from_the_budget(memory: int, chunk: int, tile: tuple[int, int]) -> None:
    s = replace(SIZES, memory=memory)
    assert linear_plan.tokens_a_chunk(s) == chunk
    tiles = linear_plan.tiles(s, of_weight=True)
    assert (tiles.tokens, tiles.classes) == tile
    used = chunk * s.classes * s.item + min(
        linear_plan.scratch(s, s.tokens, s.classes, rounded=False), memory // 2
    )
    assert used <= memory


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float64])
@pytest.mark.parametrize("kind", ["index", "ignored", "probabilities"])
@pytest.mark.parametrize("memory", [memory for memory, _chunk, _tile in BUDGETS])
@pytest.mark.parametrize("options", [{}, {"softcap": 4.0, "label_smoothing": 0.1, "z_loss": 1e-3}], ids=str)
def test_every_plan_gives_the_right_values(
    options: dict[str, Any], memory: int, kind: str, dtype: Any
) -> None:
    case = Case(150, 600, 20, dtype, kind=kind, class_weight=bool(options), options=options)
    operands = (case.hidden, case.weight, case.targets)
    budget = 2 * memory if options or kind == "probabilities" or dtype == np.float64 else memory
    more = {"memory": budget, "threads": 1, **case.arguments}
    check_loss(case, *osm.linear_cross_entropy(*operands, return_lse=True, **more))
    both = osm.linear_cross_entropy_with_gradient(*operands, **more)
    check_loss(case, both.loss)
    check_gradients(case, both.gradients)


def test_sums_of_a_16_bit_weight_are_kept_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """600 tokens in two chunks: in a memory that holds the weight's sums no second sweep is made."""
    sweeps = []
    second = cpu_linear_gradient._second_sweep
    monkeypatch.setattr(
        cpu_linear_gradient, "_second_sweep", lambda *a, **k: (sweeps.append(1), second(*a, **k))
    )
    case = Case(600, 300, 20, BF16)
    for memory, expected in ((1 << 20, 1), (1_500_000, 0)):
        sweeps.clear()
        made = osm.linear_cross_entropy_backward(
            1.0, case.hidden, case.weight, case.targets, memory=memory, threads=1
        )
        assert len(sweeps) == expected
        check_gradients(case, made)


@pytest.mark.parametrize("filter_below", [None, 0.0])
@pytest.mark.parametrize(("hidden", "weight"), [(np.float64, BF16), (BF16, BF16), (np.float32, np.float16)])
@pytest.mark.parametrize(
    ("tokens", "classes", "features"), [(5, 17, 3), (300, 65, 16), (2, 700, 1), (17, 1, 33)]
)
@pytest.mark.parametrize("kind", ["index", "probabilities", "ignored"])
def test_the_budget_that_an_error_names_is_enough(
    kind: str, tokens: int, classes: int, features: int, hidden: Any, weight: Any, filter_below: float | None
) -> None:
    """For all of the call, not for its first sweep alone."""
    rng = np.random.default_rng(0)
    given = rng.standard_normal((tokens, features)).astype(hidden), rng.standard_normal((classes, features))
    targets: Any = (
        rng.random((tokens, classes)) if kind == "probabilities" else rng.integers(0, classes, tokens)
    )
    if kind == "ignored":
        targets[[0, -1]] = -100

    def call(memory: int) -> Any:
        return osm.linear_cross_entropy_with_gradient(
            given[0], given[1].astype(weight), targets, filter_below=filter_below, memory=memory, threads=1,
            return_lse=kind == "ignored",
        )  # fmt: skip

    with pytest.raises(ValueError, match="memory is 1: at least") as error:
        call(1)
    call(int(str(error.value).split("at least ")[1].split()[0]))


@pytest.mark.parametrize("call", ["forward", "riders", "gradient"])
def test_a_budget_that_holds_nothing(call: str) -> None:
    case = Case(5, 1000, 3)
    operands = (case.hidden, case.weight, case.targets)

    def run(memory: int) -> None:
        if call == "gradient":
            osm.linear_cross_entropy_backward(1.0, *operands, memory=memory)
        else:
            osm.linear_cross_entropy(
                *operands, memory=memory, riders=("entropy",) if call == "riders" else ()
            )

    with pytest.raises(ValueError, match=r"memory is 100: at least (\d+) bytes") as error:
        run(100)
    run(int(str(error.value).split("at least ")[1].split()[0]))


def test_a_second_sweep_that_does_not_fit_is_found_before_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many features: the logits of a token fit, a tile of the weight does not."""
    products: list[int] = []
    monkeypatch.setattr(cpu_linear_gradient, "product", lambda *a, **k: products.append(1))
    case = Case(400, 64, 3000, BF16)
    with pytest.raises(ValueError, match=r"memory is 20000: at least \d+ bytes, for a tile of 16 classes"):
        osm.linear_cross_entropy_backward(1.0, case.hidden, case.weight, case.targets, memory=20_000)
    assert not products


CHILD = """
import sys
from pathlib import Path
import numpy as np
import online_softmax as osm
classes, memory, dtype = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
import ml_dtypes
rng = np.random.default_rng(0)
format = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32
def operands(tokens, classes):
    hidden = rng.standard_normal((tokens, 16), np.float32).astype(format)
    return hidden, np.full((classes, 16), 0.25, format), rng.integers(0, classes, tokens)
def status(name):
    return next(int(line.split()[1]) * 1024 for line in Path("/proc/self/status").read_text().splitlines()
                if line.startswith(name))
osm.linear_cross_entropy_with_gradient(*operands(4, 100), memory=memory, threads=2)
given = operands(256, classes)
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
made = osm.linear_cross_entropy_with_gradient(*given, memory=memory, threads=2)
results = sum(array.nbytes for array in made.gradients if array is not None)
print(status("VmHWM") - before - results)
"""


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="needs Linux's peak of resident memory"
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("classes", [50257, 256000])
def test_the_peak_keeps_to_the_budget_whatever_the_classes(classes: int, dtype: str) -> None:
    memory = 24 << 20
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(classes), str(memory), dtype],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    # Pages of 2 MiB that results begin and end in, and numbers of tokens.
    assert int(run.stdout) <= memory + (6 << 20)


def test_offsets_of_more_than_32_bits(tmp_path: Path) -> None:
    """B133: rows of the weight 3 GiB apart, in a file of which only the pages that are written exist."""
    apart = 3 << 30
    flat = np.memmap(tmp_path / "weight", np.float32, "w+", shape=(2 * apart // 4 + 8,))
    weight = np.lib.stride_tricks.as_strided(flat, (3, 8), (apart, 4))
    weight[...] = np.random.default_rng(0).standard_normal((3, 8))
    hidden = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    targets = np.array([0, 1, 2, 2])
    plain = np.ascontiguousarray(weight)
    assert osm.linear_cross_entropy(hidden, weight, targets) == osm.linear_cross_entropy(
        hidden, plain, targets
    )
    made = osm.linear_cross_entropy_backward(1.0, hidden, weight, targets)
    right = osm.linear_cross_entropy_backward(1.0, hidden, plain, targets)
    assert np.array_equal(made.hidden, right.hidden)
    assert np.array_equal(made.weight, right.weight)


def test_more_elements_than_31_bits_count() -> None:
    """B133: 2^20 + 8 classes of 2048 features, all the same row."""
    classes, features = (1 << 20) + 8, 2048
    weight = np.broadcast_to(np.full(1, 0.5, BF16), (classes, features))
    loss = osm.linear_cross_entropy(np.full((2, features), 0.01, BF16), weight, [0, classes - 1])
    assert abs(loss - np.log(classes)) <= 64 * unit(np.float32) * np.log(classes)
