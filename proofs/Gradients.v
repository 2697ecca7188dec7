(** Gradients of log-sum-exp, softmax, log-softmax and cross-entropy.

    A row of C finite scores is a function from places 0 .. C-1. A partial derivative by x_j is the derivative of
    t |-> f (x with t in place j) at t = x_j, as Coquelicot's [is_derive] says: the derivative exists and is the number
    given. From them the vector-Jacobian products that a backward pass computes. The last lemmas tie these rows to
    those of Streaming.v and Softmax.v. *)

From Coq Require Import Reals List Lra Lia.
From Coquelicot Require Import Rcomplements Hierarchy Derive ElemFct AutoDerive.
From OnlineSoftmax Require Import Law Streaming Softmax.
Import ListNotations.
Open Scope R_scope.

(** * Rows of C scores *)

Definition scores : Type := nat -> R.

(** f 0 + ... + f (C-1). *)
Fixpoint sum (C : nat) (f : scores) : R :=
  match C with O => 0 | S n => sum n f + f n end.

(** x with t in place j. *)
Definition put (x : scores) (j : nat) (t : R) : scores :=
  fun i => if Nat.eq_dec i j then t else x i.

(** 1 where i = j, else 0. *)
Definition delta (i j : nat) : R := if Nat.eq_dec i j then 1 else 0.

(** log sum exp x_i. *)
Definition logsumexp (C : nat) (x : scores) : R := ln (sum C (fun i => exp (x i))).

(** p_i = exp x_i / sum exp x_k. *)
Definition p (C : nat) (x : scores) (i : nat) : R := exp (x i) / sum C (fun k => exp (x k)).

(** The loss of a target class t: -log p_t. *)
Definition cross_entropy (C : nat) (x : scores) (t : nat) : R := - ln (p C x t).

(** f has the partial derivative d by x_j at x. *)
Definition partial (f : scores -> R) (x : scores) (j : nat) (d : R) : Prop :=
  is_derive (fun t => f (put x j t)) (x j) d.

(** * Lemmas on sums *)

Lemma sum_ext : forall C f g, (forall i, (i < C)%nat -> f i = g i) -> sum C f = sum C g.
Proof. induction C; cbn; intros; [reflexivity|]. f_equal; auto. Qed.

Lemma sum_scal : forall C f c, sum C (fun i => c * f i) = c * sum C f.
Proof. induction C as [|C IH]; cbn; intros; [ring|]. rewrite IH. ring. Qed.

Lemma sum_plus : forall C f g, sum C (fun i => f i + g i) = sum C f + sum C g.
Proof. induction C as [|C IH]; cbn; intros; [ring|]. rewrite IH. ring. Qed.

Lemma sum_delta : forall C f j, (j < C)%nat -> sum C (fun i => f i * delta i j) = f j.
Proof.
  assert (none : forall C f j, (C <= j)%nat -> sum C (fun i => f i * delta i j) = 0).
  { induction C as [|C IH]; cbn; intros f j le; [reflexivity|]. rewrite IH by lia.
    unfold delta. destruct (Nat.eq_dec C j); [lia | ring]. }
  induction C as [|C IH]; cbn; intros f j lt; [lia|].
  destruct (Nat.eq_dec C j) as [->|ne].
  - rewrite none by lia. unfold delta. destruct (Nat.eq_dec j j); [ring | easy].
  - rewrite IH by lia. unfold delta. destruct (Nat.eq_dec C j); [easy | ring].
Qed.

Lemma sum_exp_scores_pos : forall C x j, (j < C)%nat -> 0 < sum C (fun i => exp (x i)).
Proof.
  assert (nonneg : forall C x, 0 <= sum C (fun i => exp (x i))).
  { induction C as [|C IH]; cbn; intro x; [lra|]. pose proof (IH x). pose proof (exp_pos (x C)). lra. }
  intros [|C] x j lt; [lia|]. cbn. pose proof (nonneg C x). pose proof (exp_pos (x C)). lra.
Qed.

Lemma put_same : forall x j i, put x j (x j) i = x i.
Proof. intros. unfold put. destruct (Nat.eq_dec i j); congruence. Qed.

Lemma sum_put_same : forall C x j, sum C (fun i => exp (put x j (x j) i)) = sum C (fun i => exp (x i)).
Proof. intros. apply sum_ext. intros. now rewrite put_same. Qed.

(** d exp x_i / d x_j = exp x_j * delta_ij. *)
Lemma partial_exp : forall x i j, partial (fun y => exp (y i)) x j (exp (x j) * delta i j).
Proof.
  intros. unfold partial, put, delta. destruct (Nat.eq_dec i j).
  - auto_derive; [exact I | ring].
  - auto_derive; [exact I | ring].
Qed.

