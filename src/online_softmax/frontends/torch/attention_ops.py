"""The registered operations of attention on (batch, heads, length, features): shapes and derivatives."""

from __future__ import annotations

from typing import Any

import torch

from . import attention_composed as composed
from . import attention_fold as fold
from . import attention_kernels as kernels
from . import attention_pieces as pieces
from .attention_fold import HEADS, ROWS, SCORES
from .attention_options import SCHEMA, TENSORS, Rest, rows_by_place, split, wide
from .registry import Op, Rule


def _rows_like(t: torch.Tensor, features: Any) -> torch.Tensor:
    batch, heads, length, _ = t.shape
    if rows_by_place(t):
        return torch.empty_permuted(
            (batch, heads, length, features), (0, 2, 1, 3), dtype=t.dtype, device=t.device
        )
    return t.new_empty((batch, heads, length, features))


def _fake(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    (q, _, v, *_), _ = split(args)
    return _rows_like(q, v.shape[3]), q.new_empty(q.shape[:-1], dtype=wide(q))


def _fake_backward(*args: Any) -> tuple[torch.Tensor, ...]:
    (_, _, q, k, v, bias, sinks, _, _, bias_grad), _ = split(args)
    return (
        *(_rows_like(t, t.shape[3]) for t in (q, k, v)),
        bias.new_empty(bias.shape) if bias_grad else q.new_empty(0),
        q.new_empty(0) if sinks is None else sinks.new_empty(sinks.shape),
    )


def _fake_double_backward(*args: Any) -> tuple[torch.Tensor, ...]:
    (do, dlse, q, k, v, bias, sinks, *_), _ = split(args)
    return tuple(
        q.new_empty(0, dtype=torch.float32) if t is None else t.new_empty(t.shape)
        for t in (do, dlse, q, k, v, bias, sinks)
    )


def _fake_keep(seed: torch.Tensor, batch: Any, heads: Any, queries: Any, keys: Any, *_: Any) -> torch.Tensor:
    return seed.new_empty((batch, heads, queries, keys), dtype=torch.bool)


def _keep(ctx: Any, own: tuple[Any, ...], rest: Rest) -> None:
    """Tensors are saved as such, so that they are freed and that a change of them is seen."""
    ctx.numbers = rest.numbers()
    kept = (*own, *rest.tensors())
    ctx.save_for_backward(*kept)
    ctx.save_for_forward(*kept)


def _kept(ctx: Any) -> tuple[tuple[Any, ...], Rest]:
    saved = ctx.saved_tensors
    return saved[:-TENSORS], Rest(*saved[-TENSORS:], *ctx.numbers)


class _Attention(Rule):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        own, rest = split(inputs)
        ctx.set_materialize_grads(False)
        _keep(ctx, (*own, *output), rest)

    @staticmethod
    def backward(ctx: Any, do: Any, dlse: Any) -> tuple[Any, ...]:
        (q, k, v, bias, sinks, output, lse), rest = _kept(ctx)
        if do is None:
            if dlse is None:
                return (None,) * len(ctx.needs_input_grad)
            do = torch.zeros_like(output)
        of_bias = bias is not None and ctx.needs_input_grad[3]
        dq, dk, dv, d_bias, d_sinks = BACKWARD(do, dlse, q, k, v, bias, sinks, output, lse, of_bias, *rest)
        return (
            dq, dk, dv, d_bias if of_bias else None, None if sinks is None else d_sinks,
            *(None,) * len(rest),
        )  # fmt: skip

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        (q, k, v, bias, sinks, *_), rest = _kept(ctx)
        return JVP(q, k, v, bias, sinks, *tangents[:5], *rest)


class _AttentionAny(_Attention):
    """Sums over keys in the other order: of the gradient from this output and lse, and all others."""


class _Backward(Rule):
    """d_output, d_lse, q, k, v, bias and sinks have derivatives; output and lse stand for what these give."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        own, rest = split(inputs)
        ctx.set_materialize_grads(False)
        ctx.bias_grad = own[-1]
        _keep(ctx, own[:-1], rest)

    @staticmethod
    def backward(ctx: Any, gdq: Any, gdk: Any, gdv: Any, gdbias: Any, gdsinks: Any) -> tuple[Any, ...]:
        own, rest = _kept(ctx)
        do, dlse, q, k, v, bias, sinks = own[:7]
        found = DOUBLE_BACKWARD(
            do, dlse, q, k, v, bias, sinks, gdq, gdk, gdv, gdbias if ctx.bias_grad else None,
            None if sinks is None else gdsinks, *rest,
        )  # fmt: skip
        given = (None if a is None else t for a, t in zip(own[:7], found, strict=True))
        return (*given, *(None,) * (3 + len(rest)))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        own, rest = _kept(ctx)
        made = composed.push(lambda *args: composed.backward(*args, *rest), own[:7], tangents[:7])
        return made if ctx.bias_grad or own[5] is None else (*made[:3], made[3].new_zeros(0), made[4])


def _composed(name: str, function: Any) -> type[Rule]:
    class Composed(Rule):
        """Derivatives by those of the same function composed of PyTorch's operations."""

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            own, rest = split(inputs)
            ctx.set_materialize_grads(False)
            _keep(ctx, own, rest)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
            own, rest = _kept(ctx)
            found = composed.pull(lambda *args: function(*args, *rest), own, cotangents)
            return (*found, *(None,) * len(rest))

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            own, rest = _kept(ctx)
            return composed.push(lambda *args: function(*args, *rest), own, tangents[: len(own)])

    Composed.__name__ = Composed.__qualname__ = name
    return Composed


def _autocast(args: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    """PyTorch's rule for its own: q, k, v and what is added to the scores in the lower precision."""
    to = torch.get_autocast_dtype(device)
    cast = (
        a.to(to) if a is not None and a.dtype in (torch.float32, torch.float16, torch.bfloat16) else a
        for a in args[:4]
    )
    return (*cast, *args[4:])


_OPERANDS = "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? sinks, "
_KINDS = (ROWS, ROWS, ROWS, SCORES, HEADS)


def _of_forward(*_: Any) -> Any:
    return (ROWS, 0), (ROWS, 0)


def _of_backward(*own: Any) -> Any:
    bias, sinks = (SCORES, 5) if own[-1] else None, None if own[6] is None else (HEADS, 6)
    return (ROWS, 2), (ROWS, 3), (ROWS, 4), bias, sinks


def _of_double_backward(*own: Any) -> Any:
    kinds = (ROWS, ROWS, *_KINDS)
    return tuple(None if own[i] is None else (kind, i) for i, kind in enumerate(kinds))


FORWARD = Op(
    f"attention({_OPERANDS}{SCHEMA}) -> (Tensor output, Tensor lse)",
    cpu=kernels.forward, fake=_fake, rule=_Attention, policy=_autocast,
    vmap=fold.rule("attention", _KINDS, _of_forward),
)  # fmt: skip
FORWARD_ANY = Op(
    f"attention_any({_OPERANDS}{SCHEMA}) -> (Tensor output, Tensor lse)",
    cpu=kernels.forward_any, fake=_fake, rule=_AttentionAny, policy=_autocast,
    vmap=fold.rule("attention_any", _KINDS, _of_forward),
)  # fmt: skip
BACKWARD = Op(
    f"attention_backward(Tensor d_output, Tensor? d_lse, {_OPERANDS}Tensor output, Tensor lse, "
    f"bool bias_grad, {SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    cpu=kernels.backward, fake=_fake_backward, rule=_Backward,
    vmap=fold.rule("attention_backward", (ROWS, ROWS, *_KINDS, ROWS, ROWS, None), _of_backward),
)  # fmt: skip
JVP = Op(
    f"attention_jvp({_OPERANDS}Tensor? q_move, Tensor? k_move, Tensor? v_move, Tensor? bias_move, "
    f"Tensor? sinks_move, {SCHEMA}) -> (Tensor, Tensor)",
    cpu=pieces.jvp, fake=_fake, rule=_composed("_Jvp", composed.jvp),
    vmap=fold.rule("attention_jvp", _KINDS * 2, _of_forward),
)  # fmt: skip
DOUBLE_BACKWARD = Op(
    f"attention_double_backward(Tensor d_output, Tensor? d_lse, {_OPERANDS}Tensor? by_dq, Tensor? by_dk, "
    f"Tensor? by_dv, Tensor? by_dbias, Tensor? by_dsinks, {SCHEMA}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    cpu=pieces.double_backward, fake=_fake_double_backward,
    rule=_composed("_DoubleBackward", composed.double_backward),
    vmap=fold.rule("attention_double_backward", (ROWS, ROWS, *_KINDS * 2), _of_double_backward),
)  # fmt: skip
#: Without derivatives: keys and values in pools, or stored in 8 bits.
STORED = Op(
    f"attention_stored({_OPERANDS}Tensor? block_table, Tensor? k_scale, Tensor? v_scale, {SCHEMA}) "
    "-> (Tensor output, Tensor lse)",
    cpu=kernels.stored, fake=_fake, vmap=fold.alone("attention_stored"),
)  # fmt: skip
STORED_ANY = Op(
    f"attention_stored_any({_OPERANDS}Tensor? block_table, Tensor? k_scale, Tensor? v_scale, {SCHEMA}) "
    "-> (Tensor output, Tensor lse)",
    cpu=kernels.stored_any, fake=_fake, vmap=fold.alone("attention_stored_any"),
)  # fmt: skip
KEEP = Op(
    "attention_keep(Tensor seed, SymInt batch, SymInt heads, SymInt queries, SymInt keys, "
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, float dropout_p, int[]? origin) -> Tensor",
    cpu=kernels.keep, fake=_fake_keep, vmap=fold.alone("attention_keep"),
)  # fmt: skip
