(** How often a stream finds a new maximum: at its (k+1)-th entry in exactly one order of k+1.

    Of C distinct values, take every order in which they can stand, each once. Shown: there are C! of them; those whose
    (k+1)-th entry is a new maximum are C!/(k+1), so in a random order it is one with probability 1/(k+1); and the new
    maxima of all orders are C! * (1 + 1/2 + ... + 1/C), so a random order has the harmonic number H_C of them, the first
    entry included. A rescale by a factor below 1 happens at the others: H_C - 1 on average.

    The idea: put the least value into an order of the others. Wherever it stands it makes no new maximum (save in the
    first place) and hides none. *)

From Coq Require Import Reals List Lra Lia Permutation Sorted Arith.
From OnlineSoftmax Require Import Law Streaming.
Import ListNotations.
Open Scope nat_scope.

(** * New maxima *)

(** a < b. *)
Definition hlt (a b : height) : bool :=
  match a, b with
  | _, minus_inf => false
  | minus_inf, fin _ => true
  | fin x, fin y => if Rlt_dec x y then true else false
  end.

(** The row of these values. *)
Definition heights (p : list R) : row := map fin p.

(** The (k+1)-th value raises the maximum of those before it. *)
Definition new_maximum (k : nat) (p : list R) : bool :=
  hlt (row_max (heights (firstn k p))) (row_max (heights (firstn (S k) p))).

(** [ps] holds every order of [values], each once. *)
Definition all_orders (values : list R) (ps : list (list R)) : Prop :=
  NoDup ps /\ forall p, In p ps <-> Permutation values p.

(** How many of them have a new maximum at place k+1. *)
Definition count (k : nat) (ps : list (list R)) : nat := length (filter (new_maximum k) ps).

(** * An enumeration *)

(** p with v in each place. *)
Fixpoint inserts (v : R) (p : list R) : list (list R) :=
  (v :: p) :: match p with [] => [] | a :: q => map (cons a) (inserts v q) end.

Fixpoint orders (l : list R) : list (list R) :=
  match l with [] => [[]] | v :: rest => flat_map (inserts v) (orders rest) end.

