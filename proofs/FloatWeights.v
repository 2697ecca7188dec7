(* From an error entry by entry to an error of the sum.

   With M the maximum of n entries, S = sum exp (x - M) and p = exp (x - M) / S the softmax, the exponents' errors
   u * (M - x) are weighted by p. Their mean is H(p) - ln S, at most ln n - ln S [mean_distance]: a long tail never
   hurts. The errors enter the sum as exponentials, not to first order, and there the same holds exactly:
   sum p * exp (u * (M - x)) <= exp (u * (ln n - ln S)) [raised_mean], and from below likewise [lowered_mean].

   So a computed sum s of counts up to K has

       | ln s - ln S |  <=  u * (ln n - ln S) + K + 3 * n * tiny * exp K      [log_error]

   which is its relative error, and the error of its logarithm, too. *)

From Coq Require Import ZArith Reals Psatz List.
From Flocq Require Import Core.
From OnlineSoftmax Require Import Rounding FloatSums.
Import ListNotations.
Open Scope R_scope.

(* --- over the real numbers --- *)

Section Means.

Variable m : R.

Definition count (xs : list R) : R := INR (length xs).
Definition total (xs : list R) : R := sum (map (fun x => exp (x - m)) xs).
Definition weight (xs : list R) (x : R) : R := exp (x - m) / total xs.

Lemma total_pos : forall xs, xs <> [] -> 0 < total xs.
Proof.
  assert (H : forall xs, 0 <= total xs).
  { induction xs as [|x xs IH]; unfold total in *; simpl; [lra|]. pose proof (exp_pos (x - m)). lra. }
  intros [|x xs] Hx; [contradiction|]. unfold total. simpl. pose proof (exp_pos (x - m)).
  specialize (H xs). unfold total in H. lra.
Qed.

Lemma total_ge_1 : forall xs, In m xs -> 1 <= total xs.
Proof.
  induction xs as [|x xs IH]; intros H; [destruct H|]. unfold total in *. cbn [map sum].
  pose proof (exp_pos (x - m)). destruct H as [->|H].
  - rewrite Rminus_diag_eq, exp_0 by reflexivity.
    destruct xs as [|y ys]; [simpl; lra|]. pose proof (total_pos (y :: ys) ltac:(discriminate)). unfold total in *. lra.
  - specialize (IH H). lra.
Qed.

Lemma count_pos : forall xs, xs <> [] -> 1 <= count xs.
Proof.
  intros [|x xs] H; [contradiction|]. unfold count. cbn [length]. rewrite S_INR. pose proof (pos_INR (length xs)). lra.
Qed.

(* A sum of what is at least affine in exp (x - m), (m - x) * exp (x - m) and 1 is at least the same of the sums. *)
Lemma sum_ge_affine : forall (f : R -> R) a b c xs,
  (forall x, In x xs -> a * exp (x - m) + b * ((m - x) * exp (x - m)) + c <= f x) ->
  a * total xs + b * sum (map (fun x => (m - x) * exp (x - m)) xs) + c * count xs <= sum (map f xs).
Proof.
  intros f a b c. unfold total, count. induction xs as [|x xs IH]; intros H.
  - simpl. lra.
  - cbn [map sum length]. rewrite S_INR.
    specialize (IH ltac:(intros y Hy; apply H; now right)). specialize (H x ltac:(now left)). lra.
Qed.

(* The mean of the distances to the maximum under the softmax, at most the logarithm of the length. *)
Theorem mean_distance : forall xs, xs <> [] ->
  sum (map (fun x => weight xs x * (m - x)) xs) <= ln (count xs) - ln (total xs).
