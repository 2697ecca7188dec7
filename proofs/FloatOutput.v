(* Weighted sums in floating point: the output of attention, sum p_i v_i, for values of any sign.

   An accumulation is whatever is made of products exp (x - m) * v by additions at a common pivot and by rescales to a
   higher one, each rounded: one block or many, streamed or merged in a tree, it is one. [cost] is what an entry's
   product may err by, on top of its rounded exponent: e1 + u for the product, u an addition, e1 + u a rescale, and
   nothing where the pivot stays. Sums of values of both signs may cancel, so errors here are absolute, and weighted by
   the values' magnitudes:

     | w - sum exp (x - m) v |  <=  sum exp (x - m) |v| (exp (u (m - x) + K) - 1)  +  underflow      [weighted_near]
     | o - sum p v |            <=  sum p |v| (exp (u (m - x) + K + h + u) - 1)    +  underflow      [output_error]

   with K the accumulation's cost, p the softmax, o the quotient by a computed sum whose logarithm is off by h at most.
   Underflow is at most tiny exp K (3 sum |v| + N) in w, N the number of operations, and tiny more of the quotient. *)

From Coq Require Import ZArith Reals Psatz List.
From Flocq Require Import Core.
From OnlineSoftmax Require Import Rounding FloatSums FloatTerms FloatWeights FloatResults.
Import ListNotations.
Open Scope R_scope.

Inductive accumulation :=
  | Product (x v : R)                      (* exp (x - m) * v *)
  | Sum (a b : accumulation)               (* both at the pivot of the sum *)
  | Rescale (p : R) (a : accumulation).    (* made at the pivot p, brought to the present one *)

(* Pairs of a score and a value. *)
Fixpoint pairs_of (a : accumulation) : list (R * R) :=
  match a with
  | Product x v => [(x, v)]
  | Sum a b => pairs_of a ++ pairs_of b
  | Rescale _ a => pairs_of a
  end.

Fixpoint operations (a : accumulation) : nat :=
  match a with
  | Product _ _ => 1
  | Sum a b => S (operations a + operations b)
  | Rescale _ a => S (operations a)
  end.

Definition over (f : R -> R -> R) (l : list (R * R)) : R := sum (map (fun t => f (fst t) (snd t)) l).

Section Output.

Variable F : Format.
Variable E : Exponential F.

Notation u := (u F).
Notation tiny := (tiny F).
Notation rnd := (rnd F).
Notation number := (number F).
Notation term := (term F E).
Notation e1 := (e1 F E).

Fixpoint accumulated (m : R) (a : accumulation) : R :=
  match a with
  | Product x v => rnd (term x m * v)
  | Sum a b => rnd (accumulated m a + accumulated m b)
  | Rescale p a => rnd (accumulated p a * term p m)
  end.

(* Pivots never lie below an entry, and never fall. *)
Fixpoint fits (m : R) (a : accumulation) : Prop :=
  match a with
  | Product x v => number x /\ x <= m
  | Sum a b => fits m a /\ fits m b
  | Rescale p a => number p /\ p <= m /\ fits p a
  end.

Fixpoint cost (m : R) (a : accumulation) : R :=
  match a with
  | Product _ _ => e1 + u
  | Sum a b => Rmax (cost m a) (cost m b) + u
  | Rescale p a => cost p a + (if Req_EM_T p m then 0 else e1 + u)
  end.

(* The true sum, the magnitudes it is weighted by, and what they may err by. *)
Definition true_sum (m : R) (l : list (R * R)) : R := over (fun x v => exp (x - m) * v) l.
Definition size (m : R) (l : list (R * R)) : R := over (fun x v => exp (x - m) * Rabs v) l.
Definition widened (m K : R) (l : list (R * R)) : R := over (fun x v => exp (u * (m - x) + K) * (exp (x - m) * Rabs v)) l.
Definition magnitude (l : list (R * R)) : R := over (fun _ v => Rabs v) l.

Definition lost (K : R) (a : accumulation) : R := tiny * exp K * (3 * magnitude (pairs_of a) + INR (operations a)).

(* --- sums over pairs --- *)

Lemma over_app : forall f a b, over f (a ++ b) = over f a + over f b.
Proof. intros. unfold over. now rewrite map_app, sum_app. Qed.

