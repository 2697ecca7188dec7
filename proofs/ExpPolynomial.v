(* How near the polynomials of the C++ kernels come to 2^f, and the words of log2(e) to that number.

   The kernels compute exp(x - m) as 2^n * 2^f, n whole and f between -1/2 and 1/2, and 2^f as 1 + f * q(f). Here is
   what that loses in exact arithmetic, for each polynomial there is; ExpRounding.v adds what floating point loses.
   All constants are those of the C++ files (Coefficients.v). Bounds by interval arithmetic on Taylor models
   (coq-interval), so this file uses Coq's primitive integers.

   Reduced arguments reach 0.50002 (0.516 in order="any" of float64), for n is chosen by one word of log2(e). *)
From Coq Require Import Reals List ZArith Lra.
From Flocq Require Import Core.
From Interval Require Import Tactic.
From OnlineSoftmax Require Import Coefficients.
Import ListNotations.
Open Scope R_scope.

(* The number that (m, e) stands for: m * 2^e. *)
Definition number (x : Z * Z) : R :=
  match snd x with
  | Z0 => IZR (fst x)
  | Zpos e => IZR (fst x * 2 ^ Zpos e)
  | Zneg e => IZR (fst x) / IZR (2 ^ Zpos e)
  end.

(* c1 + c2*f + c3*f^2 + ... *)
Fixpoint sum_of_powers (c : list (Z * Z)) (f : R) : R :=
  match c with
  | [] => 0
  | k :: rest => number k + f * sum_of_powers rest f
  end.

Definition polynomial (c : list (Z * Z)) (f : R) : R := 1 + f * sum_of_powers c f.
Definition exp2 (f : R) : R := exp (f * ln 2).

(* The polynomial is 2^f but for a relative error of at most `bound`, wherever |f| <= reach. *)
Definition approximates (c : list (Z * Z)) (reach bound : R) : Prop :=
  forall f, Rabs f <= reach -> Rabs (polynomial c f - exp2 f) <= bound * exp2 f.

Lemma exp2_positive f : 0 < exp2 f.
Proof. apply exp_pos. Qed.

Lemma exp2_opposite f : exp2 f * exp (- (f * ln 2)) = 1.
Proof. unfold exp2. rewrite <- exp_plus. replace (f * ln 2 + - (f * ln 2)) with 0 by ring. apply exp_0. Qed.

(* Relative errors are small where the quotient is near 1. *)
Lemma relative_of_quotient y f bound :
  Rabs (y * exp (- (f * ln 2)) - 1) <= bound -> Rabs (y - exp2 f) <= bound * exp2 f.
Proof.
  intros near. pose proof (exp2_positive f) as positive.
  replace (y - exp2 f) with ((y * exp (- (f * ln 2)) - 1) * exp2 f).
  - rewrite Rabs_mult, (Rabs_pos_eq (exp2 f)) by lra. apply Rmult_le_compat_r; lra.
  - transitivity (y * (exp2 f * exp (- (f * ln 2))) - exp2 f); [ring | rewrite exp2_opposite; ring].
Qed.

Lemma quotient_of_relative y f bound :
  Rabs (y - exp2 f) <= bound * exp2 f -> Rabs (y * exp (- (f * ln 2)) - 1) <= bound.
Proof.
  intros near. pose proof (exp2_positive f) as positive. pose proof (exp2_opposite f) as inverse.
  pose proof (exp_pos (- (f * ln 2))) as small.
  replace (y * exp (- (f * ln 2)) - 1) with ((y - exp2 f) * exp (- (f * ln 2)))
    by (rewrite <- inverse; ring).
  rewrite Rabs_mult, (Rabs_pos_eq (exp _)) by lra.
  apply Rle_trans with (bound * exp2 f * exp (- (f * ln 2))).
  - apply Rmult_le_compat_r; lra.
  - rewrite Rmult_assoc, inverse. lra.
Qed.

