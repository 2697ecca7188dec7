"""sample of tensors: one token a row, drawn from softmax(logits / temperature)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from .. import checks as arguments
from .. import sampling as arrays
from . import checks, memory, mode
from .loss_batching import one_by_one
from .registry import Op

_WORD = 1 << 64
_ROW: Final = "row"
_Kernel = Callable[..., tuple[torch.Tensor, torch.Tensor]]


class Sample(NamedTuple):
    """Tokens drawn, with their log-probabilities."""

    tokens: torch.Tensor
    log_probabilities: torch.Tensor


def sample(
    logits: torch.Tensor, axis: Any = -1, *, dim: Any = None, temperature: Any = 1.0, top_k: Any = None,
    top_p: Any = None, min_p: Any = None, seed: Any = None, draw: int = 0, origin: tuple[int, int] = (0, 0),
    generator: torch.Generator | None = None, order: str = "row",
) -> Sample:  # fmt: skip
    """One token a row, drawn from softmax(logits / temperature) as the filters leave it.

    Args:
        logits: (..., vocabulary, ...): float64, float32, float16, bfloat16 (float8: as float32), any strides.
        axis, dim: of the vocabulary, one argument under two names.
        temperature, top_k, top_p, min_p: as `online_softmax.sample` has them: one number each, or a tensor
            that broadcasts to the rows' shape; None for no filter.
        seed: an int64 tensor of no dimensions, or an int from 0 to 2**64 - 1: the same seed gives the same
            tokens, and those of `online_softmax.sample`. None: drawn from `generator`, or PyTorch's default
            generator, so that torch.manual_seed governs it.
        draw, origin: as in `online_softmax.sample`; draw up to 2**64 - 1.
        generator: only without a seed.
        order: "row": log-probabilities depend on the instruction set in their last bits, and tokens on the C
            library's logarithm where two keys agree to the last bits. "any": both have the same bits on any
            machine, those of `online_softmax.sample` with order="any"; the log-probability is then, without
            filters, minus the loss of `cross_entropy` with order="any" and the same temperature.

    Returns: Sample(tokens int64, log_probabilities) of the rows' shape; float32, float64 for float64 logits.
    A row that has no distribution gives -1 and NaN. Nothing is differentiable.

    Raises: TypeError and ValueError naming the argument, those about numbers in tensors from the kernel,
    before anything is drawn; RuntimeError for tensors of two devices. Shards of a vocabulary merge as NumPy
    arrays: `online_softmax.sample(..., return_state=True)`.

    Cost: one read of logits, with top_p or min_p two (order="any": as `online_softmax.sample`). In
    torch.func.vmap one call an element of the batch.
    """
    x = checks.tensor(logits, "logits", converted=True)
    if not x.ndim:
        raise ValueError("logits has no dimensions: (vocabulary,) or (rows, vocabulary) would do")
    over = arguments.single_axis(checks.LAST_AXIS if dim is not None and axis == -1 else axis, dim, x.ndim)
    if not x.shape[over]:
        raise ValueError(
            f"logits has shape {tuple(x.shape)}, a vocabulary of no tokens: at least one would do"
        )
    options = [
        _option(value, name, x)
        for value, name in (
            (temperature, "temperature"), (top_k, "top_k"), (top_p, "top_p"), (min_p, "min_p")
        )
    ]  # fmt: skip
    if options[0] is None:
        raise TypeError("temperature is None: a number of at least 0 would do")
    row, token = arrays.place_of(origin)
    word = arrays.word(draw, "draw")
    op = _SAMPLE_ANY if order is not _ROW and arguments.order(order) else _SAMPLE
    return Sample(*op(x.detach(), _seed(seed, generator), *options, over, _signed(word), row, token))


def _signed(word: int) -> int:
    """64 bits as the schema's int has them."""
    return word - _WORD if word >= _WORD // 2 else word


def _seed(seed: Any, generator: torch.Generator | None) -> torch.Tensor:
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator is a {type(generator).__name__}: a torch.Generator would do")
    if seed is None:
        return torch.randint(-(2**63), 2**63 - 1, (), generator=generator, dtype=torch.int64, device="cpu")
    if generator is not None:
        raise ValueError("seed and generator were both given: one of them would do")
    if isinstance(seed, torch.Tensor):
        if seed.dtype != torch.int64 or seed.ndim or seed.device.type == "cuda":
            given = f"{seed.dtype} of shape {tuple(seed.shape)} on {seed.device}"
            raise TypeError(f"seed is {given}: torch.int64 of shape () on the CPU would do")
        return seed
    return torch.full((), _signed(arrays.word(seed, "seed")), dtype=torch.int64, device="cpu")


def _option(value: Any, name: str, x: torch.Tensor) -> torch.Tensor | None:
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        checks.any_tensor(value, name)
        checks.same_device(**{"logits": x, name: value})
        return value.detach()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is a {type(value).__name__}: a number or a tensor would do")
    whole = isinstance(value, int) and name == "top_k"
    if whole and abs(value) >= 2**63:
        value = 2**63 - 1 if value > 0 else -1
    return torch.full((), value, dtype=torch.int64 if whole else torch.float64, device=x.device)


def _cpu(order: str) -> _Kernel:
    def kernel(
        x: torch.Tensor, seed: torch.Tensor, temperature: torch.Tensor, top_k: Any, top_p: Any, min_p: Any,
        dim: int, draw: int, row: int, token: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        tokens, found = arrays.sample(
            memory.array(x), dim, temperature=memory.array(temperature), top_k=memory.optional(top_k),
            top_p=memory.optional(top_p), min_p=memory.optional(min_p), seed=int(seed) % _WORD,
            draw=draw % _WORD, origin=(row, token), order=order, threads=mode.threads(),
        )  # fmt: skip
        shape = [n for d, n in enumerate(x.shape) if d != dim]
        made = [memory.tensor(np.ascontiguousarray(part)).reshape(shape) for part in (tokens, found)]
        return made[0], made[1]

    return kernel


def _fake(x: torch.Tensor, seed: Any, temperature: Any, top_k: Any, top_p: Any, min_p: Any, dim: int,
          *_: Any) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    shape = [n for d, n in enumerate(x.shape) if d != dim]
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.new_empty(shape, dtype=torch.int64), x.new_empty(shape, dtype=wide)


def _alone(name: str) -> Callable[..., Any]:
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        # Rows are numbered anew in each, as in a loop.
        return one_by_one(getattr(torch.ops.online_softmax, name), info, in_dims, args)

    return vmap


def _op(name: str, order: str) -> Op:
    return Op(
        f"{name}(Tensor logits, Tensor seed, Tensor temperature, Tensor? top_k, Tensor? top_p, "
        "Tensor? min_p, int dim, int draw, int row, int token) -> (Tensor, Tensor)",
        cpu=_cpu(order), fake=_fake, vmap=_alone(name),
    )  # fmt: skip


_SAMPLE = _op("sample", "row")
_SAMPLE_ANY = _op("sample_any", "any")
