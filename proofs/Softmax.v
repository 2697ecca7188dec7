(** Softmax, log-softmax and log-sum-exp of a row, and what they owe to the maximum: nothing.

    Softmax is defined without any shift, as exp x_i / sum exp x_j with exp (-inf) = 0. Shown: subtracting any constant
    gives the same, so does adding one to the whole row; the state gives it, and its logarithm as (x_i - m) - log s and
    the log-sum-exp as m + log s; probabilities are in [0, 1] and sum to 1; max <= lse <= max + log C. *)

From Coq Require Import Reals List Lra Permutation.
From OnlineSoftmax Require Import Law Streaming Pivots.
Import ListNotations.
Open Scope R_scope.

(** * Definitions: no maximum in them *)

(** exp x, with exp (-inf) = 0. *)
Definition exp_of (x : height) : R := match x with minus_inf => 0 | fin r => exp r end.

(** sum exp x_i. *)
Fixpoint sum_exp (x : row) : R :=
  match x with [] => 0 | h :: rest => exp_of h + sum_exp rest end.

(** The probability of an entry at height h in the row x. *)
Definition softmax (x : row) (h : height) : R := exp_of h / sum_exp x.

(** log sum exp x_i; of a row without a finite entry it is -inf. *)
Definition lse (x : row) : height :=
  match row_max x with minus_inf => minus_inf | fin _ => fin (ln (sum_exp x)) end.

(** * Lemmas *)

Lemma exp_of_weight : forall h, exp_of h = weight h (fin 0).
Proof. intros [|r]; cbn; [reflexivity|]. now rewrite Rminus_0_r. Qed.

Lemma sum_exp_at : forall x, sum_exp x = sum_at (fin 0) x.
Proof. induction x as [|h x IH]; cbn [sum_exp sum_at]; [reflexivity|]. now rewrite IH, exp_of_weight. Qed.

Lemma sum_exp_pos : forall x, has_finite x -> 0 < sum_exp x.
Proof. intros. rewrite sum_exp_at. now apply sum_at_pos. Qed.

Lemma weight_shifted : forall h c, weight h (fin c) = exp_of h * exp (- c).
Proof. intros [|r] c; cbn; [ring|]. now rewrite <- exp_plus. Qed.

Lemma sum_at_shifted : forall x c, sum_at (fin c) x = sum_exp x * exp (- c).
Proof.
  intros. rewrite sum_exp_at, <- (any_pivot_rescales x 0 c). now rewrite Rminus_0_l.
Qed.

(** * Any constant *)

(** exp (x_i - c) / sum exp (x_j - c) = exp x_i / sum exp x_j for any constant c, not the maximum alone. *)
Theorem softmax_any_constant : forall x h c, has_finite x ->
  weight h (fin c) / sum_at (fin c) x = softmax x h.
Proof.
  intros x h c f. rewrite weight_shifted, sum_at_shifted. unfold softmax.
  pose proof (exp_pos (- c)). pose proof (sum_exp_pos x f). field. lra.
Qed.

(** An entry moved by c; -inf stays. *)
Definition shift (c : R) (h : height) : height :=
  match h with minus_inf => minus_inf | fin r => fin (r + c) end.

Lemma sum_exp_shift : forall x c, sum_exp (map (shift c) x) = sum_exp x * exp c.
Proof.
  induction x as [|[|r] x IH]; intro c; cbn; try rewrite IH; try rewrite exp_plus; ring.
Qed.

Lemma row_max_shift : forall x c, row_max (map (shift c) x) = shift c (row_max x).
Proof.
  induction x as [|h x IH]; intro c; cbn; [reflexivity|]. rewrite IH.
  destruct h as [|a], (row_max x) as [|b]; cbn; try reflexivity. f_equal.
  unfold Rmax. destruct (Rle_dec a b), (Rle_dec (a + c) (b + c)); lra.
Qed.

(** softmax (x + c) = softmax x. *)
Theorem softmax_shift_invariant : forall x h c, has_finite x ->
  softmax (map (shift c) x) (shift c h) = softmax x h.
