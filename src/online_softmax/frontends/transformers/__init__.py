"""Attention and loss of models of Hugging Face Transformers. Nothing is loaded before a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ... import extras

if TYPE_CHECKING:
    from .loss import LinearLoss

#: What `attn_implementation` calls it.
NAME: Final = "online_softmax"
#: The oldest release whose interface this is written for, and the first that may change it.
OLDEST, BEFORE = (5, 24), (6,)

__all__ = ["NAME", "linear_loss", "register"]


def register() -> None:
    """Adds the attention implementation "online_softmax" to Transformers, with its masks.

    After it, `from_pretrained(..., attn_implementation="online_softmax")`, `from_config` and
    `model.set_attn_implementation("online_softmax")` work for every model that calls its attention through
    the AttentionInterface of Transformers: encoders, decoders with caches, cross-attention. Grouped key
    heads, windows, softcaps, sinks, position biases and dropout are honoured; what would change the result
    and is not known raises NotImplementedError when the model is called. To call it again changes nothing.

    Raises: MissingExtra where Transformers or PyTorch is not installed; ImportError for a release of
        Transformers that is not supported.
    """
    _load()
    from transformers import AttentionInterface, AttentionMaskInterface

    from . import attention, masks

    AttentionInterface.register(NAME, attention.forward)
    AttentionMaskInterface.register(NAME, masks.mask)


def linear_loss(model: Any) -> LinearLoss:
    """Has a language model make its loss by `linear_cross_entropy`: no logits when it is called with labels.

    In force at once, until `.remove()` or the end of a `with`::

        with linear_loss(model):
            trainer.train()

        with linear_loss(model):
            model(ids, labels=ids).loss.backward()

    What the model itself does between its head and its loss is what is computed: the shift of the labels,
    ignore_index, num_items_in_batch, a factor on the logits, a softcap. Calls with labels return
    `logits=None`; calls without (generation among them) are as they were.

    Args:
        model: a PreTrainedModel whose output embedding is a torch.nn.Linear, tied or not, with or without
            bias, and whose forward takes `labels`.

    Raises: MissingExtra and ImportError as `register`; TypeError for a model that has no such head or labels;
        in a call, NotImplementedError where a model does something else to its logits.

    Cost: see `linear_cross_entropy`: the memory of the logits and of their gradient is saved, their product
        is made once more in the backward.
    """
    _load()
    from .loss import LinearLoss

    return LinearLoss(model)


def _load() -> None:
    extras.require("torch", "transformers", "a model of Transformers")
    found = extras.require("transformers", "transformers", "a model of Transformers")
    release = tuple(int(part) for part in found.__version__.split(".")[:2] if part.isdigit())
    if not OLDEST <= release < BEFORE:
        raise ImportError(
            f"transformers {found.__version__} is installed: {'.'.join(map(str, OLDEST))} or later, before "
            f"{'.'.join(map(str, BEFORE))}, would do: pip install 'online-softmax[transformers]'"
        )
