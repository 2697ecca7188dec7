(** * Folds over a monoid: any tree, any permutation

    States that merge form a monoid.  What follows from that alone, whatever a state is: a fold over any binary tree is
    the fold over its leaves from left to right, and however a row is cut, its parts merge to the whole; where merging
    also commutes, any tree over any permutation gives one and the same result.

    Nothing here is about numbers, and no axiom is used. *)

From Coq Require Import List Permutation Arith Lia.
Import ListNotations.

Section Folds.

(** The carrier, the merge and the state of nothing. *)
Context {M : Type}.
Variable merge : M -> M -> M.
Variable nothing : M.

(** All of a list, merged from left to right. *)
Definition fold (xs : list M) : M := fold_left merge xs nothing.

(** A way to merge: which state meets which, when.  A tree may have places where no data came. *)
Inductive tree : Type :=
| Empty
| Leaf (x : M)
| Node (left right : tree).

Fixpoint leaves (t : tree) : list M :=
  match t with
  | Empty => []
  | Leaf x => [x]
  | Node l r => leaves l ++ leaves r
  end.

Fixpoint merged (t : tree) : M :=
  match t with
  | Empty => nothing
  | Leaf x => x
  | Node l r => merge (merged l) (merged r)
  end.

Lemma fold_snoc xs x : fold (xs ++ [x]) = merge (fold xs) x.
Proof. unfold fold. now rewrite fold_left_app. Qed.

Hypothesis merge_assoc : forall a b c, merge a (merge b c) = merge (merge a b) c.
Hypothesis merge_nothing_l : forall a, merge nothing a = a.
Hypothesis merge_nothing_r : forall a, merge a nothing = a.

Lemma fold_cons x xs : fold (x :: xs) = merge x (fold xs).
Proof.
  induction xs as [|y xs IH] using rev_ind.
  - unfold fold. cbn. now rewrite merge_nothing_l, merge_nothing_r.
  - rewrite app_comm_cons, !fold_snoc, IH. symmetry. apply merge_assoc.
Qed.

(** Two parts merge to the whole. *)
Theorem fold_of_two_parts xs ys : fold (xs ++ ys) = merge (fold xs) (fold ys).
Proof.
  induction xs as [|x xs IH]; [now rewrite merge_nothing_l|].
  cbn [app]. now rewrite !fold_cons, IH, merge_assoc.
Qed.

(** However a row is cut, the parts merge to the whole. *)
Theorem fold_of_parts parts : fold (map fold parts) = fold (concat parts).
Proof.
  induction parts as [|p parts IH]; [reflexivity|].
  cbn [map concat]. now rewrite fold_cons, fold_of_two_parts, IH.
Qed.

(** Any tree gives what the loop from left to right gives. *)
Theorem any_tree t : merged t = fold (leaves t).
Proof.
  induction t as [|x|l IHl r IHr]; cbn [merged leaves].
  - reflexivity.
  - unfold fold. cbn. now rewrite merge_nothing_l.
  - now rewrite fold_of_two_parts, IHl, IHr.
Qed.

Hypothesis merge_comm : forall a b, merge a b = merge b a.

(** Any order of the same states. *)
Theorem any_permutation xs ys : Permutation xs ys -> fold xs = fold ys.
Proof.
  induction 1 as [| x xs ys _ IH | x y xs | xs ys zs _ IH1 _ IH2].
  - reflexivity.
  - now rewrite !fold_cons, IH.
  - now rewrite !fold_cons, !merge_assoc, (merge_comm x y).
  - now rewrite IH1.
Qed.

(** Any tree over any order: threads, devices and pieces of files may finish as they like. *)
Theorem any_tree_over_any_permutation t u : Permutation (leaves t) (leaves u) -> merged t = merged u.
Proof. intro P. rewrite !any_tree. now apply any_permutation. Qed.

End Folds.
