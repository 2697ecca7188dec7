"""The functions of the package on tensors of PyTorch, by the same names: differentiable, in torch.compile,
torch.export and the transforms of torch.func, and as registered operations in torch.ops.online_softmax.

States that merge (`SoftmaxState`, `AttentionState`, `SampleState`) and windows over streams
(`SlidingLogSumExp`) take NumPy arrays: of a tensor in CPU memory, t.detach().numpy().
"""

from .frontends.torch import *  # noqa: F403
from .frontends.torch import __all__ as __all__
