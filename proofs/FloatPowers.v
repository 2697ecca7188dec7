(* States with a power of two for a pivot.

   A state (k, s) stands for s * 2^k, with a whole number k. A merge brings both sums to the greater k and adds them.
   Multiplying by a power of two changes no bit of a significand, so a merge adds one rounding only, whatever the
   pivots are: in a format without underflow [merge_one_rounding], and in one with, where the lower sum stays normal or
   is 0 [merge_one_rounding_normal]; where it does not, what it loses is at most tiny beside a sum that is 1/2 at least
   [merge_underflow]. Any tree of merges of height h is then off by a factor of exp (h * u) [tree_of_powers]: no
   exponential, no product, no count of maxima. *)

From Coq Require Import ZArith Reals Psatz List.
From Flocq Require Import Core Relative Mult_error.
From OnlineSoftmax Require Import Rounding FloatSums.
Import ListNotations.
Open Scope R_scope.

Definition power_state := (Z * R)%type.
Definition worth (a : power_state) : R := snd a * pow2 (fst a).

Definition merge_by (round : R -> R) (a b : power_state) : power_state :=
  let k := Z.max (fst a) (fst b) in
  (k, round (round (snd a * pow2 (fst a - k)) + round (snd b * pow2 (fst b - k)))).

Lemma scaled_worth : forall a k, snd a * pow2 (fst a - k) * pow2 k = worth a.
Proof. intros [l s] k. unfold worth. simpl. rewrite Rmult_assoc, <- bpow_plus. do 2 f_equal. lia. Qed.

(* --- without underflow --- *)

Section Unlimited.

Variable p : Z.
Hypothesis p_large : (1 < p)%Z.

#[local] Instance p_pos : Prec_gt_0 p.
Proof. unfold Prec_gt_0. lia. Qed.

Definition unit : R := pow2 (- p).
Definition nearest_unlimited (x : R) : R := round radix2 (FLX_exp p) ZnearestE x.
Notation number := (generic_format radix2 (FLX_exp p)).
Notation merge := (merge_by nearest_unlimited).

Lemma scaling_exact : forall s k, number s -> nearest_unlimited (s * pow2 k) = s * pow2 k.
Proof.
  intros s k Hs. apply round_generic; [typeclasses eauto|]. now apply mult_bpow_exact_FLX.
Qed.

(* Bit for bit the rounded sum of what the two are worth. *)
Theorem merge_one_rounding : forall a b, number (snd a) -> number (snd b) ->
  worth (merge a b) = nearest_unlimited (worth a + worth b).
Proof.
  intros a b Ha Hb. unfold merge_by. set (k := Z.max (fst a) (fst b)). unfold worth at 1. cbn [fst snd].
  rewrite (scaling_exact _ _ Ha), (scaling_exact _ _ Hb).
  rewrite <- (scaled_worth a k), <- (scaled_worth b k), <- Rmult_plus_distr_r.
  generalize (snd a * pow2 (fst a - k) + snd b * pow2 (fst b - k)). intros v.
  (* Rounding commutes with a power of two. *)
  destruct (Req_dec v 0) as [->|Hv].
  - unfold nearest_unlimited. rewrite Rmult_0_l, round_0 by typeclasses eauto. ring.
  - unfold nearest_unlimited, round, scaled_mantissa, F2R, cexp, FLX_exp. cbn [Fnum Fexp].
    rewrite mag_mult_bpow by exact Hv.
    replace (v * pow2 k * pow2 (- (mag radix2 v + k - p))) with (v * pow2 (- (mag radix2 v - p))).
    + rewrite Rmult_assoc, <- bpow_plus. f_equal. f_equal. lia.
    + rewrite Rmult_assoc, <- bpow_plus. f_equal. f_equal. lia.
Qed.

(* So merging is commutative in bits, and with the empty state exact. *)
Corollary power_merge_comm : forall a b, worth (merge a b) = worth (merge b a).
Proof. intros a b. unfold worth, merge_by. cbn [fst snd]. rewrite Z.max_comm, Rplus_comm. reflexivity. Qed.

Lemma unit_pos : 0 < unit.
Proof. apply bpow_gt_0. Qed.

