(** * Partial attention results in normal form, and sinks

    Between kernels a partial result travels as the pair (lse, o) of its log-sum-exp and its normalised output: the
    accumulator with m = lse and s = 1 (AttentionState in attention_state.py).  Shown here:

    - the merge of such pairs is the merge of the accumulators behind them, so it is associative and commutative, has
      (-inf, 0) as its identity, and the pairs of parts of the keys merge to the pair of all;
    - a sink is a part of its own, of log-sum-exp its logit and output 0 (or a value): merged once it adds exp (sink) to
      the sum and nothing to o;
    - merged once for each of k parts it is counted k times: the output is then (s + e) / (s + k e) of the right one,
      which is wrong wherever there is an output at all. *)

From Coq Require Import Reals List Lra Permutation.
From OnlineSoftmax Require Import Law Streaming Pivots Softmax Monoid Attention.
Import ListNotations.
Open Scope R_scope.

(** ** Parts *)

(** (lse, o) *)
Definition part : Type := (height * R)%type.

Definition empty_part : part := (minus_inf, 0).

(** m = max (lse_i);  e_i = exp (lse_i - m);  s = e_a + e_b;  lse = m + log s;  o = e_a / s * o_a + e_b / s * o_b. *)
Definition merge_parts (a b : part) : part :=
  match hmax (fst a) (fst b) with
  | minus_inf => empty_part
  | fin m =>
      let e_a := weight (fst a) (fin m) in
      let e_b := weight (fst b) (fin m) in
      let s := e_a + e_b in
      (fin (m + ln s), e_a / s * snd a + e_b / s * snd b)
  end.

(** The normal form of an accumulator. *)
Definition part_of (a : accumulator) : part :=
  match top a with
  | minus_inf => empty_part
  | fin m => (fin (m + ln (total a)), out a / total a)
  end.

(** And back: m = lse, s = 1. *)
Definition accumulator_of (p : part) : accumulator :=
  match fst p with
  | minus_inf => nothing
  | fin l => Acc (fin l) 1 (snd p)
  end.

(** In normal form: o is 0 where no key was seen. *)
Definition normal (p : part) : Prop := fst p = minus_inf -> snd p = 0.

(** The part of keys: their log-sum-exp and their attention. *)
Definition part_of_keys (ks : list key) : part := (lse (scores ks), attention ks).

Lemma proper_of_part p : proper (accumulator_of p).
Proof. destruct p as [[|l] o]; unfold proper; cbn; [easy | lra]. Qed.

Lemma proper_merge a b : proper a -> proper b -> proper (merge a b).
Proof.
  destruct a as [[|m] s o], b as [[|n] t q]; unfold proper, merge; cbn [top total out hmax weight].
  - intros [-> ->] [-> ->]. split; ring.
  - intros [-> ->] p. change (exp (n - pivot (fin n))) with (weight (fin n) (fin n)). rewrite weight_self. lra.
  - intros p [-> ->]. change (exp (m - pivot (fin m))) with (weight (fin m) (fin m)). rewrite weight_self. lra.
  - intros p q'. apply Rplus_lt_0_compat; apply Rmult_lt_0_compat; trivial; apply exp_pos.
Qed.

Lemma proper_of_keys ks : proper (of_keys ks).
Proof.
  unfold proper, of_keys; cbn [top total out]. destruct (row_max (scores ks)) as [|m] eqn:e.
  - now rewrite row_of_minus_inf, values_without_scores.
  - apply sum_at_pos, row_max_finite. now exists m.
Qed.

Lemma part_of_accumulator p : normal p -> part_of (accumulator_of p) = p.
Proof.
  destruct p as [[|l] o]; unfold normal; cbn; intro n.
  - unfold part_of; cbn. unfold empty_part. now rewrite n.
  - unfold part_of; cbn. rewrite ln_1. f_equal; [f_equal; ring | field].
Qed.

(** An accumulator at lse m + log s with sum 1 counts as much as at m with sum s. *)
Lemma weight_of_lse m s x : 0 < s -> weight (fin (m + ln s)) x = s * weight (fin m) x.
Proof.
  intro p. cbn. replace (m + ln s - pivot x) with (ln s + (m - pivot x)) by ring. now rewrite exp_plus, exp_ln.
Qed.

(** At any pivot the same pair comes out. *)
Lemma part_at_any_pivot s o m r : 0 < s ->
  part_of (Acc (fin m) s o) = part_of (Acc (fin r) (s * exp (m - r)) (o * exp (m - r))).
Proof.
  intro p. unfold part_of; cbn [top total out]. pose proof (exp_pos (m - r)). f_equal.
  - f_equal. rewrite ln_mult, ln_exp by trivial. ring.
  - field. lra.
