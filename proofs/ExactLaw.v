(** * The bit-exact state over whole numbers: what the code computes

    Definitions of [order="any"] (online_softmax/exact.py and exact_state.py), for any number of slots, any bins and any
    slices, so that both formats are cases of it (Slices.v).  Exact.v has the claims.

    A state is the maximum of what was seen and K integer sums.  Slot k sums, over all elements, the slice of the
    element's term in bin b - k, where b is the bin of the maximum.  What a merge moves below the last slot is lost. *)

From Coq Require Import ZArith List Permutation Bool Lia.
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
  | |- context [?x <? ?y] => destruct (Z.ltb_spec x y); cbn in *
  | H : context [?x <? ?y] |- _ => destruct (Z.ltb_spec x y); cbn in *
  end; try discriminate; try reflexivity; try (f_equal; lia); try lia.

Lemma same_eq a b : same a b = true <-> a = b.
Proof.
  split.
  - unfold same. destruct a, b; cbn; try discriminate; try reflexivity.
    rewrite andb_true_iff, !negb_true_iff, !Z.ltb_ge.
    intros. f_equal. lia.
  - intros ->. order.
Qed.

Lemma at_most_refl a : at_most a a.
Proof. order. Qed.

Lemma at_most_trans a b c : at_most a b -> at_most b c -> at_most a c.
Proof. intros; order. Qed.

Lemma below_at_most a b : below a b = true -> at_most a b.
Proof. intro; order. Qed.

Lemma greater_NaN a : greater NaN a = NaN /\ greater a NaN = NaN.
Proof. split; order. Qed.

Lemma greater_of_at_most a m : at_most a m -> greater a m = m.
Proof. intro; order. Qed.

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

(** ** A format

    [K]: how many slots.  [least_plain] .. [greatest_plain]: the numbers whose terms are summed (up to [Format.large]
    either way).  [bin]: the bin of a number.  [slice x j]: what the term of x has in bin j.  [wrap]: how a sum is kept,
    as it is, or in 64 bits that wrap around. *)
Class format := Format {
  K : nat;
  least_plain : Z;
  greatest_plain : Z;
  bin : Z -> Z;
  slice : Z -> Z -> Z;
  wrap : Z -> Z
}.

(** ** The law *)

Record state := State { top : number; sums : list Z }.

Section Law.

Context {F : format}.

Definition plain (x : Z) : bool := (least_plain <=? x) && (x <=? greatest_plain).

Definition slots (f : nat -> Z) : list Z := map f (seq 0 K).

(** What x adds to slot k under maximum m.  Past the plain numbers, equal elements are counted: neighbours there are so
    far apart that of the others nothing is left. *)
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

End Law.

(** What the proofs of Exact.v rest on, and all they rest on. *)
Class lawful (F : format) : Prop := Lawful {
  bin_monotone : forall x y, least_plain <= x -> x <= y -> y <= greatest_plain -> bin x <= bin y;
  no_slice_above : forall x j, plain x = true -> bin x < j -> slice x j = 0;
  wrap_sum : forall a b, wrap (a + wrap b) = wrap (a + b);
  wrap_0 : wrap 0 = 0
}.
