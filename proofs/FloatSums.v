(* Rounded sums of exponentials: how far off a sum may be, entry by entry.

   A computed sum s at the pivot m is held between two true sums. In these the entry x counts with an exponential
   that errs by a factor of at most exp (u * (m - x) + k), where k counts the operations on its way. Rounded exponents
   telescope: however often the pivot moves on, what they cost is u * (m - x), as if the last pivot had been known
   from the start. An operation changes the counts alone: an addition adds u [plus_near]; exponentials and rescales are
   in FloatTerms.v. Underflow, gradual or to zero, adds 3 * n * tiny * exp K to all that, for n entries of counts up to
   K: nothing beside a sum that is 1 at least.

   Entries are real numbers of the format; an entry of -inf has exponential 0, and adding 0 is exact. *)

From Coq Require Import ZArith Reals Psatz List.
From Flocq Require Import Core.
From OnlineSoftmax Require Import Rounding.
Import ListNotations.
Open Scope R_scope.

Fixpoint sum (l : list R) : R := match l with [] => 0 | a :: r => a + sum r end.

(* Entries in the order they are added in: a tree of additions. *)
Inductive order := One (x : R) | Plus (a b : order).

Fixpoint entries (t : order) : list R :=
  match t with One x => [x] | Plus a b => entries a ++ entries b end.

Fixpoint top (t : order) : R :=
  match t with One x => x | Plus a b => Rmax (top a) (top b) end.

(* Most additions that an entry goes through. *)
Fixpoint depth (t : order) : nat :=
  match t with One _ => 0 | Plus a b => S (max (depth a) (depth b)) end.

Section Sums.

Variable F : Format.

Notation u := (u F).
Notation tiny := (tiny F).
Notation rnd := (rnd F).
Notation number := (number F).

(* --- a computed sum between two true ones --- *)

(* Entries with their counts. *)
Definition counted := list (R * R).

Definition least (m : R) (ts : counted) : R := sum (map (fun t => exp ((1 + u) * (fst t - m) - snd t)) ts).
Definition most (m : R) (ts : counted) : R := sum (map (fun t => exp ((1 - u) * (fst t - m) + snd t)) ts).

Definition all (k : R) (xs : list R) : counted := map (fun x => (x, k)) xs.
Definition more (k : R) (ts : counted) : counted := map (fun t => (fst t, snd t + k)) ts.

Definition underflow (K : R) (ts : counted) : R := INR (length ts) * tiny * exp K.