Qed.

(** The merge of pairs is the merge of what they stand for. *)
Theorem merge_parts_is_merge a b : proper a -> proper b ->
  merge_parts (part_of a) (part_of b) = part_of (merge a b).
Proof.
  destruct a as [[|m] s o], b as [[|n] t q]; unfold proper; cbn [top total out].
  - intros [-> ->] [-> ->]. reflexivity.
  - intros [-> ->] p. change (Acc minus_inf 0 0) with nothing.
    rewrite (proj2 (merge_attention_nothing (Acc (fin n) t q) p)).
    unfold merge_parts, part_of; cbn [fst snd empty_part nothing top total out hmax]; cbn zeta.
    rewrite weight_self. cbn [weight].
    f_equal; [f_equal; rewrite Rplus_0_l, ln_1; ring | field; lra].
  - intros p [-> ->]. change (Acc minus_inf 0 0) with nothing.
    rewrite (proj1 (merge_attention_nothing (Acc (fin m) s o) p)).
    unfold merge_parts, part_of; cbn [fst snd empty_part nothing top total out hmax]; cbn zeta.
    rewrite weight_self. cbn [weight].
    f_equal; [f_equal; rewrite Rplus_0_r, ln_1; ring | field; lra].
  - intros p p'. unfold merge; cbn [top total out hmax].
    set (l := Rmax (m + ln s) (n + ln t)). set (r := Rmax m n).
    pose proof (exp_pos (m - r)). pose proof (exp_pos (n - r)).
    assert (0 < s * exp (m - r)) by now apply Rmult_lt_0_compat.
    assert (0 < t * exp (n - r)) by now apply Rmult_lt_0_compat.
    rewrite (part_at_any_pivot _ _ r l) by (cbn; lra).
    unfold merge_parts, part_of; cbn [fst snd top total out hmax]; cbn zeta. fold l.
    rewrite !weight_of_lse by assumption. cbn [weight pivot].
    assert (ea : exp (m - r) * exp (r - l) = exp (m - l)) by (rewrite <- exp_plus; f_equal; ring).
    assert (eb : exp (n - r) * exp (r - l) = exp (n - l)) by (rewrite <- exp_plus; f_equal; ring).
    rewrite !Rmult_plus_distr_r, !Rmult_assoc, ea, eb.
    pose proof (exp_pos (m - l)). pose proof (exp_pos (n - l)).
    assert (0 < s * exp (m - l)) by now apply Rmult_lt_0_compat.
    assert (0 < t * exp (n - l)) by now apply Rmult_lt_0_compat.
    f_equal. field. repeat split; lra.
Qed.

Theorem merge_parts_comm a b : merge_parts a b = merge_parts b a.
Proof.
  unfold merge_parts. rewrite (hmax_comm (fst b)). destruct (hmax (fst a) (fst b)); [reflexivity|].
  cbn zeta. rewrite (Rplus_comm (weight (fst b) _)). f_equal. ring.
Qed.

Theorem merge_parts_assoc a b c : normal a -> normal b -> normal c ->
  merge_parts (merge_parts a b) c = merge_parts a (merge_parts b c).
Proof.
  intros na nb nc. rewrite <- (part_of_accumulator a na), <- (part_of_accumulator b nb), <- (part_of_accumulator c nc).
  pose proof (proper_of_part a). pose proof (proper_of_part b). pose proof (proper_of_part c).
  rewrite !merge_parts_is_merge by (trivial; now apply proper_merge). now rewrite merge_attention_assoc.
Qed.

(** A part that saw nothing leaves the other as it is. *)
Theorem merge_parts_empty a : normal a -> merge_parts a empty_part = a /\ merge_parts empty_part a = a.
Proof.
  intro n. rewrite (merge_parts_comm empty_part). assert (e : merge_parts a empty_part = a); [|now split].
  rewrite <- (part_of_accumulator a n) at 1. change empty_part with (part_of nothing).
  rewrite merge_parts_is_merge by (apply proper_of_part || easy).
  rewrite (proj1 (merge_attention_nothing _ (proper_of_part a))). now apply part_of_accumulator.
Qed.

Theorem merge_parts_is_normal a b : normal (merge_parts a b).
Proof. unfold normal, merge_parts. now destruct (hmax (fst a) (fst b)). Qed.

