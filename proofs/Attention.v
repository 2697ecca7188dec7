(** * Attention one tile at a time, over the real numbers

    A query meets keys, each with a score (real, or -inf where it is masked) and a value.  Its output is the sum of the
    values weighted by the softmax of the scores, and 0 where no key is left.  A kernel sees the keys in tiles and holds
    (m, s, o): a pivot, the sum of exp (x - m) and the sum of exp (x - m) * v.

    Shown here, for one feature of the values (all features share m and s, so it holds for each):

    - for any tiling of the keys, o / s is the output by definition, whatever rule moves the pivot: the running maximum,
      or one that is left behind while scores rise less than tau above it (conditional rescaling, as
      native/attention.inl.h does it with tau = 8);
    - with the maximum every factor is at most 1; left behind by tau, a weight is at most exp tau, a rescale factor at
      most 1, and the sum lies in [1, N * exp tau];
    - partial results, at whatever pivots, merge to the result of all keys; merging is associative and commutative with
      nothing as its identity, so any tree over any parts in any order gives the same;
    - masked keys leave no trace, whatever their values; outputs are no greater than the values are.

    Definitions of scores, weights and sums: Law.v, Streaming.v, Softmax.v. *)

From Coq Require Import Reals List Lra Lia Permutation.
From OnlineSoftmax Require Import Law Streaming Pivots Softmax Monoid.
Import ListNotations.
Open Scope R_scope.

(** ** Attention by definition *)

(** A key, as a query sees it: its score and its value. *)
Definition key : Type := (height * R)%type.

Definition scores (ks : list key) : row := map fst ks.

(** The sum of f (score) * value. *)
Fixpoint weighted (f : height -> R) (ks : list key) : R :=
  match ks with
  | [] => 0
  | (x, v) :: rest => f x * v + weighted f rest
  end.

Definition attention (ks : list key) : R :=
  match row_max (scores ks) with
  | minus_inf => 0
  | fin _ => weighted (softmax (scores ks)) ks
  end.

(** ** What a kernel holds *)

Record accumulator := Acc { top : height; total : R; out : R }.

Definition nothing : accumulator := Acc minus_inf 0 0.

(** The sum of exp (x - m) * v. *)
Definition values_at (m : height) (ks : list key) : R := weighted (fun x => weight x m) ks.

(** The accumulator of keys with their maximum. *)
Definition of_keys (ks : list key) : accumulator :=
  let m := row_max (scores ks) in Acc m (sum_at m (scores ks)) (values_at m ks).