Proof.
  intros xs Hx. pose proof (total_pos xs Hx) as HS. pose proof (count_pos xs Hx) as Hn.
  set (S := total xs) in *. set (n := count xs) in *. set (D := ln n - ln S).
  set (A := sum (map (fun x => (m - x) * exp (x - m)) xs)).
  assert (EA : sum (map (fun x => weight xs x * (m - x)) xs) = A / S).
  { unfold A, weight. fold S. clearbody S. clear - HS.
    induction xs as [|x xs IH]; simpl; [field; lra|]. rewrite IH. field. lra. }
  rewrite EA. fold D.
  (* exp t >= 1 + t at t = (m - x) - D, weighted by exp (x - m), sums to n * exp (- D) = S. *)
  assert (H : (1 - D) * S + 1 * A + 0 * n <= sum (map (fun _ => exp (- D)) xs)).
  { apply sum_ge_affine. intros x _. pose proof (exp_ineq1_le ((m - x) - D)) as Ht.
    replace (exp (- D)) with (exp (x - m) * exp ((m - x) - D)) by (rewrite <- exp_plus; f_equal; ring).
    pose proof (exp_pos (x - m)). nra. }
  assert (EC : sum (map (fun _ => exp (- D)) xs) = n * exp (- D)).
  { unfold n, count. generalize (exp (- D)). clear. intros E.
    induction xs as [|x xs IH]; [simpl; ring|]. cbn [map sum length]. rewrite IH, S_INR. ring. }
  assert (ED : n * exp (- D) = S).
  { unfold D. replace (- (ln n - ln S)) with (ln S + - ln n) by ring.
    rewrite exp_plus, exp_ln, exp_Ropp, exp_ln by lra. field. lra. }
  apply Rmult_le_reg_r with S; [exact HS|]. unfold Rdiv. rewrite Rmult_assoc, Rinv_l by lra. lra.
Qed.

Lemma mean_distance_sum : forall xs, xs <> [] ->
  sum (map (fun x => (m - x) * exp (x - m)) xs) <= (ln (count xs) - ln (total xs)) * total xs.
Proof.
  intros xs Hx. pose proof (mean_distance xs Hx) as H. pose proof (total_pos xs Hx) as HS.
  assert (E : sum (map (fun x => (m - x) * exp (x - m)) xs) = sum (map (fun x => weight xs x * (m - x)) xs) * total xs).
  { unfold weight. set (S := total xs) in *. clearbody S. clear - HS.
    induction xs as [|x xs IH]; simpl; [ring|]. rewrite IH. field. lra. }
  rewrite E. apply Rmult_le_compat_r; lra.
Qed.

(* Errors of the exponents that lower every exponential, and ones that raise it. *)
Theorem lowered_mean : forall v xs, 0 <= v -> xs <> [] ->
  total xs * exp (- (v * (ln (count xs) - ln (total xs)))) <= sum (map (fun x => exp ((1 + v) * (x - m))) xs).
Proof.
  intros v xs Hv Hx. pose proof (mean_distance_sum xs Hx) as HA.
  set (D := ln (count xs) - ln (total xs)) in *. set (A := sum (map (fun x => (m - x) * exp (x - m)) xs)) in *.
  set (c := exp (- (v * D))). assert (Hc : 0 < c) by apply exp_pos.
  assert (H : (c * (1 + v * D)) * total xs + (- (c * v)) * A + 0 * count xs <=
              sum (map (fun x => exp ((1 + v) * (x - m))) xs)).
  { apply sum_ge_affine. intros x _. pose proof (exp_ineq1_le (v * D - v * (m - x))) as Ht.
    replace (exp ((1 + v) * (x - m))) with (exp (x - m) * c * exp (v * D - v * (m - x)))
      by (unfold c; rewrite <- !exp_plus; f_equal; ring).
    pose proof (exp_pos (x - m)). assert (0 < exp (x - m) * c) by nra. nra. }
  assert (c * v * A <= c * v * (D * total xs)) by (apply Rmult_le_compat_l; [nra|exact HA]). lra.
Qed.

