(* float32: the exponential of the kernels is within 1.2 units in the last place of exp over its whole range, subnormal
   results included, and a term of order="any" within 8.0e-8 of a power of its base.

   Operation by operation as in native/exp.inl.h (exp_unshifted, degree 6) and native/exact.h (term_of), by the lemmas
   of ExpRounding.v. The tests find 1.0033 and 7.7e-8 (tests/test_exp.py, tests/test_exact_terms.py). *)
From Coq Require Import Reals List ZArith Lra Lia.
From Flocq Require Import Core.
From Interval Require Import Tactic.
From OnlineSoftmax Require Import Coefficients ExpPolynomial ExpRounding.
Open Scope R_scope.

Lemma exp2_whole n f : exp2 (IZR n + f) = bpow radix2 n * exp2 f.
Proof. unfold exp2. rewrite bpow_exp, <- exp_plus. f_equal. change (IZR radix2) with 2. ring. Qed.

Lemma exp_is_exp2 x : exp x = exp2 (x * log2e).
Proof. unfold exp2, log2e. f_equal. field. apply Rgt_not_eq. enclose. Qed.

(* ---- the exponential of the kernels *)

Definition kernel_whole (x : R) : R :=
  single (single (x * number f32_log2e_high + number f32_unshifted_magic) - number f32_unshifted_magic).
Definition kernel_fraction (x : R) : R :=
  single (x * number f32_log2e_low + single (x * number f32_log2e_high - kernel_whole x)).
(* The factor 2^n comes as two powers. *)
Definition kernel_exp (x : R) (first second : Z) : R :=
  single (single (evaluated single f32_degree_6 (kernel_fraction x) * bpow radix2 first) * bpow radix2 second).

Lemma kernel_reduction x :
  -104 <= x <= 89 ->
  exists n, kernel_whole x = IZR n /\ Rabs (IZR n) <= 151 /\
            Rabs (kernel_fraction x) <= 0.50001 /\ Rabs ((x * log2e - IZR n) - kernel_fraction x) <= 4.5e-8.
