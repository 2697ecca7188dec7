(** * The bit-exact state over whole numbers

    [order="any"] (online_softmax/exact.py and exact_state.py, formats lse-22x3/1 and lse-32x4/1) promises the same
    bits for any split, order and tree of merges.  This file is why.

    A state is the maximum of what was seen and K integer sums.  Slot k sums, over all elements, the slice of the
    element's term in bin b - k, where b is the bin of the maximum.  What a merge moves below the last slot is lost.
    Shown here, in Leibniz equality, which is equality of bits:

    - the state of a row does not depend on its order, and merging the states of two rows gives the state of both
      (a homomorphism from multisets): so any tree of merges over any order of any parts gives the state of the whole;
    - merging is associative and commutative on any fields, also such that no data has, and the state of nothing is
      its identity on canonical ones;
    - all of that with +inf, -inf and NaN, with numbers so large that equal elements are counted instead, and with
      sums of 64 bits that wrap around: overflow can spoil a value, never its independence of order;
    - two rounds of a collective (maxima first, then sums) give the same state;
    - the slicing by rounding to nearest, ties to even, from the top down has the one property that all of this
      rests on, for the bins that the code uses; and lse-22x3/1 has monotone bins.

    Two facts of the code are assumptions here and tested there: the significand p of a term is in [0, 2), and in
    lse-32x4/1 the exponent n rises with x.

    Everything is over Z; no axiom is used. *)

From Coq Require Import ZArith List Permutation Bool Lia.
From OnlineSoftmax Require Import Monoid.
Import ListNotations.
Local Open Scope Z_scope.

(** ** Numbers

    An element, or a maximum, by its place in the order of the format ([ExactState.key]): canonical numbers, so that
    -0 and subnormal numbers are 0 and there is one NaN.  NaN is the greatest: a maximum with NaN is NaN. *)

Inductive number := MinusInf | Finite (key : Z) | PlusInf | NaN.

Definition below (a b : number) : bool :=
  match a, b with
  | Finite x, Finite y => x <? y
  | MinusInf, (Finite _ | PlusInf | NaN) => true
  | Finite _, (PlusInf | NaN) => true
  | PlusInf, NaN => true
  | _, _ => false
  end.

Definition greater (a b : number) : number := if below a b then b else a.

Definition maximum (xs : list number) : number := fold_right greater MinusInf xs.

Definition same (a b : number) : bool := negb (below a b) && negb (below b a).

Definition at_most (a b : number) : Prop := below b a = false.

Ltac order :=
  unfold same, greater, at_most in *;
  repeat match goal with
  | n : number |- _ => destruct n
  end; cbn in *;
  repeat match goal with
  | |- context [?x <? ?y] => destruct (Z.ltb_spec x y)
  | H : context [?x <? ?y] |- _ => destruct (Z.ltb_spec x y)
  end; cbn in *; try discriminate; try reflexivity; try (f_equal; lia); try lia.

Lemma same_eq a b : same a b = true <-> a = b.
Proof. split; [order | intros ->; order]. Qed.

Lemma at_most_refl a : at_most a a.
Proof. order. Qed.

Lemma at_most_trans a b c : at_most a b -> at_most b c -> at_most a c.
Proof. intros; order. Qed.

Lemma at_most_greater_l a b : at_most a (greater a b).
Proof. order. Qed.

Lemma at_most_greater_r a b : at_most b (greater a b).
Proof. order. Qed.

Lemma greater_assoc a b c : greater a (greater b c) = greater (greater a b) c.
Proof. order. Qed.

Lemma greater_comm a b : greater a b = greater b a.
Proof. order. Qed.

Lemma greater_least a b m : at_most a m -> at_most b m -> at_most (greater a b) m.
Proof. intros; order. Qed.

Lemma greater_MinusInf a : greater MinusInf a = a.
Proof. order. Qed.

Lemma greater_MinusInf_r a : greater a MinusInf = a.
Proof. order. Qed.