Proof.
  intros x h c f. unfold softmax. rewrite sum_exp_shift.
  assert (e : exp_of (shift c h) = exp_of h * exp c) by (destruct h; cbn; [ring | apply exp_plus]).
  rewrite e. pose proof (exp_pos c). pose proof (sum_exp_pos x f). field. lra.
Qed.

(** lse (x + c) = lse x + c. *)
Theorem lse_shift : forall x c, lse (map (shift c) x) = shift c (lse x).
Proof.
  intros x c. unfold lse. rewrite row_max_shift.
  destruct (row_max x) as [|m] eqn:e; cbn; [reflexivity|].
  rewrite sum_exp_shift, ln_mult, ln_exp; [reflexivity | | apply exp_pos].
  apply sum_exp_pos, row_max_finite. now exists m.
Qed.

(** The state follows a shift: its maximum moves, its sum stays. *)
Theorem state_shift : forall x c,
  state_of (map (shift c) x) = (shift c (fst (state_of x)), snd (state_of x)).
Proof.
  intros x c. unfold state_of; cbn [fst snd]. rewrite row_max_shift. f_equal.
  destruct (row_max x) as [|m] eqn:e; cbn [shift].
  - rewrite !row_of_minus_inf; trivial. now rewrite row_max_shift, e.
  - rewrite !sum_at_shifted, sum_exp_shift, Rmult_assoc, <- exp_plus. do 2 f_equal. ring.
Qed.

(** * From the state *)

(** y_i = exp (x_i - m) / s. *)
Theorem softmax_of_state : forall x h, has_finite x ->
  weight h (fst (state_of x)) / snd (state_of x) = softmax x h.
Proof.
  intros x h f. destruct (proj1 (row_max_finite x) f) as [m e].
  unfold state_of; cbn [fst snd]. rewrite e. now apply softmax_any_constant.
Qed.

(** The denominator of the definition is the mass: sum exp x_i = s * exp m. *)
Theorem sum_exp_of_state : forall x, sum_exp x = mass (state_of x).
Proof. intros. rewrite <- (any_pivot_has_the_mass x 0), exp_0, sum_exp_at. ring. Qed.

(** lse = m + log s. *)
Theorem lse_of_state : forall x m, fst (state_of x) = fin m -> lse x = fin (m + ln (snd (state_of x))).
Proof.
  intros x m e. cbn [state_of fst] in e. unfold lse, state_of; cbn [snd]. rewrite e. f_equal.
  assert (f : has_finite x) by (apply row_max_finite; now exists m).
  rewrite <- (any_pivot_has_the_lse x 0 m f), sum_exp_at. ring.
Qed.

(** log softmax (x)_i = (x_i - m) - log s. *)
Theorem log_softmax_of_state : forall x m r, fst (state_of x) = fin m ->
  ln (softmax x (fin r)) = (r - m) - ln (snd (state_of x)).
Proof.
  intros x m r e.
  assert (f : has_finite x) by (apply row_max_finite; now exists m).
  rewrite <- (softmax_of_state x (fin r) f), e.
  pose proof (normaliser_bounds x f) as [least _].
  unfold Rdiv. rewrite ln_mult, ln_Rinv by (lra || apply weight_pos || (apply Rinv_0_lt_compat; lra)).
  cbn [weight pivot]. now rewrite ln_exp.
Qed.

(** log softmax (x)_i = x_i - lse. *)
Theorem log_softmax_of_lse : forall x l r, lse x = fin l -> ln (softmax x (fin r)) = r - l.
Proof.
  intros x l r e. unfold lse in e. destruct (row_max x) as [|m] eqn:em; [discriminate|]. injection e as <-.
  assert (p : 0 < sum_exp x) by (apply sum_exp_pos, row_max_finite; now exists m).
  unfold softmax, Rdiv. rewrite ln_mult, ln_Rinv by (trivial || apply exp_pos || now apply Rinv_0_lt_compat).
  cbn. now rewrite ln_exp.
Qed.