Lemma over_le : forall f g l, Forall (fun t => f (fst t) (snd t) <= g (fst t) (snd t)) l -> over f l <= over g l.
Proof. intros f g l H. unfold over. induction H as [|t l Ht _ IH]; simpl; lra. Qed.

Lemma over_scale : forall c f l, over (fun x v => c * f x v) l = c * over f l.
Proof. intros c f l. unfold over. induction l as [|t l IH]; simpl; [ring|rewrite IH; ring]. Qed.

Lemma over_ext : forall f g l, (forall x v, f x v = g x v) -> over f l = over g l.
Proof. intros f g l H. unfold over. f_equal. apply map_ext. intros t. apply H. Qed.

Lemma magnitude_pos : forall l, 0 <= magnitude l.
Proof. induction l as [|t l IH]; unfold magnitude, over in *; simpl; [lra|]. pose proof (Rabs_pos (snd t)). lra. Qed.

Lemma true_sum_size : forall m l, Rabs (true_sum m l) <= size m l.
Proof.
  intros m l. unfold true_sum, size, over. induction l as [|t l IH]; simpl; [rewrite Rabs_R0; lra|].
  eapply Rle_trans; [apply Rabs_triang|]. rewrite Rabs_mult, (Rabs_pos_eq (exp _)) by apply Rlt_le, exp_pos. lra.
Qed.

Lemma below : forall m a, fits m a -> Forall (fun t => fst t <= m) (pairs_of a).
Proof.
  intros m a. revert m. induction a as [x v|a IHa b IHb|p a IH]; intros m H; cbn [fits pairs_of] in *.
  - constructor; [simpl; tauto|constructor].
  - apply Forall_app. split; [apply IHa|apply IHb]; tauto.
  - destruct H as [_ [H1 H2]]. apply Forall_impl with (2 := IH p H2). intros t. lra.
Qed.

Lemma size_le : forall m l, Forall (fun t => fst t <= m) l -> 0 <= size m l <= magnitude l.
Proof.
  intros m l H. unfold size, magnitude, over. induction H as [|t l Ht _ IH]; simpl; [lra|].
  assert (exp (fst t - m) <= 1) by (apply exp_le_1; lra). pose proof (exp_pos (fst t - m)).
  pose proof (Rabs_pos (snd t)).
  assert (exp (fst t - m) * Rabs (snd t) <= 1 * Rabs (snd t)) by (apply Rmult_le_compat_r; lra).
  assert (0 <= exp (fst t - m) * Rabs (snd t)) by (apply Rmult_le_pos; lra). lra.
Qed.

(* What lies below a pivot is widened at most to its own magnitude, by the count. *)
Lemma widened_le : forall m K l, Forall (fun t => fst t <= m) l -> size m l * exp K <= widened m K l <= magnitude l * exp K.
Proof.
  intros m K l H. pose proof (u_range F) as Hu. unfold size, widened, magnitude, over.
  induction H as [|t l Ht _ IH]; simpl; [lra|]. pose proof (Rabs_pos (snd t)) as Hv. pose proof (exp_pos K).
  assert (A : exp (u * (m - fst t) + K) * exp (fst t - m) <= exp K).
  { rewrite <- exp_plus. apply exp_le. nra. }
  assert (B : exp (fst t - m) * exp K <= exp (u * (m - fst t) + K) * exp (fst t - m)).
  { rewrite (Rmult_comm (exp (fst t - m))). apply Rmult_le_compat_r; [apply Rlt_le, exp_pos|]. apply exp_le. nra. }
  rewrite <- !Rmult_assoc. pose proof (Rmult_le_compat_r _ _ _ Hv A). pose proof (Rmult_le_compat_r _ _ _ Hv B). lra.
Qed.

Lemma widened_more : forall m K k l, widened m (K + k) l = widened m K l * exp k.
Proof.
  intros. unfold widened. rewrite (Rmult_comm (over _ _)), <- over_scale. apply over_ext. intros x v.
  rewrite <- !Rmult_assoc, <- (exp_plus k). f_equal. f_equal. f_equal. ring.
Qed.

Lemma true_sum_moved : forall p m l, true_sum m l = true_sum p l * exp (p - m).
Proof.
  intros. unfold true_sum. rewrite (Rmult_comm (over _ _)), <- over_scale. apply over_ext. intros x v.
  rewrite <- Rmult_assoc, <- exp_plus. f_equal. f_equal. ring.
