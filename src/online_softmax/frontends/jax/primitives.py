"""How an operation becomes a JAX primitive: the native core on CPUs, JAX's own operations elsewhere, sharded
over the axes that its rows are independent along.

Primitives of our own, and not `custom_jvp` and `custom_vjp`: a function that has a `custom_vjp` has no
forward mode, the tangents that a `custom_jvp` writes out are transposed operation by operation, which for
attention keeps matrices of scores, and neither says how to batch or where to run. Here the tangent of an
operation is a primitive too, linear in the tangents, whose transpose is the native backward.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import (
    ArrayMapping,
    CompoundFactor,
    SdyShardingRule,
    custom_partitioning,
)
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from . import checks, manual, native

Array = Any
#: A factor of each axis of an array: axes of one name are cut together. A pair is an axis made of two, cut
#: along the first: heads as groups and heads of a group.
Axes = tuple[str | tuple[str, str], ...]


class Factors:
    """How operands and results hang together.

    Attributes:
        operands, results: the axes of each.
        free: names of the factors that may be cut; the others are whole on every device.
        sizes: of the parts of pairs.
    """

    def __init__(
        self, operands: Sequence[Axes], results: Sequence[Axes], free: set[str], sizes: dict[str, int]
    ) -> None:
        self.operands, self.results, self.free, self.sizes = operands, results, free, sizes

    def rule(self) -> SdyShardingRule:
        """As Shardy wants it."""
        every = [axis for axes in (*self.operands, *self.results) for axis in axes]
        # In order of first use: Shardy wants its special factors so.
        names = dict.fromkeys(part for axis in every for part in _parts(axis))
        paired = {part for axis in every if isinstance(axis, tuple) for part in axis}
        alone = {axis for axis in every if isinstance(axis, str)}
        return SdyShardingRule(
            tuple(_mapping(axes) for axes in self.operands),
            tuple(_mapping(axes) for axes in self.results),
            need_replication_factors=tuple(name for name in names if name not in self.free),
            **{name: size for name, size in self.sizes.items() if name in paired - alone},
        )

    def cut(self, mesh: Any, shapes: Sequence[Any]) -> dict[str, tuple[str, ...]]:
        """Mesh axes of each free factor: those of the first array that has it cut."""
        found: dict[str, tuple[str, ...]] = {}
        taken: set[str] = set()
        for axes, shape in zip((*self.operands, *self.results), shapes, strict=True):
            if not isinstance(shape.sharding, NamedSharding):
                continue
            for axis, length, entry in zip(axes, shape.shape, _spec(shape), strict=True):
                name = _parts(axis)[0]
                length = self.sizes.get(name, length)
                on = (entry,) if isinstance(entry, str) else tuple(entry or ())
                pieces = 1
                for one in on:
                    pieces *= mesh.shape[one]
                if (
                    on
                    and name in self.free
                    and name not in found
                    and not taken & set(on)
                    and not length % pieces
                ):
                    found[name] = on
                    taken |= set(on)
        return found


def define(
    name: str,
    *,
    abstract: Callable[..., list[Any]],
    in_jax: Callable[..., list[Array]],
    batch: Callable[..., Any],
    in_core: Callable[..., list[Array]] | None = None,
    factors: Callable[..., Factors] | None = None,
) -> Primitive:
    """A primitive with several results.

    Args:
        abstract: shapes and formats of the results from those of the operands.
        in_core: the operation by the native core, None where that has no way.
        in_jax: the operation in JAX's own.
        batch: the batching rule.
        factors: from operands and parameters, for the native core.

    All take the parameters as keywords. `in_core` gets `over` too, the mesh axes that each factor is cut
    along: what it sums over a factor it has to sum over those.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_abstract_eval(abstract)
    primitive.def_impl(partial(_at_once, primitive))
    in_jax = checks.any_rank(in_jax)
    mlir.register_lowering(primitive, mlir.lower_fun(in_jax, multiple_results=True))
    if in_core is not None and factors is not None:
        lowering = partial(_on_cpu, in_core, in_jax, factors)
        mlir.register_lowering(primitive, lowering, platform="cpu")
        _wants_devices(primitive)
    batching.primitive_batchers[primitive] = batch
    return primitive


