"""Softmax, log-softmax, log-sum-exp, top-k and their gradients as Triton kernels, on torch tensors.

    state.py                            the law: identity, push, merge, finish, as device functions
    tiles.py                            where the elements of rows lie in memory
    rows.py topk.py backward.py         the kernels
    exact.py exact_rows.py              the law whose bits depend on the elements alone, and its kernels
    launch.py exact_launch.py           sizes of blocks, warps and grids: tables, pure Python
    layout.py checks.py                 tensors seen as rows; arguments and what is wrong with them
    device.py                           where kernels run
    ops.py any_order.py                 the functions a caller uses

Importing this package raises MissingExtra, an ImportError, where triton or torch is not installed. The
tensors lie on a GPU; with TRITON_INTERPRET=1 in the environment before the import, on the CPU, for tests and
for counting bytes.
"""

from ..extras import require

for _name in ("triton", "torch"):
    require(_name, _name, "online_softmax.gpu")
