"""Models of Hugging Face Transformers on the functions of this package.

`register()` adds the attention implementation "online_softmax"; `linear_loss(model)` has a language model
make its loss without its logits. Transformers and PyTorch are loaded by the first call, not by the import.
"""

from .frontends.transformers import NAME as NAME
from .frontends.transformers import linear_loss as linear_loss
from .frontends.transformers import register as register

__all__ = ["NAME", "linear_loss", "register"]