Lemma nearest_factor : forall x, 0 <= x -> x * exp (- unit) <= nearest_unlimited x <= x * exp unit.
Proof.
  intros x Hx. pose proof unit_pos as Hu.
  destruct (relative_error_N_FLX'_ex radix2 p p_pos (fun x => negb (Z.even x)) x) as (d & Hd & Ed).
  assert (EU : u_ro radix2 p = unit).
  { unfold u_ro, unit. replace (/ 2) with (pow2 (-1)) by (simpl; lra). rewrite <- bpow_plus. f_equal. lia. }
  rewrite EU in Hd. apply Rabs_le_inv in Hd. change (round radix2 (FLX_exp p) ZnearestE x) with (nearest_unlimited x) in Ed.
  rewrite Ed.
  assert (unit / (1 + unit) <= unit).
  { apply Rmult_le_reg_r with (1 + unit); [lra|]. unfold Rdiv. rewrite Rmult_assoc, Rinv_l by lra. nra. }
  assert (exp (- unit) <= 1 - unit / (1 + unit)).
  { replace (1 - unit / (1 + unit)) with (/ (1 + unit)) by (field; lra). rewrite exp_Ropp.
    apply Rinv_le_contravar; [lra|]. generalize (exp_ineq1_le unit). lra. }
  pose proof (exp_ineq1_le unit). split; apply Rmult_le_compat_l; lra.
Qed.

(* --- trees --- *)

Inductive tree := State (a : power_state) | Merge (l r : tree).

Fixpoint levels_of (t : tree) : nat :=
  match t with State _ => 0 | Merge l r => S (max (levels_of l) (levels_of r)) end.

Fixpoint states (t : tree) : list power_state :=
  match t with State a => [a] | Merge l r => states l ++ states r end.

Fixpoint merged (t : tree) : power_state :=
  match t with State a => a | Merge l r => merge (merged l) (merged r) end.

Definition worths (l : list power_state) : R := sum (map worth l).

Theorem tree_of_powers : forall t, Forall (fun a => number (snd a) /\ 0 <= snd a) (states t) ->
  worths (states t) * exp (- (INR (levels_of t) * unit)) <= worth (merged t)
    <= worths (states t) * exp (INR (levels_of t) * unit).
Proof.
  assert (H : forall t, Forall (fun a => number (snd a) /\ 0 <= snd a) (states t) ->
    (number (snd (merged t)) /\ 0 <= worths (states t)) /\
    worths (states t) * exp (- (INR (levels_of t) * unit)) <= worth (merged t)
      <= worths (states t) * exp (INR (levels_of t) * unit)).
  2: { intros t Ht. apply H, Ht. }
  pose proof unit_pos as Hu.
  induction t as [a|l IHl r IHr]; intros Ht.
  - inversion_clear Ht as [|? ? [Na Ha] _]. cbn [states merged levels_of map]. unfold worths. simpl.
    assert (0 <= worth a) by (unfold worth; apply Rmult_le_pos; [exact Ha|apply bpow_ge_0]).
    rewrite Rmult_0_l, Ropp_0, exp_0. split; [split; [exact Na|lra]|lra].
  - cbn [states] in *. apply Forall_app in Ht. destruct Ht as [Hl Hr].
    destruct (IHl Hl) as [[Nl Pl] [Ll Ul]]. destruct (IHr Hr) as [[Nr Pr] [Lr Ur]].
    cbn [merged levels_of]. set (n := max (levels_of l) (levels_of r)).
    assert (ES : worths (states l ++ states r) = worths (states l) + worths (states r)).
    { unfold worths. now rewrite map_app, sum_app. }
    rewrite ES, (merge_one_rounding _ _ Nl Nr), S_INR.
    split; [split; [apply generic_format_round; typeclasses eauto|lra]|].
    assert (G : forall j w, 0 <= w -> (j <= n)%nat ->
      w * exp (- (INR n * unit)) <= w * exp (- (INR j * unit)) /\ w * exp (INR j * unit) <= w * exp (INR n * unit)).
    { intros j w Hw Hj. apply le_INR in Hj.
      split; apply Rmult_le_compat_l; try exact Hw; apply exp_le; nra. }
    destruct (G (levels_of l) _ Pl ltac:(unfold n; lia)) as [G1 G2].
    destruct (G (levels_of r) _ Pr ltac:(unfold n; lia)) as [G3 G4].
    set (A := worths (states l)) in *. set (B := worths (states r)) in *.
    set (v := worth (merged l) + worth (merged r)).
    pose proof (exp_pos (- (INR n * unit))) as Q1. pose proof (exp_pos (INR n * unit)) as Q2.
    assert (V : (A + B) * exp (- (INR n * unit)) <= v <= (A + B) * exp (INR n * unit)) by (unfold v; lra).
    destruct (nearest_factor v ltac:(nra)) as [N1 N2].
    replace ((INR n + 1) * unit) with (INR n * unit + unit) by ring. rewrite Ropp_plus_distr, !exp_plus.
    pose proof (exp_pos unit). pose proof (exp_pos (- unit)).
    assert ((A + B) * exp (- (INR n * unit)) * exp (- unit) <= v * exp (- unit)) by (apply Rmult_le_compat_r; lra).
    assert (v * exp unit <= (A + B) * exp (INR n * unit) * exp unit) by (apply Rmult_le_compat_r; lra).
    lra.
Qed.

End Unlimited.

(* --- with underflow --- *)

Section Limited.

Variable F : Format.
Notation merge := (merge_by (rnd F)).

(* A scaling is exact where its result is 0 or normal; and otherwise off by tiny. *)
Theorem scaling_exact_normal : forall s k, number F s -> s = 0 \/ normal F <= Rabs (s * pow2 k) ->
  rnd F (s * pow2 k) = s * pow2 k.
Proof.
  intros s k [Ns _] [->|H].
  - rewrite Rmult_0_l. apply rnd_number, number_0.
  - rewrite rnd_normal_is_nearest by exact H. apply round_generic; [typeclasses eauto|].
    apply mult_bpow_exact_FLT; [exact Ns|].
    assert (Hs : s <> 0).
    { intros ->. rewrite Rmult_0_l, Rabs_R0 in H. pose proof (normal_range F). lra. }
    pose proof (mag_mult_bpow radix2 s k Hs) as M.
    assert (emin F + prec F - 1 < mag radix2 (s * pow2 k))%Z; [|lia].
    apply lt_bpow with radix2. apply Rle_lt_trans with (1 := H). apply bpow_mag_gt.
Qed.

Theorem merge_one_rounding_normal : forall a b, number F (snd a) -> number F (snd b) ->
  let k := Z.max (fst a) (fst b) in
  (forall c, c = a \/ c = b -> snd c = 0 \/ normal F <= Rabs (snd c * pow2 (fst c - k))) ->
  snd (merge a b) = rnd F ((worth a + worth b) * pow2 (- k)).
Proof.
  intros a b Na Nb k H. unfold merge_by. cbn [snd]. fold k.
  rewrite (scaling_exact_normal _ _ Na (H a (or_introl eq_refl))).
  rewrite (scaling_exact_normal _ _ Nb (H b (or_intror eq_refl))).
  f_equal. unfold worth. rewrite Rmult_plus_distr_r, !Rmult_assoc, <- !bpow_plus. reflexivity.
Qed.

(* Whatever is lost below the normal numbers is tiny, for sums that are not negative. *)
Theorem merge_underflow : forall a b, number F (snd a) -> number F (snd b) -> 0 <= snd a -> 0 <= snd b ->
  let k := Z.max (fst a) (fst b) in
  let v := (worth a + worth b) * pow2 (- k) in
  (v - tiny F) * exp (- u F) <= snd (merge a b) <= (v + tiny F) * exp (u F).
Proof.
  intros a b Na Nb Ha Hb k v. unfold merge_by. cbn [snd]. fold k.
  set (x := snd a * pow2 (fst a - k)). set (y := snd b * pow2 (fst b - k)).
  assert (Ev : v = x + y).
  { unfold v, x, y, worth. rewrite Rmult_plus_distr_r, !Rmult_assoc, <- !bpow_plus. reflexivity. }
  pose proof (tiny_range F) as Ht. pose proof (exp_pos (- u F)). pose proof (exp_pos (u F)).
  assert (Off : forall s l, number F s -> 0 <= s -> s * pow2 l - tiny F <= rnd F (s * pow2 l) <= s * pow2 l + tiny F).
  { intros s l Ns Hs. assert (P : 0 <= s * pow2 l) by (apply Rmult_le_pos; [exact Hs|apply bpow_ge_0]).
    destruct (Rle_or_lt (normal F) (s * pow2 l)) as [C|C].
    - rewrite scaling_exact_normal; [lra|exact Ns|]. right. rewrite Rabs_pos_eq; lra.
    - apply rnd_small. lra. }
  (* The side at the greater pivot is not scaled. *)
  assert (Z : rnd F x + rnd F y = x + rnd F y \/ rnd F x + rnd F y = rnd F x + y).
  { unfold x, y, k. destruct (Z.max_spec (fst a) (fst b)) as [[_ ->]|[_ ->]]; rewrite Z.sub_diag.
    - right. change (pow2 0) with 1. now rewrite Rmult_1_r, (rnd_number F _ Nb).
    - left. change (pow2 0) with 1. now rewrite Rmult_1_r, (rnd_number F _ Na). }
  pose proof (Off _ (fst a - k)%Z Na Ha) as OA. pose proof (Off _ (fst b - k)%Z Nb Hb) as OB. fold x in OA. fold y in OB.
  assert (Px : 0 <= x) by (apply Rmult_le_pos; [exact Ha|apply bpow_ge_0]).
  assert (Py : 0 <= y) by (apply Rmult_le_pos; [exact Hb|apply bpow_ge_0]).
  pose proof (rnd_sum F _ _ (number_rnd F x) (number_rnd F y) (rnd_nonneg F x Px) (rnd_nonneg F y Py)) as [L U].
  rewrite Ev. split.
  - apply Rle_trans with (2 := L). apply Rmult_le_compat_r; [lra|]. destruct Z as [-> | ->]; lra.
  - apply Rle_trans with (1 := U). apply Rmult_le_compat_r; [lra|]. destruct Z as [-> | ->]; lra.
Qed.

End Limited.
