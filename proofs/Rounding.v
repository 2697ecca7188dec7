(* One operation of floating point arithmetic, over Flocq's formats.

   A result is rounded to nearest, ties to even, in a binary format with gradual underflow; where [flush] holds,
   what comes out below the normal numbers becomes 0 (as Machine.rounded does in
   src/online_softmax/numerics/simulate.py). There is no largest number here: that sums stay small is a theorem of
   its own in the files that follow.

   Errors are kept as exponents: a rounding multiplies a normal result by a factor from exp (- u) to exp u, where
   u = 2^-prec is the unit roundoff. This is exact, not of first order, and factors of many operations just add up. *)

From Coq Require Import ZArith Reals Psatz.
From Flocq Require Import Core Relative Plus_error.
Open Scope R_scope.

Notation pow2 := (bpow radix2).

(* --- formats --- *)

Record Format := {
  prec : Z;                                (* bits of a significand *)
  emin : Z;                                (* the smallest positive number is 2^emin *)
  flush : bool;                            (* results below the normal numbers become 0 *)
  prec_large : (1 < prec)%Z;
  emin_small : (emin + prec <= -3)%Z       (* the normal numbers begin at 1/16 or below *)
}.

Definition float64 : Format :=
  {| prec := 53; emin := -1074; flush := false; prec_large := eq_refl; emin_small := ltac:(easy) |}.
Definition float32 : Format :=
  {| prec := 24; emin := -149; flush := false; prec_large := eq_refl; emin_small := ltac:(easy) |}.
Definition float16 : Format :=
  {| prec := 11; emin := -24; flush := false; prec_large := eq_refl; emin_small := ltac:(easy) |}.
Definition bfloat16 : Format :=
  {| prec := 8; emin := -133; flush := false; prec_large := eq_refl; emin_small := ltac:(easy) |}.

#[global] Instance prec_gt_0 (F : Format) : Prec_gt_0 (prec F).
Proof. unfold Prec_gt_0. generalize (prec_large F). lia. Qed.

Section Arithmetic.

Variable F : Format.

Definition u : R := pow2 (- prec F).
Definition normal : R := pow2 (emin F + prec F - 1).
(* What an operation whose result is not normal is off by at the most; what a sum or difference is. *)
Definition tiny : R := if flush F then normal else / 2 * pow2 (emin F).
Definition gap : R := if flush F then normal else 0.

Definition nearest (x : R) : R := round radix2 (FLT_exp (emin F) (prec F)) ZnearestE x.

Definition rnd (x : R) : R :=
  if flush F then if Rlt_dec (Rabs (nearest x)) normal then 0 else nearest x else nearest x.

Definition number (x : R) : Prop :=
  generic_format radix2 (FLT_exp (emin F) (prec F)) x /\ (flush F = true -> x = 0 \/ normal <= Rabs x).

(* --- constants --- *)

Lemma u_range : 0 < u <= / 4.
Proof.
  split; [apply bpow_gt_0|]. unfold u.
  replace (/ 4) with (pow2 (-2)) by (simpl; lra). apply bpow_le. generalize (prec_large F). lia.
Qed.

Lemma normal_range : 0 < normal <= / 16.
Proof.
  split; [apply bpow_gt_0|]. unfold normal.
  replace (/ 16) with (pow2 (-4)) by (simpl; lra). apply bpow_le. generalize (emin_small F). lia.
Qed.

Lemma half_least : 0 < / 2 * pow2 (emin F) <= normal.
Proof.
  split; [apply Rmult_lt_0_compat; [lra|apply bpow_gt_0]|].
  apply Rle_trans with (pow2 (emin F)).
  - generalize (bpow_gt_0 radix2 (emin F)). lra.
  - apply bpow_le. generalize (prec_large F). lia.
Qed.

Lemma tiny_range : 0 < tiny <= normal.
Proof. generalize half_least normal_range. unfold tiny. destruct (flush F); lra. Qed.

Lemma gap_range : 0 <= gap <= normal.
Proof. generalize normal_range. unfold gap. destruct (flush F); lra. Qed.

