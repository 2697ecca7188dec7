"""The functions on JAX arrays: imported by `online_softmax.jax` alone."""
