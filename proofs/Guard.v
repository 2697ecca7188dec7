(** Where the merge without a guard is not a number, and that the guard changes nothing else.

    Numbers here are those of a format without rounding: reals, both infinities and NaN, with the rules of IEEE 754
    for what is not real: inf - inf and 0 * inf are NaN, NaN spreads, exp (-inf) = 0. Both merges are written over them
    as a program computes them, the guarded one as [weight] and [merge] of src/online_softmax/state.py, +inf included.

    Shown: without the guard the sum of two states is NaN exactly where their joint maximum is infinite, which for
    states without +inf means that both maxima are -inf; everywhere else both merges agree; the guarded one gives the
    states of Law.v, never NaN from what is not NaN, and counts entries of +inf. *)

From Coq Require Import Reals Lra.
From OnlineSoftmax Require Import Law.
Open Scope R_scope.

(** * Numbers with infinities and NaN *)

Inductive number : Type :=
  | nan
  | neg_inf
  | pos_inf
  | num (r : R).

Definition opp (a : number) : number :=
  match a with nan => nan | neg_inf => pos_inf | pos_inf => neg_inf | num r => num (- r) end.

Definition add (a b : number) : number :=
  match a, b with
  | num x, num y => num (x + y)
  | nan, _ | _, nan => nan
  | pos_inf, neg_inf | neg_inf, pos_inf => nan
  | pos_inf, _ | _, pos_inf => pos_inf
  | neg_inf, _ | _, neg_inf => neg_inf
  end.

Definition sub (a b : number) : number := add a (opp b).

(** An infinity times x: its sign by the sign of x, NaN where x is 0. *)
Definition signed (a : number) (x : R) : number :=
  match total_order_T x 0 with
  | inleft (left _) => opp a
  | inleft (right _) => nan
  | inright _ => a
  end.

Definition mul (a b : number) : number :=
  match a, b with
  | num x, num y => num (x * y)
  | nan, _ | _, nan => nan
  | num x, i | i, num x => signed i x
  | pos_inf, pos_inf | neg_inf, neg_inf => pos_inf
  | pos_inf, neg_inf | neg_inf, pos_inf => neg_inf
  end.

Definition expn (a : number) : number :=
  match a with nan => nan | neg_inf => num 0 | pos_inf => pos_inf | num r => num (exp r) end.

(** A maximum that NaN taints. *)
Definition maxn (a b : number) : number :=
  match a, b with
  | nan, _ | _, nan => nan
  | pos_inf, _ | _, pos_inf => pos_inf
  | neg_inf, c | c, neg_inf => c
  | num x, num y => num (Rmax x y)
  end.

Definition infinite (a : number) : Prop := a = neg_inf \/ a = pos_inf.

(** * Both merges *)

Definition pair : Type := (number * number)%type.

(** s_a * exp (m_a - m) + s_b * exp (m_b - m), just as it stands. *)
Definition unguarded_merge (a b : pair) : pair :=
  let m := maxn (fst a) (fst b) in
  (m, add (mul (snd a) (expn (sub (fst a) m))) (mul (snd b) (expn (sub (fst b) m)))).

(** m, or 0 where m is infinite. *)
Definition pivot_number (m : number) : number :=
  match m with neg_inf | pos_inf => num 0 | other => other end.

(** x - m under the guard. An m of +inf has no finite pivot: the limits are 0 for +inf and -inf for the rest. *)
Definition guarded_exponent (x m : number) : number :=
  match m with
  | pos_inf => match x with pos_inf => num 0 | _ => neg_inf end
  | _ => sub x (pivot_number m)
  end.

Definition guarded_merge (a b : pair) : pair :=
  let m := maxn (fst a) (fst b) in
  (m, add (mul (snd a) (expn (guarded_exponent (fst a) m))) (mul (snd b) (expn (guarded_exponent (fst b) m)))).

(** The states of Law.v among these pairs. *)
Definition number_of (h : height) : number := match h with minus_inf => neg_inf | fin r => num r end.
Definition pair_of (a : state) : pair := (number_of (fst a), num (snd a)).

(** What one such merge has seen: no NaN, and a sum that is real. *)
Definition not_tainted (a : pair) : Prop := fst a <> nan /\ exists s, snd a = num s.

(** * Where the guard is needed *)

Ltac by_cases := repeat match goal with
  | a : pair |- _ => destruct a as [[| | |?m] ?s]
  | v : not_tainted _ |- _ => destruct v as [? [?t ?e]]; cbn in *
  end; subst.

(** Without the guard the sum is NaN exactly where the joint maximum is infinite, -inf or +inf. *)
Theorem unguarded_is_nan_iff : forall a b, not_tainted a -> not_tainted b ->
  (snd (unguarded_merge a b) = nan <-> infinite (maxn (fst a) (fst b))).
Proof.
  intros a b va vb. unfold infinite. by_cases; cbn; intuition congruence.