Lemma u_ro_is_u : u_ro radix2 (prec F) = u.
Proof.
  unfold u_ro, u. replace (/ 2) with (pow2 (-1)) by (simpl; lra).
  rewrite <- bpow_plus. f_equal. lia.
Qed.

(* --- a factor within u / (1 + u) of 1 lies between exp (- u) and exp u --- *)

Lemma factor_within : forall d, Rabs d <= u / (1 + u) -> exp (- u) <= 1 + d <= exp u.
Proof.
  intros d Hd. pose proof u_range as Hu. apply Rabs_le_inv in Hd.
  assert (u / (1 + u) <= u).
  { apply Rmult_le_reg_r with (1 + u); [lra|]. unfold Rdiv. rewrite Rmult_assoc, Rinv_l by lra. nra. }
  split.
  - apply Rle_trans with (/ (1 + u)).
    + rewrite exp_Ropp. apply Rinv_le_contravar; [lra|]. generalize (exp_ineq1_le u). lra.
    + replace (/ (1 + u)) with (1 - u / (1 + u)) by (field; lra). lra.
  - generalize (exp_ineq1_le u). lra.
Qed.

(* --- nearest --- *)

Lemma nearest_relative : forall x, normal <= Rabs x ->
  exists d, Rabs d <= u / (1 + u) /\ nearest x = x * (1 + d).
