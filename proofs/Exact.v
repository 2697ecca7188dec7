(** * The bit-exact state over whole numbers

    [order="any"] (online_softmax/exact.py and exact_state.py, formats lse-22x3/1 and lse-32x4/1) promises the same
    bits for any split, order and tree of merges.  This file is why.

    Shown here, in Leibniz equality, which is equality of bits:

    - the state of a row does not depend on its order, and merging the states of two rows gives the state of both
      (a homomorphism from multisets): so any tree of merges over any order of any parts gives the state of the whole;
    - merging is associative and commutative on any fields, also such that no data has, and the state of nothing is
      its identity on canonical ones;
    - all of that with +inf, -inf and NaN, with numbers so large that equal elements are counted instead, and with
      sums of 64 bits that wrap around: overflow can spoil a value, never its independence of order;
    - two rounds of a collective (maxima first, then sums) give the same state.

    All of it for any format whose bins rise with the number and whose slices are 0 above the number's own bin; Slices.v
    shows that the formats of the code are such.

    Everything is over Z; no axiom is used. *)

From Coq Require Import ZArith List Permutation Bool Lia.
From OnlineSoftmax Require Import Monoid ExactLaw.
Import ListNotations.
Local Open Scope Z_scope.

Section Claims.

Context (F : format) (L_F : lawful F).

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
Definition counts (m : number) : bool := match m with MinusInf | NaN => false | _ => true end.

Definition shifted (m t : number) (f : nat -> Z) (k : nat) : Z :=
  if counts m && (down m t <=? k)%nat then f (k - down m t)%nat else 0.

Definition moved (m : number) (s : state) : nat -> Z := shifted m (top s) (fun k => nth k (sums s) 0).

Lemma shifted_ext m t f g k : (forall i, (i <= k)%nat -> f i = g i) -> shifted m t f k = shifted m t g k.
Proof. intro E. unfold shifted. destruct (_ && _); [|reflexivity]. apply E. lia. Qed.

Lemma shifted_wrap m t f g k :
  shifted m t (fun i => wrap (f i + g i)) k = wrap (shifted m t f k + shifted m t g k).
Proof. unfold shifted. destruct (_ && _); now rewrite ?wrap_0. Qed.

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
  assert (D3 : m <> a) by (intros ->; apply D1; clear - L1 L2; order).
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
  intros L1 L2 B. pose proof (down_twice a t m L1 L2) as D. unfold shifted.
  destruct (counts m) eqn:C; [cbn [andb]|reflexivity].
  destruct (counts t) eqn:C'; cbn [andb].
  - destruct (Nat.leb_spec (down m t) k); [destruct (Nat.leb_spec (down t a) (k - down m t))|];
      destruct (Nat.leb_spec (down m a) k); try lia; try reflexivity. f_equal. lia.
  - assert (E : a = MinusInf) by (destruct m, t, a; now cbn in *).
    subst a. rewrite (down_far m MinusInf) by (intros; destruct m; discriminate).
    destruct (Nat.leb_spec K k); [lia|]. now destruct (_ <=? k)%nat.
Qed.