Qed.

Lemma size_moved : forall p m l, size m l = size p l * exp (p - m).
Proof.
  intros. unfold size. rewrite (Rmult_comm (over _ _)), <- over_scale. apply over_ext. intros x v.
  rewrite <- Rmult_assoc, <- exp_plus. f_equal. f_equal. ring.
Qed.

Lemma widened_moved : forall p m K l, widened m K l = widened p K l * exp (u * (m - p) + (p - m)).
Proof.
  intros. unfold widened. rewrite (Rmult_comm (over _ _)), <- over_scale. apply over_ext. intros x v.
  rewrite <- !Rmult_assoc, <- !exp_plus. f_equal. f_equal. ring.
Qed.

(* --- roundings of either sign --- *)

Lemma rnd_off : forall x, Rabs (rnd x - x) <= (exp u - 1) * Rabs x + tiny.
Proof.
  intros x. pose proof (u_range F) as Hu. pose proof (tiny_range F) as Ht. pose proof (exp_ineq1_le u) as He.
  destruct (Rle_or_lt (normal F) (Rabs x)) as [H|H].
  - rewrite (rnd_normal_is_nearest F x H). destruct (nearest_relative F x H) as (d & Hd & ->).
    replace (x * (1 + d) - x) with (d * x) by ring. rewrite Rabs_mult.
    assert (u / (1 + u) <= u).
    { apply Rmult_le_reg_r with (1 + u); [lra|]. unfold Rdiv. rewrite Rmult_assoc, Rinv_l by lra. nra. }
    assert (Rabs d * Rabs x <= (exp u - 1) * Rabs x) by (apply Rmult_le_compat_r; [apply Rabs_pos|lra]). lra.
  - pose proof (nearest_absolute F x H) as Hn.
    assert (0 <= (exp u - 1) * Rabs x) by (apply Rmult_le_pos; [lra|apply Rabs_pos]).
    assert (Rabs (rnd x - x) <= tiny); [|lra].
    unfold Rounding.rnd, Rounding.tiny. destruct (flush F); [|exact Hn].
    destruct (Rlt_dec _ _) as [C|C].
    + rewrite Rminus_0_l, Rabs_Ropp. lra.
    + (* A number that rounds up to the normal ones. *)
      pose proof (half_least F). lra.
Qed.

(* --- an accumulation, operation by operation --- *)

Definition off_by (m w : R) (l : list (R * R)) (K A : R) : Prop :=
  Rabs (w - true_sum m l) <= widened m K l - size m l + A.

Lemma off_rounded : forall m v l K A, 0 <= A -> off_by m v l K A -> off_by m (rnd v) l (K + u) (A * exp u + tiny).
Proof.
  intros m v l K A HA H. unfold off_by in *. pose proof (rnd_off v) as R. pose proof (true_sum_size m l) as T.
  pose proof (u_range F). pose proof (exp_ineq1_le u) as He.
  assert (B : Rabs v <= widened m K l + A).
  { replace v with ((v - true_sum m l) + true_sum m l) by ring. eapply Rle_trans; [apply Rabs_triang|]. lra. }
  assert (C : (exp u - 1) * Rabs v <= (exp u - 1) * (widened m K l + A)) by (apply Rmult_le_compat_l; lra).
  replace (rnd v - true_sum m l) with ((rnd v - v) + (v - true_sum m l)) by ring.
  eapply Rle_trans; [apply Rabs_triang|]. rewrite widened_more. lra.
Qed.

Lemma off_sum : forall m v w a b K A B, off_by m v a K A -> off_by m w b K B -> off_by m (v + w) (a ++ b) K (A + B).
Proof.
  intros m v w a b K A B H1 H2. unfold off_by, true_sum, size, widened in *. rewrite !over_app.
  set (ta := over _ a) in *. set (tb := over _ b) in *.
  replace (v + w - (ta + tb)) with ((v - ta) + (w - tb)) by ring. eapply Rle_trans; [apply Rabs_triang|]. lra.
Qed.

