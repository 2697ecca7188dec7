(* What floating point makes of the exponentials: reduction and polynomial with every rounding in it (Flocq).

   The kernels take y = x*log2(e) apart into a whole n and a fraction f by adding and subtracting a large number, and
   evaluate the polynomial by Horner's rule with one fused multiply-add, hence one rounding, a step. Here: the large
   number does choose a nearest whole number; how to name the error of each step; the roundings of float32's degree 6.
   What follows of the kernels and of order="any" is in ExpFloat32.v and ExpFloat64.v.

   Rounding is to nearest, ties to even, in the formats of IEEE 754 with their subnormal numbers. Overflow is left out:
   nothing here is near it. *)
From Coq Require Import Reals List ZArith Lra Lia.
From Flocq Require Import Core.
From Interval Require Import Tactic.
From OnlineSoftmax Require Import Coefficients ExpPolynomial.
Import ListNotations.
Open Scope R_scope.

(* Rounding to p bits, numbers being multiples of 2^least. *)
Definition rounded (p least : Z) (x : R) : R := round radix2 (FLT_exp least p) ZnearestE x.
Definition single : R -> R := rounded 24 (-149).
Definition double : R -> R := rounded 53 (-1074).
Definition is_single (x : R) : Prop := generic_format radix2 (FLT_exp (-149) 24) x.
Definition is_double (x : R) : Prop := generic_format radix2 (FLT_exp (-1074) 53) x.

Global Instance p24 : Prec_gt_0 24. Proof. reflexivity. Qed.
Global Instance p53 : Prec_gt_0 53. Proof. reflexivity. Qed.

(* ---- one rounding *)

Lemma rounding_error p least k x :
  (0 < p)%Z -> (least <= k - p)%Z -> Rabs x <= bpow radix2 k ->
  Rabs (rounded p least x - x) <= bpow radix2 (k - p - 1).
Proof.
  intros positive normal size. unfold rounded.
  assert (Prec_gt_0 p) by assumption.
  destruct (Req_dec x 0) as [-> | other].
  { rewrite round_0 by typeclasses eauto. rewrite Rminus_0_r, Rabs_R0. apply bpow_ge_0. }
  destruct (Rle_lt_or_eq_dec _ _ size) as [below | same].
  - eapply Rle_trans; [apply error_le_half_ulp; typeclasses eauto |].
    rewrite ulp_neq_0 by assumption. replace (/ 2) with (bpow radix2 (-1)) by (simpl; lra).
    rewrite <- bpow_plus. apply bpow_le. unfold cexp, FLT_exp.
    pose proof (mag_le_bpow radix2 x k other below). lia.
  - assert (generic_format radix2 (FLT_exp least p) x) as there.
    { assert (generic_format radix2 (FLT_exp least p) (bpow radix2 k)) as power
        by (apply generic_format_bpow; unfold FLT_exp; lia).
      destruct (Rcase_abs x) as [negative | nonnegative].
      - rewrite <- (Ropp_involutive x). apply generic_format_opp.
        rewrite <- (Rabs_left x), same by assumption. exact power.
      - rewrite <- (Rabs_pos_eq x), same by lra. exact power. }
    rewrite round_generic by (typeclasses eauto || assumption).
    unfold Rminus; rewrite Rplus_opp_r, Rabs_R0. apply bpow_ge_0.
Qed.

(* The same with numbers written out, as interval arithmetic takes them. *)
Lemma single_error k size bound x :
  (-125 <= k)%Z -> size = bpow radix2 k -> bound = bpow radix2 (k - 25) -> Rabs x <= size ->
  Rabs (single x - x) <= bound.
Proof.
  intros normal -> -> small. replace (k - 25)%Z with (k - 24 - 1)%Z by lia.
  apply rounding_error; [reflexivity | lia | assumption].
Qed.

Lemma double_error k size bound x :
  (-1021 <= k)%Z -> size = bpow radix2 k -> bound = bpow radix2 (k - 54) -> Rabs x <= size ->
  Rabs (double x - x) <= bound.
Proof.
  intros normal -> -> small. replace (k - 54)%Z with (k - 53 - 1)%Z by lia.
  apply rounding_error; [reflexivity | lia | assumption].
Qed.

(* ---- a nearest whole number, by adding and subtracting a large one *)

Lemma whole_is_there p least z :
  (0 < p)%Z -> (least <= 0)%Z -> (Z.abs z <= 2 ^ p)%Z -> generic_format radix2 (FLT_exp least p) (IZR z).