(** max <= lse <= max + log C. *)
Theorem lse_bounds : forall x m l, row_max x = fin m -> lse x = fin l -> m <= l <= m + ln (INR (length x)).
Proof.
  intros x m l e el. rewrite (lse_of_state x m e) in el.
  assert (l = m + ln (snd (state_of x))) as -> by congruence.
  assert (f : has_finite x) by (apply row_max_finite; now exists m).
  pose proof (normaliser_bounds x f) as [least greatest].
  assert (mono : forall a b, 0 < a -> a <= b -> ln a <= ln b).
  { intros a b pos [lt|<-]; [left; now apply ln_increasing | now right]. }
  pose proof (mono 1 _ Rlt_0_1 least) as low. rewrite ln_1 in low.
  pose proof (mono _ _ (Rlt_le_trans _ _ _ Rlt_0_1 least) greatest). lra.
Qed.

(** * Probabilities *)

(** 0 <= p_i, and 0 < p_i where x_i is finite. *)
Theorem softmax_nonneg : forall x h, has_finite x -> 0 <= softmax x h.
Proof.
  intros x h f. apply Rmult_le_pos; [|left; now apply Rinv_0_lt_compat, sum_exp_pos].
  rewrite exp_of_weight. apply weight_nonneg.
Qed.

Theorem softmax_pos : forall x r, has_finite x -> 0 < softmax x (fin r).
Proof. intros. apply Rdiv_lt_0_compat; [apply exp_pos | now apply sum_exp_pos]. Qed.

(** A masked entry has probability 0. *)
Theorem softmax_of_minus_inf : forall x, softmax x minus_inf = 0.
Proof. intros. unfold softmax; cbn. unfold Rdiv. ring. Qed.

(** p_i <= 1. *)
Theorem softmax_le_1 : forall x h, In h x -> softmax x h <= 1.
Proof.
  intros x [|r] i; [rewrite softmax_of_minus_inf; lra|].
  assert (f : has_finite x) by now exists r.
  pose proof (sum_exp_pos x f) as p. unfold softmax. apply Rmult_le_reg_r with (sum_exp x); [exact p|].
  unfold Rdiv. rewrite Rmult_assoc, Rinv_l, Rmult_1_r, Rmult_1_l by lra.
  rewrite sum_exp_at, exp_of_weight. now apply sum_at_ge.
Qed.

(** The probabilities of a row sum to 1. *)
Theorem softmax_sums_to_1 : forall x, has_finite x -> fold_right Rplus 0 (map (softmax x) x) = 1.
Proof.
  intros x f. pose proof (sum_exp_pos x f) as p.
  assert (e : forall y, fold_right Rplus 0 (map (softmax x) y) = sum_exp y / sum_exp x).
  { induction y as [|h y IH]; cbn; [field; lra|]. rewrite IH. unfold softmax. field. lra. }
  rewrite e. field. lra.
Qed.

(** A greater score never has the smaller probability. *)
Theorem softmax_monotone : forall x r t, has_finite x -> (r < t <-> softmax x (fin r) < softmax x (fin t)).
Proof.
  intros x r t f. pose proof (Rinv_0_lt_compat _ (sum_exp_pos x f)) as p.
  unfold softmax, Rdiv; cbn. split; intro lt.
  - apply Rmult_lt_compat_r; [exact p | now apply exp_increasing].
  - apply exp_lt_inv. now apply Rmult_lt_reg_r in lt.
Qed.

(** The probabilities of a part of a row, scaled by the part's share, are those of the row: partial results merge. *)
Theorem softmax_of_append : forall x y h, has_finite x ->
  softmax (x ++ y) h = softmax x h * (mass (state_of x) / (mass (state_of x) + mass (state_of y))).
Proof.
  intros x y h f. rewrite <- !sum_exp_of_state.
  assert (e : sum_exp (x ++ y) = sum_exp x + sum_exp y) by now rewrite !sum_exp_at, sum_at_app.
  pose proof (sum_exp_pos x f). pose proof (sum_at_nonneg (fin 0) y) as n. rewrite <- sum_exp_at in n.
  unfold softmax. rewrite e. field. lra.
Qed.
