(** The law over the real numbers: states, their merge, and why order does not matter.

    An entry of a row is a real number or -inf. A state is a pair (m, s): the maximum of what it has seen, and the
    sum of exp (x - m) over it; of nothing it is (-inf, 0). Push and merge are the formulas of
    src/online_softmax/state.py with its one guard: inside an exponent the pivot is 0 where m is infinite.

    Shown here: the merge has (-inf, 0) as its identity, is commutative and associative, keeps states valid, and adds
    the masses s * exp m of what it merges; a valid state is known by its maximum and its mass; and valid states
    merged along any tree, in any order, give one state. *)

From Coq Require Import Reals List Lra Permutation.
Import ListNotations.
Open Scope R_scope.

(** * Numbers: real, or -inf *)

Inductive height : Type :=
  | minus_inf
  | fin (r : R).

(** The greater of the two. *)
Definition hmax (a b : height) : height :=
  match a, b with
  | minus_inf, h => h
  | h, minus_inf => h
  | fin x, fin y => fin (Rmax x y)
  end.

(** a <= b. *)
Definition hle (a b : height) : Prop :=
  match a, b with
  | minus_inf, _ => True
  | fin _, minus_inf => False
  | fin x, fin y => x <= y
  end.

(** What is subtracted inside an exponent: m, or 0 where m is infinite. This is the guard. *)
Definition pivot (m : height) : R :=
  match m with minus_inf => 0 | fin r => r end.

(** exp (x - m) under the guard, with exp (-inf) = 0: what an entry at x counts in a sum at m. *)
Definition weight (x m : height) : R :=
  match x with minus_inf => 0 | fin r => exp (r - pivot m) end.

(** * States *)

Definition state : Type := (height * R)%type.

Definition identity : state := (minus_inf, 0).

(** m' = max (m, x);  s' = s * exp (m - m') + exp (x - m'). *)
Definition push (a : state) (x : height) : state :=
  let m := hmax (fst a) x in
  (m, snd a * weight (fst a) m + weight x m).

(** m = max (m_a, m_b);  s = s_a * exp (m_a - m) + s_b * exp (m_b - m). *)
Definition merge (a b : state) : state :=
  let m := hmax (fst a) (fst b) in
  (m, snd a * weight (fst a) m + snd b * weight (fst b) m).

(** The state of one entry. *)
Definition single (x : height) : state := (x, weight x x).

(** A state that some row could have: of nothing but -inf, or with its own maximum in the sum. *)
Definition valid (a : state) : Prop :=
  match fst a with minus_inf => snd a = 0 | fin _ => 1 <= snd a end.

(** The same, asking of the sum only that it is positive: what attention's normal form (m = lse, s = 1), sinks and
    weighted sums have as well. *)
Definition positive (a : state) : Prop :=
  match fst a with minus_inf => snd a = 0 | fin _ => 0 < snd a end.

(** s * exp m: the sum of exp (x) over what the state has seen. *)
Definition mass (a : state) : R := snd a * weight (fst a) (fin 0).

(** * Lemmas on numbers *)

Lemma hmax_comm : forall a b, hmax a b = hmax b a.
Proof. intros [|x] [|y]; cbn; try reflexivity. now rewrite Rmax_comm. Qed.

Lemma hmax_assoc : forall a b c, hmax a (hmax b c) = hmax (hmax a b) c.
Proof. intros [|x] [|y] [|z]; cbn; try reflexivity. now rewrite Rmax_assoc. Qed.

Lemma hmax_idem : forall a, hmax a a = a.
Proof. intros [|x]; cbn; [reflexivity|]. now rewrite Rmax_left by lra. Qed.

Lemma hmax_minus_inf_r : forall a, hmax a minus_inf = a.
Proof. now intros [|x]. Qed.

Lemma hle_refl : forall a, hle a a.
Proof. intros [|x]; cbn; [exact I | lra]. Qed.

Lemma hle_trans : forall a b c, hle a b -> hle b c -> hle a c.
Proof. intros [|x] [|y] [|z]; cbn; intros; try easy; lra. Qed.

Lemma hle_antisym : forall a b, hle a b -> hle b a -> a = b.
Proof. intros [|x] [|y]; cbn; intros; try easy. f_equal; lra. Qed.

Lemma hle_total : forall a b, hle a b \/ hle b a.
Proof. intros [|x] [|y]; cbn; auto. lra. Qed.

Lemma hle_hmax_l : forall a b, hle a (hmax a b).
Proof. intros [|x] [|y]; cbn; try exact I; [lra | apply Rmax_l]. Qed.

Lemma hle_hmax_r : forall a b, hle b (hmax a b).
Proof. intros a b. rewrite hmax_comm. apply hle_hmax_l. Qed.

Lemma hmax_of_hle : forall a b, hle a b -> hmax a b = b.
Proof. intros [|x] [|y]; cbn; intros; try easy. now rewrite Rmax_right. Qed.

