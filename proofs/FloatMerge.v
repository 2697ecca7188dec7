(* Merges in floating point: any tree of merges over states, balanced or a chain.

   A merge brings both sums to the greater maximum and adds them, as _tree does in
   src/online_softmax/numerics/simulate.py. It adds 2u + e1 to what every entry may err by, however far the maxima lie
   apart: an exponential, a product and an addition [merge_near]. So a tree of height h over blocks of depth d is off
   by u (M - x) + d u + e1 + h (2u + e1) [tree_near]: ceil(log2 p) levels for p states merged in pairs [pairs_height],
   p - 1 for a chain [chain_height]. *)

From Coq Require Import ZArith Reals Psatz List.
From OnlineSoftmax Require Import Rounding FloatSums FloatTerms FloatWeights FloatStreaming.
Import ListNotations.
Open Scope R_scope.

(* What is merged with what: blocks, each with an order of summation. *)
Inductive plan := Block (t : order) | Join (a b : plan).

Fixpoint height (p : plan) : nat :=
  match p with Block _ => 0 | Join a b => S (max (height a) (height b)) end.

Fixpoint leaves (p : plan) : list order :=
  match p with Block t => [t] | Join a b => leaves a ++ leaves b end.

Definition row (p : plan) : list R := flat_map entries (leaves p).

Section Merge.

Variable F : Format.
Variable E : Exponential F.

Notation u := (u F).
Notation rnd := (rnd F).
Notation number := (number F).
Notation term := (term F E).
Notation sum_at := (sum_at F E).
Notation near := (near F).
Notation e1 := (e1 F E).

Definition state := (R * R)%type.

Definition merge (a b : state) : state :=
  let m := Rmax (fst a) (fst b) in
  (m, rnd (rnd (snd a * term (fst a) m) + rnd (snd b * term (fst b) m))).

Fixpoint run (p : plan) : state :=
  match p with
  | Block t => (top t, sum_at (top t) t)
  | Join a b => merge (run a) (run b)
  end.

(* A state of the entries xs: its sum is 1 at least, its entries err by K and their exponents. *)
Record state_near (K : R) (st : state) (xs : list R) : Prop := {
  sum_near : near K (fst st) (snd st) (all K xs);
  sum_ge_1 : 1 <= snd st;
  pivot_number : number (fst st);
  pivot_entry : In (fst st) xs
}.

Lemma state_weaken : forall K L st xs, K <= L -> state_near K st xs -> state_near L st xs.
Proof.
  intros K L st xs H [A B C D]. split; try assumption. now apply all_weaken with K.
Qed.

(* One side of a merge. *)
Lemma moved_near : forall K m st xs, state_near K st xs -> number m -> fst st <= m ->
  near (K + (e1 + u)) m (rnd (snd st * term (fst st) m)) (all (K + (e1 + u)) xs).
Proof.
  intros K m [p s] xs [A B C D] Nm H. simpl in *. pose proof (e1_pos F E). pose proof (u_range F).
  destruct (Req_dec p m) as [->|Hne].
  - rewrite stay by apply A. apply all_weaken with (2 := A). lra.
  - rewrite <- more_all. now apply rescale_near.
Qed.

Lemma moved_top : forall K st xs, state_near K st xs -> rnd (snd st * term (fst st) (fst st)) = snd st.
Proof. intros K [p s] xs [A _ _ _]. simpl in *. apply stay, A. Qed.

Theorem merge_near : forall K a b xs ys, state_near K a xs -> state_near K b ys ->
  state_near (K + (2 * u + e1)) (merge a b) (xs ++ ys).