(** d (sum exp x_i) / d x_j = exp x_j. *)
Lemma partial_sum_exp : forall C x j, (j < C)%nat -> partial (fun y => sum C (fun i => exp (y i))) x j (exp (x j)).
Proof.
  intros C x j lt.
  assert (d : forall n, partial (fun y => sum n (fun i => exp (y i))) x j (sum n (fun i => exp (x j) * delta i j))).
  { unfold partial. induction n as [|n IH]; cbn [sum].
    - apply @is_derive_const.
    - apply (is_derive_plus (K := R_AbsRing) (V := R_NormedModule)); [exact IH | apply partial_exp]. }
  specialize (d C). now rewrite (sum_delta C (fun _ => exp (x j)) j lt) in d.
Qed.

(** * Derivatives *)

(** d lse / d x_j = p_j. *)
Theorem logsumexp_gradient : forall C x j, (j < C)%nat -> partial (logsumexp C) x j (p C x j).
Proof.
  intros C x j lt. unfold partial, logsumexp, p.
  pose proof (sum_exp_scores_pos C x j lt) as pos.
  evar_last.
  - apply (is_derive_comp ln (fun t => sum C (fun i => exp (put x j t i)))).
    + apply is_derive_ln. now rewrite sum_put_same.
    + now apply partial_sum_exp.
  - rewrite sum_put_same. reflexivity.
Qed.

Lemma p_as_exp : forall C x i j, (j < C)%nat -> p C x i = exp (x i - logsumexp C x).
Proof.
  intros C x i j lt. pose proof (sum_exp_scores_pos C x j lt). unfold p, logsumexp.
  unfold Rminus. rewrite exp_plus, exp_Ropp, exp_ln by trivial. reflexivity.
Qed.

Lemma partial_log_p : forall C x i j, (j < C)%nat ->
  partial (fun y => y i - logsumexp C y) x j (delta i j - p C x j).
Proof.
  intros C x i j lt. unfold partial.
  apply (is_derive_minus (K := R_AbsRing) (V := R_NormedModule)); [|now apply logsumexp_gradient].
  unfold put, delta. destruct (Nat.eq_dec i j).
  - apply @is_derive_id.
  - apply @is_derive_const.
Qed.

(** d log p_i / d x_j = delta_ij - p_j. *)
Theorem log_softmax_gradient : forall C x i j, (i < C)%nat -> (j < C)%nat ->
  partial (fun y => ln (p C y i)) x j (delta i j - p C x j).
Proof.
  intros C x i j li lt. eapply is_derive_ext; [|apply (partial_log_p C x i j lt)].
  intro t; cbn. now rewrite (p_as_exp C _ i j lt), ln_exp.
Qed.

(** d p_i / d x_j = p_i * (delta_ij - p_j). *)
Theorem softmax_gradient : forall C x i j, (i < C)%nat -> (j < C)%nat ->
  partial (fun y => p C y i) x j (p C x i * (delta i j - p C x j)).
Proof.
  intros C x i j li lt. unfold partial.
  eapply is_derive_ext; [intro t; symmetry; apply (p_as_exp C _ i j lt)|].
  evar_last.
  - apply (is_derive_comp exp (fun t => put x j t i - logsumexp C (put x j t))).
    + apply is_derive_exp.
    + apply (partial_log_p C x i j lt).
  - rewrite <- (p_as_exp C (put x j (x j)) i j lt). unfold p. rewrite sum_put_same, put_same.
    apply Rmult_comm.
Qed.

(** d (-log p_t) / d x_j = p_j - delta_tj. *)
Theorem cross_entropy_gradient : forall C x t j, (t < C)%nat -> (j < C)%nat ->
  partial (fun y => cross_entropy C y t) x j (p C x j - delta t j).
Proof.
  intros C x t j lt lj. unfold partial, cross_entropy.
  evar_last.
  - apply (is_derive_opp (K := R_AbsRing) (V := R_NormedModule)), (log_softmax_gradient C x t j lt lj).
  - cbn. ring.
Qed.

(** * Vector-Jacobian products *)

(** The probabilities of a row sum to 1. *)
Theorem p_sums_to_1 : forall C x, (0 < C)%nat -> sum C (p C x) = 1.
Proof.
  intros C x pos. pose proof (sum_exp_scores_pos C x 0 pos) as d.
  transitivity (/ sum C (fun k => exp (x k)) * sum C (fun k => exp (x k))).
  - rewrite <- sum_scal. apply sum_ext. intros. unfold p, Rdiv. ring.
  - field. lra.
Qed.

(** A sum of partial derivatives is the partial derivative of the sum. *)
Lemma partial_sum : forall C (f : nat -> scores -> R) g d x j,
  (forall i, (i < C)%nat -> partial (f i) x j (d i)) ->
  partial (fun y => sum C (fun i => g i * f i y)) x j (sum C (fun i => g i * d i)).