(* [within 3 K m s ts]: s is a sum of the entries' exponentials at m, of counts at most K. *)
Record within (c K m s : R) (ts : counted) : Prop := {
  counts : Forall (fun t => fst t <= m /\ 0 <= snd t <= K) ts;
  from_below : least m ts - c * underflow K ts <= s;
  from_above : s <= most m ts + c * underflow K ts
}.

(* The same of a number that is not negative. *)
Definition near (K m s : R) (ts : counted) : Prop := within 3 K m s ts /\ number s /\ 0 <= s.

(* --- lists --- *)

Lemma sum_app : forall a b, sum (a ++ b) = sum a + sum b.
Proof. induction a as [|x a IH]; intros b; simpl; [ring|rewrite IH; ring]. Qed.

Lemma least_app : forall m a b, least m (a ++ b) = least m a + least m b.
Proof. intros. unfold least. now rewrite map_app, sum_app. Qed.

Lemma most_app : forall m a b, most m (a ++ b) = most m a + most m b.
Proof. intros. unfold most. now rewrite map_app, sum_app. Qed.

Lemma more_app : forall k a b, more k (a ++ b) = more k a ++ more k b.
Proof. intros. unfold more. apply map_app. Qed.

Lemma more_all : forall k l xs, more k (all l xs) = all (l + k) xs.
Proof. intros. unfold more, all. rewrite map_map. reflexivity. Qed.

Lemma all_app : forall k a b, all k (a ++ b) = all k a ++ all k b.
Proof. intros. unfold all. apply map_app. Qed.

Lemma length_more : forall k ts, length (more k ts) = length ts.
Proof. intros. unfold more. apply map_length. Qed.

Lemma underflow_pos : forall K ts, 0 <= underflow K ts.
Proof.
  intros. unfold underflow. pose proof (tiny_range F). pose proof (exp_pos K). pose proof (pos_INR (length ts)).
  apply Rmult_le_pos; [apply Rmult_le_pos|]; lra.
Qed.

Lemma underflow_app : forall K a b, underflow K (a ++ b) = underflow K a + underflow K b.
Proof. intros. unfold underflow. rewrite app_length, plus_INR. ring. Qed.

Lemma underflow_more : forall k K ts, underflow (K + k) (more k ts) = underflow K ts * exp k.
Proof. intros. unfold underflow. rewrite length_more, exp_plus. ring. Qed.

Lemma exp_le : forall a b, a <= b -> exp a <= exp b.
Proof. intros a b [H| ->]; [apply Rlt_le, exp_increasing, H|apply Rle_refl]. Qed.

Lemma exp_le_1 : forall a, a <= 0 -> exp a <= 1.
Proof. intros a H. pose proof (exp_le a 0 H). rewrite exp_0 in *. assumption. Qed.

Lemma exp_ge_1 : forall a, 0 <= a -> 1 <= exp a.
Proof. intros a H. pose proof (exp_le 0 a H). rewrite exp_0 in *. assumption. Qed.

(* A new pivot and new counts multiply all of a sum by one factor. *)
Lemma least_moved : forall k p m ts, least m (more k ts) = least p ts * exp ((1 + u) * (p - m) - k).
Proof.
  intros k p m ts. unfold least, more.
  induction ts as [|t ts IH]; simpl; [ring|].
  rewrite IH, (Rmult_plus_distr_r (exp _) (sum _)), <- exp_plus. f_equal. f_equal. ring.
Qed.

Lemma most_moved : forall k p m ts, most m (more k ts) = most p ts * exp ((1 - u) * (p - m) + k).
Proof.
  intros k p m ts. unfold most, more.
  induction ts as [|t ts IH]; simpl; [ring|].
  rewrite IH, (Rmult_plus_distr_r (exp _) (sum _)), <- exp_plus. f_equal. f_equal. ring.
Qed.

Lemma least_more : forall k m ts, least m (more k ts) = least m ts * exp (- k).
Proof. intros. rewrite (least_moved k m m). f_equal. f_equal. ring. Qed.

Lemma most_more : forall k m ts, most m (more k ts) = most m ts * exp k.
Proof. intros. rewrite (most_moved k m m). f_equal. f_equal. ring. Qed.

Lemma least_range : forall K m ts, Forall (fun t => fst t <= m /\ 0 <= snd t <= K) ts ->
  0 <= least m ts <= INR (length ts).
Proof.
  intros K m ts H. pose proof (u_range F). induction H as [|t ts Ht _ IH].
  - simpl. unfold least. simpl. lra.
  - unfold least in *. cbn [map sum length]. rewrite S_INR.
    pose proof (exp_pos ((1 + u) * (fst t - m) - snd t)).
    assert (exp ((1 + u) * (fst t - m) - snd t) <= 1); [|lra].
    apply exp_le_1. destruct Ht as [Ht [Hk _]]. nra.
Qed.

Lemma most_range : forall K m ts, Forall (fun t => fst t <= m /\ 0 <= snd t <= K) ts ->
  0 <= most m ts <= INR (length ts) * exp K.
Proof.
  intros K m ts H. pose proof (u_range F). induction H as [|t ts Ht _ IH].
  - simpl. unfold most. simpl. lra.
  - unfold most in *. cbn [map sum length]. rewrite S_INR.
    pose proof (exp_pos ((1 - u) * (fst t - m) + snd t)).
    assert (exp ((1 - u) * (fst t - m) + snd t) <= exp K) by (apply exp_le; destruct Ht as [Ht [_ Hk]]; nra). lra.
Qed.

Lemma counts_more : forall k K p m ts, 0 <= k -> p <= m ->
  Forall (fun t => fst t <= p /\ 0 <= snd t <= K) ts ->
  Forall (fun t => fst t <= m /\ 0 <= snd t <= K + k) (more k ts).
Proof.
  intros k K p m ts Hk Hp H. unfold more. apply Forall_map.
  apply Forall_impl with (2 := H). intros [x l]. simpl. lra.
Qed.

Lemma within_weaken : forall c K L m s ts, 0 <= c -> K <= L -> within c K m s ts -> within c L m s ts.
Proof.
  intros c K L m s ts Hc HK [C A B].
  assert (c * underflow K ts <= c * underflow L ts).
  { apply Rmult_le_compat_l; [exact Hc|]. unfold underflow. apply Rmult_le_compat_l.
    - pose proof (tiny_range F). pose proof (pos_INR (length ts)). apply Rmult_le_pos; lra.
    - now apply exp_le. }
  split; [|lra|lra]. apply Forall_impl with (2 := C). intros t. lra.
Qed.

Lemma near_weaken : forall K L m s ts, K <= L -> near K m s ts -> near L m s ts.
Proof. intros K L m s ts HK [A B]. split; [|exact B]. apply within_weaken with K; [lra|exact HK|exact A]. Qed.

(* Counts may be taken to be greater than they are. *)
Lemma all_weaken : forall k l m v xs, k <= l -> near k m v (all k xs) -> near l m v (all l xs).
Proof.
  intros k l m v xs Hkl [[C L U] [Nv Hv]]. split; [|now split].
  assert (M : all l xs = more (l - k) (all k xs)) by (rewrite more_all; f_equal; ring).
  pose proof (least_range k m _ C). pose proof (most_range k m _ C). pose proof (underflow_pos k (all k xs)).
  assert (E1 : 1 <= exp (l - k)) by (apply exp_ge_1; lra).
  assert (E2 : exp (- (l - k)) <= 1) by (apply exp_le_1; lra).
  rewrite M. replace l with (k + (l - k)) at 1 by ring.
  split; [apply counts_more with (p := m); [lra|lra|exact C]| |]; rewrite underflow_more.
  - rewrite least_more. nra.
  - rewrite most_more. nra.
Qed.

(* --- an addition --- *)

(* A rounding adds u to every count, and to the underflow what it may add itself. *)
Lemma rounded_within : forall c c' K m v w ts, 0 <= c <= c' -> within c K m v ts ->
  v * exp (- u) - (c' - c) * underflow K ts <= w <= v * exp u + (c' - c) * underflow K ts ->
  within c' (K + u) m w (more u ts).
Proof.
  intros c c' K m v w ts Hc [C L U] [Hl Hu]. pose proof (u_range F) as Hr.
  destruct (exp_u_le F) as [E1 E2]. pose proof (exp_pos (- u)) as E3.
  pose proof (underflow_pos K ts) as Hw. set (W := underflow K ts) in *.
  assert (A : (least m ts - c * W) * exp (- u) <= v * exp (- u)) by (apply Rmult_le_compat_r; lra).
  assert (B : v * exp u <= (most m ts + c * W) * exp u) by (apply Rmult_le_compat_r; lra).
  assert (G : W <= W * exp u) by nra.
  assert (c * (W * exp (- u)) <= c * W) by (apply Rmult_le_compat_l; nra).
  assert (c' * W <= c' * (W * exp u)) by (apply Rmult_le_compat_l; lra).
  assert ((c' - c) * W <= (c' - c) * (W * exp u)) by (apply Rmult_le_compat_l; lra).
  split; [apply counts_more with (p := m); [lra|lra|exact C]| |]; fold W; rewrite underflow_more; fold W.
  - rewrite least_more. lra.
  - rewrite most_more. lra.
Qed.

Lemma within_app : forall c K m s t a b,
  within c K m s a -> within c K m t b -> within c K m (s + t) (a ++ b).
Proof.
  intros c K m s t a b [Ca La Ua] [Cb Lb Ub]. split; [now apply Forall_app| |].
  - rewrite least_app, underflow_app. lra.
  - rewrite most_app, underflow_app. lra.
Qed.

Lemma plus_near : forall K m s t a b,
  near K m s a -> near K m t b -> near (K + u) m (rnd (s + t)) (more u (a ++ b)).
Proof.
  intros K m s t a b [Wa [Ns Hs]] [Wb [Nt Ht]].
  split; [|split; [apply number_rnd|apply rnd_nonneg; lra]].
  apply rounded_within with (c := 3) (v := s + t); [lra|now apply within_app|].
  pose proof (rnd_sum F s t Ns Nt Hs Ht). lra.
Qed.

End Sums.