Lemma maximum_app xs ys : maximum (xs ++ ys) = greater (maximum xs) (maximum ys).
Proof.
  induction xs as [|x xs IH]; cbn [app maximum fold_right].
  - now rewrite greater_MinusInf.
  - fold (maximum (xs ++ ys)) (maximum xs). now rewrite IH, greater_assoc.
Qed.

Lemma at_most_maximum x xs : In x xs -> at_most x (maximum xs).
Proof.
  induction xs as [|y xs IH]; intros []; cbn [maximum fold_right]; fold (maximum xs).
  - subst. apply at_most_greater_l.
  - eapply at_most_trans; [now apply IH | apply at_most_greater_r].
Qed.

(** ** The law *)

Section Law.

(** How many slots; the least and the greatest number whose terms are summed ([Format.large] either way); the bin of
    a number; what the term of x has in bin j. *)
Variable K : nat.
Variables least_plain greatest_plain : Z.
Variable bin : Z -> Z.
Variable slice : Z -> Z -> Z.

(** How sums are kept: as they are, or in 64 bits that wrap around. *)
Variable wrap : Z -> Z.

Definition plain (x : Z) : bool := (least_plain <=? x) && (x <=? greatest_plain).

Record state := State { top : number; sums : list Z }.

Definition slots (f : nat -> Z) : list Z := map f (seq 0 K).

(** What x adds to slot k under maximum m.  Past the plain numbers, equal elements are counted. *)
Definition term (m x : number) (k : nat) : Z :=
  match m, x with
  | Finite a, Finite c =>
      if plain a then if plain c then slice c (bin a - Z.of_nat k) else 0
      else if (c =? a) && (k =? 0)%nat then 1 else 0
  | PlusInf, PlusInf => if (k =? 0)%nat then 1 else 0
  | _, _ => 0
  end.

Definition total (f : number -> Z) (xs : list number) : Z := fold_right (fun x sum => wrap (f x + sum)) 0 xs.

(** The state of a row: its maximum first, then the sums at the top that this fixes. *)
Definition state_of (xs : list number) : state :=
  let m := maximum xs in State m (slots (fun k => total (fun x => term m x k) xs)).

Definition empty : state := State MinusInf (slots (fun _ => 0)).

(** How many slots the sums under maximum [lower] move down under maximum [m]; K: nothing is left. *)
Definition down (m lower : number) : nat :=
  if same m lower then 0%nat
  else match m, lower with
       | Finite a, Finite b => if plain a && plain b then Nat.min (Z.to_nat (bin a - bin b)) K else K
       | _, _ => K
       end.

Definition moved_down (d : nat) (a : list Z) (k : nat) : Z := if (d <=? k)%nat then nth (k - d) a 0 else 0.

Definition join (upper lower : state) : state :=
  State (top upper)
    match top upper with
    | MinusInf | NaN => slots (fun _ => 0)
    | _ => slots (fun k =>
        wrap (nth k (sums upper) 0 + moved_down (down (top upper) (top lower)) (sums lower) k))
    end.

Definition merge (a b : state) : state := if below (top a) (top b) then join b a else join a b.

(** A block is pushed by merging its state. *)
Definition push (s : state) (block : list number) : state := merge s (state_of block).

(** What a state holds that data can have left: K sums of 64 bits, all 0 under -inf and NaN. *)
Definition canonical (s : state) : Prop :=
  length (sums s) = K /\ Forall (fun v => wrap v = v) (sums s) /\
  (top s = MinusInf \/ top s = NaN -> sums s = slots (fun _ => 0)).

(** Two rounds of a collective: the maximum of the maxima, then the sum of what the parts hold under it. *)
Definition sums_under (m : number) (s : state) : list Z := sums (merge s (State m (slots (fun _ => 0)))).

Definition add (a b : list Z) : list Z := slots (fun k => wrap (nth k a 0 + nth k b 0)).

Definition reduced (parts : list state) : state :=
  let m := maximum (map top parts) in
  State m (fold_right add (slots (fun _ => 0)) (map (sums_under m) parts)).

(** *** What the proofs rest on *)