(** The normal form of an accumulator that holds keys is (lse, attention) of the keys, whatever its pivot. *)
Theorem part_of_held_keys a ks : holds a ks -> proper a -> part_of a = part_of_keys ks.
Proof.
  intros h p. pose proof (value_is_attention a ks h) as v. destruct h as (n & s & o).
  unfold part_of, part_of_keys, value, proper in *. destruct (top a) as [|r].
  - specialize (n eq_refl). unfold lse, attention. now rewrite n.
  - assert (f : has_finite (scores ks)).
    { apply row_max_finite. destruct (row_max (scores ks)) as [|m] eqn:e; [|now exists m].
      rewrite s, row_of_minus_inf in p by exact e. lra. }
    pose proof f as f'. apply row_max_finite in f' as [m e]. unfold lse. rewrite e, v. do 2 f_equal.
    rewrite s, sum_exp_at, (any_pivot_has_the_lse _ r 0 f). ring.
Qed.

(** Parts of the keys merge to the part of all, *)
Theorem merge_of_parts_of_keys xs ys : merge_parts (part_of_keys xs) (part_of_keys ys) = part_of_keys (xs ++ ys).
Proof.
  pose proof (proper_of_keys xs). pose proof (proper_of_keys ys).
  rewrite <- !(part_of_held_keys _ _ (holds_of_keys _)) by apply proper_of_keys.
  rewrite merge_parts_is_merge by assumption. now rewrite merge_of_keys.
Qed.

Lemma part_of_keys_any_order xs ys : Permutation xs ys -> part_of_keys xs = part_of_keys ys.
Proof.
  intro p. rewrite <- !(part_of_held_keys _ _ (holds_of_keys _)) by apply proper_of_keys.
  now rewrite (proj1 (attention_any_order _ _ p)).
Qed.

(** along any tree and in any order. *)
Theorem any_tree_of_parts t splits ks :
  leaves t = map part_of_keys splits -> Permutation (concat splits) ks ->
  merged merge_parts empty_part t = part_of_keys ks.