Proof.
  intros x Hx.
  destruct (relative_error_N_FLX'_ex radix2 (prec F) (prec_gt_0 F) (fun x => negb (Z.even x)) x) as (d & Hd & E).
  rewrite u_ro_is_u in Hd.
  exists d. split; [exact Hd|]. rewrite <- E. apply round_FLT_FLX. exact Hx.
Qed.

Lemma nearest_sum : forall x y, number x -> number y ->
  exists d, Rabs d <= u / (1 + u) /\ nearest (x + y) = (x + y) * (1 + d).
Proof.
  intros x y [Hx _] [Hy _].
  destruct (FLT_plus_error_N_ex radix2 (emin F) (prec F) (fun x => negb (Z.even x)) x y Hx Hy) as (d & Hd & E).
  rewrite u_ro_is_u in Hd. exists d. now split.
Qed.

Lemma nearest_absolute : forall x, Rabs x < normal -> Rabs (nearest x - x) <= / 2 * pow2 (emin F).
Proof.
  intros x Hx. unfold nearest.
  apply Rle_trans with (/ 2 * ulp radix2 (FLT_exp (emin F) (prec F)) x).
  - apply error_le_half_ulp. typeclasses eauto.
  - rewrite ulp_FLT_small.
    + lra.
    + exact (prec_gt_0 F).
    + apply Rlt_le_trans with (1 := Hx). apply bpow_le. lia.
Qed.

Lemma format_pow2 : forall e, (emin F <= e)%Z -> generic_format radix2 (FLT_exp (emin F) (prec F)) (pow2 e).
Proof. intros e He. apply generic_format_FLT_bpow; [exact (prec_gt_0 F)|exact He]. Qed.

Lemma format_normal : generic_format radix2 (FLT_exp (emin F) (prec F)) normal.
Proof. apply format_pow2. generalize (prec_large F). lia. Qed.

Lemma nearest_ge : forall x y, generic_format radix2 (FLT_exp (emin F) (prec F)) y -> y <= x -> y <= nearest x.
Proof. intros x y Hy Hxy. apply round_ge_generic; try typeclasses eauto; assumption. Qed.

Lemma nearest_le : forall x y, generic_format radix2 (FLT_exp (emin F) (prec F)) y -> x <= y -> nearest x <= y.
Proof. intros x y Hy Hxy. apply round_le_generic; try typeclasses eauto; assumption. Qed.

Lemma format_0 : generic_format radix2 (FLT_exp (emin F) (prec F)) 0.
Proof. apply generic_format_0. Qed.

(* --- numbers of the format --- *)

Lemma number_0 : number 0.
Proof. split; [apply format_0|now left]. Qed.

Lemma number_1 : number 1.
Proof.
  split.
  - change 1 with (pow2 0). apply format_pow2. generalize (emin_small F) (prec_large F). lia.
  - intros _. right. rewrite Rabs_R1. generalize normal_range. lra.
Qed.

Lemma number_opp : forall x, number x -> number (- x).
Proof.
  intros x [Hx Hf]. split; [now apply generic_format_opp|].
  intros E. rewrite Rabs_Ropp. destruct (Hf E); [left; lra|now right].
Qed.

Lemma nearest_number : forall x, number x -> nearest x = x.
Proof. intros x [Hx _]. apply round_generic; [typeclasses eauto|exact Hx]. Qed.

Lemma rnd_number : forall x, number x -> rnd x = x.
Proof.
  intros x Hx. unfold rnd. rewrite (nearest_number x Hx). destruct (flush F) eqn:E; [|reflexivity].
  destruct (Rlt_dec (Rabs x) normal) as [H|H]; [|reflexivity].
  destruct Hx as [_ Hx]. destruct (Hx E); lra.
Qed.

Lemma number_rnd : forall x, number (rnd x).
Proof.
  intros x. unfold rnd. destruct (flush F) eqn:E.
  - destruct (Rlt_dec (Rabs (nearest x)) normal) as [H|H]; [apply number_0|].
    split; [apply generic_format_round; typeclasses eauto|]. intros _. right. lra.
  - split; [apply generic_format_round; typeclasses eauto|]. rewrite E. discriminate.
Qed.

Lemma rnd_normal_is_nearest : forall x, normal <= Rabs x -> rnd x = nearest x.
Proof.
  intros x Hx. unfold rnd. destruct (flush F); [|reflexivity].
  destruct (Rlt_dec (Rabs (nearest x)) normal) as [H|H]; [exfalso|reflexivity].
  apply (Rlt_not_le _ _ H). unfold nearest. apply abs_round_ge_generic; try typeclasses eauto.
  - apply format_normal.
  - exact Hx.
Qed.

(* --- what an operation may be off by --- *)

Lemma rnd_nonneg : forall x, 0 <= x -> 0 <= rnd x.
Proof.
  intros x Hx. assert (0 <= nearest x) by (apply nearest_ge; [apply format_0|exact Hx]).
  unfold rnd. destruct (flush F); [|assumption]. destruct (Rlt_dec _ _); lra.
Qed.

Lemma rnd_nonpos : forall x, x <= 0 -> rnd x <= 0.
Proof.
  intros x Hx. assert (nearest x <= 0) by (apply nearest_le; [apply format_0|exact Hx]).
  unfold rnd. destruct (flush F); [|assumption]. destruct (Rlt_dec _ _); lra.
Qed.

Lemma rnd_ge_1 : forall x, 1 <= x -> 1 <= rnd x.
Proof.
  intros x Hx. pose proof normal_range. rewrite rnd_normal_is_nearest.
  - apply nearest_ge; [apply number_1|exact Hx].
  - rewrite Rabs_pos_eq; lra.
Qed.

Lemma rnd_le_1 : forall x, x <= 1 -> rnd x <= 1.
Proof.
  intros x Hx. assert (nearest x <= 1) by (apply nearest_le; [apply number_1|exact Hx]).
  unfold rnd. destruct (flush F); [|assumption]. destruct (Rlt_dec _ _); lra.
Qed.

(* A positive normal result errs by a factor. *)
Lemma rnd_normal : forall x, normal <= x -> x * exp (- u) <= rnd x <= x * exp u.
Proof.
  intros x Hx. pose proof normal_range. assert (Ha : normal <= Rabs x) by (rewrite Rabs_pos_eq; lra).
  rewrite (rnd_normal_is_nearest x Ha).
  destruct (nearest_relative x Ha) as (d & Hd & E). rewrite E.
  pose proof (factor_within d Hd). split; apply Rmult_le_compat_l; lra.
Qed.

(* Any result of what is not negative errs by a factor and by tiny. *)
Lemma rnd_small : forall x, 0 <= x < normal -> x - tiny <= rnd x <= x + tiny.
Proof.
  intros x Hx. assert (Ha : Rabs x < normal) by (rewrite Rabs_pos_eq; lra).
  pose proof (nearest_absolute x Ha) as Hn. apply Rabs_le_inv in Hn.
  assert (nearest x <= normal) by (apply nearest_le; [apply format_normal|lra]).
  assert (0 <= nearest x) by (apply nearest_ge; [apply format_0|lra]).
  unfold rnd, tiny. destruct (flush F); [|lra]. destruct (Rlt_dec _ _); lra.
Qed.

Lemma exp_u_le : exp (- u) <= 1 <= exp u.
Proof.
  pose proof u_range. rewrite <- exp_0. split; apply Rlt_le, exp_increasing; lra.
Qed.

Lemma rnd_any : forall x, 0 <= x -> x * exp (- u) - tiny <= rnd x <= x * exp u + tiny.
Proof.
  intros x Hx. pose proof tiny_range. destruct (Rle_or_lt normal x) as [H'|H'].
  - pose proof (rnd_normal x H'). lra.
  - pose proof (rnd_small x (conj Hx H')). pose proof exp_u_le. nra.
Qed.

(* A sum of numbers of one sign never loses more than the factor, however small it is. *)
Lemma rnd_sum : forall x y, number x -> number y -> 0 <= x -> 0 <= y ->
  (x + y) * exp (- u) <= rnd (x + y) <= (x + y) * exp u.
Proof.
  intros x y Nx Ny Hx Hy. pose proof exp_u_le.
  destruct (nearest_sum x y Nx Ny) as (d & Hd & E). pose proof (factor_within d Hd).
  assert (Hn : (x + y) * exp (- u) <= nearest (x + y) <= (x + y) * exp u).
  { rewrite E. split; apply Rmult_le_compat_l; lra. }
  destruct (flush F) eqn:Ef; [|unfold rnd; rewrite Ef; exact Hn].
  destruct (Rle_or_lt normal (x + y)) as [Hs|Hs].
  - now apply rnd_normal.
  - assert (x = 0 /\ y = 0) as [-> ->].
    { destruct Nx as [_ Nx], Ny as [_ Ny]. specialize (Nx Ef). specialize (Ny Ef).
      rewrite Rabs_pos_eq in Nx, Ny by assumption. split; lra. }
    rewrite Rplus_0_r, (rnd_number 0 number_0). lra.
Qed.

(* An entry of -inf has exponential 0, which changes nothing. *)
Theorem adding_nothing : forall s, number s -> rnd (s + 0) = s.
Proof. intros s Ns. rewrite Rplus_0_r. now apply rnd_number. Qed.

(* Nor is it ever off by more than either of the two: the result is the nearest number, and they are numbers, too.
   That is what bounds a sum that stalls. *)
Theorem addition_error : flush F = false -> forall x y, number x -> number y ->
  Rabs (rnd (x + y) - (x + y)) <= Rmin (Rmin (Rabs x) (Rabs y)) (u * Rabs (x + y)).
Proof.
  intros Ef x y Nx Ny. pose proof u_range as Hu. unfold rnd. rewrite Ef.
  apply Rmin_glb; [apply Rmin_glb|].
  - apply plus_error_le_l; [typeclasses eauto|apply Nx|apply Ny].
  - apply plus_error_le_r; [typeclasses eauto|apply Nx|apply Ny].
  - destruct (nearest_sum x y Nx Ny) as (d & Hd & E). rewrite E.
    replace ((x + y) * (1 + d) - (x + y)) with (d * (x + y)) by ring. rewrite Rabs_mult.
    apply Rmult_le_compat_r; [apply Rabs_pos|]. apply Rle_trans with (1 := Hd).
    apply Rmult_le_reg_r with (1 + u); [lra|]. unfold Rdiv. rewrite Rmult_assoc, Rinv_l by lra. nra.
Qed.

(* A difference of numbers: what a rounded exponent x - m is off by. *)
Lemma rnd_difference : forall x m, number x -> number m -> x <= m ->
  (1 + u) * (x - m) - gap <= rnd (x - m) <= (1 - u) * (x - m) + gap.
Proof.
  intros x m Nx Nm Hxm. pose proof u_range. pose proof normal_range.
  destruct (nearest_sum x (- m) Nx (number_opp m Nm)) as (d & Hd & E).
  assert (Hd' : - u <= d <= u).
  { apply Rabs_le_inv in Hd. assert (u / (1 + u) <= u); [|lra].
    apply Rmult_le_reg_r with (1 + u); [lra|]. unfold Rdiv. rewrite Rmult_assoc, Rinv_l by lra. nra. }
  fold (x - m) in E.
  assert (Hn : (1 + u) * (x - m) <= nearest (x - m) <= (1 - u) * (x - m)) by (rewrite E; nra).
  unfold rnd, gap. destruct (flush F); [|lra].
  destruct (Rlt_dec (Rabs (nearest (x - m))) normal) as [Hs|Hs]; [|lra].
  apply Rabs_lt_inv in Hs. nra.
Qed.

End Arithmetic.

(* --- exponentials --- *)

(* An exponential of what is not positive: off by a relative [err] at the most before its result is rounded to a
   number that may be subnormal or 0. *)
Record Exponential (F : Format) := {
  expf : R -> R;
  err : R;
  err_range : 0 <= err <= / 4;
  expf_0 : expf 0 = 1;
  expf_number : forall x, number F x -> x <= 0 -> number F (expf x);
  expf_range : forall x, number F x -> x <= 0 -> 0 <= expf x <= 1;
  expf_normal : forall x, number F x -> x <= 0 -> normal F <= (1 - err) * exp x -> Rabs (expf x - exp x) <= err * exp x;
  expf_small : forall x, number F x -> x <= 0 -> Rabs (expf x - exp x) <= err * exp x + tiny F
}.

(* There is one for every format: the exponential itself, correctly rounded. *)
Definition rounded_exp (F : Format) : Exponential F.
Proof.
  pose proof (u_range F) as Hu.
  assert (Hle : u F / (1 + u F) <= u F).
  { apply Rmult_le_reg_r with (1 + u F); [lra|]. unfold Rdiv. rewrite Rmult_assoc, Rinv_l by lra. nra. }
  assert (Hge : 0 <= u F / (1 + u F)).
  { apply Rmult_le_pos; [lra|]. apply Rlt_le, Rinv_0_lt_compat. lra. }
  assert (Hn : forall x, normal F <= exp x -> Rabs (rnd F (exp x) - exp x) <= u F / (1 + u F) * exp x).
  { intros x Hx. assert (Ha : normal F <= Rabs (exp x)) by (rewrite Rabs_pos_eq; [exact Hx|apply Rlt_le, exp_pos]).
    rewrite (rnd_normal_is_nearest F _ Ha). destruct (nearest_relative F _ Ha) as (d & Hd & ->).
    replace (exp x * (1 + d) - exp x) with (d * exp x) by ring.
    rewrite Rabs_mult, (Rabs_pos_eq (exp x)) by apply Rlt_le, exp_pos.
    apply Rmult_le_compat_r; [apply Rlt_le, exp_pos|exact Hd]. }
  refine {| expf := fun x => rnd F (exp x); err := u F / (1 + u F) |}.
  - lra.
  - rewrite exp_0. apply rnd_number, number_1.
  - intros x _ _. apply number_rnd.
  - intros x _ Hx. split; [apply rnd_nonneg, Rlt_le, exp_pos|]. apply rnd_le_1.
    rewrite <- exp_0. destruct Hx as [Hx| ->]; [apply Rlt_le, exp_increasing, Hx|lra].
  - intros x _ _ Hx. apply Hn. pose proof (exp_pos x). nra.
  - intros x _ _. pose proof (tiny_range F). pose proof (exp_pos x).
    destruct (Rle_or_lt (normal F) (exp x)) as [Hx|Hx].
    + pose proof (Hn x Hx). lra.
    + pose proof (rnd_small F (exp x) (conj (Rlt_le _ _ (exp_pos x)) Hx)).
      apply Rle_trans with (tiny F); [apply Rabs_le; lra|]. nra.
Defined.

Theorem exponential_exists : forall F : Format,
  exists E : Exponential F, err F E = u F / (1 + u F) /\ forall x, expf F E x = rnd F (exp x).
Proof. intros F. exists (rounded_exp F). now split. Qed.
