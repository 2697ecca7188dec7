(** * The gradient of attention: dS = P * (dP - D)

    A query has C keys of finite scores s_j and values v_j of d features; its output is o = sum P_j v_j with P the
    softmax of the scores, and lse their log-sum-exp.  Given the gradients do of the output and dlse of lse, the
    backward pass needs those of the scores and values: the derivatives of  do . o + dlse * lse.  Shown here, as
    derivatives in Coquelicot's sense (Gradients.v):

    - dS_j = P_j * (dP_j - D + dlse) with dP_j = do . v_j and D = sum P_j dP_j;
    - D = do . o, so that it takes the output alone and no second pass over the keys;
    - dV_j = P_j * do;
    - a sink, a score with value 0, has the gradient P * (dlse - D);
    - of two partial results that merge, the gradients of o_a and lse_a are those of merge_attention_vjp. *)

From Coq Require Import Reals List Lra Lia.
From Coquelicot Require Import Rcomplements Hierarchy Derive ElemFct.
From OnlineSoftmax Require Import Law Streaming Softmax Gradients.
From OnlineSoftmax Require Attention.
Import ListNotations.
Open Scope R_scope.

(** ** Definitions *)

(** Feature e of the value of key j. *)
Definition values : Type := nat -> nat -> R.

(** o_e = sum P_j * v_je *)
Definition output (C : nat) (v : values) (s : scores) (e : nat) : R := sum C (fun j => p C s j * v j e).

Definition dot (d : nat) (a b : nat -> R) : R := sum d (fun e => a e * b e).

(** What the backward pass differentiates: do . o + dlse * lse. *)
Definition weighed_output (C d : nat) (v : values) (dout : nat -> R) (dlse : R) (s : scores) : R :=
  dot d dout (output C v s) + dlse * logsumexp C s.

(** dP_j = do . v_j *)
Definition dP (d : nat) (v : values) (dout : nat -> R) (j : nat) : R := dot d dout (v j).

(** D = sum P_j * dP_j *)
Definition D (C d : nat) (v : values) (dout : nat -> R) (s : scores) : R := sum C (fun j => p C s j * dP d v dout j).

(** The values with t as feature e of key j. *)
Definition put_value (v : values) (j e : nat) (t : R) : values :=
  fun i f => if Nat.eq_dec i j then (if Nat.eq_dec f e then t else v i f) else v i f.

(** ** Claims *)

Lemma sums_swap C d (a b : nat -> R) (f : nat -> nat -> R) :
  sum d (fun e => a e * sum C (fun j => b j * f j e)) = sum C (fun j => b j * sum d (fun e => a e * f j e)).
Proof.
  induction d as [|d IH]; cbn [sum].
  - rewrite (sum_ext C _ (fun j => 0 * b j)) by (intros; ring). rewrite sum_scal. ring.
  - rewrite IH, <- sum_scal, <- sum_plus. apply sum_ext. intros. ring.
Qed.

(** This is attention as Attention.v has it, a feature at a time. *)
Theorem output_is_attention C v s e : (0 < C)%nat ->
  output C v s e = Attention.attention (map (fun j => (fin (s j), v j e)) (seq 0 C)).
Proof.
  intro pos. set (ks := fun n => map (fun j => (fin (s j), v j e)) (seq 0 n)).
  assert (r : forall n, Attention.scores (ks n) = row_of n s).
  { intro n. unfold ks, Attention.scores, row_of. rewrite map_map. apply map_ext. reflexivity. }
  assert (w : forall f n, Attention.weighted f (ks n) = sum n (fun j => f (fin (s j)) * v j e)).
  { intros f. induction n as [|n IH]; [reflexivity|]. unfold ks. rewrite seq_S, map_app. cbn [sum].
    rewrite Attention.weighted_app. fold (ks n). rewrite IH. cbn. ring. }
  fold (ks C). unfold Attention.attention. rewrite r, w.
  pose proof (logsumexp_is_lse C s pos) as l. unfold lse in l. destruct (row_max (row_of C s)); [discriminate|].
  unfold output. apply sum_ext. intros. now rewrite p_is_softmax.
Qed.

(** D = do . o: the output is enough. *)
Theorem D_is_do_dot_o C d v dout s : D C d v dout s = dot d dout (output C v s).
Proof. unfold D, dP, dot, output. symmetry. apply sums_swap. Qed.

(** dS_j = P_j * (dP_j - D + dlse). *)
Theorem score_gradient C d v dout dlse s j : (j < C)%nat ->
  partial (weighed_output C d v dout dlse) s j (p C s j * (dP d v dout j - D C d v dout s + dlse)).
Proof.
  intro lt. unfold partial.
  apply (is_derive_ext
    (fun t => plus (sum C (fun i => dP d v dout i * p C (put s j t) i)) (dlse * logsumexp C (put s j t)))).
  { intro t. unfold weighed_output. rewrite <- D_is_do_dot_o. unfold D. cbn. f_equal.
    apply sum_ext. intros. ring. }
  replace (p C s j * (dP d v dout j - D C d v dout s + dlse))
    with (plus (p C s j * (dP d v dout j - sum C (fun i => dP d v dout i * p C s i))) (dlse * p C s j)).
  - apply (is_derive_plus (K := R_AbsRing) (V := R_NormedModule)).
    + now apply softmax_vjp.
    + apply (is_derive_scal (fun t => logsumexp C (put s j t))). now apply logsumexp_gradient.
  - cbn. unfold D. rewrite (sum_ext C (fun i => dP d v dout i * p C s i) (fun i => p C s i * dP d v dout i))
      by (intros; ring). ring.
