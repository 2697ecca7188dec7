(* From a computed sum to the results, each one more step.

   s is a computed sum at the row's maximum m, 1 at least, and S the true one; h is what ln s may be off by, as
   [streaming_error], [blocked_error] and [tree_error] have it. Then

     y_j      a factor of exp (u (m - x_j) + e1 + h + u), and 3 tiny           [softmax_error]
     lse      a + u (|lse| + a), where a = h + e_log (ln S + h)                [lse_error]
     log y_j  b + u (|log y_j| + b), where b = a + u (m - x_j)                 [log_softmax_error]

   and [gap] for each difference and sum, which is 0 unless such results are flushed to zero. *)

From Coq Require Import ZArith Reals Psatz List.
From Flocq Require Import Core.
From OnlineSoftmax Require Import Rounding FloatSums FloatTerms FloatWeights.
Import ListNotations.
Open Scope R_scope.

Section Results.

Variable F : Format.
Variable E : Exponential F.

Notation u := (u F).
Notation tiny := (tiny F).
Notation gap := (gap F).
Notation rnd := (rnd F).
Notation number := (number F).
Notation term := (term F E).
Notation e1 := (e1 F E).

Variables m s S h : R.
Hypothesis m_number : number m.
Hypothesis s_number : number s.
Hypothesis s_ge_1 : 1 <= s.
Hypothesis S_ge_1 : 1 <= S.
Hypothesis of_sum : Rabs (ln s - ln S) <= h.

Definition softmax (x : R) : R := rnd (term x m / s).

(* A logarithm of relative error e_log, of a number that is 1 at least. *)
Variable flog : R -> R.
Variable e_log : R.
Hypothesis e_log_pos : 0 <= e_log.
Hypothesis flog_number : number (flog s).
Hypothesis flog_close : Rabs (flog s - ln s) <= e_log * ln s.

Definition lse : R := rnd (m + flog s).
Definition log_softmax (x : R) : R := rnd (rnd (x - m) - flog s).

Lemma h_pos : 0 <= h.
Proof. pose proof (Rabs_pos (ln s - ln S)). lra. Qed.

Lemma inverse_between : exp (- h) / S <= / s <= exp h / S.
Proof.
  pose proof (Rabs_le_inv _ _ of_sum) as H.
  assert (A : / s = exp (- (ln s - ln S)) / S).
  { replace (- (ln s - ln S)) with (ln S + - ln s) by ring. rewrite exp_plus, exp_Ropp, !exp_ln by lra. field. lra. }
  rewrite A. split; apply Rmult_le_compat_r; try (apply Rlt_le, Rinv_0_lt_compat; lra); apply exp_le; lra.
Qed.

Lemma exp_u_2 : exp u <= 2.
Proof.
  pose proof (u_range F) as Hu. pose proof (exp_ineq1_le (- u)) as H. pose proof (exp_pos u).
  assert (E1 : exp u * exp (- u) = 1) by (rewrite <- exp_plus, Rplus_opp_r; apply exp_0). nra.
Qed.

Theorem softmax_error : forall x, number x -> x <= m ->
  let y := exp (x - m) / S in
  let w := u * (m - x) + e1 + h + u in
  y * exp (- w) - 3 * tiny <= softmax x <= y * exp w + 3 * tiny.