Lemma exp_convex : forall v a b, 0 <= v <= 1 -> exp ((1 - v) * a + v * b) <= (1 - v) * exp a + v * exp b.
Proof.
  intros v a b Hv. set (c := (1 - v) * a + v * b). pose proof (exp_pos c) as Hc.
  pose proof (exp_ineq1_le (a - c)) as Ha. pose proof (exp_ineq1_le (b - c)) as Hb.
  replace (exp a) with (exp c * exp (a - c)) by (rewrite <- exp_plus; f_equal; ring).
  replace (exp b) with (exp c * exp (b - c)) by (rewrite <- exp_plus; f_equal; ring).
  assert (1 <= (1 - v) * exp (a - c) + v * exp (b - c)); [|nra].
  apply Rle_trans with ((1 - v) * (1 + (a - c)) + v * (1 + (b - c))); [right; unfold c; ring|nra].
Qed.

Theorem raised_mean : forall v xs, 0 <= v <= 1 -> xs <> [] ->
  sum (map (fun x => exp ((1 - v) * (x - m))) xs) <= total xs * exp (v * (ln (count xs) - ln (total xs))).
Proof.
  intros v xs Hv Hx. pose proof (total_pos xs Hx) as HS. pose proof (count_pos xs Hx) as Hn.
  set (S := total xs) in *. set (n := count xs) in *. set (D := ln n - ln S).
  assert (ED : n * exp (- D) = S).
  { unfold D. replace (- (ln n - ln S)) with (ln S + - ln n) by ring.
    rewrite exp_plus, exp_ln, exp_Ropp, exp_ln by lra. field. lra. }
  set (c := exp (- (v * D))). assert (Hc : 0 < c) by apply exp_pos.
  assert (H : (- (1 - v)) * S + 0 * sum (map (fun x => (m - x) * exp (x - m)) xs) + (- (v * exp (- D))) * n <=
              sum (map (fun x => - (c * exp ((1 - v) * (x - m)))) xs)).
  { apply sum_ge_affine. intros x _.
    assert (c * exp ((1 - v) * (x - m)) <= (1 - v) * exp (x - m) + v * exp (- D)); [|lra].
    unfold c. rewrite <- exp_plus. replace (- (v * D) + (1 - v) * (x - m)) with ((1 - v) * (x - m) + v * - D) by ring.
    now apply exp_convex. }
  assert (EN : sum (map (fun x => - (c * exp ((1 - v) * (x - m)))) xs) =
               - (c * sum (map (fun x => exp ((1 - v) * (x - m))) xs))).
  { generalize c. clear. intros c. induction xs as [|x xs IH]; simpl; [ring|]. rewrite IH. ring. }
  rewrite EN in H. set (T := sum (map (fun x => exp ((1 - v) * (x - m))) xs)) in *.
  assert (HT : c * T <= S) by nra.
  replace (exp (v * D)) with (/ c) by (unfold c; rewrite exp_Ropp; apply Rinv_inv).
  apply Rmult_le_reg_l with c; [exact Hc|]. replace (c * (S * / c)) with S by (field; lra). exact HT.
Qed.

End Means.

(* --- of a computed sum --- *)

Section Errors.

Variable F : Format.

Notation u := (u F).
Notation tiny := (tiny F).

Definition values (ts : counted) : list R := map fst ts.

Lemma least_ge : forall K m ts, Forall (fun t => fst t <= m /\ 0 <= snd t <= K) ts ->
  exp (- K) * sum (map (fun x => exp ((1 + u) * (x - m))) (values ts)) <= least F m ts.
Proof.
  intros K m ts H. unfold least, values. induction H as [|t ts Ht _ IH]; simpl; [lra|].
  assert (exp (- K) * exp ((1 + u) * (fst t - m)) <= exp ((1 + u) * (fst t - m) - snd t)); [|lra].
  rewrite <- exp_plus. apply exp_le. lra.
Qed.

Lemma most_le : forall K m ts, Forall (fun t => fst t <= m /\ 0 <= snd t <= K) ts ->
  most F m ts <= exp K * sum (map (fun x => exp ((1 - u) * (x - m))) (values ts)).