Qed.

(** The gradients of the scores add up to dlse: a shift of all scores moves lse alone. *)
Theorem score_gradients_sum_to_dlse C d v dout dlse s : (0 < C)%nat ->
  sum C (fun j => p C s j * (dP d v dout j - D C d v dout s + dlse)) = dlse.
Proof.
  intro pos.
  rewrite (sum_ext C _ (fun j => p C s j * dP d v dout j + (dlse - D C d v dout s) * p C s j)) by (intros; ring).
  rewrite sum_plus, sum_scal, p_sums_to_1 by exact pos. fold (D C d v dout s). ring.
Qed.

(** dV_je = P_j * do_e. *)
Theorem value_gradient C d v dout dlse s j e : (j < C)%nat -> (e < d)%nat ->
  is_derive (fun t => weighed_output C d (put_value v j e t) dout dlse s) (v j e) (p C s j * dout e).
Proof.
  intros lj le. set (rest := weighed_output C d (put_value v j e 0) dout dlse s).
  assert (one : forall n m f, (m < n)%nat -> sum n (fun i => if Nat.eq_dec i m then f i else 0) = f m).
  { intros n m f lt. rewrite <- (sum_delta n f m lt). apply sum_ext. intros i _. unfold delta.
    destruct (Nat.eq_dec i m); ring. }
  apply (is_derive_ext (fun t => plus rest (p C s j * dout e * t))).
  { intro t. unfold rest, weighed_output. cbn.
    assert (h : dot d dout (output C (put_value v j e t) s) =
                dot d dout (output C (put_value v j e 0) s) + p C s j * dout e * t); [|rewrite h; ring].
    rewrite <- !D_is_do_dot_o. unfold D.
    rewrite <- (one C j (fun i => p C s i * dout e * t) lj), <- sum_plus. apply sum_ext. intros i _.
    unfold dP, dot, put_value. destruct (Nat.eq_dec i j) as [->|].
    - rewrite Rmult_assoc, <- (one d e (fun f => dout f * t) le), <- Rmult_plus_distr_l, <- sum_plus. f_equal.
      apply sum_ext. intros f _. destruct (Nat.eq_dec f e); ring.
    - ring. }
  evar_last.
  - apply (is_derive_plus (K := R_AbsRing) (V := R_NormedModule)).
    + apply @is_derive_const.
    + apply (is_derive_scal (fun t => t)). apply @is_derive_id.
  - cbn. ring.
Qed.

(** A sink is a score whose value is 0: only what it takes from the others counts. *)
Theorem sink_gradient C d v dout dlse s j : (j < C)%nat -> (forall e, v j e = 0) ->
  partial (weighed_output C d v dout dlse) s j (p C s j * (dlse - dot d dout (output C v s))).
Proof.
  intros lt z. rewrite <- D_is_do_dot_o.
  replace (dlse - D C d v dout s) with (dP d v dout j - D C d v dout s + dlse); [now apply score_gradient|].
  assert (e : dP d v dout j = 0); [|rewrite e; ring].
  unfold dP, dot. rewrite (sum_ext d _ (fun f => 0 * dout f)) by (intros; rewrite z; ring). rewrite sum_scal. ring.
Qed.

(** ** Two partial results that merge

    Their log-sum-exps are two scores and their outputs two values: with w_a, w_b the weights of the merge,
    d lse_a = w_a * dlse + w_a * w_b * do . (o_a - o_b)  and  d o_a = w_a * do. *)
Theorem merge_gradient d (o_a o_b : nat -> R) dout dlse (lse_a lse_b : R) :
  let s := fun i => match i with O => lse_a | _ => lse_b end in
  let v := fun i => match i with O => o_a | _ => o_b end in
  let w_a := exp (lse_a - logsumexp 2 s) in
  let w_b := exp (lse_b - logsumexp 2 s) in
  partial (weighed_output 2 d v dout dlse) s 0 (w_a * dlse + w_a * w_b * dot d dout (fun e => o_a e - o_b e)).
Proof.
  intros s v w_a w_b.
  assert (ea : p 2 s 0 = w_a) by (apply (p_as_exp 2 s 0 0); lia).
  assert (eb : p 2 s 1 = w_b) by (apply (p_as_exp 2 s 1 0); lia).
  assert (one : w_a + w_b = 1).
  { rewrite <- ea, <- eb. pose proof (p_sums_to_1 2 s) as h. cbn [sum] in h. rewrite <- h by lia. ring. }
  assert (df : dot d dout (fun e => o_a e - o_b e) = dP d v dout 0 - dP d v dout 1).
  { unfold dP, dot, v. induction d as [|d' IH]; cbn [sum]; [ring|]. rewrite IH. ring. }
  replace (w_a * dlse + w_a * w_b * dot d dout (fun e => o_a e - o_b e))
    with (p 2 s 0 * (dP d v dout 0 - D 2 d v dout s + dlse)); [apply score_gradient; lia|].
  unfold D. cbn [sum]. rewrite df, ea, eb. replace w_a with (1 - w_b) by lra. ring.
Qed.