Proof.
  intros x Nx Hx y w. pose proof (term_cases F E x m Nx m_number Hx) as T. cbv zeta in T.
  destruct (term_number F E x m Nx m_number Hx) as [_ R].
  pose proof (tiny_range F) as Ht. destruct inverse_between as [Il Iu]. pose proof exp_u_2 as H2.
  destruct (exp_u_le F) as [U1 U2].
  assert (Hs : 0 < / s <= 1).
  { split; [apply Rinv_0_lt_compat; lra|]. rewrite <- Rinv_1. apply Rinv_le_contravar; lra. }
  set (low := exp ((1 + u) * (x - m) - e1)) in *. set (high := exp ((1 - u) * (x - m) + e1)) in *.
  assert (T' : low - tiny <= term x m <= high + tiny) by (destruct T as [[_ T]|[_ T]]; lra).
  assert (Pl : 0 < low) by apply exp_pos. assert (Ph : 0 < high) by apply exp_pos.
  assert (HS : 0 < / S) by (apply Rinv_0_lt_compat; lra).
  assert (Q : 0 <= term x m / s) by (apply Rmult_le_pos; lra).
  destruct (rnd_any F _ Q) as [L U]. unfold softmax.
  assert (Eh : y * exp w = high * (exp h / S) * exp u).
  { unfold y, w, high, Rdiv. replace (u * (m - x) + e1 + h + u) with ((1 - u) * (x - m) + e1 + h + u + - (x - m)) by ring.
    rewrite !exp_plus, exp_Ropp. field. repeat split; first [lra|apply Rgt_not_eq, exp_pos]. }
  assert (El : y * exp (- w) = low * (exp (- h) / S) * exp (- u)).
  { unfold y, w, low, Rdiv.
    replace (- (u * (m - x) + e1 + h + u)) with ((1 + u) * (x - m) - e1 + - h + - u + - (x - m)) by ring.
    rewrite !exp_plus, (exp_Ropp (x - m)). field. repeat split; first [lra|apply Rgt_not_eq, exp_pos]. }
  rewrite Eh, El.
  assert (A : term x m / s <= high * (exp h / S) + tiny).
  { unfold Rdiv at 1. apply Rle_trans with ((high + tiny) * / s); [apply Rmult_le_compat_r; lra|].
    assert (high * / s <= high * (exp h / S)) by (apply Rmult_le_compat_l; lra).
    assert (tiny * / s <= tiny * 1) by (apply Rmult_le_compat_l; lra). lra. }
  assert (B : low * (exp (- h) / S) - tiny <= term x m / s).
  { unfold Rdiv at 2. apply Rle_trans with ((low - tiny) * / s); [|apply Rmult_le_compat_r; lra].
    assert (low * (exp (- h) / S) <= low * / s) by (apply Rmult_le_compat_l; lra).
    assert (tiny * / s <= tiny * 1) by (apply Rmult_le_compat_l; lra). lra. }
  pose proof (exp_pos (- u)).
  assert (term x m / s * exp u <= (high * (exp h / S) + tiny) * exp u) by (apply Rmult_le_compat_r; lra).
  assert ((low * (exp (- h) / S) - tiny) * exp (- u) <= term x m / s * exp (- u)) by (apply Rmult_le_compat_r; lra).
  assert (tiny * exp u <= tiny * 2) by (apply Rmult_le_compat_l; lra).
  assert (tiny * exp (- u) <= tiny * 1) by (apply Rmult_le_compat_l; lra).
  split; lra.
Qed.

(* A sum of two numbers of any sign. *)
Lemma sum_off : forall a b, number a -> number b -> Rabs (rnd (a + b) - (a + b)) <= u * Rabs (a + b) + gap.
Proof.
  intros a b Na Nb. pose proof (u_range F) as Hu. destruct (nearest_sum F a b Na Nb) as (d & Hd & Ed).
  assert (Hd' : Rabs d <= u).
  { apply Rle_trans with (1 := Hd). apply Rmult_le_reg_r with (1 + u); [lra|].
    unfold Rdiv. rewrite Rmult_assoc, Rinv_l by lra. nra. }
  assert (Hn : Rabs (nearest F (a + b) - (a + b)) <= u * Rabs (a + b)).
  { rewrite Ed. replace ((a + b) * (1 + d) - (a + b)) with (d * (a + b)) by ring. rewrite Rabs_mult.
    apply Rmult_le_compat_r; [apply Rabs_pos|exact Hd']. }
  unfold Rounding.rnd, Rounding.gap. destruct (flush F); [|lra].
  destruct (Rlt_dec _ _) as [H|H].
  - pose proof (Rabs_triang_inv (a + b) (nearest F (a + b))) as T.
    rewrite Rminus_0_l, Rabs_Ropp.
    rewrite Rabs_minus_sym in Hn. lra.
  - pose proof (normal_range F). lra.
Qed.

Definition log_off : R := h + e_log * (ln S + h).

Lemma log_close : Rabs (flog s - ln S) <= log_off.
Proof.
  unfold log_off. pose proof (Rabs_le_inv _ _ of_sum) as H1. pose proof (Rabs_le_inv _ _ flog_close) as H2.
  assert (e_log * ln s <= e_log * (ln S + h)) by (apply Rmult_le_compat_l; lra).
  apply Rabs_le. lra.
Qed.

Theorem lse_error : let true := m + ln S in
  Rabs (lse - true) <= log_off + u * (Rabs true + log_off) + gap.
Proof.
  intros true. unfold lse. pose proof (sum_off m (flog s) m_number flog_number) as H. pose proof log_close as C.
  pose proof (u_range F) as Hu.
  assert (A : Rabs (m + flog s - true) <= log_off).
  { unfold true. replace (m + flog s - (m + ln S)) with (flog s - ln S) by ring. exact C. }
  pose proof (Rabs_triang_inv (m + flog s) true) as T.
  assert (u * Rabs (m + flog s) <= u * (Rabs true + log_off)) by (apply Rmult_le_compat_l; lra).
  replace (rnd (m + flog s) - true) with ((rnd (m + flog s) - (m + flog s)) + (m + flog s - true)) by ring.
  eapply Rle_trans; [apply Rabs_triang|]. lra.
Qed.

Theorem log_softmax_error : forall x, number x -> x <= m ->
  let true := x - m - ln S in
  let b := log_off + u * (m - x) + gap in
  Rabs (log_softmax x - true) <= b + u * (Rabs true + b) + gap.
Proof.
  intros x Nx Hx true b. unfold log_softmax. pose proof log_close as C. pose proof (u_range F) as Hu.
  pose proof (rnd_difference F x m Nx m_number Hx) as D.
  pose proof (sum_off (rnd (x - m)) (- flog s) (number_rnd F _) (number_opp F _ flog_number)) as H.
  set (d := rnd (x - m)) in *. fold (d - flog s) in H.
  assert (A : Rabs (d - flog s - true) <= b).
  { apply Rabs_le_inv in C. apply Rabs_le. unfold true, b. split; nra. }
  pose proof (Rabs_triang_inv (d - flog s) true) as T.
  assert (u * Rabs (d - flog s) <= u * (Rabs true + b)) by (apply Rmult_le_compat_l; lra).
  replace (rnd (d - flog s) - true) with ((rnd (d - flog s) - (d - flog s)) + (d - flog s - true)) by ring.
  eapply Rle_trans; [apply Rabs_triang|]. lra.
Qed.

End Results.