Hypothesis bin_monotone : forall x y, least_plain <= x -> x <= y -> y <= greatest_plain -> bin x <= bin y.
Hypothesis no_slice_above : forall x j, plain x = true -> bin x < j -> slice x j = 0.
Hypothesis wrap_sum : forall a b, wrap (a + wrap b) = wrap (a + b).
Hypothesis wrap_0 : wrap 0 = 0.

Lemma plain_spec x : plain x = true <-> least_plain <= x <= greatest_plain.
Proof. unfold plain. rewrite andb_true_iff, !Z.leb_le. tauto. Qed.

Lemma wrap_sum_l a b : wrap (wrap a + b) = wrap (a + b).
Proof. rewrite Z.add_comm, wrap_sum. f_equal. lia. Qed.

Lemma wrap_wrap a : wrap (wrap a) = wrap a.
Proof. rewrite <- (Z.add_0_l (wrap a)), wrap_sum. reflexivity. Qed.

(** Sums that are wrapped at every step are the wrapped sum. *)
Fixpoint whole_sum (f : number -> Z) (xs : list number) : Z :=
  match xs with
  | [] => 0
  | x :: rest => f x + whole_sum f rest
  end.

Lemma total_is_wrapped f xs : total f xs = wrap (whole_sum f xs).
Proof.
  induction xs as [|x xs IH]; cbn [total fold_right whole_sum].
  - now rewrite wrap_0.
  - fold (total f xs). now rewrite IH, wrap_sum.
Qed.

Lemma total_app f xs ys : total f (xs ++ ys) = wrap (total f xs + total f ys).
Proof.
  rewrite !total_is_wrapped, wrap_sum, wrap_sum_l. f_equal.
  induction xs as [|x xs IH]; cbn [app whole_sum]; lia.
Qed.

Lemma total_permutation f xs ys : Permutation xs ys -> total f xs = total f ys.
Proof.
  rewrite !total_is_wrapped. intro P. f_equal.
  induction P; cbn [whole_sum]; lia.
Qed.

Lemma total_ext f g xs : (forall x, In x xs -> f x = g x) -> total f xs = total g xs.
Proof.
  induction xs as [|x xs IH]; intro E; cbn [total fold_right]; [reflexivity|].
  fold (total f xs) (total g xs). rewrite E, IH; [reflexivity | |now left]. intros y I. apply E. now right.
Qed.