Proof.
  intros positive normal size. assert (Prec_gt_0 p) by assumption.
  destruct (Z.eq_dec (Z.abs z) (2 ^ p)) as [same | other].
  - assert (generic_format radix2 (FLT_exp least p) (IZR (2 ^ p))) as power.
    { rewrite (IZR_Zpower radix2) by lia. apply generic_format_bpow. unfold FLT_exp. lia. }
    destruct (Z.abs_eq_or_opp z) as [e | e]; rewrite e in same.
    + rewrite same. exact power.
    + replace z with (- 2 ^ p)%Z by lia. rewrite opp_IZR. apply generic_format_opp. exact power.
  - apply generic_format_FLT. exists (Float radix2 z 0); unfold F2R; simpl; [lra | | lia].
    change (Z.abs z < 2 ^ p)%Z. lia.
Qed.

Lemma rounded_to_whole p least v :
  (1 < p)%Z -> (least <= 0)%Z -> bpow radix2 (p - 1) <= v < bpow radix2 p -> rounded p least v = IZR (ZnearestE v).
Proof.
  intros positive normal [above below]. pose proof (bpow_gt_0 radix2 (p - 1)).
  assert (cexp radix2 (FLT_exp least p) v = 0%Z) as unit.
  { unfold cexp. rewrite (mag_unique radix2 v p).
    - unfold FLT_exp. lia.
    - rewrite Rabs_pos_eq by lra. lra. }
  unfold rounded, round, F2R, scaled_mantissa. rewrite unit. simpl. now rewrite !Rmult_1_r.
Qed.

(* fma(x, log2e, magic) - magic is exact and chooses a whole number nearest to x*log2e. *)
Theorem magic_chooses_a_nearest_whole p least magic y :
  (1 < p)%Z -> (least <= 0)%Z -> (0 <= magic <= 2 ^ p)%Z ->
  bpow radix2 (p - 1) <= y + IZR magic < bpow radix2 p ->
  exists n, rounded p least (rounded p least (y + IZR magic) - IZR magic) = IZR n /\ Rabs (y - IZR n) <= / 2.
Proof.
  intros positive normal [sign size] range. exists (ZnearestE (y + IZR magic) - magic)%Z.
  pose proof (Znearest_half (fun x => negb (Z.even x)) (y + IZR magic)) as near.
  rewrite (rounded_to_whole p least (y + IZR magic)) by assumption. rewrite <- minus_IZR. split.
  - assert (0 <= ZnearestE (y + IZR magic) <= 2 ^ p)%Z.
    { pose proof (bpow_gt_0 radix2 (p - 1)). apply Rabs_le_inv in near.
      split; apply Z.lt_succ_r, lt_IZR.
      - rewrite succ_IZR. simpl. lra.
      - rewrite succ_IZR, (IZR_Zpower radix2) by lia. lra. }
    assert (Prec_gt_0 p) by (red; lia).
    unfold rounded. apply round_generic; [typeclasses eauto |]. apply whole_is_there; lia.
  - rewrite minus_IZR. replace (y - (IZR (ZnearestE (y + IZR magic)) - IZR magic))
      with (y + IZR magic - IZR (ZnearestE (y + IZR magic))) by ring. exact near.
Qed.