Lemma off_weaken : forall m w l K L A B, K <= L -> A <= B -> off_by m w l K A -> off_by m w l L B.
Proof.
  intros m w l K L A B HK HA H. unfold off_by in *. apply Rle_trans with (1 := H).
  assert (widened m K l <= widened m L l); [|lra]. unfold widened. apply over_le. apply Forall_forall.
  intros [x v] _. simpl. apply Rmult_le_compat_r.
  - apply Rmult_le_pos; [apply Rlt_le, exp_pos|apply Rabs_pos].
  - apply exp_le. lra.
Qed.

(* A computed factor, normal or not, and the true one. *)
Lemma factor_off : forall x m, number x -> number m -> x <= m ->
  let g := exp (x - m) in
  let q := exp (u * (m - x) + e1) in
  exists t, (t = 0 \/ (t = tiny /\ term x m <= / 4)) /\ Rabs (term x m - g) <= g * (q - 1) + t /\ term x m <= g * q + t.
Proof.
  intros x m Nx Nm H g q. pose proof (term_cases F E x m Nx Nm H) as C. cbv zeta in C.
  pose proof (u_range F). pose proof (e1_pos F E). pose proof (exp_pos (x - m)) as Hg. fold g in Hg.
  assert (Q : 1 <= q) by (apply exp_ge_1; nra).
  assert (EH : exp ((1 - u) * (x - m) + e1) = g * q) by (unfold g, q; rewrite <- exp_plus; f_equal; ring).
  assert (EL : exp ((1 + u) * (x - m) - e1) = g * / q).
  { unfold g, q. rewrite <- exp_Ropp, <- exp_plus. f_equal. ring. }
  rewrite EH, EL in C.
  assert (I : 2 - q <= / q).
  { assert (q * / q = 1) by (apply Rinv_r; lra). assert (0 < / q) by (apply Rinv_0_lt_compat; lra). nra. }
  assert (J : g * (2 - q) <= g * / q) by (apply Rmult_le_compat_l; lra).
  destruct C as [[_ C]|[Cs C]].
  - exists 0. split; [now left|]. split; [apply Rabs_le; lra|lra].
  - exists tiny. split; [now right|]. split; [apply Rabs_le; lra|lra].
Qed.

Lemma off_product : forall x v m, number x -> number m -> x <= m ->
  off_by m (term x m * v) [(x, v)] e1 (tiny * Rabs v).
Proof.
  intros x v m Nx Nm H. destruct (factor_off x m Nx Nm H) as (t & Ht & B & _). pose proof (tiny_range F).
  unfold off_by, true_sum, size, widened, over. simpl. rewrite !Rplus_0_r.
  replace (term x m * v - exp (x - m) * v) with ((term x m - exp (x - m)) * v) by ring. rewrite Rabs_mult.
  pose proof (Rmult_le_compat_r _ _ _ (Rabs_pos v) B) as P.
  assert (t * Rabs v <= tiny * Rabs v) by (apply Rmult_le_compat_r; [apply Rabs_pos|destruct Ht as [->|[-> _]]; lra]). lra.
Qed.

Lemma off_rescale : forall p m w l K A, number p -> number m -> p <= m -> Forall (fun t => fst t <= p) l -> 0 <= K ->
  0 <= A -> off_by p w l K A ->
  off_by m (w * term p m) l (K + e1) A \/
  off_by m (w * term p m) l (K + e1) (A * / 4 + tiny * (magnitude l * exp K)).