(* Write numbers out, and lists of coefficients. *)
Ltac write_numbers :=
  repeat match goal with
         | |- context [number ?x] =>
             lazymatch x with (_, _) => fail | _ => let pair := eval cbv in x in change (number x) with (number pair) end
         | H : context [number ?x] |- _ =>
             lazymatch x with
             | (_, _) => fail
             | _ => let pair := eval cbv in x in change (number x) with (number pair) in H
             end
         end;
  unfold number in *; cbn [fst snd] in *;
  repeat match goal with
         | |- context [(?b ^ ?k)%Z] => let v := eval vm_compute in (b ^ k)%Z in change (b ^ k)%Z with v
         | H : context [(?b ^ ?k)%Z] |- _ => let v := eval vm_compute in (b ^ k)%Z in change (b ^ k)%Z with v in H
         end;
  repeat match goal with
         | |- context [IZR (Zpos ?m * Zpos ?k)] =>
             let v := eval vm_compute in (Zpos m * Zpos k)%Z in change (Zpos m * Zpos k)%Z with v
         | H : context [IZR (Zpos ?m * Zpos ?k)] |- _ =>
             let v := eval vm_compute in (Zpos m * Zpos k)%Z in change (Zpos m * Zpos k)%Z with v in H
         end.

Ltac spell c :=
  let numbers := eval cbv in c in change c with numbers;
  unfold polynomial; cbn [sum_of_powers]; write_numbers.

(* Bounds without Taylor models. A precision is named so that whole numbers do it, and no machine's floating point. *)
Ltac enclose := interval with (i_prec 60).

Ltac by_taylor c degree precision :=
  let f := fresh "f" in let reach := fresh "reach" in
  intros f reach; apply relative_of_quotient; apply Rabs_le_inv in reach; spell c;
  interval with (i_bisect f, i_taylor f, i_degree degree, i_prec precision).

Theorem degree_3_approximates : approximates f32_degree_3 0.50002 1.03e-4.
Proof. by_taylor f32_degree_3 6%nat 30%positive. Qed.

Theorem degree_4_approximates : approximates f32_degree_4 0.50002 2.9e-6.
Proof. by_taylor f32_degree_4 7%nat 40%positive. Qed.

Theorem degree_5_approximates : approximates f32_degree_5 0.50002 9.5e-8.
Proof. by_taylor f32_degree_5 8%nat 40%positive. Qed.

Theorem degree_6_approximates : approximates f32_degree_6 0.50002 3.1e-9.
Proof. by_taylor f32_degree_6 9%nat 45%positive. Qed.

Theorem degree_7_approximates : approximates f64_degree_7 0.50002 1.15e-10.
Proof. by_taylor f64_degree_7 8%nat 50%positive. Qed.

Theorem degree_11_approximates : approximates f64_degree_11 0.50002 2.1e-17.
Proof. by_taylor f64_degree_11 12%nat 70%positive. Qed.

(* The frozen polynomials of order="any". That of float32 is the kernels' own. *)
Theorem exact32_approximates : approximates exact32_polynomial 0.50002 3.1e-9.
Proof. first [exact degree_6_approximates | by_taylor exact32_polynomial 9%nat 45%positive]. Qed.

Theorem exact64_approximates : approximates exact64_polynomial 0.516 2.1e-17.
Proof. by_taylor exact64_polynomial 13%nat 75%positive. Qed.

Definition log2e : R := / ln 2.

(* Two words of log2(e): what they leave out. *)
Theorem log2e_words_f32 : Rabs (log2e - (number f32_log2e_high + number f32_log2e_low)) <= 4.3e-16.
Proof. unfold log2e. write_numbers. interval with (i_prec 80). Qed.

Theorem log2e_words_f64 : Rabs (log2e - (number f64_log2e_high + number f64_log2e_low)) <= 1.1e-33.
Proof. unfold log2e. write_numbers. interval with (i_prec 160). Qed.

(* Of one word alone: the base of float32's order="any" is e^(1 - eta), eta between these. *)
Theorem exact32_eta : 1.3349e-8 <= 1 - number exact32_log2e * ln 2 <= 1.335e-8.
Proof. write_numbers. split; interval with (i_prec 80). Qed.

Theorem exact64_eta : Rabs (1 - (number exact64_log2e + number exact64_log2e_low) * ln 2) <= 7.4e-34.
Proof. write_numbers. interval with (i_prec 160). Qed.
