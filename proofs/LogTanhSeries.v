(* How near the series of the C++ files come to log and tanh where they are used, and the words of log(2) to log(2).

   By interval arithmetic on Taylor models (coq-interval), in exact arithmetic: roundings are not looked at. *)
From Coq Require Import Reals List ZArith Lra.
From Flocq Require Import Core.
From Interval Require Import Tactic.
From OnlineSoftmax Require Import Coefficients ExpPolynomial.
Import ListNotations.
Open Scope R_scope.

(* Logarithms (native/same_log.h): log(1 + s) - log(1 - s) = 2*s + 2*s^3 * (1/3 + s^2/5 + ...), |s| <= 3 - sqrt(8). *)
Theorem log_series_approximates s :
  Rabs s <= 0.171573 ->
  Rabs (2 * s + 2 * s * s ^ 2 * sum_of_powers log_series (s ^ 2) - (ln (1 + s) - ln (1 - s))) <= 1.0e-18.
Proof.
  intros reach. apply Rabs_le_inv in reach. spell log_series.
  interval with (i_bisect s, i_taylor s, i_degree 13, i_prec 70).
Qed.

Theorem log2_words : Rabs (ln 2 - (number log2_high + number log2_low)) <= 5.8e-34.
Proof. write_numbers. interval with (i_prec 160). Qed.

(* tanh near 0 (native/tanh.inl.h) by its series, x + x^3 * (-1/3 + ...). *)
Definition tanh_series (c : list (Z * Z)) (x : R) : R := x + x * x ^ 2 * sum_of_powers c (x ^ 2).
Definition tanh (x : R) : R := (exp (2 * x) - 1) / (exp (2 * x) + 1).

(* Without the quotient the arithmetic of intervals has less to do. *)
Lemma near_tanh y x bound :
  Rabs (y * (exp (2 * x) + 1) - (exp (2 * x) - 1)) <= bound -> Rabs (y - tanh x) <= bound.
Proof.
  intros near. pose proof (exp_pos (2 * x)) as positive. unfold tanh.
  replace (y - _) with ((y * (exp (2 * x) + 1) - (exp (2 * x) - 1)) * / (exp (2 * x) + 1)) by (field; lra).
  rewrite Rabs_mult, (Rabs_pos_eq (/ _)) by (left; apply Rinv_0_lt_compat; lra).
  pose proof (Rabs_pos (y * (exp (2 * x) + 1) - (exp (2 * x) - 1))).
  assert (/ (exp (2 * x) + 1) <= 1) by (rewrite <- Rinv_1; apply Rinv_le_contravar; lra).
  apply Rle_trans with (bound * 1); [apply Rmult_le_compat | ]; try lra.
  left. apply Rinv_0_lt_compat. lra.
Qed.

Theorem tanh_series_f32 x : Rabs x <= 0.5 -> Rabs (tanh_series f32_tanh_series x - tanh x) <= 4.0e-9.
Proof.
  intros reach. apply Rabs_le_inv in reach. apply near_tanh. unfold tanh_series. spell f32_tanh_series.
  interval with (i_bisect x, i_taylor x, i_degree 10, i_prec 45).
Qed.

Theorem tanh_series_f64 x : Rabs x <= 0.2 -> Rabs (tanh_series f64_tanh_series x - tanh x) <= 1.0e-18.
Proof.
  intros reach. apply Rabs_le_inv in reach. apply near_tanh. unfold tanh_series. spell f64_tanh_series.
  interval with (i_bisect x, i_taylor x, i_degree 13, i_prec 70).
Qed.