Proof.
  intros K m ts H. unfold most, values. induction H as [|t ts Ht _ IH]; simpl; [lra|].
  assert (exp ((1 - u) * (fst t - m) + snd t) <= exp K * exp ((1 - u) * (fst t - m))); [|lra].
  rewrite <- exp_plus. apply exp_le. lra.
Qed.

(* What a sum of n entries, with counts up to K, may be off by as a factor. *)
Definition drift (n K lnS : R) : R := u * (ln n - lnS) + K + 3 * n * tiny * exp K.

Lemma ln_le : forall a b, 0 < a -> a <= b -> ln a <= ln b.
Proof. intros a b Ha [H| ->]; [apply Rlt_le, ln_increasing; assumption|apply Rle_refl]. Qed.

Lemma ln_between : forall s S h a, 1 <= s -> 1 <= S -> 0 <= h -> 0 <= a ->
  S * exp (- h) - a <= s <= S * exp h + a -> Rabs (ln s - ln S) <= h + a.
Proof.
  intros s S h a Hs HS Hh Ha [L U]. apply Rabs_le.
  assert (H1 : 1 <= exp h) by now apply exp_ge_1.
  assert (Hu : s <= S * exp (h + a)).
  { rewrite exp_plus. pose proof (exp_ineq1_le a). apply Rle_trans with (1 := U).
    assert (a <= S * exp h * a) by (assert (1 <= S * exp h) by nra; nra). nra. }
  assert (Hl : S <= s * exp (h + a)).
  { rewrite exp_plus. pose proof (exp_ineq1_le a).
    assert (E : exp (- h) * exp h = 1) by (rewrite <- exp_plus, Rplus_opp_l; apply exp_0).
    assert (S <= (s + a) * exp h) by nra.
    assert (s + a <= s * exp a) by nra. nra. }
  apply ln_le in Hu; [|lra]. apply ln_le in Hl; [|lra].
  rewrite ln_mult, ln_exp in Hu; [|lra|apply exp_pos]. rewrite ln_mult, ln_exp in Hl; [|lra|apply exp_pos]. lra.
Qed.

Theorem log_error : forall K m s ts, within F 3 K m s ts -> 1 <= s -> In m (values ts) ->
  Rabs (ln s - ln (total m (values ts))) <= drift (count (values ts)) K (ln (total m (values ts))).
Proof.
  intros K m s ts [C L U] Hs Hin. pose proof (u_range F) as Hu.
  assert (Hne : values ts <> []) by (intros E; rewrite E in Hin; destruct Hin).
  pose proof (total_ge_1 m _ Hin) as HS. pose proof (least_ge K m ts C) as HL. pose proof (most_le K m ts C) as HM.
  pose proof (lowered_mean m u _ ltac:(lra) Hne) as Low. pose proof (raised_mean m u _ ltac:(lra) Hne) as High.
  set (S := total m (values ts)) in *. set (n := count (values ts)) in *.
  assert (HD : 0 <= ln n - ln S).
  { pose proof (mean_distance m _ Hne) as H. fold S n in H. apply Rle_trans with (2 := H).
    clear - C HS. unfold weight. fold S. assert (G : forall l, Forall (fun t : R * R => fst t <= m) l ->
      0 <= sum (map (fun x => exp (x - m) / S * (m - x)) (values l))).
    { induction 1 as [|t l Ht _ IH]; simpl; [lra|]. pose proof (exp_pos (fst t - m)).
      assert (0 <= exp (fst t - m) / S) by (apply Rmult_le_pos; [lra|apply Rlt_le, Rinv_0_lt_compat; lra]). nra. }
    apply G. apply Forall_impl with (2 := C). intros t. lra. }
  assert (HK : 0 <= K).
  { destruct C as [|t l Ct _]; [contradiction|lra]. }
  unfold drift. set (D := ln n - ln S) in *.
  assert (EW : 3 * underflow F K ts = 3 * n * tiny * exp K).
  { unfold underflow, n, count, values. rewrite map_length. ring. }
  rewrite EW in *. pose proof (tiny_range F). pose proof (exp_pos K). pose proof (exp_pos (- K)).
  assert (0 <= u * D) by (apply Rmult_le_pos; lra).
  apply ln_between; [exact Hs|exact HS|lra| |].
  - pose proof (count_pos _ Hne) as Hn. fold n in Hn. apply Rmult_le_pos; [|lra]. apply Rmult_le_pos; lra.
  - replace (- (u * D + K)) with (- K + - (u * D)) by ring. rewrite (Rplus_comm (u * D) K), !exp_plus.
    pose proof (Rmult_le_compat_l (exp (- K)) _ _ ltac:(lra) Low).
    pose proof (Rmult_le_compat_l (exp K) _ _ ltac:(lra) High).
    lra.
