"""A small language model in PyTorch with a choice of heads; not a script of its own.

The model is that of Bengio et al. 2003: the vectors of the last words, one hidden layer, and a head that
scores every word of the vocabulary. Heads compute the mean loss of a batch from the hidden states, with their
gradients:

    ours        `online_softmax.linear_cross_entropy_with_gradient` on the memory of the tensors: no logits
    framework   F.cross_entropy(F.linear(hidden, weight), targets)
    moved       the framework's, each gradient moved up or down at random by as much as rounding may move it

Rounding is bounded as in minilm_bound.py (`likely`: independent and of mean zero, 1 case in 30 million). With
u = 2^-24, L = 6, D features, n rows, V classes and |h||w| the greatest product of norms, a logit is off by
up to L sqrt(D) u |h||w|, a probability relatively by twice that and 8u for the exponential and the quotient,
and a sum of n (or V) products with it by L sqrt(n) u of the sum of their magnitudes:

    |error of dweight|  <=  u (2 L sqrt(D) |h||w| + 8 + L sqrt(n)) S^T |hidden|,    S = (p + onehot) / n

and so for dhidden with sqrt(V) and S |weight|. The mean of the n losses, averaged in float64, is off by

    u L sqrt(2 D / n) |h||w|  +  u (1 + 8 L / sqrt(n)) max(|lse|, |loss|)
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from language_text import Corpus, batches
from torch import Tensor, nn
from torch.nn import functional

import online_softmax as osm

U = 2.0**-24
DEVIATIONS = 6


class Settings(NamedTuple):
    """Sizes and lengths of a training run."""

    steps: int = 60
    tokens: int = 1024
    context: int = 8
    embedding: int = 48
    features: int = 128
    rate: float = 1.0
    momentum: float = 0.9
    memory: int = 4 << 20
    seed: int = 0


class Run(NamedTuple):
    """What a training run left: a loss a step, how far each may be off, seconds, and bytes.

    rounding: of "moved" alone. peak: by how much the process's memory rose at most.
    """

    losses: list[float]
    rounding: list[float]
    seconds: float
    peak: int


class LinearCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of hidden @ weight.T. NumPy sees the tensors' memory; nothing is copied."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, memory: int) -> Tensor:
        arrays = [tensor.detach().numpy() for tensor in (hidden, weight, targets)]
        loss, made = osm.linear_cross_entropy_with_gradient(*arrays, memory=memory)
        ctx.save_for_backward(torch.from_numpy(made.hidden), torch.from_numpy(made.weight))
        return torch.tensor(loss)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        (up,) = upstream
        made = ctx.saved_tensors
        # A loss that is trained on as it is has a gradient of 1: no product then.
        return *(made if up == 1 else (up * part for part in made)), None, None


class Moved(torch.autograd.Function):
    """The framework's loss; its gradients moved at random by their rounding bound."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, rng: torch.Generator) -> Tensor:
        n, d = hidden.shape
        p = torch.softmax(functional.linear(hidden, weight), dim=-1)
        rows = torch.arange(n)
        loss = -p[rows, targets].log().mean()
        norms = float(hidden.norm(dim=-1).max() * weight.norm(dim=-1).max())
        of_p = 2 * DEVIATIONS * math.sqrt(d) * norms + 8
        size = p / n
        size[rows, targets] += 1 / n
        moves = []
        for left, right, terms in ((size.T, hidden, n), (size, weight, len(weight))):
            bound = U * (of_p + DEVIATIONS * math.sqrt(terms)) * (left @ right.abs())
            moves.append(bound * (2 * torch.randint(0, 2, bound.shape, generator=rng) - 1))
        size[rows, targets] -= 2 / n
        ctx.save_for_backward(size @ weight + moves[1], size.T @ hidden + moves[0])
        return loss

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        return *(upstream[0] * part for part in ctx.saved_tensors), None, None


class Model(nn.Module):
    """(n, context) numbers of words to hidden states (n, features); `head` is the weight of the scores."""

    def __init__(self, vocabulary: int, given: Settings) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, given.embedding)
        self.layer = nn.Linear(given.context * given.embedding, given.features)
        self.head = nn.Parameter(torch.randn(vocabulary, given.features) / math.sqrt(given.features))

    def forward(self, contexts: Tensor) -> Tensor:
        return torch.tanh(self.layer(self.embedding(contexts).flatten(1)))


def rounding_of_loss(hidden: Tensor, weight: Tensor, losses: Tensor) -> float:
    """How far the mean of the rows' losses may be off; see above."""
    n, d = hidden.shape
    norms = float(hidden.norm(dim=-1).max() * weight.norm(dim=-1).max())
    # The lse is the loss and the target's score, which the norms bound.
    most = float(losses.max()) + norms
    return U * (DEVIATIONS * math.sqrt(2 * d / n) * norms + (1 + 8 * DEVIATIONS / math.sqrt(n)) * most)


def _peak() -> int:
    """Bytes of this process that were in memory at most (not ru_maxrss: that starts from the parent's)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")


def train(head: str, text: Corpus, given: Settings) -> Run:
    """Train a model from `given.seed` with one of the heads above; "moved 2" is "moved" with other signs."""
    torch.manual_seed(given.seed)
    model = Model(len(text.words), given)
    optimizer = torch.optim.SGD(model.parameters(), lr=given.rate, momentum=given.momentum)
    kind, _, number = head.partition(" ")
    rng = torch.Generator().manual_seed(int(number or 1))
    losses, rounding, before, start = [], [], _peak(), time.perf_counter()
    for contexts, targets in batches(text.ids, given.context, given.tokens, given.steps, given.seed):
        hidden, goal = model(torch.from_numpy(contexts)), torch.from_numpy(targets)
        if kind == "ours":
            loss = LinearCrossEntropy.apply(hidden, model.head, goal, given.memory)
            losses.append(loss.item())
        else:
            rows = functional.cross_entropy(functional.linear(hidden, model.head), goal, reduction="none")
            losses.append(rows.detach().double().mean().item())
            loss = rows.mean()
            if kind == "moved":
                rounding.append(rounding_of_loss(hidden.detach(), model.head.detach(), rows.detach()))
                loss = Moved.apply(hidden, model.head, goal, rng)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return Run(losses, rounding, time.perf_counter() - start, _peak() - before)


def allowed(framework: Run, moved: list[Run]) -> list[float]:
    """How far apart two right loss curves may be, a step each.

    Both are rounded where they are evaluated, and both come from weights that rounding has moved since the
    first step: by how much is seen from the runs whose gradients were moved by their bound, whose greatest
    distance so far counts twice.
    """
    apart = np.max([np.abs(np.subtract(run.losses, framework.losses)) for run in moved], axis=0)
    return [2 * (a + e) for a, e in zip(np.maximum.accumulate(apart), moved[0].rounding, strict=True)]