Lemma inserts_spec : forall v p w, In w (inserts v p) <-> exists a b, p = a ++ b /\ w = a ++ v :: b.
Proof.
  intros v. induction p as [|c p IH]; intro w; cbn.
  - split.
    + intros [<-|[]]. now exists [], [].
    + intros (a & b & e & ->). symmetry in e. apply app_eq_nil in e as [-> ->]. now left.
  - rewrite in_map_iff. split.
    + intros [<-|(w' & <- & i)]; [now exists [], (c :: p)|].
      apply IH in i as (a & b & -> & ->). now exists (c :: a), b.
    + intros ([|c' a] & b & e & ->); cbn in *; [left; now subst|].
      injection e as <- ->. right. exists (a ++ v :: b). split; [easy|]. apply IH. now exists a, b.
Qed.

Lemma orders_spec : forall l p, In p (orders l) <-> Permutation l p.
Proof.
  induction l as [|v l IH]; intro p; cbn.
  - split; [intros [<-|[]]; constructor | intro e; apply Permutation_nil in e; now left].
  - rewrite in_flat_map. split.
    + intros (q & i & j). apply IH in i. apply inserts_spec in j as (a & b & -> & ->).
      rewrite i. apply Permutation_middle.
    + intro e. assert (i : In v p) by (apply (Permutation_in _ e); now left).
      apply in_split in i as (a & b & ->). exists (a ++ b). split.
      * apply IH. now apply Permutation_cons_app_inv with v.
      * apply inserts_spec. now exists a, b.
Qed.

Lemma inserts_NoDup : forall v p, ~ In v p -> NoDup (inserts v p).
Proof.
  intros v. induction p as [|a p IH]; cbn; intro no.
  - constructor; [easy | constructor].
  - constructor.
    + rewrite in_map_iff. intros (w & e & _). injection e as e _. intuition.
    + apply FinFun.Injective_map_NoDup; [|apply IH; intuition]. intros x y e. now injection e.
Qed.

Lemma remove_inserted : forall v a b, ~ In v (a ++ b) -> remove Req_EM_T v (a ++ v :: b) = a ++ b.
Proof.
  intros v a b no. rewrite remove_app. cbn. destruct (Req_EM_T v v); [|easy].
  rewrite in_app_iff in no. rewrite !notin_remove by intuition. reflexivity.
Qed.

Lemma orders_NoDup : forall l, NoDup l -> NoDup (orders l).
Proof.
  induction 1 as [|v l no _ IH]; cbn; [constructor; [easy | constructor]|].
  assert (fresh : forall p, In p (orders l) -> ~ In v p).
  { intros p i. apply orders_spec in i. contradict no. apply Permutation_in with p; [now symmetry | easy]. }
  induction IH as [|p ps new _ IH']; cbn; [constructor|].
  assert (apart : forall w, In w (inserts v p) -> In w (flat_map (inserts v) ps) -> False).
  { intros w i j. apply in_flat_map in j as (q & k & j).
    apply inserts_spec in i as (a & b & -> & ->). apply inserts_spec in j as (a' & b' & -> & e).
    apply new. replace (a ++ b) with (a' ++ b'); [exact k|].
    rewrite <- (remove_inserted v a' b') by (apply fresh; now right).
    rewrite <- (remove_inserted v a b) by (apply fresh; now left). now rewrite e. }
  assert (first : NoDup (inserts v p)) by (apply inserts_NoDup, fresh; now left).
  assert (others : NoDup (flat_map (inserts v) ps)) by (apply IH'; intros; apply fresh; now right).
  revert apart. induction first as [|w ws out _ IHw]; cbn; intro apart; [exact others|].
  constructor.
  - rewrite in_app_iff. intros [i|i]; [easy|]. apply (apart w); auto.
  - apply IHw. intros u i. apply apart. now right.
Qed.

(** Every list of distinct values has its orders, so what follows is not about nothing. *)
Theorem all_orders_exist : forall values, NoDup values -> all_orders values (orders values).
Proof. intros values d. split; [now apply orders_NoDup | apply orders_spec]. Qed.

(** * Counting *)

(** As [new_maximum], with b the maximum of what came before. *)
Fixpoint rises (b : height) (k : nat) (p : list R) : bool :=
  match p, k with
  | [], _ => false
  | a :: _, O => hlt b (fin a)
  | a :: q, S k => rises (hmax b (fin a)) k q
  end.

Lemma hlt_hmax : forall b h, hlt b (hmax b h) = hlt b h.
Proof.
  intros [|x] [|y]; cbn; try reflexivity.
  - destruct (Rlt_dec x x); lra || reflexivity.
  - unfold Rmax. destruct (Rle_dec x y); [reflexivity|].
    destruct (Rlt_dec x x), (Rlt_dec x y); lra || reflexivity.
Qed.

Lemma rises_spec : forall p b k, rises b k p =
  hlt (hmax b (row_max (heights (firstn k p)))) (hmax b (row_max (heights (firstn (S k) p)))).
Proof.
  induction p as [|a p IH]; intros b [|k].
  - cbn. rewrite hmax_minus_inf_r. destruct b as [|x]; cbn; [easy|]. destruct (Rlt_dec x x); lra || easy.
  - cbn. rewrite hmax_minus_inf_r. destruct b as [|x]; cbn; [easy|]. destruct (Rlt_dec x x); lra || easy.
  - cbn [rises firstn heights map row_max]. now rewrite !hmax_minus_inf_r, hlt_hmax.
  - cbn [rises]. rewrite IH. rewrite !firstn_cons. cbn [heights map row_max]. now rewrite !hmax_assoc.
Qed.

Lemma new_maximum_rises : forall k p, new_maximum k p = rises minus_inf k p.
Proof. intros. now rewrite rises_spec. Qed.

Definition bit (b : bool) : nat := if b then 1 else 0.

Definition tally (f : list R -> bool) (ps : list (list R)) : nat := length (filter f ps).

Lemma tally_cons : forall f p ps, tally f (p :: ps) = bit (f p) + tally f ps.
Proof. intros. unfold tally. cbn. now destruct (f p). Qed.

Lemma tally_app : forall f ps qs, tally f (ps ++ qs) = tally f ps + tally f qs.
Proof. intros. unfold tally. now rewrite filter_app, app_length. Qed.

Lemma tally_map : forall f g ps, tally f (map g ps) = tally (fun p => f (g p)) ps.
Proof. induction ps as [|p ps IH]; cbn [map]; [reflexivity|]. now rewrite !tally_cons, IH. Qed.

Lemma inserts_length : forall v p, length (inserts v p) = S (length p).
Proof. induction p as [|a p IH]; cbn; [reflexivity|]. now rewrite map_length, IH. Qed.

Lemma tally_constant : forall (b : bool) (ps : list (list R)), tally (fun _ => b) ps = length ps * bit b.
Proof. intros b ps. induction ps as [|p ps IH]; [reflexivity|]. rewrite tally_cons, IH. cbn. lia. Qed.

(** A value below all that follow changes no later rise. *)
Lemma rises_above : forall v p b k, (forall a, In a p -> (v < a)%R) -> rises (hmax b (fin v)) k p = rises b k p.
Proof.
  intros v [|a p] b [|k] low; cbn [rises]; try reflexivity.
  - assert (v < a)%R by (apply low; now left). destruct b as [|x]; cbn.
    + destruct (Rlt_dec v a); easy.
    + unfold Rmax. destruct (Rle_dec x v), (Rlt_dec v a), (Rlt_dec x a); lra || reflexivity.
  - assert (v < a)%R by (apply low; now left). f_equal. rewrite <- hmax_assoc. f_equal. cbn. f_equal. apply Rmax_right. lra.
Qed.

(** The least value in each place of p: place k+1 then shows what was in place k where it stands before, k times, and
    what was in place k+1 where it stands behind; in place k+1 it shows nothing. *)
Lemma tally_inserts : forall v p b k, (forall a, In a p -> (v < a)%R) -> k <= length p ->
  (k = 0 -> hle (fin v) b) ->
  tally (rises b k) (inserts v p) = k * bit (rises b (pred k) p) + (length p - k) * bit (rises b k p).
Proof.
  intros v. induction p as [|a p IH]; intros b k low le start.
  - assert (k = 0) as -> by (cbn in le; lia). specialize (start eq_refl).
    cbn [inserts]. rewrite tally_cons. destruct b as [|x]; [easy|]. cbn in *. destruct (Rlt_dec x v); [lra | easy].
  - cbn [inserts]. rewrite tally_cons, tally_map. destruct k as [|k].
    + specialize (start eq_refl). cbn [rises pred length].
      assert (hlt b (fin v) = false) as ->.
      { destruct b as [|x]; [easy|]. cbn in *. destruct (Rlt_dec x v); lra || reflexivity. }
      rewrite tally_constant, inserts_length. cbn. lia.
    + cbn [pred rises length] in *. rewrite rises_above by exact low.
      rewrite IH.
      * destruct k as [|k]; cbn [pred rises]; rewrite ?Nat.sub_0_r; lia.
      * intros; apply low; now right.
      * lia.
      * intros _. assert (v < a)%R by (apply low; now left).
        apply hle_trans with (fin a); [cbn; lra | apply hle_hmax_r].
Qed.

Lemma tally_flat_map : forall f (g : list R -> list (list R)) ps (c : list R -> nat), (forall p, In p ps -> tally f (g p) = c p) ->
  tally f (flat_map g ps) = fold_right (fun p n => c p + n) 0 ps.
Proof.
  intros f g. induction ps as [|p ps IH]; intros c e; [reflexivity|].
  cbn [flat_map fold_right]. rewrite tally_app, (e p) by now left. rewrite (IH c); [reflexivity|].
  intros; apply e; now right.
Qed.

Lemma orders_length : forall l, length (orders l) = fact (length l).
Proof.
  induction l as [|v l IH]; [reflexivity|]. cbn [orders length fact].
  assert (e : forall ps, (forall p, In p ps -> length p = length l) ->
    length (flat_map (inserts v) ps) = S (length l) * length ps).
  { induction ps as [|p ps IHp]; intro same; [cbn; lia|]. cbn [flat_map length].
    rewrite app_length, inserts_length, IHp by (intros; apply same; now right).
    rewrite (same p) by now left. lia. }
  rewrite e, IH; [cbn; lia|]. intros p i. apply orders_spec in i. symmetry. now apply Permutation_length.
Qed.

(** Sorted values: a (k+1)-th part of the orders has its maximum so far in place k+1. *)
Lemma count_sorted : forall l, StronglySorted Rlt l -> forall k, k < length l ->
  (k + 1) * tally (rises minus_inf k) (orders l) = fact (length l).
Proof.
  induction 1 as [|v l _ IH low]; intros k lt; [cbn in lt; lia|].
  assert (all : forall p, In p (orders l) -> length p = length l /\ forall a, In a p -> (v < a)%R).
  { intros p i. apply orders_spec in i. split; [symmetry; now apply Permutation_length|].
    intros a j. rewrite Forall_forall in low. apply low. apply Permutation_in with p; [now symmetry | easy]. }
  destruct k as [|k].
  - assert (t : forall ps, (forall p, In p ps -> p <> []) -> tally (rises minus_inf 0) ps = length ps).
    { induction ps as [|p ps IHp]; intro some; [reflexivity|].
      rewrite tally_cons, IHp by (intros; apply some; now right).
      destruct p as [|a p]; [now destruct (some []); [now left|] | reflexivity]. }
    rewrite t, orders_length; [lia|]. intros p i ->. apply orders_spec in i.
    apply Permutation_sym, Permutation_nil in i. discriminate.
  - cbn [length] in lt. cbn [orders].
    rewrite (tally_flat_map _ _ _ (fun p => S k * bit (rises minus_inf k p) + (length l - S k) * bit (rises minus_inf (S k) p))).
    2:{ intros p i. destruct (all p i) as [e a]. rewrite tally_inserts; [now rewrite e | exact a | lia | easy]. }
    assert (split : forall ps, fold_right
      (fun p n => S k * bit (rises minus_inf k p) + (length l - S k) * bit (rises minus_inf (S k) p) + n) 0 ps =
      S k * tally (rises minus_inf k) ps + (length l - S k) * tally (rises minus_inf (S k)) ps).
    { induction ps as [|p ps IHp]; cbn [fold_right]; [unfold tally; cbn; lia|]. rewrite IHp, !tally_cons. lia. }
    rewrite split. clear split all low.
    assert (a := IH k ltac:(lia)).
    cbn [length]. change (fact (S (length l))) with (S (length l) * fact (length l)).
    assert (part : S k * tally (rises minus_inf k) (orders l) = fact (length l)) by (rewrite <- a; lia).
    rewrite part. destruct (Nat.eq_dec (S k) (length l)) as [e|ne].
    + rewrite <- e at 2. rewrite Nat.sub_diag. lia.
    + assert (b := IH (S k) ltac:(lia)). rewrite Nat.mul_add_distr_l.
      rewrite (Nat.mul_comm (length l - S k)), Nat.mul_assoc, b.
      replace (S (length l)) with (S k + 1 + (length l - S k)) by lia. ring.
Qed.

Lemma sort : forall l : list R, NoDup l -> exists s, Permutation l s /\ StronglySorted Rlt s.
Proof.
  induction 1 as [|v l no _ (s & e & sorted)]; [exists []; now repeat constructor|].
  assert (fresh : ~ In v s) by (contradict no; now apply Permutation_in with s; [symmetry|]).
  assert (ins : exists t, Permutation (v :: s) t /\ StronglySorted Rlt t).
  { clear e no l. induction sorted as [|a s sorted IH low]; [exists [v]; now repeat constructor|].
    destruct (Rlt_le_dec v a) as [lt|le].
    - exists (v :: a :: s). split; [easy|]. constructor; [now constructor|]. constructor; [easy|].
      eapply Forall_impl; [|exact low]. cbn. intros; lra.
    - destruct IH as (t & e & st); [intro; apply fresh; now right|].
      exists (a :: t). split; [rewrite <- e; constructor|]. constructor; [easy|].
      apply Forall_forall. intros b i. apply Permutation_sym in e. apply (Permutation_in _ e) in i as [<-|i].
      + destruct le as [le| ->]; [easy|]. destruct fresh. now left.
      + rewrite Forall_forall in low. auto. }
  destruct ins as (t & e' & st). exists t. split; [|easy]. now rewrite e.
Qed.

Lemma tally_permutation : forall f ps qs, Permutation ps qs -> tally f ps = tally f qs.
Proof. induction 1; rewrite ?tally_cons in *; lia. Qed.

(** * The claims *)

(** C values have C! orders. *)
Theorem number_of_orders : forall values ps, NoDup values -> all_orders values ps -> length ps = fact (length values).
Proof.
  intros values ps d [nd each]. rewrite <- orders_length. apply Permutation_length.
  apply NoDup_Permutation; [easy | now apply orders_NoDup|]. intro p. rewrite each. symmetry. apply orders_spec.
Qed.

(** One order in k+1 has a new maximum at place k+1: probability 1/(k+1). *)
Theorem new_maximum_one_in_k : forall values ps k, NoDup values -> all_orders values ps ->
  k < length values -> (k + 1) * count k ps = fact (length values).
Proof.
  intros values ps k d [nd each] lt. destruct (sort values d) as (s & e & sorted).
  assert (ds : NoDup s) by now apply Permutation_NoDup with values.
  rewrite (Permutation_length e) in *. rewrite <- (count_sorted s sorted k lt). f_equal.
  transitivity (tally (new_maximum k) (orders s)).
  - apply tally_permutation. apply NoDup_Permutation; [easy | now apply orders_NoDup|].
    intro p. rewrite each, orders_spec. now rewrite e.
  - unfold tally. f_equal. apply filter_ext. intro. apply new_maximum_rises.
Qed.

Open Scope R_scope.

(** 1 + 1/2 + ... + 1/C. *)
Fixpoint harmonic (C : nat) : R :=
  match C with O => 0 | S n => harmonic n + / INR (S n) end.

(** The new maxima of one order: over its C places. *)
Definition new_maxima (p : list R) : nat := length (filter (fun k => new_maximum k p) (seq 0 (length p))).

(** All orders together. *)
Fixpoint total (f : list R -> nat) (ps : list (list R)) : nat :=
  match ps with [] => O | p :: rest => (f p + total f rest)%nat end.

Lemma total_by_places : forall C ps,
  total (fun p => length (filter (fun k => new_maximum k p) (seq 0 C))) ps =
  fold_right (fun k n => (count k ps + n)%nat) O (seq 0 C).
Proof.
  intros C ps. generalize (seq 0 C). intro ks. induction ps as [|p ps IH]; cbn [total].
  - induction ks as [|k ks IH]; [reflexivity | exact IH].
  - rewrite IH. clear IH. induction ks as [|k ks IH]; cbn [filter fold_right]; [reflexivity|].
    rewrite <- IH. unfold count. cbn [filter]. destruct (new_maximum k p); cbn; lia.
Qed.

(** The mean number of new maxima is H_C. *)
Theorem mean_number_of_new_maxima : forall values ps, NoDup values -> all_orders values ps ->
  INR (total new_maxima ps) = INR (length ps) * harmonic (length values).
Proof.
  intros values ps d all. rewrite (number_of_orders values ps d all).
  set (C := length values).
  assert (e : total new_maxima ps = total (fun p => length (filter (fun k => new_maximum k p) (seq 0 C))) ps).
  { destruct all as [_ each]. assert (len : forall p, In p ps -> length p = C).
    { intros p i. symmetry. now apply Permutation_length, each. }
    clear each. induction ps as [|p ps IH]; [reflexivity|]. cbn [total]. rewrite IH by (intros; apply len; now right).
    unfold new_maxima. now rewrite (len p) by now left. }
  rewrite e, total_by_places.
  assert (h : forall n, (n <= C)%nat ->
    INR (fold_right (fun k m => (count k ps + m)%nat) O (seq 0 n)) = INR (fact C) * harmonic n).
  { induction n as [|n IH]; intro le; [cbn; ring|]. rewrite seq_S, fold_right_app. cbn [fold_right].
    assert (out : forall ks z, fold_right (fun k m => (count k ps + m)%nat) z ks =
      (fold_right (fun k m => (count k ps + m)%nat) O ks + z)%nat).
    { induction ks as [|k ks IHk]; intro z; cbn; [reflexivity|]. rewrite IHk. lia. }
    rewrite out, plus_INR, IH by lia. cbn [harmonic]. rewrite Rmult_plus_distr_l. f_equal.
    rewrite Nat.add_0_r, Nat.add_0_l.
    assert (c := new_maximum_one_in_k values ps n d all ltac:(fold C; lia)). fold C in c.
    rewrite <- c, mult_INR, Nat.add_1_r. field. apply not_0_INR. lia. }
  now apply h.
Qed.

(** What a new maximum is to the stream, from its second entry on: a rescale by a factor other than 1. *)
Theorem new_maximum_rescales : forall k p, (0 < k < length p)%nat ->
  (new_maximum k p = true <-> weight (row_max (heights (firstn k p))) (row_max (heights (firstn (S k) p))) <> 1).
Proof.
  intros k p [pos lt]. unfold new_maximum.
  assert (nth_ : exists a, firstn (S k) p = firstn k p ++ [a]).
  { clear pos. revert k lt. induction p as [|b p IH]; intros k lt; [cbn in lt; lia|].
    destruct k as [|k]; [now exists b|]. cbn [length] in lt. destruct (IH k ltac:(lia)) as [a e].
    exists a. rewrite !firstn_cons, e. reflexivity. }
  destruct nth_ as [a e]. rewrite e. unfold heights. rewrite map_app. cbn [map]. fold (heights (firstn k p)).
  assert (f : has_finite (heights (firstn k p))).
  { destruct p as [|b p]; [cbn in lt; lia|]. destruct k as [|k]; [lia|]. exists b. now left. }
  apply row_max_finite in f as [m em]. rewrite (rescale_factor_is_1_iff _ (fin a) m em).
  rewrite online_maximum, hlt_hmax, em. cbn. destruct (Rlt_dec m a); split; intro; try lra; try easy.
Qed.