(** A term of its own maximum's state, moved, is the term under the higher maximum. *)
Lemma shifted_term x t m k :
  at_most x t -> at_most t m -> (k < K)%nat -> shifted m t (term t x) k = term m x k.
Proof.
  intros L1 L2 B. unfold shifted.
  destruct (same m t) eqn:E.
  { apply same_eq in E. subst m. rewrite down_refl, Nat.sub_0_r. cbn. rewrite andb_true_r.
    now destruct t, x. }
  assert (N : m <> t) by (intros ->; now rewrite (proj2 (same_eq t t) eq_refl) in E).
  destruct m as [|a| |]; cbn [counts andb]; try reflexivity.
  - destruct t as [|b| |]; try discriminate L2.
    + destruct x; try discriminate L1.
      rewrite down_far by (intros; discriminate). destruct (Nat.leb_spec K k); [lia|reflexivity].
    + cbn in L2. apply Z.ltb_ge in L2. assert (N' : b <> a) by congruence.
      destruct x as [|c| |]; try discriminate L1.
      { destruct (_ <=? k)%nat; reflexivity. }
      cbn in L1. apply Z.ltb_ge in L1. cbn [term].
      destruct (plain a) eqn:A.
      * destruct (plain b) eqn:P.
        -- rewrite down_plain by trivial. rewrite plain_spec in A, P.
           pose proof (bin_monotone b a).
           destruct (Nat.leb_spec (Nat.min (Z.to_nat (bin a - bin b)) K) k) as [L|L].
           ++ destruct (plain c); [|reflexivity]. f_equal. lia.
           ++ destruct (plain c) eqn:C; [|reflexivity]. symmetry. apply no_slice_above; [assumption|].
              rewrite plain_spec in C. pose proof (bin_monotone c b). lia.
        -- rewrite down_far by (trivial; intros ? ? [= <-] [= <-]; now rewrite P, andb_false_r).
           destruct (Nat.leb_spec K k); [lia|].
           destruct (plain c) eqn:C; [|reflexivity].
           exfalso. rewrite plain_spec in A, C. enough (plain b = true) by congruence. rewrite plain_spec. lia.
      * rewrite down_far by (trivial; intros ? ? [= <-] [= <-]; now rewrite A).
        destruct (Nat.leb_spec K k); [lia|].
        destruct (Z.eqb_spec c a); [lia|reflexivity].
  - rewrite down_far by (trivial; intros; discriminate). destruct (Nat.leb_spec K k); [lia|].
    destruct x; try reflexivity. destruct t; try discriminate L1; [congruence | discriminate L2].
Qed.

Lemma shifted_total t m k xs :
  (forall x, In x xs -> at_most x t) -> at_most t m -> (k < K)%nat ->
  shifted m t (fun i => total (fun x => term t x i) xs) k = total (fun x => term m x k) xs.
Proof.
  intros L1 L2 B. induction xs as [|x xs IH]; cbn [total fold_right].
  - unfold shifted. now destruct (_ && _).
  - rewrite shifted_wrap, shifted_term by (trivial; apply L1; now left). do 2 f_equal.
    apply IH. intros y I. apply L1. now right.
Qed.

Lemma moved_state_of m xs k :
  at_most (maximum xs) m -> (k < K)%nat -> moved m (state_of xs) k = total (fun x => term m x k) xs.
Proof.
  intros L B. unfold moved. cbn [state_of top sums].
  rewrite <- (shifted_total (maximum xs) m k xs) by (trivial; intros x I; now apply at_most_maximum).
  apply shifted_ext. intros i I. apply nth_slots. lia.
Qed.

Lemma moved_zero m t k : moved m (State t (slots (fun _ => 0))) k = 0.
Proof.
  unfold moved, shifted. cbn [sums top]. destruct (_ && _); [|reflexivity].
  unfold slots. set (n := (k - _)%nat). clearbody n. revert n.
  generalize 0%nat at 1. induction K as [|n IH]; intros from i; destruct i; cbn; auto.
Qed.

(** The merge of the code, which tells the upper from the lower side, treats both alike. *)
Lemma merge_is_symmetric a b :
  merge a b =
    let m := greater (top a) (top b) in State m (slots (fun k => wrap (moved m a k + moved m b k))).
Proof.
  assert (J : forall u l, at_most (top l) (top u) ->
    join u l = State (top u) (slots (fun k => wrap (moved (top u) u k + moved (top u) l k)))).
  { intros u l L. unfold join. f_equal. unfold moved, shifted. rewrite down_refl.
    destruct (top u) eqn:T; cbn [counts andb Nat.leb]; apply slots_ext; intros k B;
      rewrite ?Z.add_0_r, ?wrap_0, ?Nat.sub_0_r; reflexivity. }
  unfold merge, greater. destruct (below (top a) (top b)) eqn:E; cbn zeta.
  - rewrite J by now apply below_at_most. f_equal. apply slots_ext. intros k _. f_equal. lia.
  - now rewrite J by exact E.
Qed.

Lemma top_merge a b : top (merge a b) = greater (top a) (top b).
Proof. now rewrite merge_is_symmetric. Qed.

Lemma moved_merge m a b k :
  at_most (top a) m -> at_most (top b) m -> (k < K)%nat ->
  moved m (merge a b) k = wrap (moved m a k + moved m b k).
Proof.
  intros A B L. rewrite merge_is_symmetric. cbn zeta. set (t := greater (top a) (top b)).
  assert (T : at_most t m) by now apply greater_least.
  unfold moved at 1. cbn [top sums].
  rewrite (shifted_ext _ _ _ (fun i => wrap (moved t a i + moved t b i))) by (intros; apply nth_slots; lia).
  rewrite shifted_wrap. unfold moved at 1 2.
  now rewrite !shifted_twice by (trivial; apply at_most_greater_l || apply at_most_greater_r).
Qed.

(** *** The claims *)

(** The state of a row does not depend on the order of its elements. *)
Theorem row_state_of_any_order xs ys : Permutation xs ys -> state_of xs = state_of ys.
Proof.
  intro P. assert (E : maximum xs = maximum ys).
  { unfold maximum. induction P; cbn; rewrite ?greater_assoc, ?(greater_comm x y); congruence. }
  unfold state_of. cbn zeta. rewrite E. f_equal. apply slots_ext. intros. now apply total_permutation.
Qed.

(** The merged states of two rows are the state of both: a homomorphism from multisets. *)
Theorem merge_of_states_is_state_of_both xs ys : merge (state_of xs) (state_of ys) = state_of (xs ++ ys).
Proof.
  rewrite merge_is_symmetric. cbn zeta. cbn [state_of top]. rewrite <- maximum_app.
  unfold state_of at 3. cbn zeta. f_equal. apply slots_ext. intros k B.
  rewrite total_app, maximum_app.
  now rewrite !moved_state_of by (trivial; apply at_most_greater_l || apply at_most_greater_r).
Qed.

Theorem state_of_nothing : state_of [] = empty.
Proof. reflexivity. Qed.

(** Pushing block after block, wherever the row is cut. *)
Theorem pushing_blocks_is_state_of_all blocks : fold_left push blocks empty = state_of (concat blocks).
Proof.
  enough (G : forall xs, fold_left push blocks (state_of xs) = state_of (xs ++ concat blocks)).
  { exact (G []). }
  induction blocks as [|block blocks IH]; intro xs; cbn [fold_left concat].
  - now rewrite app_nil_r.
  - unfold push at 2. rewrite merge_of_states_is_state_of_both, IH. now rewrite app_assoc.
Qed.

(** Any tree of merges, over any parts in any order, gives the state of the whole. *)
Theorem any_tree_over_any_parts_in_any_order t parts row :
  leaves t = map state_of parts -> Permutation (concat parts) row ->
  merged merge empty t = state_of row.
Proof.
  intros E P. rewrite <- (row_state_of_any_order _ _ P). clear P row.
  revert parts E. induction t as [|s|l IHl r IHr]; intros parts E; cbn [leaves merged] in *.
  - symmetry in E. apply map_eq_nil in E. now subst.
  - destruct parts as [|p [|q parts]]; try discriminate. injection E as ->. cbn. now rewrite app_nil_r.
  - symmetry in E. apply map_eq_app in E. destruct E as (pl & pr & -> & El & Er).
    rewrite (IHl pl), (IHr pr), merge_of_states_is_state_of_both by congruence. now rewrite concat_app.
Qed.

(** Merging is commutative and associative in bits on any fields whatever. *)
Theorem merge_comm_in_bits a b : merge a b = merge b a.
Proof.
  rewrite !merge_is_symmetric. cbn zeta. rewrite (greater_comm (top b)). f_equal. apply slots_ext. intros.
  f_equal. lia.
Qed.

Theorem merge_assoc_in_bits a b c : merge a (merge b c) = merge (merge a b) c.
Proof.
  rewrite (merge_is_symmetric a (merge b c)), (merge_is_symmetric (merge a b) c). cbn zeta.
  rewrite !top_merge, greater_assoc. set (m := greater (greater (top a) (top b)) (top c)).
  assert (A : at_most (top a) m) by (eapply at_most_trans; apply at_most_greater_l).
  assert (B : at_most (top b) m) by (eapply at_most_trans; [apply at_most_greater_r | apply at_most_greater_l]).
  assert (C : at_most (top c) m) by apply at_most_greater_r.
  f_equal. apply slots_ext. intros k L.
  rewrite !moved_merge by assumption. rewrite wrap_sum, wrap_sum_l. f_equal. lia.
Qed.

(** The state of nothing is the identity, bit for bit. *)
Theorem merge_empty_in_bits s : canonical s -> merge s empty = s /\ merge empty s = s.
Proof.
  intros (L & W & Z). rewrite (merge_comm_in_bits empty s).
  assert (E : merge s empty = s); [|now split].
  rewrite merge_is_symmetric. cbn zeta. cbn [top empty]. rewrite greater_MinusInf_r.
  destruct s as [t a]. cbn [top sums] in *. f_equal.
  assert (N : forall k, (k < K)%nat -> wrap (nth k a 0) = nth k a 0).
  { intros k B. rewrite Forall_forall in W. apply W. apply nth_In. now rewrite L. }
  apply nth_ext with (d := 0) (d' := 0).
  { unfold slots. rewrite map_length, seq_length. congruence. }
  intros k B. unfold slots in B. rewrite map_length, seq_length in B.
  rewrite nth_slots by assumption.
  change (moved t empty k) with (moved t (State MinusInf (slots (fun _ => 0))) k).
  rewrite moved_zero, Z.add_0_r. unfold moved, shifted. cbn [top sums].
  rewrite down_refl, Nat.sub_0_r. cbn [Nat.leb]. rewrite andb_true_r.
  destruct (counts t) eqn:C; [now apply N|].
  rewrite Z by (destruct t; try discriminate; auto). now rewrite nth_slots, wrap_0.
Qed.

Lemma canonical_slots t f :
  (counts t = false -> forall k, wrap (f k) = 0) -> canonical (State t (slots (fun k => wrap (f k)))).
Proof.
  intro Z. repeat split; cbn [sums top].
  - unfold slots. now rewrite map_length, seq_length.
  - apply Forall_forall. intros v I. apply in_map_iff in I. destruct I as (k & <- & _). apply wrap_wrap.
  - intro E. apply slots_ext. intros k _. apply Z. now destruct E as [-> | ->].
Qed.

Theorem states_of_rows_are_canonical xs : canonical (state_of xs).
Proof.
  unfold state_of. cbn zeta. rewrite (slots_ext _ (fun k => wrap (whole_sum (fun x => term (maximum xs) x k) xs)))
    by (intros; apply total_is_wrapped).
  apply canonical_slots. intros C k. rewrite <- total_is_wrapped.
  assert (T : forall ys m, counts m = false -> total (fun x => term m x k) ys = 0).
  { intros ys m D. induction ys as [|y ys IH]; cbn [total fold_right]; [reflexivity|].
    fold (total (fun x => term m x k) ys). rewrite IH. destruct m; try discriminate; apply wrap_0. }
  now apply T.
Qed.

Theorem merges_are_canonical a b : canonical (merge a b).
Proof.
  rewrite merge_is_symmetric. cbn zeta. apply canonical_slots. intros C k. unfold moved, shifted.
  rewrite C. apply wrap_0.
Qed.

(** NaN absorbs, and leaves nothing but itself. *)
Theorem nan_absorbs a b : top a = NaN \/ top b = NaN -> merge a b = State NaN (slots (fun _ => 0)).
Proof.
  intro H. rewrite merge_is_symmetric. cbn zeta.
  replace (greater (top a) (top b)) with NaN by (symmetry; destruct H as [-> | ->]; apply greater_NaN).
  f_equal. apply slots_ext. intros. apply wrap_0.
Qed.

(** Two rounds of a collective, maxima and then sums, give the merged state. *)
Lemma sums_under_moved m s : at_most (top s) m -> sums_under m s = slots (fun k => wrap (moved m s k)).
Proof.
  intro L. unfold sums_under. rewrite merge_is_symmetric. cbn [sums top].
  rewrite greater_of_at_most by assumption.
  apply slots_ext. intros. now rewrite moved_zero, Z.add_0_r.
Qed.

Theorem two_rounds_give_the_state_of_all parts : reduced (map state_of parts) = state_of (concat parts).
Proof.
  assert (E : maximum (map top (map state_of parts)) = maximum (concat parts)).
  { induction parts as [|p parts IH]; [reflexivity|]. cbn [map concat]. rewrite maximum_app, <- IH. reflexivity. }
  unfold reduced. cbn zeta. rewrite E. unfold state_of at 2. cbn zeta. f_equal.
  assert (L : forall p, In p parts -> at_most (maximum p) (maximum (concat parts))).
  { intros p I. apply in_split in I. destruct I as (l & r & ->).
    rewrite concat_app, !maximum_app. cbn [concat]. rewrite maximum_app.
    eapply at_most_trans; [apply at_most_greater_l | apply at_most_greater_r]. }
  revert L. generalize (maximum (concat parts)) as m. clear E.
  induction parts as [|p parts IH]; intros m L; cbn [map fold_right concat].
  - apply slots_ext. intros. reflexivity.
  - rewrite IH by (intros; apply L; now right).
    rewrite sums_under_moved by (apply L; now left).
    unfold add. apply slots_ext. intros k B. rewrite !nth_slots by assumption.
    rewrite moved_state_of by (trivial; apply L; now left).
    now rewrite total_app, wrap_sum_l.
Qed.

End Claims.