Proof.
  intros p m w l K A Np Nm H Hl HK HA O. destruct (factor_off p m Np Nm H) as (t & Ht & B & U).
  destruct (term_number F E p m Np Nm H) as [_ [R0 R1]]. pose proof (tiny_range F) as Hti.
  pose proof (true_sum_size p l) as T. pose proof (widened_le p K l Hl) as [W1 W2]. pose proof (size_le p l Hl) as [S1 _].
  assert (EK : size p l <= size p l * exp K) by (pose proof (exp_ge_1 K HK); nra).
  unfold off_by in *. rewrite (true_sum_moved p m), (size_moved p m), widened_more, (widened_moved p m).
  set (g := exp (p - m)) in *. set (r := term p m) in *. set (q := exp (u * (m - p) + e1)) in *.
  assert (EQ : exp (u * (m - p) + (p - m)) * exp e1 = g * q) by (unfold g, q; rewrite <- !exp_plus; f_equal; ring).
  rewrite (Rmult_assoc _ _ (exp e1)), EQ.
  set (D := w - true_sum p l) in *. set (ws := widened p K l) in *. set (sz := size p l) in *.
  assert (X : Rabs (w * r - true_sum p l * g) <= Rabs D * r + sz * Rabs (r - g)).
  { replace (w * r - true_sum p l * g) with (D * r + true_sum p l * (r - g)) by (unfold D; ring).
    eapply Rle_trans; [apply Rabs_triang|]. rewrite !Rabs_mult, (Rabs_pos_eq r) by exact R0.
    apply Rplus_le_compat_l. apply Rmult_le_compat_r; [apply Rabs_pos|exact T]. }
  assert (Y : Rabs D * r <= (ws - sz + A) * r) by (apply Rmult_le_compat_r; lra).
  assert (V : (ws - sz) * r <= (ws - sz) * (g * q + t)) by (apply Rmult_le_compat_l; lra).
  assert (Z : sz * Rabs (r - g) <= sz * (g * (q - 1) + t)) by (apply Rmult_le_compat_l; lra).
  destruct Ht as [->|[-> Hr]]; [left|right].
  - assert (A * r <= A * 1) by (apply Rmult_le_compat_l; lra). lra.
  - assert (A * r <= A * / 4) by (apply Rmult_le_compat_l; lra).
    assert (ws * tiny <= magnitude l * exp K * tiny) by (apply Rmult_le_compat_r; lra). lra.
Qed.

Lemma accumulated_number : forall m a, number (accumulated m a).
Proof. intros m [x v|a b|p a]; apply number_rnd. Qed.

Lemma cost_pos : forall m a, 0 <= cost m a.
Proof.
  pose proof (e1_pos F E). pose proof (u_range F). intros m a. revert m.
  induction a as [x v|a IHa b IHb|p a IH]; intros m; cbn [cost]; [lra| |].
  - pose proof (IHa m). pose proof (Rmax_l (cost m a) (cost m b)). lra.
  - pose proof (IH p). destruct (Req_EM_T p m); lra.
Qed.

Lemma lost_pos : forall K a, 0 <= lost K a.
Proof.
  intros. unfold lost. pose proof (tiny_range F). pose proof (exp_pos K). pose proof (magnitude_pos (pairs_of a)).
  pose proof (pos_INR (operations a)). apply Rmult_le_pos; [apply Rmult_le_pos|]; lra.
Qed.

Theorem weighted_near : forall a m, number m -> fits m a ->
  let K := cost m a in
  Rabs (accumulated m a - true_sum m (pairs_of a)) <=
    widened m K (pairs_of a) - size m (pairs_of a) + tiny * exp K * (3 * magnitude (pairs_of a) + INR (operations a)).