Proof.
  intros K a b xs ys A B.
  pose proof (Rmax_l (fst a) (fst b)) as La. pose proof (Rmax_r (fst a) (fst b)) as Lb.
  assert (Nm : number (Rmax (fst a) (fst b))).
  { unfold Rmax. destruct (Rle_dec (fst a) (fst b)); [apply B|apply A]. }
  pose proof (moved_near K _ a xs A Nm La) as [PA [NA HA]]. pose proof (moved_near K _ b ys B Nm Lb) as [PB [NB HB]].
  assert (H1 : 1 <= rnd (snd a * term (fst a) (Rmax (fst a) (fst b))) + rnd (snd b * term (fst b) (Rmax (fst a) (fst b)))).
  { pose proof (sum_ge_1 _ _ _ A). pose proof (sum_ge_1 _ _ _ B). unfold Rmax in *.
    destruct (Rle_dec (fst a) (fst b)).
    - rewrite (moved_top K b ys B) in *. lra.
    - rewrite (moved_top K a xs A) in *. lra. }
  split; cbn [merge fst snd].
  - rewrite all_app. replace (K + (2 * u + e1)) with (K + (e1 + u) + u) by ring.
    rewrite <- !(more_all u (K + (e1 + u))), <- more_app. apply plus_near; split; auto.
  - now apply rnd_ge_1.
  - exact Nm.
  - apply in_or_app. unfold Rmax. destruct (Rle_dec (fst a) (fst b)); [right; apply B|left; apply A].
Qed.

(* With a fused multiply-add, as `merge` of src/online_softmax/gpu/state.py: the sum at the greater maximum counts
   whole, and the product is not rounded. *)
Definition merge_fma (a b : state) : state :=
  if Rlt_dec (fst a) (fst b)
  then (fst b, rnd (snd a * term (fst a) (fst b) + snd b))
  else (fst a, rnd (snd b * term (fst b) (fst a) + snd a)).

Lemma fused_near : forall K low high xs ys, state_near K low xs -> state_near K high ys -> fst low <= fst high ->
  state_near (K + (u + e1)) (fst high, rnd (snd low * term (fst low) (fst high) + snd high)) (xs ++ ys).
Proof.
  intros K low high xs ys A B H.
  pose proof (e1_pos F E) as He. pose proof (u_range F) as Hu. pose proof (normal_range F) as Hn.
  destruct (term_number F E (fst low) (fst high) (pivot_number _ _ _ A) (pivot_number _ _ _ B) H) as [_ R].
  pose proof (sum_ge_1 _ _ _ A) as HA. pose proof (sum_ge_1 _ _ _ B) as HB.
  assert (H1 : 1 <= snd low * term (fst low) (fst high) + snd high) by nra.
  split; cbn [fst snd].
  - split; [|split; [apply number_rnd|apply rnd_nonneg; lra]].
    rewrite all_app. replace (K + (u + e1)) with (K + e1 + u) by ring.
    rewrite <- !(more_all u (K + e1)), <- more_app.
    apply rounded_within with (c := 3) (v := snd low * term (fst low) (fst high) + snd high); [lra| |].
    + apply within_app.
      * rewrite <- more_all.
        destruct (scaled_within F E K _ _ _ _ (sum_near _ _ _ A) HA (pivot_number _ _ _ A) (pivot_number _ _ _ B) H)
          as [[_ W]|[C L U]]; [exact W|].
        pose proof (underflow_pos F (K + e1) (more e1 (all K xs))). split; [exact C|lra|lra].
      * apply (all_weaken F K (K + e1)); [lra|apply B].
    + pose proof (rnd_normal F (snd low * term (fst low) (fst high) + snd high) ltac:(lra)). lra.
  - now apply rnd_ge_1.
  - apply B.
  - apply in_or_app. right. apply B.
Qed.

Lemma swap : forall K st xs ys, state_near K st (ys ++ xs) -> state_near K st (xs ++ ys).
Proof.
  intros K st xs ys [[[C L U] N] H P I]. split; try assumption.
  - split; [|exact N]. rewrite all_app in *.
    rewrite least_app, underflow_app in L. rewrite most_app, underflow_app in U.
    split; [apply Forall_app in C; now apply Forall_app| |].
    + rewrite least_app, underflow_app. lra.
    + rewrite most_app, underflow_app. lra.
  - apply in_app_or in I. apply in_or_app. now destruct I; [right|left].
Qed.

(* One u fewer. *)
Theorem merge_fma_near : forall K a b xs ys, state_near K a xs -> state_near K b ys ->
  state_near (K + (u + e1)) (merge_fma a b) (xs ++ ys).