def shaped(operands: Sequence[Any], *results: tuple[tuple[int, ...], Any]) -> list[Any]:
    """Abstract results, which vary over the mesh axes that an operand varies over (inside `shard_map`)."""

    first = max((getattr(a, "aval", a) for a in operands), key=lambda a: len(manual.varying(a)))
    if not manual.varying(first):
        return [jax.core.ShapedArray(shape, dtype) for shape, dtype in results]
    made = []
    for shape, dtype in results:
        whole = first.sharding.update(spec=PartitionSpec(*(None for _ in shape)))
        made.append(first.update(shape=shape, dtype=dtype, weak_type=False, sharding=whole))
    return made


def mapped_size(args: Sequence[Array], dims: Sequence[int | None]) -> int:
    """Length of the axis that `vmap` maps over."""
    return int(next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None))


def mapped_first(array: Array, dim: int | None, size: int) -> Array:
    """With the axis that `vmap` maps over in front, and one of that length where there was none."""
    return jnp.broadcast_to(array, (size, *array.shape)) if dim is None else jnp.moveaxis(array, dim, 0)


def _at_once(primitive: Primitive, *operands: Array, **parameters: Any) -> list[Array]:
    # An operation has no parts to be run one by one: under `jax.disable_jit` it is compiled too.
    with jax.disable_jit(False):
        return _compiled(primitive, *sorted(parameters.items()))(*operands)


@cache
def _compiled(primitive: Primitive, *parameters: tuple[str, Any]) -> Callable[..., list[Array]]:
    compiled: Callable[..., list[Array]] = jax.jit(partial(primitive.bind, **dict(parameters)))
    return compiled


def _wants_devices(primitive: Primitive) -> None:
    """Has JAX say at lowering which devices a computation is for, as `custom_partitioning` needs it.

    There is no public way to ask for it. Without it results are the same, with operands gathered on every
    device.
    """
    try:
        wanting = importlib.import_module("jax._src.dispatch").prim_requires_devices_during_lowering
    except (ImportError, AttributeError):
        return
    wanting.add(primitive)


def _on_cpu(
    in_core: Callable[..., list[Array]],
    in_jax: Callable[..., list[Array]],
    factors: Callable[..., Factors],
    context: Any,
    *operands: Any,
    **parameters: Any,
) -> Any:
    if not native.handlers().available:
        function: Callable[..., Any] = partial(in_jax, **parameters)
    elif _several_devices(context.module_context.axis_context):
        function = partial(_partitioned, in_core, factors, parameters)
    else:
        function = partial(in_core, over={}, **parameters)
    return mlir.lower_fun(function, multiple_results=True)(context, *operands)


def _several_devices(axis_context: Any) -> bool:
    """Whether XLA is to cut the computation: not where all mesh axes are the caller's (`shard_map`)."""
    if isinstance(axis_context, mlir.SPMDAxisContext):
        return set(axis_context.manual_axes) != set(axis_context.mesh.axis_names)
    return len(getattr(axis_context, "device_assignment", None) or ()) > 1


def _partitioned(
    in_core: Callable[..., list[Array]],
    factors: Callable[..., Factors],
    parameters: dict[str, Any],
    *operands: Array,
) -> Any:
    hang = factors(*operands, **parameters)

    def whole(*given: Array) -> list[Array]:
        return in_core(*given, over={}, **parameters)

    def partition(mesh: Any, arguments: Any, results: Any) -> Any:
        over = hang.cut(mesh, (*arguments, *results))

        def local(*given: Array) -> list[Array]:
            return in_core(*given, over=over, **parameters)

        def shardings(arrays: Sequence[Axes]) -> list[NamedSharding]:
            return [
                NamedSharding(mesh, PartitionSpec(*(over.get(_parts(a)[0]) for a in axes))) for axes in arrays
            ]

        return mesh, local, shardings(hang.results), tuple(shardings(hang.operands))

    split = custom_partitioning(whole)
    split.def_partition(partition, sharding_rule=hang.rule())
    return split(*operands)


def _parts(axis: str | tuple[str, str]) -> tuple[str, ...]:
    return axis if isinstance(axis, tuple) else (axis,)


def _mapping(axes: Axes) -> ArrayMapping:
    return ArrayMapping(*(CompoundFactor(*a) if isinstance(a, tuple) else a for a in axes))


def _spec(shape: Any) -> tuple[Any, ...]:
    entries = tuple(shape.sharding.spec)
    return entries + (None,) * (len(shape.shape) - len(entries))