Lemma hmax_hle : forall a b c, hle a c -> hle b c -> hle (hmax a b) c.
Proof. intros [|x] [|y] [|z]; cbn; intros; try easy. now apply Rmax_lub. Qed.

Lemma weight_nonneg : forall x m, 0 <= weight x m.
Proof. intros [|x] m; cbn; [lra | apply Rlt_le, exp_pos]. Qed.

Lemma weight_pos : forall x m, 0 < weight (fin x) m.
Proof. intros; apply exp_pos. Qed.

(** A finite entry counts 1 at its own height. *)
Lemma weight_self : forall x, weight (fin x) (fin x) = 1.
Proof. intro x; cbn. rewrite Rminus_eq_0. apply exp_0. Qed.

(** Counting at m and then at m' is counting at m'. Only an m of -inf below a finite x is left out. *)
Lemma weight_weight : forall x m m', hle x m -> weight x m * weight m m' = weight x m'.
Proof.
  intros [|x] [|m] m'; cbn; intro le; try ring; [easy|].
  rewrite <- exp_plus. f_equal. ring.
Qed.

(** At a finite pivot on the way it needs no order at all. *)
Lemma weight_weight_fin : forall x r m', weight x (fin r) * weight (fin r) m' = weight x m'.
Proof.
  intros [|x] r m'; cbn; [ring|]. rewrite <- exp_plus. f_equal. ring.
Qed.

Lemma weight_le_1 : forall x m, hle x m -> weight x m <= 1.
Proof.
  intros [|x] [|m]; cbn; intro le; try easy; try lra.
  rewrite <- exp_0. destruct (Rle_lt_or_eq_dec _ _ le) as [lt| ->].
  - apply Rlt_le, exp_increasing; lra.
  - right; f_equal; ring.
Qed.

(** * The merge *)

(** Nothing merges away: (-inf, 0) is an identity on the right. *)
Theorem merge_identity_r : forall a, positive a -> merge a identity = a.
Proof.
  intros [[|m] s]; unfold positive, merge; cbn; intro v.
  - f_equal; rewrite v; ring.
  - f_equal. rewrite Rminus_eq_0, exp_0. ring.
Qed.

(** a + b = b + a. *)
Theorem merge_comm : forall a b, merge a b = merge b a.
Proof.
  intros a b. unfold merge. rewrite (hmax_comm (fst b)). f_equal. ring.
Qed.

(** And on the left. *)
Theorem merge_identity_l : forall a, positive a -> merge identity a = a.
Proof. intros a v. rewrite merge_comm. now apply merge_identity_r. Qed.

(** Nothing and nothing is nothing: the guard keeps -inf - -inf from being formed. *)
Corollary merge_identities : merge identity identity = identity.
Proof. now apply merge_identity_l. Qed.

(** (a + b) + c = a + (b + c), for any pairs whatever. *)
Theorem merge_assoc : forall a b c, merge (merge a b) c = merge a (merge b c).
Proof.
  intros [ma sa] [mb sb] [mc sc]. unfold merge; cbn [fst snd].
  rewrite hmax_assoc. set (m := hmax (hmax ma mb) mc).
  assert (ab : forall x, hle x (hmax ma mb) -> weight x (hmax ma mb) * weight (hmax ma mb) m = weight x m)
    by (intros; now apply weight_weight).
  assert (bc : forall x, hle x (hmax mb mc) -> weight x (hmax mb mc) * weight (hmax mb mc) m = weight x m)
    by (intros; now apply weight_weight).
  f_equal. rewrite !Rmult_plus_distr_r, !Rmult_assoc.
  rewrite !ab, !bc by (apply hle_hmax_l || apply hle_hmax_r). ring.
Qed.

(** The merge of valid states is valid. *)
Theorem merge_valid : forall a b, valid a -> valid b -> valid (merge a b).
Proof.
  intros [[|x] s] [[|y] t]; unfold valid, merge; cbn; intros va vb.
  - ring.
  - rewrite Rminus_eq_0, exp_0. lra.
  - rewrite Rminus_eq_0, exp_0. lra.
  - pose proof (exp_pos (x - Rmax x y)). pose proof (exp_pos (y - Rmax x y)).
    assert (0 <= s * exp (x - Rmax x y)) by (apply Rmult_le_pos; lra).
    assert (0 <= t * exp (y - Rmax x y)) by (apply Rmult_le_pos; lra).
    unfold Rmax in *. destruct (Rle_dec x y); rewrite Rminus_eq_0, exp_0 in *; lra.
Qed.

(** The same for sums of which only the sign is known. *)
Theorem merge_positive : forall a b, positive a -> positive b -> positive (merge a b).
Proof.
  intros [[|x] s] [[|y] t]; unfold positive, merge; cbn; intros va vb.
  - ring.
  - rewrite Rminus_eq_0, exp_0. lra.
  - rewrite Rminus_eq_0, exp_0. lra.
  - apply Rplus_lt_0_compat; apply Rmult_lt_0_compat; trivial; apply exp_pos.
