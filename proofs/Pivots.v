(** Any finite pivot carries the same row: stale maxima, conditional rescaling, base 2.

    A kernel may hold (r, sum exp (x - r)) at a pivot r that is not the maximum: one that lags behind, to save
    rescaling, or one rounded to a power of two, to make every rescale exact. Shown: whatever pivots a stream or a merge
    passes through, the sum is the one of the definition at the last pivot; brought to the maximum it is the state; the
    lse is the same from any of them. In base 2 the sum is the same number, and between whole pivots the factor is a
    power of two. *)

From Coq Require Import Reals List Lra ZArith.
From OnlineSoftmax Require Import Law Streaming.
Import ListNotations.
Open Scope R_scope.

(** * One pivot for another *)

(** sum exp (x - r) * exp (r - r') = sum exp (x - r'), whichever of r, r' and the entries is greater. *)
Theorem any_pivot_rescales : forall x r r', sum_at (fin r) x * exp (r - r') = sum_at (fin r') x.
Proof.
  induction x as [|h x IH]; cbn [sum_at]; intros r r'; [ring|].
  rewrite Rmult_plus_distr_r, IH. f_equal. exact (weight_weight_fin h r (fin r')).
Qed.

(** Brought to its maximum, a sum at any pivot is the state: the closing step of a kernel with stale pivots. *)
Theorem any_pivot_normalises : forall x r,
  (row_max x, sum_at (fin r) x * weight (fin r) (row_max x)) = state_of x.
Proof.
  intros x r. unfold state_of. f_equal. destruct (row_max x) as [|m] eqn:e.
  - rewrite !row_of_minus_inf by exact e. ring.
  - apply any_pivot_rescales.
Qed.

(** sum exp (x - r) * exp r is the same for every r: the mass of the state. *)
Theorem any_pivot_has_the_mass : forall x r, sum_at (fin r) x * exp r = mass (state_of x).
Proof.
  intros x r. rewrite <- (any_pivot_normalises x r). unfold mass; cbn [fst snd].
  destruct (row_max x) as [|m] eqn:e.
  - rewrite row_of_minus_inf by exact e. cbn. ring.
  - cbn. rewrite Rmult_assoc, <- exp_plus. do 2 f_equal. ring.
Qed.

Lemma sum_at_pos : forall x m, has_finite x -> 0 < sum_at m x.
Proof.
  intros x m [r i]. apply sum_at_ge with (m := m) in i. pose proof (weight_pos r m). lra.
Qed.

(** r + log (sum exp (x - r)) is the same for every r. *)
Theorem any_pivot_has_the_lse : forall x r r', has_finite x ->
  r + ln (sum_at (fin r) x) = r' + ln (sum_at (fin r') x).
Proof.
  intros x r r' f. rewrite <- (any_pivot_rescales x r r').
  rewrite ln_mult by (now apply sum_at_pos || apply exp_pos). rewrite ln_exp. ring.
Qed.

(** Two sums, each at a pivot of its own, merged at a third. *)
Theorem any_pivots_merge : forall x y r_a r_b r,
  sum_at (fin r_a) x * exp (r_a - r) + sum_at (fin r_b) y * exp (r_b - r) = sum_at (fin r) (x ++ y).
Proof. intros. now rewrite !any_pivot_rescales, sum_at_app. Qed.

(** * A stream whose pivot moves when it will *)

(** Before each block, the pivot to go on with: the old one where nothing forces a rescale. Holds (r, s). *)
Fixpoint stream_at (a : R * R) (steps : list (row * R)) : R * R :=
  match steps with
  | [] => a
  | (x, r') :: rest => stream_at (r', snd a * exp (fst a - r') + sum_at (fin r') x) rest
  end.