Proof.
  unfold partial. induction C as [|C IH]; cbn [sum]; intros f g d x j all.
  - apply @is_derive_const.
  - apply (is_derive_plus (K := R_AbsRing) (V := R_NormedModule)).
    + apply IH. auto.
    + apply (is_derive_scal (fun t => f C (put x j t))). auto.
Qed.

(** Softmax: upstream gradients g_i give dx_j = p_j * (g_j - sum g_i p_i). *)
Theorem softmax_vjp : forall C g x j, (j < C)%nat ->
  partial (fun y => sum C (fun i => g i * p C y i)) x j (p C x j * (g j - sum C (fun i => g i * p C x i))).
Proof.
  intros C g x j lt.
  replace (p C x j * (g j - sum C (fun i => g i * p C x i)))
    with (sum C (fun i => g i * (p C x i * (delta i j - p C x j)))).
  - apply partial_sum. intros. now apply softmax_gradient.
  - rewrite (sum_ext C _ (fun i => g i * p C x i * delta i j + - p C x j * (g i * p C x i))) by (intros; ring).
    rewrite sum_plus, sum_delta by exact lt. rewrite sum_scal. ring.
Qed.

(** Log-softmax: dx_j = g_j - p_j * sum g_i. *)
Theorem log_softmax_vjp : forall C g x j, (j < C)%nat ->
  partial (fun y => sum C (fun i => g i * ln (p C y i))) x j (g j - p C x j * sum C g).
Proof.
  intros C g x j lt.
  replace (g j - p C x j * sum C g) with (sum C (fun i => g i * (delta i j - p C x j))).
  - apply partial_sum. intros. now apply log_softmax_gradient.
  - rewrite (sum_ext C _ (fun i => g i * delta i j + - p C x j * g i)) by (intros; ring).
    rewrite sum_plus, sum_delta by exact lt. rewrite sum_scal. ring.
Qed.

(** A loss against probabilities q that sum to 1, -sum q_i log p_i: dx_j = p_j - q_j. *)
Theorem soft_cross_entropy_gradient : forall C q x j, (j < C)%nat -> sum C q = 1 ->
  partial (fun y => sum C (fun i => - q i * ln (p C y i))) x j (p C x j - q j).
Proof.
  intros C q x j lt one.
  replace (p C x j - q j) with (- q j - p C x j * sum C (fun i => - q i)).
  - now apply (log_softmax_vjp C (fun i => - q i)).
  - rewrite (sum_ext C _ (fun i => -1 * q i)) by (intros; ring). rewrite sum_scal, one. ring.
Qed.

(** The gradients of a loss over a row sum to 0: a shift of the whole row changes nothing. *)
Theorem cross_entropy_gradient_sums_to_0 : forall C x t, (t < C)%nat ->
  sum C (fun j => p C x j - delta t j) = 0.
Proof.
  intros C x t lt.
  assert (d : sum C (fun j => -1 * delta j t) = -1) by (apply (sum_delta C (fun _ => -1) t lt)).
  rewrite (sum_ext C _ (fun j => p C x j + -1 * delta j t)).
  - rewrite sum_plus, d, p_sums_to_1 by lia. ring.
  - intros j _. unfold delta. destruct (Nat.eq_dec t j), (Nat.eq_dec j t); try congruence; ring.
Qed.

(** * The same rows as in Softmax.v *)

(** x_0 .. x_{C-1} as a row. *)
Definition row_of (C : nat) (x : scores) : row := map (fun i => fin (x i)) (seq 0 C).

Lemma sum_of_row : forall C x, sum_exp (row_of C x) = sum C (fun i => exp (x i)).
Proof.
  unfold row_of. induction C as [|C IH]; intro x; [reflexivity|].
  rewrite seq_S, map_app. cbn [sum]. rewrite <- IH. rewrite !sum_exp_at, sum_at_app. cbn. rewrite Rminus_0_r. ring.
Qed.

Lemma p_is_softmax : forall C x i, p C x i = softmax (row_of C x) (fin (x i)).
Proof. intros. unfold p, softmax. now rewrite sum_of_row. Qed.

Lemma logsumexp_is_lse : forall C x, (0 < C)%nat -> lse (row_of C x) = fin (logsumexp C x).
Proof.
  intros C x pos. unfold lse.
  assert (f : has_finite (row_of C x)).
  { exists (x O). unfold row_of. change (fin (x O)) with ((fun i => fin (x i)) O). apply in_map, in_seq. lia. }
  apply row_max_finite in f as [m ->]. unfold logsumexp. now rewrite sum_of_row.
Qed.