Qed.

Lemma valid_positive : forall a, valid a -> positive a.
Proof. intros [[|x] s]; unfold valid, positive; cbn; intros; lra. Qed.

Lemma identity_valid : valid identity.
Proof. reflexivity. Qed.

Lemma single_valid : forall x, valid (single x).
Proof.
  intros [|x]; unfold valid, single; cbn; [reflexivity|]. rewrite Rminus_eq_0, exp_0. lra.
Qed.

(** A push is a merge with the state of one entry. *)
Theorem push_is_merge : forall a x, push a x = merge a (single x).
Proof.
  intros [m s] x. unfold push, merge, single; cbn [fst snd].
  rewrite weight_weight by apply hle_refl. reflexivity.
Qed.

Theorem push_valid : forall a x, valid a -> valid (push a x).
Proof. intros. rewrite push_is_merge. apply merge_valid; [easy | apply single_valid]. Qed.

(** * What a state stands for *)

(** Masses add. *)
Theorem merge_adds_masses : forall a b, mass (merge a b) = mass a + mass b.
Proof.
  intros [ma sa] [mb sb]. unfold mass, merge; cbn [fst snd].
  rewrite Rmult_plus_distr_r, !Rmult_assoc.
  rewrite !weight_weight by (apply hle_hmax_l || apply hle_hmax_r). reflexivity.
Qed.

(** A state is known by its maximum and its mass. *)
Theorem state_of_maximum_and_mass :
  forall a b, positive a -> positive b -> fst a = fst b -> mass a = mass b -> a = b.
Proof.
  intros [ma sa] [mb sb]; unfold positive, mass; cbn [fst snd]. intros va vb <- e.
  f_equal. destruct ma as [|m]; [congruence|].
  apply Rmult_eq_reg_r with (weight (fin m) (fin 0)); [exact e|].
  apply Rgt_not_eq, weight_pos.
Qed.

(** * Any tree, any order *)

(** A tree of merges over states. *)
Inductive tree : Type :=
  | leaf (a : state)
  | node (t u : tree).

Local Arguments merge : simpl never.

Fixpoint leaves (t : tree) : list state :=
  match t with leaf a => [a] | node t u => leaves t ++ leaves u end.

Fixpoint merge_tree (t : tree) : state :=
  match t with leaf a => a | node t u => merge (merge_tree t) (merge_tree u) end.

(** All of a list, from the right. *)
Fixpoint merge_list (l : list state) : state :=
  match l with [] => identity | a :: rest => merge a (merge_list rest) end.

Lemma merge_list_positive : forall l, Forall positive l -> positive (merge_list l).
Proof. induction 1; cbn; [reflexivity | now apply merge_positive]. Qed.

Lemma merge_list_valid : forall l, Forall valid l -> valid (merge_list l).
Proof. induction 1; cbn; [reflexivity | now apply merge_valid]. Qed.

Lemma merge_list_app : forall l k, Forall positive k ->
  merge_list (l ++ k) = merge (merge_list l) (merge_list k).
Proof.
  intros l k v. induction l as [|a l IH]; cbn.
  - symmetry. apply merge_identity_l. now apply merge_list_positive.
  - rewrite IH. symmetry. apply merge_assoc.
Qed.

(** Two orders of one list give the same state. *)
Theorem merge_any_order : forall l k, Permutation l k -> merge_list l = merge_list k.
Proof.
  induction 1 as [|a l k _ IH|a b l|l k j _ IH _ IH']; cbn.
  - reflexivity.
  - now rewrite IH.
  - rewrite <- !merge_assoc, (merge_comm b). reflexivity.
  - now transitivity (merge_list k).
Qed.

Lemma merge_tree_is_merge_list : forall t, Forall positive (leaves t) -> merge_tree t = merge_list (leaves t).
Proof.
  induction t as [a|t IHt u IHu]; cbn; intro v.
  - symmetry. apply merge_identity_r. now inversion v.
  - apply Forall_app in v as [vt vu]. rewrite merge_list_app by exact vu. now rewrite IHt, IHu.
Qed.

(** Two trees over the same states, in whatever order and of whatever shape, give the same state. *)
Theorem merge_any_tree_any_order : forall t u, Forall positive (leaves t) ->
  Permutation (leaves t) (leaves u) -> merge_tree t = merge_tree u.
Proof.
  intros t u v p.
  rewrite (merge_tree_is_merge_list t v), (merge_tree_is_merge_list u).
  - now apply merge_any_order.
  - apply Forall_forall. intros a i. apply (proj1 (Forall_forall _ _) v).
    now apply Permutation_in with (leaves u); [apply Permutation_sym|].
Qed.
