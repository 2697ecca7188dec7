(* float64: a term of order="any" is within 2.2 * 2^-53 of a power of its base, |x| < 2^49 (native/exact.h, term_of).

   Beyond 2^49 the law reduces in two parts; that way is not looked at here. *)
From Coq Require Import Reals List ZArith Lra Lia.
From Flocq Require Import Core.
From Interval Require Import Tactic.
From OnlineSoftmax Require Import Coefficients ExpPolynomial ExpRounding.
Import ListNotations.
Open Scope R_scope.

(* What the roundings of the polynomial come to, but for the last. *)
Lemma exact64_roundings f :
  Rabs f <= 0.512 ->
  exists e1 e2 : R,
    fused_horner double exact64_polynomial f = sum_of_powers exact64_polynomial f + (e1 + f * e2) /\
    0 <= fused_horner double exact64_polynomial f <= 1 /\ - / 2 ^ 54 <= e1 <= / 2 ^ 54 /\ - / 2 ^ 53 <= e2 <= / 2 ^ 53.
Proof.
  intros reach. apply Rabs_le_inv in reach.
  let numbers := eval cbv in exact64_polynomial in change exact64_polynomial with numbers.
  cbn [fused_horner]. write_numbers.
  name_errors double double_error 54%Z [-31; -27; -23; -19; -15; -12; -9; -6; -4; -1; 0]%Z.
  exists error9, (error8 + f * (error7 + f * (error6 + f * (error5 + f * (error4 + f * (error3 + f * (error2 +
    f * (error1 + f * (error0 + f * error))))))))).
  split; [cbn [sum_of_powers]; write_numbers; subst; ring |]. repeat split; try lra; enclose.
Qed.

(* And with the last: of a value up to 1 below 0, up to 2 above. *)
Lemma exact64_value_roundings f :
  Rabs f <= 0.512 ->
  exists e0 e1 e2 : R,
    evaluated double exact64_polynomial f = polynomial exact64_polynomial f + (e0 + f * (e1 + f * e2)) /\
    - / 2 ^ 53 <= e0 <= / 2 ^ 53 /\ (f <= 0 -> - / 2 ^ 54 <= e0 <= / 2 ^ 54) /\
    - / 2 ^ 54 <= e1 <= / 2 ^ 54 /\ - / 2 ^ 53 <= e2 <= / 2 ^ 53.
Proof.
  intros reach. destruct (exact64_roundings f reach) as (e1 & e2 & value & range & size1 & size2).
  unfold evaluated. rewrite value in *. set (q := sum_of_powers _ f + _) in *.
  assert (q * f + 1 = polynomial exact64_polynomial f + f * (e1 + f * e2)) as whole
    by (unfold q, polynomial; ring).
  exists (double (q * f + 1) - (q * f + 1)), e1, e2. apply Rabs_le_inv in reach. clearbody q.
  split; [lra |]. split; [| split; [| tauto]].
  - apply Rabs_le_inv. apply (double_error 1 2); [lia | reflexivity | | enclose].
    simpl. lra.
  - intros below. apply Rabs_le_inv. apply (double_error 0 1); [lia | reflexivity | simpl; lra |].
    assert (-1 <= q * f <= 0) by (split; [enclose | nra]). apply Rabs_le. lra.
Qed.

Section ExactTerm.
Variable x : R.
Hypothesis x_is_near : Rabs x < number exact64_far.

(* As term_of has it; the large number is 1.5 * 2^52. *)
Definition exact64_whole : R := double (double (x * number exact64_log2e + 6755399441055744) - 6755399441055744).
Definition exact64_fraction : R :=
  double (x * number exact64_log2e_low + double (x * number exact64_log2e - exact64_whole)).
Definition exact64_value : R := evaluated double exact64_polynomial exact64_fraction.

(* The base of the terms: e^(1 - eta), |eta| <= 7.4e-34 by exact64_eta. *)
Definition exact64_power : R := exp (x * ((number exact64_log2e + number exact64_log2e_low) * ln 2)).

Theorem exact64_term_is_near_a_power :
  exists n, exact64_whole = IZR n /\
            Rabs (exact64_value * bpow radix2 n - exact64_power) <= 2.2 * bpow radix2 (-53) * exact64_power.
Proof.
  pose proof x_is_near as size. apply Rabs_lt_inv in size.
  destruct (magic_chooses_a_nearest_whole 53 (-1074) 6755399441055744 (x * number exact64_log2e)) as (n & whole & near);
    try lia; [write_numbers; write_out; lra |].
  exists n. assert (exact64_whole = IZR n) as chosen by exact whole. split; [exact chosen |].
  unfold exact64_value, exact64_fraction. rewrite chosen. clear whole chosen.
  set (y := x * number exact64_log2e - IZR n) in *.
  assert (low : -0.0115 <= x * number exact64_log2e_low <= 0.0115) by (clear near; write_numbers; split; enclose).
  set (g := x * number exact64_log2e_low + y).
  assert (exact64_power = bpow radix2 n * exp2 g) as ->.
  { unfold exact64_power, exp2, g, y. rewrite bpow_exp, <- exp_plus. f_equal. change (IZR radix2) with 2. ring. }
  assert (first : Rabs (double y - y) <= / 2 ^ 55).
  { apply (double_error (-1) (/ 2)); [lia | reflexivity | simpl; lra | exact near]. }
  apply Rabs_le_inv in first. apply Rabs_le_inv in near. set (r := double y) in *. clearbody r.
  assert (second : Rabs (double (x * number exact64_log2e_low + r) - (x * number exact64_log2e_low + r)) <= / 2 ^ 54).
  { apply (double_error 0 1); [lia | reflexivity | simpl; lra | apply Rabs_le; lra]. }
  apply Rabs_le_inv in second. set (f := double (_ + r)) in *.
  assert (moved : - 3 * / 2 ^ 55 <= g - f <= 3 * / 2 ^ 55) by (unfold g; lra).
  assert (Rabs f <= 0.512) as reach by (apply Rabs_le; lra).
  assert (Rabs f <= 0.516) as reach' by lra.
  clearbody f. pose proof (bpow_gt_0 radix2 n).
  assert (Rabs (evaluated double exact64_polynomial f - exp2 g) <= 2.2 * bpow radix2 (-53) * exp2 g) as off.
  { destruct (exact64_value_roundings f reach) as (e0 & e1 & e2 & value & size0 & below & size1 & size2).
    apply (three_parts_relative _ _ f g _ _ _ _ exact64_approximates) with (2 := value); [exact reach' |].
    change (bpow radix2 (-53)) with (/ IZR (2 ^ 53)). apply Rabs_le_inv in reach. remember (g - f) as t. clear Heqt.
    destruct (Rle_lt_dec f 0) as [f_below | f_above].
    - specialize (below f_below). assert (-0.512 <= f <= 0) as reach0 by lra.
      interval with (i_bisect f, i_prec 90).
    - clear below. assert (0 <= f <= 0.512) as reach0 by lra.
      interval with (i_bisect f, i_prec 90). }
  replace (evaluated _ _ _ * _ - _) with ((evaluated double exact64_polynomial f - exp2 g) * bpow radix2 n) by ring.
  rewrite Rabs_mult, (Rabs_pos_eq (bpow radix2 n)) by lra.
  rewrite (Rmult_comm (bpow radix2 n)), <- Rmult_assoc. apply Rmult_le_compat_r; lra.
Qed.
End ExactTerm.