Proof.
  intros e p. rewrite <- (part_of_keys_any_order _ _ p). clear p ks. revert splits e.
  induction t as [|a|l IHl r IHr]; intros splits e; cbn [leaves merged] in *.
  - symmetry in e. apply map_eq_nil in e. now subst.
  - destruct splits as [|k [|k' splits]]; try discriminate. injection e as ->. cbn. now rewrite app_nil_r.
  - symmetry in e. apply map_eq_app in e as (pl & pr & -> & el & er).
    rewrite (IHl pl), (IHr pr), merge_of_parts_of_keys by congruence. now rewrite concat_app.
Qed.

(** ** Sinks

    A sink is one more key: its logit is the score, its value 0 (or any). *)

Definition sink (z : height) : key := (z, 0).

Definition with_sink (p : part) (z : height) : part := merge_parts p (part_of_keys [sink z]).

(** The part of a sink is its logit and 0; of no sink, nothing. *)
Theorem part_of_a_sink z : part_of_keys [sink z] = (z, 0).
Proof.
  rewrite <- (part_of_held_keys _ _ (holds_of_keys _)) by apply proper_of_keys.
  destruct z as [|t]; [reflexivity|].
  unfold part_of, of_keys, values_at; cbn [scores map fst row_max hmax sink top total out sum_at weighted].
  rewrite weight_self. f_equal; [f_equal; rewrite Rplus_0_r, ln_1; ring | field].
Qed.

(** Merged once, after the last of the keys, it is attention over the keys and the sink. *)
Theorem sink_once ks z : with_sink (part_of_keys ks) z = part_of_keys (ks ++ [sink z]).
Proof. apply merge_of_parts_of_keys. Qed.

(** The sum of exp (score) * value. *)
Definition numerator (ks : list key) : R := weighted exp_of ks.

Lemma attention_is_a_quotient ks : has_finite (scores ks) -> attention ks = numerator ks / sum_exp (scores ks).
Proof.
  intro f. pose proof f as f'. apply row_max_finite in f' as [m e]. unfold attention, numerator. rewrite e.
  symmetry. apply weighted_scaled. reflexivity.
Qed.

Lemma sum_exp_app x y : sum_exp (x ++ y) = sum_exp x + sum_exp y.
Proof. rewrite !sum_exp_at. apply sum_at_app. Qed.

Lemma sum_exp_nonneg x : 0 <= sum_exp x.
Proof. rewrite sum_exp_at. apply sum_at_nonneg. Qed.

(** Every split with a sink of its own. *)
Definition with_sinks_each (t : R) (splits : list (list key)) : list key :=
  concat (map (fun ks => ks ++ [sink (fin t)]) splits).

Lemma sums_with_sinks_each t splits :
  numerator (with_sinks_each t splits) = numerator (concat splits) /\
  sum_exp (scores (with_sinks_each t splits)) = sum_exp (scores (concat splits)) + INR (length splits) * exp t.
Proof.
  unfold with_sinks_each, numerator. induction splits as [|ks splits [IHn IHs]]; [cbn; split; ring|].
  cbn [map concat length]. rewrite S_INR, !weighted_app, !scores_app, !sum_exp_app, IHn, IHs. cbn. split; ring.
Qed.

(** The right output: e = exp (sink) is in the sum once. *)
Theorem value_with_a_sink ks t :
  attention (ks ++ [sink (fin t)]) = numerator ks / (sum_exp (scores ks) + exp t).
Proof.
  rewrite attention_is_a_quotient.
  - unfold numerator. rewrite weighted_app, scores_app, sum_exp_app. cbn.
    f_equal; [ring | f_equal; ring].
  - exists t. rewrite scores_app. apply in_or_app. right. now left.
Qed.

(** Merged with each of k splits, e is in the sum k times. *)
Theorem value_with_a_sink_for_each_split splits t : splits <> [] ->
  attention (with_sinks_each t splits) =
    numerator (concat splits) / (sum_exp (scores (concat splits)) + INR (length splits) * exp t).
Proof.
  intro n. destruct (sums_with_sinks_each t splits) as [en es].
  rewrite attention_is_a_quotient, en, es; [reflexivity|].
  destruct splits as [|ks splits]; [easy|]. exists t. unfold with_sinks_each. cbn [map concat].
  rewrite !scores_app. apply in_or_app. left. apply in_or_app. right. now left.
Qed.

(** So the output shrinks by (s + e) / (s + k e), and is wrong for two splits or more, wherever it is not 0. *)
Theorem sink_for_each_split_is_wrong splits t :
  let right := attention (concat splits ++ [sink (fin t)]) in
  let wrong := attention (with_sinks_each t splits) in
  let s := sum_exp (scores (concat splits)) in
  splits <> [] ->
  wrong = right * ((s + exp t) / (s + INR (length splits) * exp t)) /\
  ((2 <= length splits)%nat -> right <> 0 -> wrong <> right).
Proof.
  intros right wrong s n.
  assert (k1 : 1 <= INR (length splits)).
  { destruct splits as [|ks splits]; [easy|]. cbn [length]. rewrite S_INR. pose proof (pos_INR (length splits)). lra. }
  pose proof (exp_pos t) as e. assert (p : 0 <= s) by apply sum_exp_nonneg.
  assert (q : 0 < s + INR (length splits) * exp t).
  { assert (1 * exp t <= INR (length splits) * exp t) by (apply Rmult_le_compat_r; lra). lra. }
  assert (ratio : wrong = right * ((s + exp t) / (s + INR (length splits) * exp t))).
  { unfold wrong, right. rewrite value_with_a_sink, value_with_a_sink_for_each_split by exact n. fold s. field. lra. }
  split; [exact ratio|]. intros two nz eq. rewrite ratio in eq.
  assert (k2 : 2 <= INR (length splits)) by (apply le_INR in two; cbn in two; lra).
  assert (one : (s + exp t) / (s + INR (length splits) * exp t) = 1).
  { apply Rmult_eq_reg_l with right; [now rewrite eq, Rmult_1_r | exact nz]. }
  apply (f_equal (fun z => z * (s + INR (length splits) * exp t))) in one.
  unfold Rdiv in one. rewrite Rmult_assoc, Rinv_l in one by lra.
  assert (2 * exp t <= INR (length splits) * exp t) by (apply Rmult_le_compat_r; lra). lra.
Qed.

(** That is what merging parts with a sink each computes. *)
Theorem merging_a_sink_for_each_split t splits tr :
  leaves tr = map (fun ks => with_sink (part_of_keys ks) (fin t)) splits ->
  merged merge_parts empty_part tr = part_of_keys (with_sinks_each t splits).
Proof.
  intro e. apply any_tree_of_parts with (splits := map (fun ks => ks ++ [sink (fin t)]) splits); [|reflexivity].
  rewrite e, map_map. apply map_ext. intro ks. apply sink_once.
Qed.

(** Where no key is left, a sink gives output 0 and its logit as log-sum-exp. *)
Theorem sink_alone ks z : row_max (scores ks) = minus_inf -> with_sink (part_of_keys ks) z = (z, 0).
Proof.
  intro e. unfold with_sink.
  assert (n : part_of_keys ks = empty_part) by (unfold part_of_keys, lse, attention; now rewrite e).
  rewrite n, part_of_a_sink. apply merge_parts_empty. easy.
Qed.

(** A sink of -inf is none. *)
Theorem no_sink ks : with_sink (part_of_keys ks) minus_inf = part_of_keys ks.
Proof.
  unfold with_sink. rewrite part_of_a_sink. apply merge_parts_empty.
  unfold normal, part_of_keys, lse, attention; cbn. now destruct (row_max (scores ks)).
Qed.