(** A tile, with the pivot to go on with: o' = o * exp (m - m') + sum exp (x_j - m') * v_j, and s' alike. *)
Definition step (a : accumulator) (tile : list key) (m' : height) : accumulator :=
  Acc m' (total a * weight (top a) m' + sum_at m' (scores tile)) (out a * weight (top a) m' + values_at m' tile).

(** A rule for the next pivot, from the last one and the maximum of the tile. *)
Definition rule : Type := height -> height -> height.

Definition run (next : rule) (tiles : list (list key)) : accumulator :=
  fold_left (fun a tile => step a tile (next (top a) (row_max (scores tile)))) tiles nothing.

(** Conditional rescaling: the pivot stays while scores rise no more than tau above it. *)
Definition stay_within (tau : R) : rule := fun m h =>
  match m, h with
  | _, minus_inf => m
  | minus_inf, fin _ => h
  | fin p, fin q => if Rle_dec q (p + tau) then m else h
  end.

Definition merge (a b : accumulator) : accumulator :=
  let m := hmax (top a) (top b) in
  Acc m (total a * weight (top a) m + total b * weight (top b) m) (out a * weight (top a) m + out b * weight (top b) m).

(** The output: o / s, and 0 where no key is left. *)
Definition value (a : accumulator) : R :=
  match top a with
  | minus_inf => 0
  | fin _ => out a / total a
  end.

(** The accumulator [a] holds the keys [ks], at any pivot that is finite where a score is. *)
Definition holds (a : accumulator) (ks : list key) : Prop :=
  (top a = minus_inf -> row_max (scores ks) = minus_inf) /\
  total a = sum_at (top a) (scores ks) /\ out a = values_at (top a) ks.

(** A rule is sound where it keeps a finite pivot, and takes one as soon as there is a score. *)
Definition sound (next : rule) : Prop := forall m h, next m h = minus_inf -> m = minus_inf /\ h = minus_inf.

(** ** Lemmas *)

Lemma weighted_app f xs ys : weighted f (xs ++ ys) = weighted f xs + weighted f ys.
Proof. induction xs as [|[x v] xs IH]; cbn; [ring|]. rewrite IH. ring. Qed.

Lemma weighted_scaled f g c ks : (forall x, f x * c = g x) -> weighted f ks * c = weighted g ks.
Proof.
  intro e. induction ks as [|[x v] ks IH]; cbn; [ring|].
  rewrite Rmult_plus_distr_r, IH, <- e. ring.
Qed.

Lemma weighted_ext f g ks : (forall x, f x = g x) -> weighted f ks = weighted g ks.
Proof. intro e. rewrite <- (weighted_scaled f g 1 ks); [ring|]. intro. rewrite e. ring. Qed.

Lemma scores_app xs ys : scores (xs ++ ys) = scores xs ++ scores ys.
Proof. apply map_app. Qed.

Lemma hmax_minus_inf_iff a b : hmax a b = minus_inf <-> a = minus_inf /\ b = minus_inf.
Proof. destruct a, b; cbn; intuition discriminate. Qed.

Lemma values_without_scores ks m : row_max (scores ks) = minus_inf -> values_at m ks = 0.
Proof.
  unfold values_at. induction ks as [|[x v] ks IH]; intro e; [reflexivity|].
  change (hmax x (row_max (scores ks)) = minus_inf) in e. apply hmax_minus_inf_iff in e as [-> e].
  cbn [weighted]. rewrite IH by exact e. cbn. ring.
Qed.

(** From one pivot to another, whichever is greater. *)
Lemma values_rescaled ks r m : values_at (fin r) ks * weight (fin r) m = values_at m ks.
Proof. apply weighted_scaled. intro. apply weight_weight_fin. Qed.

Lemma sums_rescaled x r m : sum_at (fin r) x * weight (fin r) m = sum_at m x.
Proof.
  induction x as [|h x IH]; cbn [sum_at]; [ring|]. rewrite Rmult_plus_distr_r, IH. f_equal. apply weight_weight_fin.
Qed.

Lemma holds_rescaled a ks m :
  holds a ks -> total a * weight (top a) m = sum_at m (scores ks) /\ out a * weight (top a) m = values_at m ks.
Proof.
  intros (n & s & o). rewrite s, o. destruct (top a) as [|r].
  - specialize (n eq_refl). rewrite !row_of_minus_inf, !values_without_scores by exact n. split; ring.
  - split; [apply sums_rescaled | apply values_rescaled].
Qed.

Lemma holds_step a ks tile m' :
  holds a ks -> (m' = minus_inf -> row_max (scores (ks ++ tile)) = minus_inf) -> holds (step a tile m') (ks ++ tile).
Proof.
  intros h n. destruct (holds_rescaled a ks m' h) as [s o]. split; [exact n|]. unfold step; cbn [top total out].
  unfold values_at in *. now rewrite s, o, scores_app, sum_at_app, weighted_app.
Qed.

Lemma holds_nothing : holds nothing [].
Proof. now repeat split. Qed.

Lemma holds_of_keys ks : holds (of_keys ks) ks.
Proof. now repeat split. Qed.

Lemma run_snoc next tiles tile :
  run next (tiles ++ [tile]) = step (run next tiles) tile (next (top (run next tiles)) (row_max (scores tile))).
Proof. unfold run. now rewrite fold_left_app. Qed.

Lemma concat_snoc (tiles : list (list key)) tile : concat (tiles ++ [tile]) = concat tiles ++ tile.
Proof. rewrite concat_app. cbn. now rewrite app_nil_r. Qed.

(** ** Any tiling, any rule *)

(** After any tiles the accumulator holds their keys. *)
Theorem run_holds_the_keys next tiles : sound next -> holds (run next tiles) (concat tiles).
Proof.
  intro sn. induction tiles as [|tile tiles IH] using rev_ind; [exact holds_nothing|].
  rewrite run_snoc, concat_snoc. apply holds_step; [exact IH|].
  intro e. apply sn in e as [e1 e2]. rewrite scores_app, row_max_app. apply hmax_minus_inf_iff. split; [|exact e2].
  now apply IH.
Qed.

(** What holds the keys has their output: o / s = sum softmax_j * v_j. *)
Theorem value_is_attention a ks : holds a ks -> value a = attention ks.
Proof.
  intros (n & s & o). unfold value, attention. destruct (top a) as [|r].
  - now rewrite n.
  - rewrite s, o. destruct (row_max (scores ks)) as [|m] eqn:e.
    + rewrite values_without_scores by exact e. unfold Rdiv. ring.
    + assert (f : has_finite (scores ks)) by (apply row_max_finite; now exists m).
      apply weighted_scaled. intro x. apply (softmax_any_constant (scores ks) x r f).
Qed.

(** For any tiling of the keys and any sound rule for the pivot, o / s is attention by definition. *)
Theorem any_tiling_is_attention next tiles : sound next -> value (run next tiles) = attention (concat tiles).
Proof. intro sn. apply value_is_attention. now apply run_holds_the_keys. Qed.

(** The running maximum is sound, *)
Theorem hmax_is_sound : sound hmax.
Proof. intros m h. apply hmax_minus_inf_iff. Qed.

(** and so is a pivot that is left behind. *)
Theorem stay_within_is_sound tau : sound (stay_within tau).
Proof. intros [|p] [|q]; cbn; try discriminate; [tauto|]. destruct (Rle_dec q (p + tau)); discriminate. Qed.

(** With the running maximum, the accumulator itself is the one of the definition. *)
Theorem tiles_with_the_maximum tiles : run hmax tiles = of_keys (concat tiles).
Proof.
  destruct (run_holds_the_keys hmax tiles hmax_is_sound) as (_ & s & o).
  assert (t : top (run hmax tiles) = row_max (scores (concat tiles))).
  { induction tiles as [|tile tiles IH] using rev_ind; [reflexivity|].
    rewrite run_snoc, concat_snoc, scores_app, row_max_app. cbn [step top].
    destruct (run_holds_the_keys hmax tiles hmax_is_sound) as (_ & s' & o'). now rewrite IH. }
  unfold of_keys. cbn zeta. rewrite <- t. destruct (run hmax tiles); cbn in *. congruence.
Qed.

(** Neither does the order of the keys matter. *)
Theorem attention_any_order xs ys : Permutation xs ys -> of_keys xs = of_keys ys /\ attention xs = attention ys.
Proof.
  intro p. assert (q : Permutation (scores xs) (scores ys)) by now apply Permutation_map.
  assert (w : forall f, weighted f xs = weighted f ys).
  { intro f. clear q. induction p; cbn; try (destruct x); try (destruct y); lra. }
  assert (e : of_keys xs = of_keys ys).
  { unfold of_keys, values_at. cbn zeta. rewrite (row_max_permutation _ _ q), w.
    f_equal. now apply sum_at_permutation. }
  split; [exact e|].
  rewrite <- (value_is_attention _ _ (holds_of_keys xs)), <- (value_is_attention _ _ (holds_of_keys ys)). now rewrite e.
Qed.

(** ** Safety *)

(** With the maximum, no weight and no rescale factor exceeds 1. *)
Theorem factors_of_the_maximum_are_at_most_1 m tile x :
  In x (scores tile) ->
  weight x (hmax m (row_max (scores tile))) <= 1 /\ weight m (hmax m (row_max (scores tile))) <= 1.
Proof.
  intro i. split; apply weight_le_1; [|apply hle_hmax_l].
  apply hle_trans with (row_max (scores tile)); [now apply row_max_upper | apply hle_hmax_r].
Qed.

(** What a pivot left behind by tau keeps: it is a score seen, and no score is more than tau above it. *)
Lemma stay_within_invariant tau tiles : 0 <= tau ->
  let r := top (run (stay_within tau) tiles) in
  let x := scores (concat tiles) in
  match r with
  | minus_inf => row_max x = minus_inf
  | fin p => In (fin p) x /\ hle (row_max x) (fin (p + tau))
  end.
Proof.
  intro pos. cbn zeta. induction tiles as [|tile tiles IH] using rev_ind; [reflexivity|].
  rewrite run_snoc, concat_snoc, scores_app, row_max_app. cbn [step top].
  destruct (top (run (stay_within tau) tiles)) as [|p], (row_max (scores tile)) as [|q] eqn:e; cbn [stay_within].
  - now rewrite IH.
  - rewrite IH. cbn. split; [apply in_or_app; right; now apply row_max_in | lra].
  - rewrite hmax_minus_inf_r. split; [apply in_or_app; now left | apply IH].
  - destruct IH as [i le]. destruct (Rle_dec q (p + tau)) as [y|y].
    + split; [apply in_or_app; now left | now apply hmax_hle].
    + split; [apply in_or_app; right; now apply row_max_in |].
      apply hmax_hle; [|cbn; lra]. eapply hle_trans; [exact le | cbn; lra].
Qed.

(** A pivot left behind by at most tau: weights are at most exp tau, rescale factors at most 1. *)
Theorem factors_of_a_stale_pivot tau m tile x : 0 <= tau -> In x (scores tile) ->
  weight x (stay_within tau m (row_max (scores tile))) <= exp tau /\
  weight m (stay_within tau m (row_max (scores tile))) <= 1.
Proof.
  intros pos i. apply row_max_upper in i. destruct (row_max (scores tile)) as [|q].
  - destruct x; [|easy]. destruct m as [|p]; cbn; rewrite ?Rminus_eq_0, ?exp_0; pose proof (exp_pos tau); lra.
  - assert (mono : forall a b, a <= b -> exp a <= exp b).
    { intros a b [lt|<-]; [left; now apply exp_increasing | now right]. }
    assert (one : 1 <= exp tau) by (rewrite <- exp_0; now apply mono).
    destruct m as [|p]; cbn [stay_within]; [|destruct (Rle_dec q (p + tau)) as [y|y]].
    + split; [pose proof (weight_le_1 x (fin q) i); lra | cbn; lra].
    + split; [|rewrite weight_self; lra].
      destruct x as [|r]; cbn in *; [lra | apply mono; lra].
    + split; [pose proof (weight_le_1 x (fin q) i); lra | apply weight_le_1; cbn; lra].
Qed.

(** And the sum stays in [1, N * exp tau] from the first score on: it neither overflows nor vanishes. *)
Theorem sum_of_a_stale_pivot tau tiles : 0 <= tau -> has_finite (scores (concat tiles)) ->
  1 <= total (run (stay_within tau) tiles) <= INR (length (concat tiles)) * exp tau.
Proof.
  intros pos f. destruct (run_holds_the_keys _ tiles (stay_within_is_sound tau)) as (_ & s & _).
  pose proof (stay_within_invariant tau tiles pos) as inv. cbn zeta in inv. rewrite s.
  destruct (top (run (stay_within tau) tiles)) as [|p].
  { apply row_max_finite in f as [m e]. congruence. }
  destruct inv as [i le]. split.
  - rewrite <- (weight_self p). now apply sum_at_ge.
  - rewrite <- (sums_rescaled _ (p + tau)).
    replace (weight (fin (p + tau)) (fin p)) with (exp tau) by (cbn; f_equal; ring).
    apply Rmult_le_compat_r; [left; apply exp_pos|].
    pose proof (sum_at_le_length _ _ le) as b. unfold scores in b at 2. now rewrite map_length in b.
Qed.

(** ** Partial results *)

(** The accumulators of two sets of keys, at whatever pivots, merge to one of both. *)
Theorem merge_holds_both a b xs ys : holds a xs -> holds b ys -> holds (merge a b) (xs ++ ys).
Proof.
  intros ha hb. set (m := hmax (top a) (top b)).
  destruct (holds_rescaled a xs m ha) as [sa oa], (holds_rescaled b ys m hb) as [sb ob].
  unfold merge. fold m. cbn zeta. rewrite sa, oa, sb, ob. split; [|split]; cbn [top total out].
  - intro e. apply hmax_minus_inf_iff in e as [ea eb]. destruct ha as [na _], hb as [nb _].
    now rewrite scores_app, row_max_app, na, nb.
  - now rewrite scores_app, sum_at_app.
  - unfold values_at. now rewrite weighted_app.
Qed.

(** So the output over split keys is the output over all. *)
Corollary merged_value_is_attention a b xs ys : holds a xs -> holds b ys -> value (merge a b) = attention (xs ++ ys).
Proof. intros. apply value_is_attention. now apply merge_holds_both. Qed.

Theorem merge_of_keys xs ys : merge (of_keys xs) (of_keys ys) = of_keys (xs ++ ys).
Proof.
  destruct (merge_holds_both _ _ _ _ (holds_of_keys xs) (holds_of_keys ys)) as (_ & s & o).
  assert (t : top (merge (of_keys xs) (of_keys ys)) = row_max (scores (xs ++ ys))).
  { now rewrite scores_app, row_max_app. }
  unfold of_keys at 3. cbn zeta. rewrite <- t. destruct (merge (of_keys xs) (of_keys ys)); cbn in *. congruence.
Qed.

(** a + b = b + a. *)
Theorem merge_attention_comm a b : merge a b = merge b a.
Proof. unfold merge. rewrite (hmax_comm (top b)). cbn zeta. f_equal; ring. Qed.

(** (a + b) + c = a + (b + c), for any fields whatever: the law twice, for s and for o. *)
Theorem merge_attention_assoc a b c : merge (merge a b) c = merge a (merge b c).
Proof.
  pose proof (Law.merge_assoc (top a, total a) (top b, total b) (top c, total c)) as s.
  pose proof (Law.merge_assoc (top a, out a) (top b, out b) (top c, out c)) as o.
  unfold merge, Law.merge in *. cbn [fst snd top total out] in *. cbn zeta in *. injection s as t s. injection o as _ o.
  congruence.
Qed.

(** Of nothing, or with a positive sum. *)
Definition proper (a : accumulator) : Prop :=
  match top a with
  | minus_inf => total a = 0 /\ out a = 0
  | fin _ => 0 < total a
  end.

(** Nothing is the identity. *)
Theorem merge_attention_nothing a : proper a -> merge a nothing = a /\ merge nothing a = a.
Proof.
  intro p. rewrite (merge_attention_comm nothing). assert (e : merge a nothing = a); [|now split].
  unfold merge. cbn zeta. destruct a as [[|m] s o]; unfold proper in p; cbn [top total out nothing hmax] in *.
  - destruct p as [-> ->]. cbn. f_equal; ring.
  - rewrite weight_self. f_equal; ring.
Qed.

(** Any tree of merges over any parts of the keys in any order. *)
Theorem any_tree_is_attention t parts ks :
  leaves t = map of_keys parts -> Permutation (concat parts) ks ->
  merged merge nothing t = of_keys ks /\ value (merged merge nothing t) = attention ks.
Proof.
  intros e p. assert (g : merged merge nothing t = of_keys ks).
  { rewrite <- (proj1 (attention_any_order _ _ p)). clear p ks. revert parts e.
    induction t as [|a|l IHl r IHr]; intros parts e; cbn [leaves merged] in *.
    - symmetry in e. apply map_eq_nil in e. now subst.
    - destruct parts as [|k [|k' parts]]; try discriminate. injection e as ->. cbn. now rewrite app_nil_r.
    - symmetry in e. apply map_eq_app in e as (pl & pr & -> & el & er).
      rewrite (IHl pl), (IHr pr), merge_of_keys by congruence. now rewrite concat_app. }
  split; [exact g|]. rewrite g. apply value_is_attention, holds_of_keys.
Qed.

(** ** What is masked, and how great outputs are *)

(** A masked key leaves no trace, whatever its value. *)
Theorem masked_keys_leave_no_trace xs v ys :
  of_keys (xs ++ (minus_inf, v) :: ys) = of_keys (xs ++ ys) /\
  attention (xs ++ (minus_inf, v) :: ys) = attention (xs ++ ys).
Proof.
  assert (e : of_keys (xs ++ (minus_inf, v) :: ys) = of_keys (xs ++ ys)).
  { unfold of_keys, values_at. cbn zeta. rewrite !scores_app. cbn [scores map fst]. fold (scores ys).
    rewrite !row_max_app, !sum_at_app, !weighted_app. cbn. f_equal; ring. }
  split; [exact e|]. rewrite <- !(value_is_attention _ _ (holds_of_keys _)). now rewrite e.
Qed.

(** Where no key is left the output is 0, and the accumulator nothing. *)
Theorem no_key_left ks : row_max (scores ks) = minus_inf -> of_keys ks = nothing /\ attention ks = 0.
Proof.
  intro e. split.
  - unfold of_keys, nothing. cbn zeta. rewrite e. now rewrite row_of_minus_inf, values_without_scores.
  - unfold attention. now rewrite e.
Qed.

(** An output is no greater than the values of the keys that take part, nor o than s times that. *)
Theorem output_is_bounded ks b : 0 <= b -> (forall x v, In (fin x, v) ks -> Rabs v <= b) ->
  (forall m, Rabs (values_at m ks) <= sum_at m (scores ks) * b) /\ Rabs (attention ks) <= b.
Proof.
  intros pos h. assert (o : forall m, Rabs (values_at m ks) <= sum_at m (scores ks) * b).
  { intro m. unfold values_at. induction ks as [|[x v] ks IH]; cbn; [rewrite Rabs_R0; lra|].
    eapply Rle_trans; [apply Rabs_triang|].
    rewrite Rabs_mult, (Rabs_right (weight x m)) by (apply Rle_ge, weight_nonneg).
    rewrite Rmult_plus_distr_r. apply Rplus_le_compat.
    - destruct x as [|x]; [cbn; lra|]. apply Rmult_le_compat_l; [apply weight_nonneg|]. apply (h x). now left.
    - apply IH. intros y w i. apply (h y). now right. }
  split; [exact o|].
  rewrite <- (value_is_attention _ _ (holds_of_keys ks)). unfold value, of_keys. cbn [top total out]. cbn zeta.
  destruct (row_max (scores ks)) as [|m] eqn:e; [rewrite Rabs_R0; exact pos|].
  assert (f : has_finite (scores ks)) by (apply row_max_finite; now exists m).
  pose proof (sum_at_pos (scores ks) (fin m) f) as s.
  unfold Rdiv. rewrite Rabs_mult, (Rabs_right (/ _)) by (left; now apply Rinv_0_lt_compat).
  apply Rmult_le_reg_r with (sum_at (fin m) (scores ks)); [exact s|].
  rewrite Rmult_assoc, Rinv_l, Rmult_1_r by lra.
  eapply Rle_trans; [apply o | lra].
Qed.