Proof.
  intros K a b xs ys A B. unfold merge_fma. destruct (Rlt_dec (fst a) (fst b)) as [H|H].
  - apply fused_near; try assumption. lra.
  - apply swap. apply fused_near; try assumption. lra.
Qed.

(* Any tree, over blocks whose sums are of depth d at most. *)
Definition tree_bound (d h : nat) : R := INR d * u + e1 + INR h * (2 * u + e1).

Theorem tree_near : forall d p,
  Forall (fun t => Forall number (entries t) /\ (depth t <= d)%nat) (leaves p) ->
  state_near (tree_bound d (height p)) (run p) (row p).
Proof.
  intros d. pose proof (u_range F) as Hu. pose proof (e1_pos F E) as He.
  assert (Grow : forall h h', (h <= h')%nat -> tree_bound d h <= tree_bound d h').
  { intros h h' H. unfold tree_bound. apply Rplus_le_compat_l, Rmult_le_compat_r; [lra|]. now apply le_INR. }
  induction p as [t|a IHa b IHb]; intros H.
  - inversion_clear H as [|? ? [N D] _]. pose proof (top_number F t N) as Nt.
    apply state_weaken with (INR (depth t) * u + e1).
    + unfold tree_bound. cbn [height]. change (INR 0) with 0. rewrite Rmult_0_l, Rplus_0_r.
      apply Rplus_le_compat_r, Rmult_le_compat_r; [lra|]. now apply le_INR.
    + unfold row. cbn [leaves flat_map run]. rewrite app_nil_r. split; cbn [fst snd].
      * apply batch_near; [exact N|exact Nt|lra].
      * now apply sum_at_top.
      * exact Nt.
      * apply top_in.
  - cbn [leaves] in H. apply Forall_app in H. destruct H as [Ha Hb].
    unfold row. cbn [leaves run height]. rewrite flat_map_app. fold (row a) (row b).
    replace (tree_bound d (S (max (height a) (height b)))) with (tree_bound d (max (height a) (height b)) + (2 * u + e1))
      by (unfold tree_bound; rewrite S_INR; ring).
    apply merge_near.
    + apply state_weaken with (2 := IHa Ha). apply Grow. lia.
    + apply state_weaken with (2 := IHb Hb). apply Grow. lia.
Qed.

Lemma values_all : forall k xs, values (all k xs) = xs.
Proof. intros. unfold values, all. rewrite map_map. apply map_id. Qed.

Theorem tree_error : forall d p,
  Forall (fun t => Forall number (entries t) /\ (depth t <= d)%nat) (leaves p) ->
  let '(m, s) := run p in
  let S := total m (row p) in
  let K := tree_bound d (height p) in
  Rabs (ln s - ln S) <= u * (ln (count (row p)) - ln S) + K + 3 * count (row p) * tiny F * exp K.
Proof.
  intros d p H. pose proof (tree_near d p H) as T. destruct (run p) as [m s]. cbv zeta.
  destruct T as [[W _] Hs _ Hm]. simpl in *.
  pose proof (log_error F _ m s _ W Hs) as L. rewrite values_all in L. exact (L Hm).
Qed.

(* One block: the maximum known first, one running sum or any other order of additions. *)
Corollary batch_error : forall t, Forall number (entries t) ->
  let m := top t in
  let s := sum_at m t in
  let S := total m (entries t) in
  let K := INR (depth t) * u + e1 in
  Rabs (ln s - ln S) <= u * (ln (count (entries t)) - ln S) + K + 3 * count (entries t) * tiny F * exp K.
Proof.
  intros t N. pose proof (tree_error (depth t) (Block t)) as H. cbv zeta. unfold row, tree_bound in H.
  cbn [leaves run flat_map height] in H. rewrite app_nil_r in H. change (INR 0) with 0 in H.
  rewrite Rmult_0_l, Rplus_0_r in H. apply H. constructor; [split; [exact N|lia]|constructor].
Qed.

End Merge.

(* --- heights --- *)

(* One level: neighbours joined in pairs, one left over goes up as it is. *)
Fixpoint pairs (l : list plan) : list plan :=
  match l with
  | a :: b :: rest => Join a b :: pairs rest
  | _ => l
  end.

Fixpoint levels (n : nat) (l : list plan) : list plan :=
  match n with 0%nat => l | S n => levels n (pairs l) end.

Lemma pairs_ind : forall P : list plan -> Prop,
  P [] -> (forall a, P [a]) -> (forall a b l, P l -> P (a :: b :: l)) -> forall l, P l.
Proof.
  intros P H0 H1 H2. fix IH 1. intros [|a [|b l]]; [exact H0|apply H1|apply H2, IH].
Qed.

Lemma pairs_length : forall l, (2 * length (pairs l) <= length l + 1)%nat.
Proof. induction l as [|a|a b l IH] using pairs_ind; simpl in *; lia. Qed.

Lemma pairs_not_empty : forall l, l <> [] -> pairs l <> [].
Proof. intros [|a [|b l]] H; simpl; congruence. Qed.

Lemma pairs_leaves : forall l, flat_map leaves (pairs l) = flat_map leaves l.
Proof.
  induction l as [|a|a b l IH] using pairs_ind; simpl; [reflexivity|reflexivity|]. rewrite IH. now rewrite app_assoc.
Qed.

Lemma pairs_heights : forall h l, Forall (fun p => (height p <= h)%nat) l ->
  Forall (fun p => (height p <= S h)%nat) (pairs l).
Proof.
  intros h. induction l as [|a|a b l IH] using pairs_ind; intros H; simpl.
  - constructor.
  - inversion H. constructor; [lia|constructor].
  - inversion_clear H as [|? ? Ha H']. inversion_clear H' as [|? ? Hb Hl]. constructor; [simpl; lia|auto].
Qed.

(* p states merged in pairs, level by level: n levels where p <= 2^n, that is ceil(log2 p). *)
Theorem pairs_height : forall n l, l <> [] -> (length l <= 2 ^ n)%nat -> Forall (fun p => height p = 0%nat) l ->
  exists p, levels n l = [p] /\ (height p <= n)%nat /\ leaves p = flat_map leaves l.
Proof.
  assert (H : forall n h l, l <> [] -> (length l <= 2 ^ n)%nat -> Forall (fun p => (height p <= h)%nat) l ->
    exists p, levels n l = [p] /\ (height p <= h + n)%nat /\ leaves p = flat_map leaves l).
  { induction n as [|n IH]; intros h l Hne Hl Hh.
    - destruct l as [|p [|q l]]; [contradiction| |simpl in Hl; lia].
      exists p. inversion_clear Hh as [|? ? Hp _]. simpl. rewrite app_nil_r. split; [reflexivity|split; [lia|reflexivity]].
    - cbn [levels]. destruct (IH (S h) (pairs l)) as [p [A [B C]]].
      + now apply pairs_not_empty.
      + pose proof (pairs_length l). simpl in Hl. lia.
      + now apply pairs_heights.
      + exists p. rewrite pairs_leaves in C. repeat split; [exact A|lia|exact C]. }
  intros n l Hne Hl Hh. apply (H n 0%nat l Hne Hl). apply Forall_impl with (2 := Hh). intros p. lia.
Qed.

(* States merged into the first, one after another. *)
Definition chain (first : plan) (rest : list plan) : plan := fold_left Join rest first.

Theorem chain_height : forall rest first, height first = 0%nat -> Forall (fun p => height p = 0%nat) rest ->
  height (chain first rest) = length rest /\ leaves (chain first rest) = leaves first ++ flat_map leaves rest.
Proof.
  assert (H : forall rest first, Forall (fun p => height p = 0%nat) rest ->
    height (fold_left Join rest first) = (length rest + height first)%nat /\
    leaves (fold_left Join rest first) = leaves first ++ flat_map leaves rest).
  { induction rest as [|p rest IH]; intros first Hr; simpl; [now rewrite app_nil_r|].
    inversion_clear Hr as [|? ? Hp Hr']. destruct (IH (Join first p) Hr') as [A B]. split.
    - rewrite A. simpl. lia.
    - rewrite B. simpl. now rewrite <- app_assoc. }
  intros rest first Hf Hr. destruct (H rest first Hr) as [A B]. unfold chain. split; [rewrite A; lia|exact B].
Qed.
