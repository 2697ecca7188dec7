(* Streaming and blocks in floating point: each operation rounded, exponentials with a relative error, underflow
   gradual or to zero.

   [streaming] pushes one entry at a time, [blocked] a block at a time, its maximum joined first, as _fold does in
   src/online_softmax/numerics/simulate.py. For a state (m, s) after n entries, the entry x_i errs by a factor of
   exp (u * (m - x_i) + k_i) at the most,

     one at a time     k_i = (n - i + 1) * u + c_i * (e1 + u) + e1
     blocks            k_i = (d_i + r_i) * u + c_i * (e1 + u) + e1

   where c_i is how often the maximum rises after the entry's block, r_i how many blocks there are from its own on, d_i
   the depth of the sum in its block, and e1 = e / (1 - e) for an exponential of relative error e. This is exact, not of
   first order. Underflow adds 3 * n * tiny * exp K at most, K the greatest k_i.

   The sum's own logarithm, and so its relative error, then follows from [log_error]. *)

From Coq Require Import ZArith Reals Psatz List.
From OnlineSoftmax Require Import Rounding FloatSums FloatTerms FloatWeights.
Import ListNotations.
Open Scope R_scope.

Section Streaming.

Variable F : Format.
Variable E : Exponential F.

Notation u := (u F).
Notation rnd := (rnd F).
Notation number := (number F).
Notation term := (term F E).
Notation sum_at := (sum_at F E).
Notation near := (near F).
Notation e1 := (e1 F E).

(* --- the algorithms --- *)

Fixpoint blocks_from (m s : R) (blocks : list order) : R * R :=
  match blocks with
  | [] => (m, s)
  | b :: rest =>
      let m' := Rmax m (top b) in
      blocks_from m' (rnd (rnd (s * term m m') + sum_at m' b)) rest
  end.

Definition blocked (first : order) (blocks : list order) : R * R :=
  blocks_from (top first) (sum_at (top first) first) blocks.

Fixpoint stream_from (m s : R) (xs : list R) : R * R :=
  match xs with
  | [] => (m, s)
  | x :: rest =>
      let m' := Rmax m x in
      stream_from m' (rnd (rnd (s * term m m') + term x m')) rest
  end.

Definition streaming (x : R) (xs : list R) : R * R := stream_from x 1 xs.