Proof.
  intros range.
  destruct (magic_chooses_a_nearest_whole 24 (-149) 12582912 (x * number f32_log2e_high)) as (n & whole & near);
    try lia; [write_numbers; write_out; split; enclose |].
  exists n. assert (kernel_whole x = IZR n) as chosen by exact whole.
  split; [exact chosen |]. unfold kernel_fraction. rewrite chosen. clear whole chosen. apply Rabs_le_inv in near.
  assert (range' : -151 <= IZR n <= 151).
  { write_numbers. lra. }
  pose proof (log2e_words_f32) as words. apply Rabs_le_inv in words.
  set (y := x * number f32_log2e_high - IZR n) in *.
  assert (first : Rabs (single y - y) <= / 67108864).
  { apply (single_error (-1) (/ 2)); [lia | reflexivity | reflexivity | apply Rabs_le; lra]. }
  apply Rabs_le_inv in first. set (r := single y) in *. clearbody r.
  assert (low : -2.1e-6 <= x * number f32_log2e_low <= 2.1e-6) by (clear words near; write_numbers; split; enclose).
  assert (second : Rabs (single (x * number f32_log2e_low + r) - (x * number f32_log2e_low + r)) <= / 33554432).
  { apply (single_error 0 1); [lia | reflexivity | reflexivity | apply Rabs_le; lra]. }
  apply Rabs_le_inv in second. set (f := single _) in *. clearbody f.
  assert (rest : -5e-14 <= x * (log2e - (number f32_log2e_high + number f32_log2e_low)) <= 5e-14).
  { set (d := log2e - _) in *. clearbody d. split; enclose. }
  split; [apply Rabs_le; lra |]. split; [apply Rabs_le; lra |].
  replace (x * log2e - IZR n) with (x * (log2e - (number f32_log2e_high + number f32_log2e_low)) +
                                    x * number f32_log2e_low + y) by (unfold y; ring).
  apply Rabs_le. lra.
Qed.

(* A number of the format times a power of two is one, unless it gets too small. *)
Lemma scaled_is_single x j k :
  is_single x -> bpow radix2 (j - 1) <= Rabs x -> (-149 <= j - 24 + k)%Z -> is_single (x * bpow radix2 k).
Proof.
  unfold is_single. intros there size room. pose proof (mag_ge_bpow radix2 x j size).
  assert (x <> 0) as other.
  { intros ->. rewrite Rabs_R0 in size. pose proof (bpow_gt_0 radix2 (j - 1)). lra. }
  set (m := Ztrunc (scaled_mantissa radix2 (FLT_exp (-149) 24) x)).
  set (e := cexp radix2 (FLT_exp (-149) 24) x).
  assert (x * bpow radix2 k = F2R (Float radix2 m (e + k))) as ->.
  { rewrite there at 1. unfold F2R. simpl Fnum. simpl Fexp. fold m e. rewrite bpow_plus. ring. }
  apply generic_format_F2R. intros _. 
  assert (F2R (Float radix2 m (e + k)) = x * bpow radix2 k) as ->.
  { rewrite there at 1. unfold F2R. simpl Fnum. simpl Fexp. fold m e. rewrite bpow_plus. ring. }
  unfold e, cexp, FLT_exp. rewrite mag_mult_bpow by assumption. lia.
Qed.

Lemma ulp_at_least y n : bpow radix2 (n - 1) <= y -> bpow radix2 (Z.max (n - 24) (-149)) <= ulp radix2 (FLT_exp (-149) 24) y.
Proof.
  intros size. assert (0 < y) by (pose proof (bpow_gt_0 radix2 (n - 1)); lra).
  rewrite ulp_neq_0 by (apply Rgt_not_eq; assumption). apply bpow_le. unfold cexp, FLT_exp.
  assert (n <= mag radix2 y)%Z by (apply mag_ge_bpow; rewrite Rabs_pos_eq; lra). lia.
Qed.

(* A value within 1.2 * 2^(j - 24) of 2^g, 2^g from 2^(j - 1) on, times 2^n, rounded once more where it is subnormal. *)
Lemma scaled_error p g first second n j :
  is_single p -> (0 <= j)%Z -> (-100 <= first)%Z -> (first + second = n)%Z ->
  bpow radix2 (j - 1) <= p <= bpow radix2 (j + 1) -> bpow radix2 (j - 1) <= exp2 g ->
  Rabs (p - exp2 g) <= 1.2 * bpow radix2 (j - 24) ->
  Rabs (single (single (p * bpow radix2 first) * bpow radix2 second) - exp2 (IZR n + g)) <=
  1.2 * ulp radix2 (FLT_exp (-149) 24) (exp2 (IZR n + g)).
Proof.
  intros there from_0 not_tiny together [above below] size near. rewrite exp2_whole.
  pose proof (bpow_gt_0 radix2 n) as scale. pose proof (bpow_gt_0 radix2 (j - 1)).
  assert (single (p * bpow radix2 first) * bpow radix2 second = p * bpow radix2 n) as ->.
  { rewrite <- together, bpow_plus. unfold single at 1, rounded.
    rewrite round_generic; [ring | typeclasses eauto |].
    apply scaled_is_single with j; [assumption | rewrite Rabs_pos_eq; lra | lia]. }
  assert (bpow radix2 (Z.max (n + j - 24) (-149)) <= ulp radix2 (FLT_exp (-149) 24) (bpow radix2 n * exp2 g)) as unit.
  { apply ulp_at_least. replace (n + j - 1)%Z with (n + (j - 1))%Z by ring. rewrite bpow_plus.
    apply Rmult_le_compat_l; lra. }
  assert (Rabs (p * bpow radix2 n - bpow radix2 n * exp2 g) <= 1.2 * bpow radix2 (n + j - 24)) as scaled.
  { replace (p * bpow radix2 n - bpow radix2 n * exp2 g) with ((p - exp2 g) * bpow radix2 n) by ring.
    rewrite Rabs_mult, (Rabs_pos_eq (bpow radix2 n)) by lra.
    replace (n + j - 24)%Z with (j - 24 + n)%Z by ring. rewrite bpow_plus, <- Rmult_assoc.
    apply Rmult_le_compat_r; lra. }
  destruct (Z_lt_le_dec (n + j) (-125)) as [small | normal].
  - assert (Rabs (single (p * bpow radix2 n) - p * bpow radix2 n) <= bpow radix2 (-150)) as last.
    { apply (single_error (-125) (bpow radix2 (-125))); [lia | reflexivity | reflexivity |].
      rewrite Rabs_pos_eq by (apply Rmult_le_pos; lra).
      apply Rle_trans with (bpow radix2 (j + 1) * bpow radix2 n); [apply Rmult_le_compat_r; lra |].
      rewrite <- bpow_plus. apply bpow_le. lia. }
    rewrite Z.max_r in unit by lia.
    assert (bpow radix2 (n + j - 24) <= bpow radix2 (-150)) by (apply bpow_le; lia).
    change (-149)%Z with (1 + -150)%Z in unit at 1. rewrite bpow_plus in unit. change (bpow radix2 1) with 2 in unit.
    pose proof (bpow_gt_0 radix2 (-150)).
    replace (single _ - _) with ((single (p * bpow radix2 n) - p * bpow radix2 n) +
                                 (p * bpow radix2 n - bpow radix2 n * exp2 g)) by ring.
    eapply Rle_trans; [apply Rabs_triang |]. lra.
  - rewrite Z.max_l in unit by lia. unfold single, rounded. rewrite round_generic; [lra | typeclasses eauto |].
    apply scaled_is_single with j; [assumption | rewrite Rabs_pos_eq; lra | lia].
Qed.

Lemma exp2_half g : -0.6 <= g -> bpow radix2 (0 - 1) <= exp2 g.
Proof.
  intros low. change (0 - 1)%Z with (-1)%Z. write_out.
  apply Rle_trans with (exp (-0.6 * ln 2)); [clear; enclose |]. unfold exp2.
  apply exp_le. apply Rmult_le_compat_r; [enclose | lra].
Qed.

Theorem kernel_exp_is_within_1_2_ulp x :
  -104 <= x <= 88.72 ->
  exists n, kernel_whole x = IZR n /\
            forall first second, (first + second = n)%Z -> (-100 <= first)%Z ->
            Rabs (kernel_exp x first second - exp x) <= 1.2 * ulp radix2 (FLT_exp (-149) 24) (exp x).
Proof.
  intros range. destruct (kernel_reduction x) as (n & whole & _ & reach & moved); [lra |].
  exists n. split; [exact whole |]. intros first second together not_tiny. unfold kernel_exp. clear whole.
  set (f := kernel_fraction x) in *. clearbody f.
  set (g := x * log2e - IZR n) in *. assert (exp x = exp2 (IZR n + g)) as ->.
  { rewrite exp_is_exp2. unfold g. f_equal. ring. }
  clearbody g. apply Rabs_le_inv in reach. pose proof moved as moved'. apply Rabs_le_inv in moved'.
  assert (is_single (evaluated single f32_degree_6 f)) as there by (apply generic_format_round; typeclasses eauto).
  pose proof (exp2_half g) as half. set (p := evaluated single f32_degree_6 f) in *.
  assert (exp2 g <= 1.43) as most by (unfold exp2; assert (g <= 0.51) by lra; enclose).
  destruct (Rle_lt_dec f 0) as [f_below | f_above].
  - pose proof (degree_6_below f g) as near. fold p in near.
    assert (Rabs (p - exp2 g) <= 1.2 * bpow radix2 (-24)) as off by (apply near; [lra | assumption]). clear near.
    apply scaled_error with (j := 0%Z); try assumption; [lia | | apply half; lra].
    apply Rabs_le_inv in off. simpl bpow in off |- *. 
    assert (0.51 <= exp2 g) by (unfold exp2; assert (-0.51 <= g) by lra; enclose). write_out. split; lra.
  - destruct (degree_6_from_1 f) as [from_1 is_1]; [lra |]. fold p in from_1, is_1.
    destruct (Rle_lt_dec 0 g) as [g_above | g_below].
    + pose proof (degree_6_above f g) as near. fold p in near.
      assert (Rabs (p - exp2 g) <= 1.2 * bpow radix2 (-23)) as off by (apply near; [lra | assumption]). clear near.
      apply scaled_error with (j := 1%Z); try assumption; [lia | |].
      * apply Rabs_le_inv in off. write_out. split; lra.
      * change (1 - 1)%Z with 0%Z. unfold exp2. replace (bpow radix2 0) with (exp 0) by apply exp_0. apply exp_le.
        apply Rmult_le_pos; [lra | enclose].
    + rewrite is_1 by lra. rewrite is_1 in there by lra.
      apply scaled_error with (j := 0%Z); [assumption | lia | assumption | assumption | write_out; lra | apply half; lra |].
      unfold exp2. assert (-4.5e-8 <= g <= 0) by lra. write_out. enclose.
Qed.

(* ---- a term of order="any" *)

Section ExactTerm.
Variable x : R.
Hypothesis x_is_single : is_single x.
Hypothesis x_is_plain : Rabs x <= number exact32_large.

(* In double, as term_of has it: the large number is 1.5 * 2^52. *)
Definition exact32_product : R := double (x * number exact32_log2e).
Definition exact32_whole : R := double (double (exact32_product + 6755399441055744) - 6755399441055744).
Definition exact32_fraction : R := single (double (exact32_product - exact32_whole)).
Definition exact32_value : R := evaluated single exact32_polynomial exact32_fraction.

(* The base of the terms: e^(1 - eta), by exact32_eta. *)
Definition exact32_power : R := exp (x * (number exact32_log2e * ln 2)).

Lemma product_parts : exists m e, x * number exact32_log2e = IZR m * bpow radix2 e /\ (Z.abs m < 2 ^ 48)%Z /\ (-172 <= e)%Z.
Proof.
  destruct (FLT_format_generic radix2 (-149) 24 x x_is_single) as [[m e] value size least]. simpl in size, least.
  exists (m * 12102203)%Z, (e + -23)%Z. split; [| split; [| lia]].
  - rewrite value, mult_IZR, bpow_plus. unfold F2R. simpl Fnum. simpl Fexp. write_numbers. write_out. field.
  - rewrite Z.abs_mul. change (Z.abs 12102203) with 12102203%Z. nia.
Qed.

(* A whole number of 2^e, of at most 53 bits. *)
Lemma parts_are_double m e : (Z.abs m < 2 ^ 53)%Z -> (-1074 <= e)%Z -> is_double (IZR m * bpow radix2 e).
Proof. intros size least. apply generic_format_FLT. exists (Float radix2 m e); [reflexivity | exact size | exact least]. Qed.

Lemma product_is_exact : exact32_product = x * number exact32_log2e.
Proof.
  destruct product_parts as (m & e & value & size & least). unfold exact32_product, double, rounded.
  apply round_generic; [typeclasses eauto |]. rewrite value. apply parts_are_double; lia.
Qed.

Lemma whole_is_near : exists n, exact32_whole = IZR n /\ Rabs (x * number exact32_log2e - IZR n) <= / 2.
Proof.
  unfold exact32_whole. rewrite product_is_exact.
  apply (magic_chooses_a_nearest_whole 53 (-1074) 6755399441055744); try lia.
  pose proof x_is_plain as size. apply Rabs_le_inv in size. write_numbers. write_out. lra.
Qed.

Lemma difference_is_exact n :
  Rabs (x * number exact32_log2e - IZR n) <= / 2 ->
  double (x * number exact32_log2e - IZR n) = x * number exact32_log2e - IZR n.
Proof.
  intros near. destruct product_parts as (m & e & value & size & least). rewrite value in *.
  apply round_generic; [typeclasses eauto |].
  destruct (Z_le_gt_dec 0 e) as [whole | fraction].
  - replace (IZR m * bpow radix2 e) with (IZR (m * 2 ^ e)) in *
      by (rewrite mult_IZR, (IZR_Zpower radix2) by lia; reflexivity).
    rewrite <- minus_IZR in *. apply Rabs_le_inv in near. apply whole_is_there; [lia | lia |].
    assert (-1 < m * 2 ^ e - n < 1)%Z by (split; apply lt_IZR; lra). lia.
  - destruct (Z_le_gt_dec (-52) e) as [coarse | fine].
    + replace (IZR m * bpow radix2 e - IZR n) with (IZR (m - n * 2 ^ (- e)) * bpow radix2 e) in *.
      * apply parts_are_double; [| lia]. apply lt_IZR. rewrite abs_IZR, (IZR_Zpower radix2) by lia.
        pose proof (bpow_gt_0 radix2 e). rewrite Rabs_mult, (Rabs_pos_eq (bpow radix2 e)) in near by lra.
        apply Rmult_lt_reg_r with (bpow radix2 e); [assumption |]. rewrite <- bpow_plus.
        apply Rle_lt_trans with (/ 2); [assumption |].
        apply Rlt_le_trans with (bpow radix2 0); [simpl bpow; lra | apply bpow_le; lia].
      * rewrite minus_IZR, mult_IZR, (IZR_Zpower radix2) by lia.
        rewrite Rmult_minus_distr_r, Rmult_assoc, <- bpow_plus. replace (- e + e)%Z with 0%Z by ring. simpl bpow. ring.
    + assert (Rabs (IZR m * bpow radix2 e) < bpow radix2 (-4)) as tiny.
      { pose proof (bpow_gt_0 radix2 e). rewrite Rabs_mult, (Rabs_pos_eq (bpow radix2 e)) by lra. rewrite <- abs_IZR.
        apply Rlt_le_trans with (bpow radix2 48 * bpow radix2 e).
        - apply Rmult_lt_compat_r; [assumption |]. rewrite <- (IZR_Zpower radix2) by lia. apply IZR_lt. exact size.
        - rewrite <- bpow_plus. apply bpow_le. lia. }
      apply Rabs_lt_inv in tiny. apply Rabs_le_inv in near. write_out.
      assert (n = 0)%Z as -> by (assert (-1 < n < 1)%Z by (split; apply lt_IZR; lra); lia).
      rewrite Rminus_0_r. apply parts_are_double; lia.
Qed.

Theorem exact32_term_is_near_a_power :
  exists n, exact32_whole = IZR n /\ Rabs (exact32_value * bpow radix2 n - exact32_power) <= 8.0e-8 * exact32_power.
Proof.
  destruct whole_is_near as (n & whole & near). exists n. split; [exact whole |].
  unfold exact32_value, exact32_fraction. rewrite whole, product_is_exact, difference_is_exact by assumption.
  set (g := x * number exact32_log2e - IZR n) in *.
  assert (exact32_power = bpow radix2 n * exp2 g) as ->.
  { rewrite <- exp2_whole. unfold exact32_power, exp2, g. f_equal. ring. }
  clearbody g. pose proof (bpow_gt_0 radix2 n).
  assert (moved : Rabs (single g - g) <= / 67108864).
  { apply (single_error (-1) (/ 2)); [lia | reflexivity | reflexivity | assumption]. }
  apply Rabs_le_inv in moved. apply Rabs_le_inv in near. set (f := single g) in *. clearbody f.
  assert (Rabs (evaluated single exact32_polynomial f - exp2 g) <= 8.0e-8 * exp2 g) as off.
  { remember (g - f) as t. assert (-/ 67108864 <= t <= / 67108864) by lra.
    destruct (Rle_lt_dec f 0) as [f_below | f_above].
    - assert (-0.50001 <= f <= 0) as reach by lra.
      destruct (degree_6_roundings_below f) as (e0 & e1 & e2 & e3 & value & size0 & size1 & size2 & size3); [lra |].
      apply (three_parts_relative _ _ f g _ _ _ _ exact32_approximates) with (2 := value); [apply Rabs_le; lra |].
      rewrite <- Heqt. interval with (i_bisect f, i_prec 60).
    - assert (0 <= f <= 0.50001) as reach by lra.
      destruct (degree_6_roundings_above f) as (e0 & e1 & e2 & e3 & value & size0 & size1 & size2 & size3); [lra |].
      apply (three_parts_relative _ _ f g _ _ _ _ exact32_approximates) with (2 := value); [apply Rabs_le; lra |].
      rewrite <- Heqt. interval with (i_bisect f, i_prec 60). }
  replace (evaluated _ _ _ * _ - _) with ((evaluated single exact32_polynomial f - exp2 g) * bpow radix2 n) by ring.
  rewrite Rabs_mult, (Rabs_pos_eq (bpow radix2 n)) by lra.
  rewrite (Rmult_comm (bpow radix2 n)), <- Rmult_assoc. apply Rmult_le_compat_r; lra.
Qed.
End ExactTerm.