Qed.

(** Among states without +inf: exactly where both maxima are -inf. *)
Corollary unguarded_is_nan_iff_both_minus_inf : forall a b : state,
  snd (unguarded_merge (pair_of a) (pair_of b)) = nan <-> fst a = minus_inf /\ fst b = minus_inf.
Proof.
  intros a b. rewrite unguarded_is_nan_iff.
  - destruct a as [[|x] s], b as [[|y] t]; unfold infinite; cbn; intuition congruence.
  - split; [now destruct a as [[|x] s] | now exists (snd a)].
  - split; [now destruct b as [[|x] s] | now exists (snd b)].
Qed.

(** Nothing merged with nothing, the case a first masked block meets: NaN without the guard, nothing with it. *)
Corollary unguarded_identities : snd (unguarded_merge (pair_of identity) (pair_of identity)) = nan.
Proof. now apply unguarded_is_nan_iff_both_minus_inf. Qed.

(** The guard changes nothing else: where the joint maximum is not infinite both merges are one. *)
Theorem guard_changes_nothing_else : forall a b,
  ~ infinite (maxn (fst a) (fst b)) -> guarded_merge a b = unguarded_merge a b.
Proof.
  intros a b finite. unfold guarded_merge, unguarded_merge, guarded_exponent. f_equal.
  destruct (maxn (fst a) (fst b)) as [| | |m] eqn:e; cbn; try reflexivity;
    destruct finite; [now left | now right].
Qed.

(** * The guarded merge *)

(** On reals and -inf it is the merge of Law.v. *)
Theorem guarded_is_merge : forall a b : state, guarded_merge (pair_of a) (pair_of b) = pair_of (merge a b).
Proof.
  intros [[|x] s] [[|y] t]; unfold guarded_merge, pair_of, merge; cbn; do 2 f_equal; try reflexivity;
    f_equal; f_equal; try ring; f_equal; ring.
Qed.

(** It gives NaN from NaN alone. *)
Theorem guarded_never_nan : forall a b, not_tainted a -> not_tainted b -> not_tainted (guarded_merge a b).
Proof.
  intros a b va vb. by_cases; cbn; try congruence; split; cbn; try congruence; eexists; reflexivity.
Qed.

(** NaN in either maximum taints maximum and sum. *)
Theorem nan_taints : forall a b, fst a = nan \/ fst b = nan -> guarded_merge a b = (nan, nan).
Proof.
  intros [ma sa] [mb sb]; cbn. intros [->| ->]; unfold guarded_merge; cbn.
  - now destruct sa.
  - now destruct ma, sa, sb.
Qed.

(** The sum at a maximum of +inf counts: what lies at +inf is kept, the rest counts nothing. *)
Theorem plus_infinity_is_counted : forall m s t, m <> nan -> m <> pos_inf ->
  guarded_merge (pos_inf, num s) (pos_inf, num t) = (pos_inf, num (s + t)) /\
  guarded_merge (pos_inf, num s) (m, num t) = (pos_inf, num s) /\
  guarded_merge (m, num t) (pos_inf, num s) = (pos_inf, num s).
Proof.
  intros [| | |m] s t; intros; try congruence; unfold guarded_merge; cbn;
    rewrite ?exp_0; repeat split; do 2 f_equal; ring.
Qed.

(** The merge with the guard is a commutative monoid with +inf in it as well: it commutes, *)
Theorem guarded_comm : forall a b, not_tainted a -> not_tainted b -> guarded_merge a b = guarded_merge b a.
Proof.
  intros a b va vb. by_cases; try congruence; unfold guarded_merge; cbn; try rewrite (Rmax_comm m); do 2 f_equal; ring.
Qed.

Lemma pos_inf_or_state : forall a, not_tainted a -> (exists s, a = (pos_inf, num s)) \/ exists b, a = pair_of b.
Proof.
  intros [[| | |x] s] [n [t e]]; cbn in *; subst.
  - easy.
  - right. now exists (minus_inf, t).
  - left. now exists t.
  - right. now exists (fin x, t).
Qed.

(** and it associates. *)
Theorem guarded_assoc : forall a b c, not_tainted a -> not_tainted b -> not_tainted c ->
  guarded_merge (guarded_merge a b) c = guarded_merge a (guarded_merge b c).
Proof.
  intros a b c va vb vc.
  destruct (pos_inf_or_state a va) as [[s ->]|[a' ->]], (pos_inf_or_state b vb) as [[t ->]|[b' ->]],
    (pos_inf_or_state c vc) as [[u ->]|[c' ->]].
  8: now rewrite !guarded_is_merge, merge_assoc.
  all: rewrite ?guarded_is_merge; unfold guarded_merge, pair_of; cbn [fst snd].
  all: repeat match goal with h : state |- _ => destruct h as [[|?x] ?s] end; cbn; rewrite ?exp_0; do 2 f_equal; ring.
Qed.