(* --- what counts on an entry's way --- *)

(* How often the maximum rises. *)
Fixpoint rises (m : R) (tops : list R) : nat :=
  match tops with
  | [] => 0
  | t :: rest => if Rlt_dec m t then S (rises t rest) else rises m rest
  end.

(* The factor of an addition is u; that of a rescale is [step]: e1 + u, or e1 where the product is not rounded. *)
Definition cost (step : R) (additions rescales : nat) : R := INR additions * u + INR rescales * step + e1.

Fixpoint counts_from (step : R) (m : R) (blocks : list order) : counted :=
  match blocks with
  | [] => []
  | b :: rest =>
      let m' := Rmax m (top b) in
      all (cost step (depth b + 1 + length rest) (rises m' (map top rest))) (entries b) ++ counts_from step m' rest
  end.

(* Entries with their k. The first block's sum is added to nothing. *)
Definition counts_of (step : R) (first : order) (blocks : list order) : counted :=
  all (cost step (depth first + length blocks) (rises (top first) (map top blocks))) (entries first)
  ++ counts_from step (top first) blocks.

Definition ones (xs : list R) : list order := map One xs.

(* --- one block --- *)

Lemma sum_at_nonneg : forall t m, Forall number (entries t) -> number m -> top t <= m -> 0 <= sum_at m t.
Proof. intros t m N Nm H. exact (proj2 (proj2 (batch_near F E t m N Nm H))). Qed.

Lemma sum_at_top : forall t, Forall number (entries t) -> forall m, number m -> top t = m -> 1 <= sum_at m t.
Proof.
  induction t as [x|a IHa b IHb]; intros N m Nm H; cbn [entries top FloatTerms.sum_at] in *.
  - subst. rewrite term_same. lra.
  - apply Forall_app in N. destruct N as [Na Nb]. apply rnd_ge_1.
    pose proof (Rmax_l (top a) (top b)). pose proof (Rmax_r (top a) (top b)).
    pose proof (sum_at_nonneg a m Na Nm ltac:(lra)). pose proof (sum_at_nonneg b m Nb Nm ltac:(lra)).
    destruct (Rle_or_lt (top a) (top b)) as [C|C].
    + rewrite Rmax_right in H by lra. specialize (IHb Nb m Nm H). lra.
    + rewrite Rmax_left in H by lra. specialize (IHa Na m Nm H). lra.
Qed.

Lemma top_number : forall t, Forall number (entries t) -> number (top t).
Proof. intros t N. rewrite Forall_forall in N. apply N, top_in. Qed.

Lemma more_more : forall a b ts, more a (more b ts) = more (b + a) ts.
Proof. intros. unfold more. rewrite map_map. apply map_ext. intros t. simpl. f_equal. ring. Qed.

Lemma more_0 : forall ts, more 0 ts = ts.
Proof. intros. unfold more. rewrite <- (map_id ts) at 2. apply map_ext. intros [x k]. simpl. f_equal. ring. Qed.

Lemma rises_cons : forall m t rest,
  rises m (t :: rest) = ((if Rlt_dec m t then 1 else 0) + rises (Rmax m t) rest)%nat.
Proof.
  intros. cbn [rises]. destruct (Rlt_dec m t) as [H|H].
  - rewrite Rmax_right by lra. reflexivity.
  - rewrite Rmax_left by lra. reflexivity.
Qed.

Lemma near_block : forall K m t, Forall number (entries t) -> number m -> top t <= m ->
  INR (depth t) * u + e1 <= K ->
  near K m (sum_at m t) (all (INR (depth t) * u + e1) (entries t)).
Proof. intros K m t N Nm H HK. apply near_weaken with (1 := HK). now apply batch_near. Qed.

(* A sum so far, brought to the pivot of a block that joins. *)
Lemma joined : forall K m t s ts, near K m s ts -> 1 <= s -> number m -> number t ->
  let c := INR (if Rlt_dec m t then 1 else 0) in
  near (K + c * (e1 + u)) (Rmax m t) (rnd (s * term m (Rmax m t))) (more (c * (e1 + u)) ts).
Proof.
  intros K m t s ts N Hs Nm Nt c. unfold c. destruct (Rlt_dec m t) as [H|H].
  - rewrite Rmax_right by lra. change (INR 1) with 1. rewrite Rmult_1_l.
    apply rescale_near; try assumption. lra.
  - rewrite Rmax_left by lra. change (INR 0) with 0. rewrite Rmult_0_l, more_0, Rplus_0_r.
    rewrite stay; [exact N|apply N].
Qed.

Lemma at_least_1 : forall m s b, 1 <= s -> number m -> Forall number (entries b) -> number s ->
  1 <= rnd (s * term m (Rmax m (top b))) + sum_at (Rmax m (top b)) b.
Proof.
  intros m s b Hs Nm Nb Ns. pose proof (top_number b Nb) as Nt.
  destruct (Rle_or_lt (top b) m) as [H|H].
  - rewrite Rmax_left by lra. rewrite (stay F E m s Ns). pose proof (sum_at_nonneg b m Nb Nm H). lra.
  - rewrite Rmax_right by lra. pose proof (sum_at_top b Nb (top b) Nt eq_refl).
    destruct (term_number F E m (top b) Nm Nt ltac:(lra)) as [_ R].
    pose proof (rnd_nonneg F (s * term m (top b)) ltac:(nra)). lra.
Qed.

(* --- blocks --- *)

Definition bounded_depth (d : nat) (b : order) : Prop := (depth b <= d)%nat.

Lemma from_near : forall d blocks K m s ts,
  near K m s ts -> 1 <= s -> number m -> Forall (fun b => Forall number (entries b)) blocks ->
  Forall (bounded_depth d) blocks -> INR d * u + e1 <= K ->
  let '(m', s') := blocks_from m s blocks in
  let k := INR (length blocks) * u + INR (rises m (map top blocks)) * (e1 + u) in
  near (K + k) m' s' (more k ts ++ counts_from (e1 + u) m blocks) /\ 1 <= s' /\ number m'.
Proof.
  intros d. pose proof (u_range F) as Hu. pose proof (e1_pos F E) as He.
  induction blocks as [|b rest IH]; intros K m s ts N Hs Nm Nb Hd HK.
  - simpl. rewrite !Rmult_0_l, !Rplus_0_r, more_0, app_nil_r. now split.
  - cbn [blocks_from]. inversion_clear Nb as [|? ? Nb1 Nb2]. inversion_clear Hd as [|? ? Hd1 Hd2].
    pose proof (top_number b Nb1) as Nt. pose proof (joined K m (top b) s ts N Hs Nm Nt) as J. simpl in J.
    pose proof (at_least_1 m s b Hs Nm Nb1 (proj1 (proj2 N))) as H1.
    set (m' := Rmax m (top b)) in *. set (c := INR (if Rlt_dec m (top b) then 1 else 0)) in *.
    assert (Hc : 0 <= c) by apply pos_INR.
    assert (Nm' : number m') by (unfold m', Rmax; destruct (Rle_dec m (top b)); assumption).
    assert (HKc : K <= K + c * (e1 + u)) by nra.
    assert (Hdb : INR (depth b) * u + e1 <= K).
    { apply Rle_trans with (2 := HK). apply Rplus_le_compat_r, Rmult_le_compat_r; [lra|]. now apply le_INR. }
    pose proof (near_block (K + c * (e1 + u)) m' b Nb1 Nm' (Rmax_r _ _) ltac:(lra)) as B.
    pose proof (plus_near F _ _ _ _ _ _ J B) as P.
    specialize (IH _ _ _ _ P (rnd_ge_1 F _ H1) Nm' Nb2 Hd2 ltac:(lra)).
    destruct (blocks_from m' (rnd (rnd (s * term m m') + sum_at m' b)) rest) as [M S].
    cbn [length map]. rewrite rises_cons, S_INR, plus_INR. fold c m'. cbn [counts_from]. fold m'.
    destruct IH as [IH1 IH2]. split; [|exact IH2].
    set (l := INR (length rest) * u + INR (rises m' (map top rest)) * (e1 + u)) in *.
    replace (K + ((INR (length rest) + 1) * u + (c + INR (rises m' (map top rest))) * (e1 + u)))
      with (K + c * (e1 + u) + u + l) by (unfold l; ring).
    replace (more ((INR (length rest) + 1) * u + (c + INR (rises m' (map top rest))) * (e1 + u)) ts ++
      all (cost (e1 + u) (depth b + 1 + length rest) (rises m' (map top rest))) (entries b) ++ counts_from (e1 + u) m' rest)
      with (more l (more u (more (c * (e1 + u)) ts ++ all (INR (depth b) * u + e1) (entries b))) ++
            counts_from (e1 + u) m' rest); [exact IH1|].
    rewrite app_assoc. f_equal. rewrite more_more, more_app, more_more, more_all. f_equal.
    + f_equal. unfold l. ring.
    + f_equal. unfold cost, l. rewrite !plus_INR. simpl (INR 1). ring.
Qed.

(* The greatest k: of blocks of depth at most d, from the first on. *)
Definition blocked_bound (d blocks rescales : nat) : R :=
  INR (d + blocks) * u + INR rescales * (e1 + u) + e1.

Theorem blocked_near : forall d first blocks,
  Forall (fun b => Forall number (entries b)) (first :: blocks) -> Forall (bounded_depth d) (first :: blocks) ->
  let '(m, s) := blocked first blocks in
  near (blocked_bound d (length blocks) (rises (top first) (map top blocks))) m s (counts_of (e1 + u) first blocks)
  /\ 1 <= s.
Proof.
  intros d first blocks N D. pose proof (u_range F) as Hu.
  inversion_clear N as [|? ? N1 N2]. inversion_clear D as [|? ? D1 D2].
  pose proof (top_number first N1) as Nt.
  assert (HK : INR (depth first) * u + e1 <= INR d * u + e1).
  { apply Rplus_le_compat_r, Rmult_le_compat_r; [lra|]. now apply le_INR. }
  pose proof (near_block (INR d * u + e1) (top first) first N1 Nt (Rle_refl _) HK) as B.
  pose proof (from_near d blocks _ _ _ _ B (sum_at_top first N1 _ Nt eq_refl) Nt N2 D2 (Rle_refl _)) as P.
  unfold blocked. destruct (blocks_from _ _ _) as [m s]. cbv zeta in P. destruct P as [P [P1 _]]. split; [|exact P1].
  unfold blocked_bound, counts_of, cost. rewrite more_all in P. rewrite !plus_INR in *.
  set (k := INR (length blocks) * u + INR (rises (top first) (map top blocks)) * (e1 + u)) in *.
  replace ((INR d + INR (length blocks)) * u + INR (rises (top first) (map top blocks)) * (e1 + u) + e1)
    with (INR d * u + e1 + k) by (unfold k; ring).
  replace ((INR (depth first) + INR (length blocks)) * u + INR (rises (top first) (map top blocks)) * (e1 + u) + e1)
    with (INR (depth first) * u + e1 + k) by (unfold k; ring).
  exact P.
Qed.

(* The pivot a row ends at is its maximum, and all its entries are counted. *)
Lemma blocks_from_top : forall blocks m s, fst (blocks_from m s blocks) = fold_left Rmax (map top blocks) m.
Proof. induction blocks as [|b rest IH]; intros m s; [reflexivity|]. simpl. apply IH. Qed.

Lemma counts_values : forall step m blocks, values (counts_from step m blocks) = flat_map entries blocks.
Proof.
  intros step m blocks. revert m. induction blocks as [|b rest IH]; intros m; [reflexivity|].
  cbn [counts_from flat_map]. unfold values in *. rewrite map_app, IH. f_equal.
  unfold all. rewrite map_map. apply map_id.
Qed.

Lemma counts_of_values : forall step first blocks,
  values (counts_of step first blocks) = entries first ++ flat_map entries blocks.
Proof.
  intros. unfold counts_of, values. rewrite map_app. fold (values (counts_from step (top first) blocks)).
  rewrite counts_values. f_equal. unfold all. rewrite map_map. apply map_id.
Qed.

Lemma fold_max_in : forall blocks m xs, In m xs -> In (fold_left Rmax (map top blocks) m) (xs ++ flat_map entries blocks).
Proof.
  induction blocks as [|b rest IH]; intros m xs H; simpl.
  - now rewrite app_nil_r.
  - rewrite app_assoc. apply IH. apply in_or_app. unfold Rmax.
    destruct (Rle_dec m (top b)); [right; apply top_in|now left].
Qed.

(* How far a computed sum is from the true one, as a factor: for one running maximum, blocks of any lengths. *)
Theorem blocked_error : forall d first blocks,
  Forall (fun b => Forall number (entries b)) (first :: blocks) -> Forall (bounded_depth d) (first :: blocks) ->
  let '(m, s) := blocked first blocks in
  let xs := entries first ++ flat_map entries blocks in
  let K := blocked_bound d (length blocks) (rises (top first) (map top blocks)) in
  Rabs (ln s - ln (total m xs)) <= drift F (count xs) K (ln (total m xs)).
Proof.
  intros d first blocks N D. pose proof (blocked_near d first blocks N D) as H.
  pose proof (blocks_from_top blocks (top first) (sum_at (top first) first)) as T.
  unfold blocked in *. destruct (blocks_from _ _ _) as [m s]. destruct H as [[H _] Hs]. cbv zeta.
  rewrite <- (counts_of_values (e1 + u)). apply log_error with (1 := H); [exact Hs|].
  rewrite counts_of_values. simpl in T. rewrite T. apply fold_max_in, top_in.
Qed.

(* --- one at a time: blocks of one entry --- *)

Lemma stream_is_blocks : forall xs m s, stream_from m s xs = blocks_from m s (ones xs).
Proof. induction xs as [|x xs IH]; intros m s; [reflexivity|]. simpl. apply IH. Qed.

Theorem streaming_is_blocked : forall x xs, streaming x xs = blocked (One x) (ones xs).
Proof.
  intros. unfold streaming, blocked. simpl. rewrite term_same. apply stream_is_blocks.
Qed.

Lemma ones_numbers : forall xs, Forall number xs -> Forall (fun b => Forall number (entries b)) (ones xs).
Proof. intros xs H. unfold ones. apply Forall_map. apply Forall_impl with (2 := H). intros x Hx. now constructor. Qed.

Lemma ones_depth : forall xs, Forall (bounded_depth 0) (ones xs).
Proof. intros xs. unfold ones. apply Forall_map, Forall_forall. intros x _. apply le_n. Qed.

Lemma length_ones : forall xs, length (ones xs) = length xs.
Proof. intros. apply map_length. Qed.

Lemma tops_of_ones : forall xs, map top (ones xs) = xs.
Proof. intros. unfold ones. rewrite map_map. apply map_id. Qed.

Lemma entries_of_ones : forall xs, flat_map entries (ones xs) = xs.
Proof. induction xs as [|x xs IH]; [reflexivity|]. simpl. f_equal. exact IH. Qed.

Theorem streaming_near : forall x xs, Forall number (x :: xs) ->
  let '(m, s) := streaming x xs in
  let K := INR (length xs) * u + INR (rises x xs) * (e1 + u) + e1 in
  near K m s (counts_of (e1 + u) (One x) (ones xs)) /\ 1 <= s.
Proof.
  intros x xs N. rewrite streaming_is_blocked.
  pose proof (blocked_near 0 (One x) (ones xs) (ones_numbers (x :: xs) N) (ones_depth (x :: xs))) as H.
  rewrite tops_of_ones in H. unfold blocked_bound in H. rewrite length_ones in H. exact H.
Qed.

(* The closed form: u (ln n + n + C) + (1 + C) e to first order, C how often the maximum rises. *)
Theorem streaming_error : forall x xs, Forall number (x :: xs) ->
  let '(m, s) := streaming x xs in
  let S := total m (x :: xs) in
  let K := INR (length xs) * u + INR (rises x xs) * (e1 + u) + e1 in
  Rabs (ln s - ln S) <= u * (ln (count (x :: xs)) - ln S) + K + 3 * count (x :: xs) * tiny F * exp K.
Proof.
  intros x xs N. rewrite streaming_is_blocked.
  pose proof (blocked_error 0 (One x) (ones xs) (ones_numbers (x :: xs) N) (ones_depth (x :: xs))) as H.
  cbv zeta in *. destruct (blocked (One x) (ones xs)) as [m s].
  cbn [entries top] in H. rewrite tops_of_ones, entries_of_ones in H. unfold blocked_bound in H.
  rewrite length_ones in H. exact H.
Qed.

(* --- no overflow: a sum of n entries is at least 1 and at most about n --- *)

Theorem streaming_range : forall x xs, Forall number (x :: xs) ->
  let '(m, s) := streaming x xs in
  let K := INR (length xs) * u + INR (rises x xs) * (e1 + u) + e1 in
  1 <= s <= count (x :: xs) * exp K * (1 + 3 * tiny F).
Proof.
  intros x xs N. pose proof (streaming_near x xs N) as H. destruct (streaming x xs) as [m s]. cbv zeta in *.
  destruct H as [[[C L U] _] Hs]. split; [exact Hs|].
  pose proof (most_range F _ m _ C) as M.
  assert (EL : INR (length (counts_of (e1 + u) (One x) (ones xs))) = count (x :: xs)).
  { rewrite <- (map_length fst). fold (values (counts_of (e1 + u) (One x) (ones xs))).
    rewrite counts_of_values, entries_of_ones. reflexivity. }
  unfold underflow in U. rewrite EL in *. lra.
Qed.

End Streaming.
