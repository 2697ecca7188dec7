"""Benchmarks: ratios to peers and to this machine's own ceilings, measured in the same rounds.

    python -m benchmarks.bench          the table of work in cases.py          -> results/rows.json
    python -m benchmarks.small_calls    one call on 128 elements               -> results/small_calls.json
    python -m benchmarks.busy_core      while another process holds a core     -> results/busy_core.json
    python -m benchmarks.choice         predicted against measured best        -> results/choice.json
    python -m benchmarks.attention      attention against PyTorch's            -> results/attention.json
    python -m benchmarks.attention_accuracy  its errors            -> results/attention_accuracy.json
    python -m benchmarks.attention_orders  what order="any" costs  -> results/attention_orders.json
    python -m benchmarks.losses         the losses, their memory and errors    -> results/losses.json
    python -m benchmarks.products       matrix products of the losses          -> results/products.json
    python -m benchmarks.jax_rows       ours on JAX arrays against jax.nn      -> results/jax.json
    python -m benchmarks.torch_calls    one call on tensors                    -> results/torch_calls.json
    python -m benchmarks.training       training steps of two models           -> results/training.json
    python -m benchmarks.count          the bytes of the kernels, by cachegrind -> results/count.json
    python -m benchmarks.exact_accuracy  errors of results in any order -> results/exact_accuracy.json
    python -m benchmarks.table          the Markdown table and the figure, from those files

This file runs before NumPy, OpenBLAS, OpenMP and XLA are loaded, and they read the environment once: so the
environment of a benchmark is set here.
"""

import os

THREADS = 2

# A kernel of OpenBLAS forced from outside would slow the peers that rest on NumPy and SciPy.
for _name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    os.environ.pop(_name, None)
os.environ["OMP_NUM_THREADS"] = str(THREADS)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Some peers size their pools by the CPUs they may use; on a larger machine this holds all of them
# to the same number.
if hasattr(os, "sched_setaffinity"):
    CPUS = sorted(os.sched_getaffinity(0))[:THREADS]
    os.sched_setaffinity(0, CPUS)
else:
    CPUS = list(range(THREADS))