Proof.
  pose proof (e1_pos F E) as He. pose proof (u_range F) as Hu. pose proof (tiny_range F) as Ht.
  assert (Grow : forall A B, 0 <= A -> 0 <= B -> A <= A * exp B).
  { intros A B HA HB. pose proof (exp_ge_1 B HB). nra. }
  induction a as [x v|a IHa b IHb|p a IH]; intros m Nm H; cbv zeta in *.
  - destruct H as [Nx Hx]. cbn [accumulated pairs_of cost operations].
    apply (off_weaken m _ _ (e1 + u) (e1 + u) (tiny * Rabs v * exp u + tiny)); [lra| |].
    + change (INR 1) with 1. unfold magnitude, over. simpl. pose proof (Rabs_pos v) as Hv.
      pose proof (Grow tiny (e1 + u) ltac:(lra) ltac:(lra)).
      assert (exp u <= exp (e1 + u)) by (apply exp_le; lra). pose proof (exp_pos (e1 + u)).
      assert (P : 0 <= tiny * Rabs v) by (apply Rmult_le_pos; lra).
      assert (tiny * Rabs v * exp u <= tiny * Rabs v * exp (e1 + u)) by (apply Rmult_le_compat_l; lra).
      assert (0 <= tiny * Rabs v * exp (e1 + u)) by (apply Rmult_le_pos; lra). lra.
    + apply off_rounded; [pose proof (Rabs_pos v); nra|]. now apply off_product.
  - destruct H as [Ha Hb]. cbn [accumulated pairs_of cost operations].
    set (K := Rmax (cost m a) (cost m b)).
    assert (Up : forall c L, L <= K -> lost L c <= lost K c).
    { intros c L HL. unfold lost. pose proof (magnitude_pos (pairs_of c)). pose proof (pos_INR (operations c)).
      apply Rmult_le_compat_r; [lra|]. apply Rmult_le_compat_l; [lra|]. now apply exp_le. }
    pose proof (off_weaken m _ _ _ K _ _ (Rmax_l _ _) (Up a _ (Rmax_l _ _)) (IHa m Nm Ha)) as A.
    pose proof (off_weaken m _ _ _ K _ _ (Rmax_r _ _) (Up b _ (Rmax_r _ _)) (IHb m Nm Hb)) as B.
    assert (P : 0 <= lost K a + lost K b) by (pose proof (lost_pos K a); pose proof (lost_pos K b); lra).
    pose proof (off_rounded _ _ _ _ _ P (off_sum _ _ _ _ _ _ _ _ A B)) as C.
    apply off_weaken with (3 := C); [lra|]. unfold lost, magnitude. rewrite over_app, S_INR, plus_INR, exp_plus.
    assert (K0 : 0 <= K) by (apply Rle_trans with (2 := Rmax_l _ _); apply cost_pos).
    pose proof (Grow tiny (K + u) ltac:(lra) ltac:(lra)) as G. rewrite exp_plus in G. lra.
  - destruct H as [Np [Hp Ha]]. cbn [accumulated pairs_of cost operations].
    pose proof (IH p Np Ha) as O. pose proof (cost_pos p a) as K0. set (K := cost p a) in *.
    pose proof (magnitude_pos (pairs_of a)) as HV. pose proof (pos_INR (operations a)) as HN.
    destruct (Req_EM_T p m) as [<-|Hne].
    + rewrite stay by apply accumulated_number. rewrite Rplus_0_r.
      apply off_weaken with (3 := O); [lra|]. rewrite S_INR. unfold lost. pose proof (exp_pos K).
      assert (0 <= tiny * exp K) by (apply Rmult_le_pos; lra). lra.
    + set (V := magnitude (pairs_of a)) in *. set (N := INR (operations a)) in *.
      assert (G1 : tiny <= tiny * exp (K + (e1 + u))) by (apply Grow; lra).
      assert (G2 : tiny * exp K * exp u <= tiny * exp (K + (e1 + u))).
      { rewrite Rmult_assoc, <- exp_plus. apply Rmult_le_compat_l; [lra|]. apply exp_le. lra. }
      rewrite S_INR. fold N.
      destruct (off_rescale p m _ _ K _ Np Nm Hp (below p a Ha) K0 (lost_pos K a) O) as [C|C];
        apply off_rounded in C.
      * apply off_weaken with (3 := C); [lra|]. unfold lost. fold V N.
        assert (tiny * exp K * exp u * (3 * V + N) <= tiny * exp (K + (e1 + u)) * (3 * V + N))
          by (apply Rmult_le_compat_r; lra).
        lra.
      * apply lost_pos.
      * apply off_weaken with (3 := C); [lra|]. unfold lost. fold V N.
        assert (tiny * exp K * exp u * (7 / 4 * V + N / 4) <= tiny * exp (K + (e1 + u)) * (7 / 4 * V + N / 4))
          by (apply Rmult_le_compat_r; lra).
        assert (0 <= tiny * exp (K + (e1 + u)) * (5 / 4 * V + 3 / 4 * N)) by (apply Rmult_le_pos; lra). lra.
      * pose proof (lost_pos K a). pose proof (exp_pos K). fold V.
        assert (0 <= V * exp K) by (apply Rmult_le_pos; lra).
        assert (0 <= tiny * (V * exp K)) by (apply Rmult_le_pos; lra). lra.
Qed.

(* The quotient by a sum. *)
Theorem output_error : forall a m s S h, number m -> fits m a -> 1 <= s -> 1 <= S -> Rabs (ln s - ln S) <= h ->
  let K := cost m a in
  Rabs (rnd (accumulated m a / s) - true_sum m (pairs_of a) / S) <=
    (widened m (K + h + u) (pairs_of a) - size m (pairs_of a)) / S
    + tiny * exp (K + u) * (3 * magnitude (pairs_of a) + INR (operations a)) + tiny.