(* ---- polynomials by Horner's rule, a rounding a step *)

(* fma(fma(c[last], f, c[last - 1]), f, ...), down to c[0]. *)
Fixpoint fused_horner (round : R -> R) (c : list (Z * Z)) (f : R) : R :=
  match c with
  | [] => 0
  | [k] => number k
  | k :: rest => round (fused_horner round rest f * f + number k)
  end.

Definition evaluated (round : R -> R) (c : list (Z * Z)) (f : R) : R := round (fused_horner round c f * f + 1).

(* Powers of two, written out. *)
Ltac write_out :=
  simpl bpow in *;
  repeat match goal with
         | |- context [Z.pow_pos 2 ?k] => let v := eval vm_compute in (Z.pow_pos 2 k) in change (Z.pow_pos 2 k) with v
         | H : context [Z.pow_pos 2 ?k] |- _ =>
             let v := eval vm_compute in (Z.pow_pos 2 k) in change (Z.pow_pos 2 k) with v in H
         end.

Lemma named_error (round : R -> R) x bound :
  Rabs (round x - x) <= bound -> exists value error, round x = value /\ value = x + error /\ - bound <= error <= bound.
Proof.
  intros near. apply Rabs_le_inv in near. exists (round x), (round x - x). repeat split; lra.
Qed.

(* 2^k as interval arithmetic takes it. *)
Ltac power_of_2 k :=
  lazymatch k with
  | Zneg ?m => let v := eval vm_compute in (2 ^ Zpos m)%Z in constr:(/ IZR v)
  | _ => let v := eval vm_compute in (2 ^ k)%Z in constr:(IZR v)
  end.

(* Name the innermost rounding's result, and its error: at most 2^(k - bits) for a number up to 2^k in size. *)
Ltac name_error round lemma bits k :=
  match goal with
  | |- context [round ?e] =>
      lazymatch e with context [round _] => fail | _ => idtac end;
      let value := fresh "value" in let error := fresh "error" in let same := fresh "same" in
      let meaning := fresh "meaning" in let bound := fresh "bound" in let range := fresh "range" in
      let size := power_of_2 k in
      let small := let less := eval vm_compute in (k - bits)%Z in power_of_2 less in
      destruct (named_error round e small) as (value & error & same & meaning & bound);
      [ apply (lemma k size); [lia | reflexivity | reflexivity | enclose] |];
      rewrite same; clear same;
      interval_intro (e + error) with (i_prec 60) as range; rewrite <- meaning in range
  end.

Ltac name_errors round lemma bits sizes :=
  lazymatch sizes with
  | nil => idtac
  | ?k :: ?rest => name_error round lemma bits k; name_errors round lemma bits rest
  end.

Ltac spell_evaluated c :=
  unfold evaluated; let numbers := eval cbv in c in change c with numbers; cbn [fused_horner]; write_numbers.

(* 2^f taken for 2^g: what the rounding of the reduced argument comes to. *)
Lemma exp2_moved f g : exp2 f - exp2 g = exp2 f * (1 - exp ((g - f) * ln 2)).
Proof.
  unfold exp2. rewrite Rmult_minus_distr_l, <- exp_plus, Rmult_1_r. do 2 f_equal. ring.
Qed.

(* Errors of approximation, of the roundings (`errors`, in powers of f) and of f itself add up. *)
Lemma three_parts y c f g errors reach a b :
  approximates c reach a -> Rabs f <= reach -> y = polynomial c f + errors ->
  a * exp2 f + Rabs (errors + exp2 f * (1 - exp ((g - f) * ln 2))) <= b -> Rabs (y - exp2 g) <= b.
Proof.
  intros good within -> small. apply good in within. rewrite <- exp2_moved in small.
  replace (polynomial c f + errors - exp2 g) with (polynomial c f - exp2 f + (errors + (exp2 f - exp2 g))) by ring.
  eapply Rle_trans; [apply Rabs_triang |]. lra.
Qed.

(* Of terms relative to 2^g the same by quotients. *)
Lemma three_parts_relative y c f g errors reach a b :
  approximates c reach a -> Rabs f <= reach -> y = polynomial c f + errors ->
  (a + Rabs errors * exp (- (f * ln 2))) * exp (- ((g - f) * ln 2)) + Rabs (exp (- ((g - f) * ln 2)) - 1) <= b ->
  Rabs (y - exp2 g) <= b * exp2 g.
Proof.
  intros good within -> small. apply relative_of_quotient. apply good, quotient_of_relative in within.
  set (q := polynomial c f * exp (- (f * ln 2)) - 1) in *.
  replace ((polynomial c f + errors) * exp (- (g * ln 2)) - 1)
    with ((q + errors * exp (- (f * ln 2))) * exp (- ((g - f) * ln 2)) + (exp (- ((g - f) * ln 2)) - 1)).
  - eapply Rle_trans; [apply Rabs_triang |]. eapply Rle_trans; [| exact small]. apply Rplus_le_compat_r.
    rewrite Rabs_mult, (Rabs_pos_eq (exp (- ((g - f) * ln 2)))) by (left; apply exp_pos).
    apply Rmult_le_compat_r; [left; apply exp_pos |].
    eapply Rle_trans; [apply Rabs_triang |]. apply Rplus_le_compat; [assumption |].
    rewrite Rabs_mult, (Rabs_pos_eq (exp (- (f * ln 2)))) by (left; apply exp_pos). lra.
  - unfold q. replace (- (g * ln 2)) with (- (f * ln 2) + - ((g - f) * ln 2)) by ring. rewrite exp_plus. ring.
Qed.

(* The roundings of degree 6 on either side of 0: their sizes. *)
Lemma degree_6_roundings_below f :
  -0.50002 <= f <= 0 ->
  exists e0 e1 e2 e3 : R,
    evaluated single f32_degree_6 f = polynomial f32_degree_6 f + (e0 + f * (e1 + f * (e2 + f * e3))) /\
    - / 33554432 <= e0 <= / 33554432 /\ - / 33554432 <= e1 <= / 33554432 /\
    - / 134217728 <= e2 <= / 134217728 /\ - / 400000000 <= e3 <= / 400000000.
Proof.
  intros reach. spell_evaluated f32_degree_6.
  name_errors single single_error 25%Z [-9; -6; -4; -2; 0; 0]%Z.
  exists error4, error3, error2, (error1 + f * (error0 + f * error)).
  split; [spell f32_degree_6; subst; ring |]. repeat split; try lra; enclose.
Qed.

Lemma degree_6_roundings_above f :
  0 <= f <= 0.50002 ->
  exists e0 e1 e2 e3 : R,
    evaluated single f32_degree_6 f = polynomial f32_degree_6 f + (e0 + f * (e1 + f * (e2 + f * e3))) /\
    - / 16777216 <= e0 <= / 16777216 /\ - / 33554432 <= e1 <= / 33554432 /\
    - / 67108864 <= e2 <= / 67108864 /\ - / 400000000 <= e3 <= / 400000000.
Proof.
  intros reach. spell_evaluated f32_degree_6.
  name_errors single single_error 25%Z [-9; -6; -4; -1; 0; 1]%Z.
  exists error4, error3, error2, (error1 + f * (error0 + f * error)).
  split; [spell f32_degree_6; subst; ring |]. repeat split; try lra; enclose.
Qed.

(* Up to 2^f the value is not below 1, and near 0 it is 1: rounding is monotone and 1 is a number of the format. *)
Lemma degree_6_from_1 f :
  0 <= f <= 0.50002 -> 1 <= evaluated single f32_degree_6 f /\ (f <= 4.5e-8 -> evaluated single f32_degree_6 f = 1).
Proof.
  intros reach. assert (one : generic_format radix2 (FLT_exp (-149) 24) 1) by (apply (whole_is_there 24 (-149) 1); lia).
  unfold evaluated. set (q := fused_horner single f32_degree_6 f).
  assert (0 <= q <= 1) as range.
  { unfold q. clear q. spell_evaluated f32_degree_6.
    name_errors single single_error 25%Z [-9; -6; -4; -1; 0]%Z. split; enclose. }
  assert (0 <= q * f) by (apply Rmult_le_pos; lra). split.
  - unfold single, rounded. rewrite <- (round_generic radix2 (FLT_exp (-149) 24) ZnearestE 1 one) at 1.
    apply round_le; [typeclasses eauto .. | lra].
  - intros small. assert (q * f <= 4.5e-8) by (replace 4.5e-8 with (1 * 4.5e-8) by ring; apply Rmult_le_compat; lra).
    assert (near : q * f + 1 < (1 + succ radix2 (FLT_exp (-149) 24) 1) / 2).
    { rewrite succ_eq_pos by lra. change 1 with (bpow radix2 0) at 4. rewrite ulp_bpow.
      change (FLT_exp (-149) 24 (0 + 1)) with (-23)%Z. write_out. lra. }
    apply Rle_antisym.
    + apply (round_N_le_midp radix2 (FLT_exp (-149) 24)); assumption || typeclasses eauto.
    + unfold single, rounded. rewrite <- (round_generic radix2 (FLT_exp (-149) 24) ZnearestE 1 one) at 1.
      apply round_le; [typeclasses eauto .. | lra].
Qed.

Lemma degree_6_below f g :
  -0.50002 <= f <= 0 -> Rabs (g - f) <= 4.5e-8 ->
  Rabs (evaluated single f32_degree_6 f - exp2 g) <= 1.2 * bpow radix2 (-24).
Proof.
  intros reach moved.
  destruct (degree_6_roundings_below f reach) as (e0 & e1 & e2 & e3 & value & size0 & size1 & size2 & size3).
  apply (three_parts _ _ f g _ _ _ _ degree_6_approximates) with (2 := value); [apply Rabs_le; lra |].
  unfold exp2. remember (g - f) as t. apply Rabs_le_inv in moved. write_out. interval with (i_bisect f, i_prec 60).
Qed.

Lemma degree_6_above f g :
  0 <= f <= 0.50002 -> Rabs (g - f) <= 4.5e-8 ->
  Rabs (evaluated single f32_degree_6 f - exp2 g) <= 1.2 * bpow radix2 (-23).
Proof.
  intros reach moved.
  destruct (degree_6_roundings_above f reach) as (e0 & e1 & e2 & e3 & value & size0 & size1 & size2 & size3).
  apply (three_parts _ _ f g _ _ _ _ degree_6_approximates) with (2 := value); [apply Rabs_le; lra |].
  unfold exp2. remember (g - f) as t. apply Rabs_le_inv in moved. write_out. interval with (i_bisect f, i_prec 60).
Qed.
