(* Rounded exponentials, rescales, and sums at a pivot that is known first.

   In the counts of FloatSums.v, by which an entry may err on top of its rounded exponent,

     an exponential         is e1                        [term_near]
     a rescale              adds e1 + u                  [rescale_near], and nothing where the pivot stays [stay]

   with e1 = e / (1 - e) for an exponential of relative error e. So a sum whose pivot is known first, added in any
   order in which an entry goes through d additions at most, has counts of d * u + e1: [batch_near]. *)

From Coq Require Import ZArith Reals Psatz List.
From Flocq Require Import Core.
From OnlineSoftmax Require Import Rounding FloatSums.
Import ListNotations.
Open Scope R_scope.

Section Terms.

Variable F : Format.
Variable E : Exponential F.

Notation u := (u F).
Notation tiny := (tiny F).
Notation rnd := (rnd F).
Notation number := (number F).
Notation near := (near F).
Notation within := (within F).
Notation underflow := (underflow F).
Notation least := (least F).
Notation most := (most F).

(* exp (x - m), from a rounded difference; what a sum at the pivot p is multiplied by at m is the same function. *)
Definition term (x m : R) : R := expf F E (rnd (x - m)).

(* The sum of a tree's exponentials at the pivot m, each operation rounded. *)
Fixpoint sum_at (m : R) (t : order) : R :=
  match t with
  | One x => term x m
  | Plus a b => rnd (sum_at m a + sum_at m b)
  end.

(* What one exponential costs, as an exponent; [gap] is 0 unless differences are flushed to zero. *)
Definition e1 : R := err F E / (1 - err F E) + gap F.

(* --- an exponential --- *)

Lemma e0_range : 0 <= err F E / (1 - err F E) <= / 3.
Proof.
  pose proof (err_range F E). split.
  - apply Rmult_le_pos; [lra|]. apply Rlt_le, Rinv_0_lt_compat. lra.
  - apply Rmult_le_reg_r with (1 - err F E); [lra|]. unfold Rdiv. rewrite Rmult_assoc, Rinv_l by lra. lra.
Qed.

Lemma e1_pos : 0 <= e1.
Proof. pose proof e0_range. pose proof (gap_range F). unfold e1. lra. Qed.

Lemma exp_errs : exp (- (err F E / (1 - err F E))) <= 1 - err F E /\ 1 + err F E <= exp (err F E / (1 - err F E)).
Proof.
  pose proof (err_range F E) as H. set (e := err F E) in *.
  destruct H as [H0 H1]. pose proof (exp_ineq1_le (e / (1 - e))) as Hx.
  assert (Hd : 1 + e / (1 - e) = / (1 - e)) by (field; lra).
  split.
  - rewrite exp_Ropp. apply Rle_trans with (/ / (1 - e)); [|rewrite Rinv_inv; lra].
    apply Rinv_le_contravar; [|lra]. apply Rinv_0_lt_compat. lra.
  - apply Rle_trans with (2 := Hx). apply Rplus_le_compat_l.
    apply Rmult_le_reg_r with (1 - e); [lra|]. unfold Rdiv. rewrite Rmult_assoc, Rinv_l by lra. nra.
Qed.

Lemma term_number : forall x m, number x -> number m -> x <= m -> number (term x m) /\ 0 <= term x m <= 1.
Proof.
  intros x m Nx Nm H. unfold term.
  assert (rnd (x - m) <= 0) by (apply rnd_nonpos; lra).
  split; [apply expf_number|apply expf_range]; try assumption; apply number_rnd.
Qed.

Lemma term_same : forall m, term m m = 1.
Proof.
  intros m. unfold term. rewrite Rminus_diag_eq by reflexivity. rewrite (rnd_number F 0 (number_0 F)). apply expf_0.
Qed.

(* The two ways an exponential comes out: normal and off by a factor, or small and off by tiny, too. *)
Lemma term_cases : forall x m, number x -> number m -> x <= m ->
  let low := exp ((1 + u) * (x - m) - e1) in
  let high := exp ((1 - u) * (x - m) + e1) in
  (normal F <= term x m /\ low <= term x m <= high) \/
  (term x m <= / 4 /\ low - tiny <= term x m <= high + tiny).
Proof.
  intros x m Nx Nm H low high.
  pose proof (rnd_difference F x m Nx Nm H) as Hd.
  assert (Hneg : rnd (x - m) <= 0) by (apply rnd_nonpos; lra).
  pose proof (number_rnd F (x - m)) as Nd.
  pose proof (expf_small F E _ Nd Hneg) as Hs. pose proof (expf_normal F E _ Nd Hneg) as Hn.
  pose proof (err_range F E) as He. destruct exp_errs as [He1 He2].
  unfold term. set (d := rnd (x - m)) in *. pose proof (exp_pos d) as Hp.
  assert (L : low <= (1 - err F E) * exp d).
  { unfold low, e1. apply Rle_trans with (exp (- (err F E / (1 - err F E))) * exp d).
    - rewrite <- exp_plus. apply exp_le. lra.
    - apply Rmult_le_compat_r; lra. }
  assert (U : (1 + err F E) * exp d <= high).
  { unfold high, e1. apply Rle_trans with (exp (err F E / (1 - err F E)) * exp d).
    - apply Rmult_le_compat_r; lra.
    - rewrite <- exp_plus. apply exp_le. lra. }
  apply Rabs_le_inv in Hs.
  destruct (Rle_or_lt (normal F) ((1 - err F E) * exp d)) as [C|C].
  - left. specialize (Hn C). apply Rabs_le_inv in Hn. lra.
  - right. pose proof (normal_range F). pose proof (tiny_range F).
    assert (/ 2 * exp d <= (1 - err F E) * exp d) by (apply Rmult_le_compat_r; lra).
    assert (err F E * exp d <= / 4 * exp d) by (apply Rmult_le_compat_r; lra).
    assert (exp d < 2 * normal F) by lra. split; lra.
Qed.

Lemma term_near : forall x m, number x -> number m -> x <= m -> near e1 m (term x m) [(x, e1)].
Proof.
  intros x m Nx Nm H. destruct (term_number x m Nx Nm H) as [N R].
  split; [|split; [exact N|lra]].
  pose proof (term_cases x m Nx Nm H) as C. pose proof e1_pos. pose proof (tiny_range F).
  assert (tiny <= underflow e1 [(x, e1)]).
  { unfold underflow. simpl. rewrite Rmult_1_l.
    assert (1 <= exp e1) by now apply exp_ge_1. nra. }
  split.
  - constructor; [simpl; lra|constructor].
  - unfold least. simpl. lra.
  - unfold most. simpl. lra.
Qed.

(* --- a rescale --- *)

Lemma near_not_empty : forall c K m s ts, within c K m s ts -> 1 <= s -> 1 <= INR (length ts).
Proof.
  intros c K m s [|t ts] [_ _ U] Hs.
  - unfold most, underflow in U. simpl in U. lra.
  - cbn [length]. rewrite S_INR. pose proof (pos_INR (length ts)). lra.
Qed.

(* The product before it is rounded. *)
Lemma scaled_within : forall K p m s ts, near K p s ts -> 1 <= s -> number p -> number m -> p <= m ->
  (normal F <= s * term p m /\ within 3 (K + e1) m (s * term p m) (more e1 ts)) \/
  within 2 (K + e1) m (s * term p m) (more e1 ts).
Proof.
  intros K p m s ts [[C L U] [Ns Hs]] H1 Np Nm Hpm.
  pose proof (term_cases p m Np Nm Hpm) as T. simpl in T.
  destruct (term_number p m Np Nm Hpm) as [_ Hr].
  set (r := term p m) in *.
  pose proof (least_range F K p ts C) as Hl. pose proof (most_range F K p ts C) as Hm.
  pose proof (tiny_range F) as Ht. pose proof (normal_range F) as Hn. pose proof e1_pos as He.
  assert (HK : 0 <= K \/ ts = []).
  { destruct C as [|t ts Ct _]; [now right|left; lra]. }
  assert (Hn1 : INR (length ts) * tiny <= underflow K ts).
  { unfold underflow. pose proof (pos_INR (length ts)). destruct HK as [HK| ->]; [|simpl; lra].
    assert (1 <= exp K) by now apply exp_ge_1.
    assert (0 <= INR (length ts) * tiny) by (apply Rmult_le_pos; lra). nra. }
  assert (Hn2 : most p ts * tiny <= underflow K ts).
  { unfold underflow. apply Rle_trans with (INR (length ts) * exp K * tiny); [|lra].
    apply Rmult_le_compat_r; lra. }
  pose proof (underflow_pos F K ts) as Hw.
  assert (Hg : underflow K ts <= underflow (K + e1) (more e1 ts)).
  { rewrite underflow_more. assert (1 <= exp e1) by now apply exp_ge_1. nra. }
  pose proof (counts_more e1 K p m ts He Hpm C) as C'.
  set (W := underflow K ts) in *. set (lo := least p ts) in *. set (hi := most p ts) in *.
  assert (A : s * r <= (hi + 3 * W) * r) by (apply Rmult_le_compat_r; lra).
  assert (B : (lo - 3 * W) * r <= s * r) by (apply Rmult_le_compat_r; lra).
  set (bl := exp ((1 + u) * (p - m) - e1)) in *. set (bh := exp ((1 - u) * (p - m) + e1)) in *.
  destruct T as [[Hnr [Lr Ur]]|[Hsr [Lr Ur]]]; [left|right].
  - assert (3 * W * r <= 3 * W * 1) by (apply Rmult_le_compat_l; lra).
    split; [apply Rle_trans with (1 * r); [lra|apply Rmult_le_compat_r; lra]|]. split; [exact C'| |].
    + rewrite (least_moved F e1 p m). fold lo bl. assert (lo * bl <= lo * r) by (apply Rmult_le_compat_l; lra). lra.
    + rewrite (most_moved F e1 p m). fold hi bh. assert (hi * r <= hi * bh) by (apply Rmult_le_compat_l; lra). lra.
  - assert (3 * W * r <= 3 * W * / 4) by (apply Rmult_le_compat_l; lra).
    split; [exact C'| |].
    + rewrite (least_moved F e1 p m). fold lo bl.
      assert (lo * (bl - tiny) <= lo * r) by (apply Rmult_le_compat_l; lra).
      assert (lo * tiny <= INR (length ts) * tiny) by (apply Rmult_le_compat_r; lra). lra.
    + rewrite (most_moved F e1 p m). fold hi bh.
      assert (hi * r <= hi * (bh + tiny)) by (apply Rmult_le_compat_l; lra). lra.
Qed.

Lemma rescale_near : forall K p m s ts, near K p s ts -> 1 <= s -> number p -> number m -> p <= m ->
  near (K + (e1 + u)) m (rnd (s * term p m)) (more (e1 + u) ts).
Proof.
  intros K p m s ts N H1 Np Nm Hpm.
  pose proof (scaled_within K p m s ts N H1 Np Nm Hpm) as W.
  destruct (term_number p m Np Nm Hpm) as [_ Hr]. pose proof (near_not_empty _ _ _ _ _ (proj1 N) H1) as Hn.
  destruct N as [[C _ _] _].
  assert (Hv : 0 <= s * term p m) by nra.
  split; [|split; [apply number_rnd|now apply rnd_nonneg]].
  pose proof e1_pos. pose proof (tiny_range F).
  assert (M : more (e1 + u) ts = more u (more e1 ts)).
  { unfold more. rewrite map_map. apply map_ext. intros t. simpl. f_equal. ring. }
  rewrite M, <- Rplus_assoc.
  assert (Hw : tiny <= underflow (K + e1) (more e1 ts)).
  { unfold underflow. rewrite length_more.
    assert (0 <= K) by (destruct C as [|t l Ct _]; [simpl in Hn; lra|lra]).
    assert (1 <= exp (K + e1)) by (apply exp_ge_1; lra).
    assert (tiny <= INR (length ts) * tiny) by nra. nra. }
  destruct W as [[Hx W]|W].
  - apply rounded_within with (2 := W); [lra|]. pose proof (rnd_normal F _ Hx). lra.
  - apply rounded_within with (2 := W); [lra|]. pose proof (rnd_any F _ Hv). lra.
Qed.

(* Where the pivot stays, the factor is 1 and nothing is rounded. *)
Lemma stay : forall m s, number s -> rnd (s * term m m) = s.
Proof. intros m s Ns. rewrite term_same, Rmult_1_r. now apply rnd_number. Qed.

(* --- the maximum first, then sums in any order --- *)

Lemma top_ge : forall t x, In x (entries t) -> x <= top t.
Proof.
  induction t as [y|a IHa b IHb]; simpl; intros x H.
  - destruct H as [->|[]]. lra.
  - apply in_app_or in H. destruct H as [H|H].
    + apply Rle_trans with (2 := Rmax_l _ _). auto.
    + apply Rle_trans with (2 := Rmax_r _ _). auto.
Qed.

Lemma top_in : forall t, In (top t) (entries t).
Proof.
  induction t as [y|a IHa b IHb]; simpl; [now left|]. apply in_or_app.
  unfold Rmax. destruct (Rle_dec (top a) (top b)); auto.
Qed.

(* At any pivot no entry is above, in any order of summation: depth roundings and an exponential. *)
Theorem batch_near : forall t m, Forall number (entries t) -> number m -> top t <= m ->
  near (INR (depth t) * u + e1) m (sum_at m t) (all (INR (depth t) * u + e1) (entries t)).
Proof.
  pose proof (u_range F) as Hu. pose proof e1_pos as He.
  induction t as [x|a IHa b IHb]; intros m N Nm H.
  - cbn [depth entries sum_at top] in *. change (INR 0) with 0. rewrite Rmult_0_l, Rplus_0_l.
    inversion N. now apply term_near.
  - cbn [entries top] in N, H. apply Forall_app in N. destruct N as [Na Nb].
    pose proof (Rmax_l (top a) (top b)). pose proof (Rmax_r (top a) (top b)).
    specialize (IHa m Na Nm ltac:(lra)). specialize (IHb m Nb Nm ltac:(lra)).
    cbn [sum_at entries depth]. set (d := max (depth a) (depth b)).
    rewrite all_app. replace (INR (S d) * u + e1) with (INR d * u + e1 + u) by (rewrite S_INR; ring).
    set (K := INR d * u + e1). rewrite <- !(more_all u K), <- more_app. unfold K.
    apply plus_near.
    + apply all_weaken with (2 := IHa). apply Rplus_le_compat_r, Rmult_le_compat_r; [lra|]. apply le_INR. unfold d. lia.
    + apply all_weaken with (2 := IHb). apply Rplus_le_compat_r, Rmult_le_compat_r; [lra|]. apply le_INR. unfold d. lia.
Qed.

End Terms.