Proof.
  intros a m s S h Nm Ha Hs HS Hh K. pose proof (weighted_near a m Nm Ha) as O. cbv zeta in O. fold K in O.
  set (l := pairs_of a) in *. set (A := tiny * exp K * (3 * magnitude l + INR (operations a))) in *.
  assert (HA : 0 <= A) by apply (lost_pos K a).
  destruct (inverse_between s S h Hs HS Hh) as [I1 I2]. pose proof (true_sum_size m l) as T.
  pose proof (below m a Ha) as Hb. fold l in Hb. pose proof (size_le m l Hb) as [S1 _].
  assert (h0 : 0 <= h) by (pose proof (Rabs_pos (ln s - ln S)); lra). pose proof (exp_ge_1 h h0) as H1.
  assert (Hi : 0 < / S) by (apply Rinv_0_lt_compat; lra). assert (Hj : 0 < / s) by (apply Rinv_0_lt_compat; lra).
  assert (Hk : / s <= 1) by (rewrite <- Rinv_1; apply Rinv_le_contravar; lra).
  pose proof (exp_ineq1_le (- h)) as E1. pose proof (exp_ineq1_le h) as E2.
  assert (J : Rabs (/ s - / S) <= (exp h - 1) * / S).
  { unfold Rdiv in I1, I2. apply Rabs_le. split; [|lra].
    assert ((2 - exp h) * / S <= exp (- h) * / S) by (apply Rmult_le_compat_r; lra). lra. }
  pose proof (cost_pos m a) as K0. fold K in K0.
  pose proof (widened_le m K l Hb) as [W1 _]. pose proof (exp_ge_1 K K0) as HK.
  assert (W : size m l <= widened m K l) by nra.
  set (ws := widened m K l) in *. set (sz := size m l) in *. set (t := true_sum m l) in *. set (w := accumulated m a) in *.
  (* Before the rounding. *)
  assert (X : Rabs (w / s - t / S) <= (ws * exp h - sz) * / S + A).
  { replace (w / s - t / S) with ((w - t) * / s + t * (/ s - / S)) by (unfold Rdiv; ring).
    eapply Rle_trans; [apply Rabs_triang|]. rewrite !Rabs_mult, (Rabs_pos_eq (/ s)) by lra.
    assert (Rabs (w - t) * / s <= (ws - sz + A) * / s) by (apply Rmult_le_compat_r; lra).
    assert ((ws - sz) * / s <= (ws - sz) * (exp h / S)) by (apply Rmult_le_compat_l; lra).
    assert (A * / s <= A * 1) by (apply Rmult_le_compat_l; lra).
    assert (Rabs t * Rabs (/ s - / S) <= sz * ((exp h - 1) * / S)).
    { apply Rmult_le_compat; [apply Rabs_pos|apply Rabs_pos|exact T|exact J]. }
    unfold Rdiv in *. lra. }
  assert (Y : Rabs (t / S) <= sz * / S).
  { unfold Rdiv. rewrite Rabs_mult, (Rabs_pos_eq (/ S)) by lra. apply Rmult_le_compat_r; lra. }
  assert (Q : Rabs (w / s) <= ws * exp h * / S + A).
  { replace (w / s) with ((w / s - t / S) + t / S) by ring. eapply Rle_trans; [apply Rabs_triang|]. lra. }
  pose proof (rnd_off (w / s)) as R. pose proof (u_range F) as Hu. pose proof (exp_ineq1_le u) as Eu.
  assert (Z : (exp u - 1) * Rabs (w / s) <= (exp u - 1) * (ws * exp h * / S + A)) by (apply Rmult_le_compat_l; lra).
  replace (rnd (w / s) - t / S) with ((rnd (w / s) - w / s) + (w / s - t / S)) by ring.
  eapply Rle_trans; [apply Rabs_triang|].
  replace (K + h + u) with (K + (h + u)) by ring. rewrite widened_more. fold ws. rewrite !exp_plus.
  replace (tiny * (exp K * exp u) * (3 * magnitude l + INR (operations a))) with (A * exp u) by (unfold A; ring).
  unfold Rdiv. lra.
Qed.

End Output.
