"""Families of tests of which a sample runs, since the whole suite has to end within minutes.

Each case of these traces or compiles programs of its own for seconds, or goes through 2**31 elements, and
cases of a family go through the same code with other options or more of the same numbers. `make test
THOROUGH=1` runs all of them.
"""

from __future__ import annotations

from typing import Final

#: "file::function" -> of how many cases, in their order, the first one runs.
EVERY: Final = {
    "test_attention.py::test_more_tiles_and_segments_than_one": 2,
    "test_cli_bytes.py::test_an_svg_is_drawn": 2,
    "test_cli_bytes.py::test_an_svg_is_drawn_the_same_each_time": 2,
    "test_exact_builds.py::test_a_build_makes_the_golden_bits": 5,
    "test_exact_law.py::test_a_million_elements_in_any_parts": 3,
    "test_exact_law.py::test_all_permutations_and_trees_of_7_elements": 5,
    "test_exact_terms.py::test_float32_terms_are_within_delta_for_every_f": 64,
    "test_exhaustive.py::test_a_sample_of_every_way": 2,
    "test_gpu_compiled.py::test_every_kernel_is_there": 2,
    "test_gpu_compiled.py::test_nothing_spills": 2,
    "test_gpu_compiled.py::test_results_are_written_16_bytes_a_thread": 2,
    "test_gpu_compiled.py::test_tensors_are_read_16_bytes_a_thread": 2,
    "test_gpu_exact_compiled.py::test_aligned_tensors_are_read_16_bytes_a_thread": 2,
    "test_gpu_exact_compiled.py::test_constants_are_those_of_the_format": 2,
    "test_gpu_exact_compiled.py::test_every_kernel_is_there": 2,
    "test_gpu_exact_compiled.py::test_floats_meet_nothing_but_ieee_operations": 2,
    "test_gpu_exact_compiled.py::test_nothing_spills": 2,
    "test_gpu_exact_compiled.py::test_terms_are_fused_as_written": 2,
    "test_gpu_exact_golden.py::test_triton_makes_the_bits_of_the_golden_file": 3,
    "test_jax_attention.py::test_forward_mode_is_the_transpose_of_reverse_mode": 3,
    "test_jax_attention.py::test_gradients_are_those_of_the_numpy_face": 2,
    "test_jax_attention.py::test_output_and_lse_are_those_of_the_numpy_face": 3,
    "test_jax_attention.py::test_vmap_batches_every_argument_without_a_loop": 3,
    "test_jax_attention.py::test_without_handlers_the_same_law": 3,
    "test_jax_losses.py::test_loss_and_lse_are_those_of_the_numpy_face": 3,
    "test_jax_rows.py::test_axes_and_masks_as_jax_nn": 3,
    "test_jax_rows.py::test_logsumexp_with_weights_and_sign": 2,
    "test_jax_rows.py::test_values_are_within_the_bound": 2,
    "test_jax_sampling.py::test_tokens_are_those_of_numpys_function": 3,
    "test_jax_scans.py::test_derivatives_of_two_orders": 3,
    "test_jax_scans.py::test_special_values_are_those_of_numpys_functions": 2,
    "test_jax_scans.py::test_values_are_those_of_numpys_functions": 2,
    "test_jax_scans.py::test_vmap_and_jit_change_nothing": 2,
    "test_jax_settings.py::test_operands_of_different_ranks_are_the_library_s_own_affair": 3,
    "test_jax_settings.py::test_operations_run_where_jit_is_disabled": 3,
    "test_large.py::test_one_broadcast_row": 2,
    "test_torch_attention_derivatives.py::test_opcheck": 4,
    "test_torch_attention_derivatives.py::test_orders_of_torch_func": 3,
    "test_torch_attention_derivatives.py::test_second_derivatives": 3,
    "test_torch_attention_derivatives.py::test_vmap_over_each_option": 3,
    "test_torch_linear.py::test_derivatives_of_every_kind": 8,
    "test_torch_direct.py::test_compiled_autograd_takes_the_backward_whole": 2,
    "test_torch_losses.py::test_derivatives_of_every_kind": 4,
    "test_torch_ops.py::test_opcheck": 2,
    "test_torch_rows.py::test_gradcheck": 2,
    "test_torch_rows.py::test_transforms_and_their_compositions": 4,
    "test_torch_scans.py::test_compile": 2,
    "test_torch_scans.py::test_gradcheck": 2,
    "test_torch_scans.py::test_transforms": 3,
    "test_values.py::test_rows_past_the_caches": 3,
}