(** Conditional rescaling is exact: whatever pivots are chosen, the sum is the definition's at the last of them. *)
Theorem conditional_rescale : forall steps x r,
  snd (stream_at (r, sum_at (fin r) x) steps) =
  sum_at (fin (fst (stream_at (r, sum_at (fin r) x) steps))) (x ++ concat (map fst steps)).
Proof.
  induction steps as [|[y r'] rest IH]; intros x r; cbn [stream_at map concat fst snd].
  - now rewrite app_nil_r.
  - rewrite any_pivot_rescales, <- sum_at_app, app_assoc. apply IH.
Qed.

(** So, from nothing, and brought to the maximum at the end, it gives the state of the row. *)
Corollary conditional_rescale_is_batch : forall steps r,
  let x := concat (map fst steps) in
  let last := stream_at (r, 0) steps in
  (row_max x, snd last * weight (fin (fst last)) (row_max x)) = state_of x.
Proof.
  intros steps r x last. unfold last. change 0 with (sum_at (fin r) []).
  rewrite conditional_rescale. apply any_pivot_normalises.
Qed.

(** A pivot that lags by at most t keeps every exponent at most t: what bounds the sum of such a kernel. *)
Theorem stale_pivot_exponents : forall x m r t, row_max x = fin m -> m - r <= t ->
  forall e, In (fin e) x -> e - r <= t.
Proof. intros x m r t e lag h i. pose proof (exponents_nonpositive x m h e i). lra. Qed.

(** * Base 2 *)

(** 2^t. *)
Definition exp2 (t : R) : R := exp (t * ln 2).

(** 1 / log 2, the logarithm of e in base 2. *)
Definition log2e : R := / ln 2.

Definition log2 (t : R) : R := ln t * log2e.

Lemma ln2_pos : 0 < ln 2.
Proof. rewrite <- ln_1. apply ln_increasing; lra. Qed.

Lemma log2e_ln2 : log2e * ln 2 = 1.
Proof. unfold log2e. field. pose proof ln2_pos. lra. Qed.

(** Scores scaled by 1 / log 2 once, powers of two from there on. *)
Fixpoint sum2_at (pivot : R) (x : row) : R :=
  match x with
  | [] => 0
  | minus_inf :: rest => sum2_at pivot rest
  | fin h :: rest => exp2 (h * log2e - pivot) + sum2_at pivot rest
  end.

Lemma exp2_scaled : forall h r, exp2 (h * log2e - r * log2e) = exp (h - r).
Proof.
  intros. unfold exp2. f_equal. replace ((h * log2e - r * log2e) * ln 2) with ((h - r) * (log2e * ln 2)) by ring.
  rewrite log2e_ln2. ring.
Qed.

(** In base 2 the sum is the same number: sum 2^(x/log 2 - r/log 2) = sum exp (x - r). *)
Theorem base_2_sum : forall x r, sum2_at (r * log2e) x = sum_at (fin r) x.
Proof.
  induction x as [|[|h] x IH]; intro r; cbn [sum2_at sum_at weight]; [reflexivity | rewrite IH; ring |].
  now rewrite IH, exp2_scaled.
Qed.

(** The state's lse from base 2: (m_2 + log2 s) * log 2 = m + log s, for any pivot m_2 = p, the maximum's or not. *)
Theorem base_2_lse : forall x p r, has_finite x ->
  (p + log2 (sum2_at p x)) * ln 2 = r + ln (sum_at (fin r) x).
Proof.
  intros x p r f. pose proof log2e_ln2 as one.
  assert (e : p = (p * ln 2) * log2e) by (rewrite Rmult_assoc, (Rmult_comm (ln 2)), one; ring).
  rewrite e at 2. rewrite base_2_sum, (any_pivot_has_the_lse x r (p * ln 2) f).
  rewrite Rmult_plus_distr_r. unfold log2. rewrite Rmult_assoc, one. ring.
Qed.

(** Between whole pivots k and k' the factor is 2^(k - k'), a power of two: exact in any binary format. *)
Theorem base_2_whole_pivots : forall x k k',
  sum2_at (IZR k') x = sum2_at (IZR k) x * powerRZ 2 (k - k').
Proof.
  assert (p2 : forall k, powerRZ 2 k = exp (IZR k * ln 2)).
  { intro k. rewrite powerRZ_Rpower by lra. reflexivity. }
  intros x k k'. rewrite p2, minus_IZR. induction x as [|[|h] x IH]; cbn [sum2_at]; [ring | exact IH |].
  rewrite IH, Rmult_plus_distr_r. f_equal. unfold exp2. rewrite <- exp_plus. f_equal. ring.
Qed.