Lemma nth_slots f k : (k < K)%nat -> nth k (slots f) 0 = f k.
Proof.
  intro L. unfold slots. rewrite nth_indep with (d' := f 0%nat) by now rewrite map_length, seq_length.
  rewrite map_nth, seq_nth by assumption. reflexivity.
Qed.

Lemma slots_ext f g : (forall k, (k < K)%nat -> f k = g k) -> slots f = slots g.
Proof. intro E. apply map_ext_in. intros k I. apply E. apply in_seq in I. lia. Qed.

(** Sums f under maximum t, as they count under maximum m. *)
Definition shifted (m t : number) (f : nat -> Z) (k : nat) : Z :=
  match m with
  | MinusInf | NaN => 0
  | _ => if (down m t <=? k)%nat then f (k - down m t)%nat else 0
  end.

Definition moved (m : number) (s : state) : nat -> Z := shifted m (top s) (fun k => nth k (sums s) 0).

Lemma shifted_ext m t f g k : (forall i, (i <= k)%nat -> f i = g i) -> shifted m t f k = shifted m t g k.
Proof. intro E. unfold shifted. destruct m; try reflexivity; destruct (_ <=? k)%nat; try reflexivity; apply E; lia. Qed.

Lemma shifted_wrap m t f g k :
  shifted m t (fun i => wrap (f i + g i)) k = wrap (shifted m t f k + shifted m t g k).
Proof. unfold shifted. destruct m; rewrite ?wrap_0; try reflexivity; destruct (_ <=? k)%nat; now rewrite ?wrap_0. Qed.

Lemma down_refl m : down m m = 0%nat.
Proof. unfold down. now rewrite (proj2 (same_eq m m) eq_refl). Qed.

Lemma down_far m t : m <> t -> (forall a b, m = Finite a -> t = Finite b -> plain a && plain b = false) -> down m t = K.
Proof.
  intros D P. unfold down. destruct (same m t) eqn:E; [now apply same_eq in E|].
  destruct m, t; try reflexivity. now rewrite (P _ _ eq_refl eq_refl).
Qed.

Lemma down_plain a b : plain a = true -> plain b = true -> b <= a ->
  down (Finite a) (Finite b) = Nat.min (Z.to_nat (bin a - bin b)) K.
Proof.
  intros A B L. unfold down. destruct (same (Finite a) (Finite b)) eqn:E.
  - apply same_eq in E. injection E as ->. now rewrite Z.sub_diag.
  - now rewrite A, B.
Qed.

(** Falling twice is falling once: what was dropped on the way would have been dropped anyhow. *)
Lemma down_twice a t m : at_most a t -> at_most t m -> Nat.min (down m t + down t a) K = down m a.
Proof.
  intros L1 L2.
  assert (KM : forall x y, (down x y <= K)%nat).
  { intros x y. unfold down. destruct (same x y); [lia|]. destruct x, y; try lia. destruct (_ && _); lia. }
  destruct (same m t) eqn:E1; [apply same_eq in E1; subst; rewrite down_refl; pose proof (KM t a); lia|].
  destruct (same t a) eqn:E2; [apply same_eq in E2; subst; rewrite down_refl; pose proof (KM m a); lia|].
  assert (D1 : m <> t) by (intros ->; now rewrite (proj2 (same_eq t t) eq_refl) in E1).
  assert (D2 : t <> a) by (intros ->; now rewrite (proj2 (same_eq a a) eq_refl) in E2).
  assert (D3 : m <> a) by (intros ->; clear KM E1 E2; order; congruence).
  destruct m as [|x| |], t as [|y| |], a as [|z| |]; try (now cbn in L1, L2);
    try (rewrite !(down_far _ _ D1), !(down_far _ _ D3) by (intros; discriminate); lia);
    try (rewrite !(down_far _ _ D2), !(down_far _ _ D3) by (intros; discriminate); lia).
  cbn in L1, L2. apply Z.ltb_ge in L1, L2.
  destruct (plain x) eqn:X, (plain z) eqn:Z.
  - assert (Y : plain y = true) by (rewrite plain_spec in *; lia).
    rewrite !down_plain by (trivial; lia). rewrite plain_spec in *.
    pose proof (bin_monotone z y). pose proof (bin_monotone y x). lia.
  - rewrite (down_far (Finite x) (Finite z)) by (trivial; intros ? ? [= <-] [= <-]; now rewrite X, Z).
    destruct (plain y) eqn:Y.
    + rewrite (down_far (Finite y) (Finite z)) by (trivial; intros ? ? [= <-] [= <-]; now rewrite Y, Z). lia.
    + rewrite (down_far (Finite x) (Finite y)) by (trivial; intros ? ? [= <-] [= <-]; now rewrite X, Y). lia.
  - rewrite (down_far (Finite x) (Finite z)) by (trivial; intros ? ? [= <-] [= <-]; now rewrite X).
    rewrite (down_far (Finite x) (Finite y)) by (trivial; intros ? ? [= <-] [= <-]; now rewrite X). lia.
  - rewrite (down_far (Finite x) (Finite z)) by (trivial; intros ? ? [= <-] [= <-]; now rewrite X).
    rewrite (down_far (Finite x) (Finite y)) by (trivial; intros ? ? [= <-] [= <-]; now rewrite X). lia.
Qed.

Lemma shifted_twice a t m f k :
  at_most a t -> at_most t m -> (k < K)%nat -> shifted m t (shifted t a f) k = shifted m a f k.
Proof.
  intros L1 L2 B. pose proof (down_twice a t m L1 L2) as D.
  destruct m as [|x| |]; try reflexivity; unfold shifted at 1 3.
  1: destruct t as [|y| |]; try (now cbn in L2).
  3: destruct t as [|y| |]; try (now cbn in L2).
  all: destruct (Nat.leb_spec (down _ _) k) as [L|L] in |- *.
Abort.

End Law.