Qed.

(* That is the sum's relative error, too. *)
Theorem relative_error : forall s S h, 0 < s -> 0 < S -> Rabs (ln s - ln S) <= h ->
  Rabs (s - S) <= (exp h - 1) * S.
Proof.
  intros s S h Hs HS H. apply Rabs_le_inv in H.
  assert (E : s = S * exp (ln s - ln S)).
  { unfold Rminus. rewrite exp_plus, exp_Ropp, !exp_ln by assumption. field. lra. }
  pose proof (exp_le (ln s - ln S) h ltac:(lra)) as A. pose proof (exp_le (- h) (ln s - ln S) ltac:(lra)) as B.
  pose proof (exp_ineq1_le h) as C. pose proof (exp_ineq1_le (- h)) as D. rewrite E.
  set (f := exp (ln s - ln S)) in *. replace (S * f - S) with ((f - 1) * S) by ring.
  assert (1 - exp (- h) <= exp h - 1) by lra. apply Rabs_le. split; nra.
Qed.

(* The weighted form: each entry errs by its own factor. *)
Definition weighted_error (m : R) (ts : counted) : R :=
  sum (map (fun t => exp (fst t - m) * (exp (u * (m - fst t) + snd t) - 1)) ts).

Theorem sum_error : forall c K m s ts, within F c K m s ts ->
  Rabs (s - total m (values ts)) <= weighted_error m ts + c * underflow F K ts.
Proof.
  intros c K m s ts [C L U]. pose proof (u_range F) as Hu.
  assert (A : most F m ts <= total m (values ts) + weighted_error m ts).
  { clear - Hu. unfold most, total, values, weighted_error. induction ts as [|t ts IH]; simpl; [lra|].
    replace (exp ((1 - u) * (fst t - m) + snd t)) with (exp (fst t - m) * exp (u * (m - fst t) + snd t)); [lra|].
    rewrite <- exp_plus. f_equal. ring. }
  assert (B : total m (values ts) - weighted_error m ts <= least F m ts).
  { clear - Hu. unfold least, total, values, weighted_error. induction ts as [|t ts IH]; simpl; [lra|].
    set (h := u * (m - fst t) + snd t).
    replace (exp ((1 + u) * (fst t - m) - snd t)) with (exp (fst t - m) * exp (- h))
      by (rewrite <- exp_plus; f_equal; unfold h; ring).
    pose proof (exp_pos (fst t - m)). pose proof (exp_pos h).
    assert (2 <= exp h + exp (- h)).
    { assert (E : exp h * exp (- h) = 1) by (rewrite <- exp_plus, Rplus_opp_r; apply exp_0).
      pose proof (exp_pos (- h)). pose proof (Rle_0_sqr (exp h - exp (- h))) as Q. unfold Rsqr in Q.
      assert (4 <= (exp h + exp (- h)) * (exp h + exp (- h))) by nra. nra. }
    nra. }
  apply Rabs_le. lra.
Qed.

End Errors.
