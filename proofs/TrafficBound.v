(* Why a row must be read twice: a lower bound on the reads of any algorithm whose on-chip state is less than a row.

   An algorithm is a machine with finitely many states: all it has on chip, registers, counters and its place in the
   program. In each state it reads an element of the row, reads or writes a cell of scratch memory, writes an output, or
   halts; what it does next is a function of its state and of the value read. Places to read may depend on all that was
   read before. Elements and cells hold one of v values; outputs are real numbers and cannot be read back (an algorithm
   that wants that has the scratch memory). A read of scratch memory costs what a read of the row does.

   For softmax, whose every output depends on every element and which forgets no more than a common shift:
   - before anything is written, every element has been read: `cached`, which reads a row once, is optimal;
   - a machine with at most v^k states, k elements' worth, reads at least 2C - 1 - k times for some row of C elements:
     `online`, with 2C reads, is optimal but for k + 1 of them. *)
From Coq Require Import Reals List Lia Lra Arith.
From OnlineSoftmax Require Import TrafficMachine.
Import ListNotations.

(* ---- correct machines *)

Section LowerBound.
Variables V Q W : Type.
Variable values : list V.  (* all that an element may be, each once *)
Hypothesis values_differ : NoDup values.
Hypothesis all_values : forall v, In v values.
Variable missing : V.

Variable states : list Q.
Hypothesis all_states : forall q, In q states.

Variable columns : nat.
Definition is_row (x : list V) : Prop := length x = columns.
Definition element (x : list V) (place : nat) : V := nth place x missing.
Definition with_element (x : list V) (place : nat) (v : V) : list V := firstn place x ++ v :: skipn (S place) x.

(* What is to be computed: output i of row x is f x i. *)
Variable f : list V -> nat -> W.

Variable act : Q -> action V Q W.
Variable start : Q.
Variable blank : nat -> V.  (* scratch memory at the start *)
Variable steps : nat.       (* within so many steps it halts *)

Definition computes : Prop :=
  forall x, is_row x -> exists events,
    run V Q W act steps start blank (element x) = Some events /\
    (forall i w, In (Written V W i w) events -> i < columns /\ w = f x i) /\
    (forall i, i < columns -> exists w, In (Written V W i w) events).

Definition reads_of (x : list V) : nat :=
  match run V Q W act steps start blank (element x) with Some events => reads V W events | None => 0 end.

(* Every output depends on every element, whatever the others are. *)
Definition depends : Prop :=
  forall x i j, is_row x -> i < columns -> j < columns -> exists v, f (with_element x j v) i <> f x i.

(* Rows that begin alike have different outputs. *)
Definition separates : Prop :=
  forall v x y, is_row (v :: x) -> is_row (v :: y) -> (forall i, i < columns -> f (v :: x) i = f (v :: y) i) -> x = y.

Lemma with_element_elsewhere x place v other :
  place < length x -> other <> place -> element (with_element x place v) other = element x other.
Proof.
  unfold element, with_element. intros inside apart. rewrite <- (firstn_skipn place x) at 3.
  assert (length (firstn place x) = place) as size by (rewrite firstn_length; lia).
  destruct (Nat.lt_ge_cases other place).
  - rewrite !app_nth1 by lia. reflexivity.
  - rewrite !app_nth2 by lia. rewrite size. destruct (skipn place x) as [| e rest] eqn:tail.
    { apply (f_equal (@length V)) in tail. rewrite skipn_length in tail. simpl in tail. lia. }
    replace (skipn (S place) x) with rest.
    + destruct (other - place) as [| further] eqn:gap; [lia | reflexivity].
    + symmetry. now apply (skipn_next _ place x e).
Qed.

Lemma with_element_is_row x place v : is_row x -> place < columns -> is_row (with_element x place v).
Proof.
  unfold is_row, with_element. intros size near. rewrite app_length, firstn_length. cbn [length]. rewrite skipn_length. lia.
Qed.

(* Before anything is written, every element has been read. *)
Theorem all_is_read_before_a_write :
  computes -> depends ->
  forall x before i w after,
    is_row x -> run V Q W act steps start blank (element x) = Some (before ++ Written V W i w :: after) ->
    forall j, j < columns -> exists v, In (FromRow V W j v) before.
Proof.
  intros correct dependent x before i w after row all j near.
  destruct (correct _ row) as (events & found & right & _). rewrite all in found. injection found as <-.
  destruct (right i w) as [inside value]; [apply in_or_app; right; now left |].
  destruct (in_dec Nat.eq_dec j (flat_map (fun e => match e with FromRow _ _ p _ => [p] | _ => [] end) before))
    as [there | unread].
  { apply in_flat_map in there. destruct there as ([p v | p v | p v] & there & here); simpl in here; try tauto.
    destruct here as [-> |]; [now exists v | tauto]. }
  exfalso. destruct (dependent x i j row inside near) as (v & different).
  pose proof (with_element_is_row x j v row near) as row'.
  destruct (correct _ row') as (events' & found' & right' & _).
  destruct (unread_place V Q W act steps start blank (element x) (element (with_element x j v)) j events' before i w after)
    as [after' ->]; try assumption.
  - intros other apart. apply with_element_elsewhere; [unfold is_row in row; lia | assumption].
  - intros u there. apply unread. apply in_flat_map. exists (FromRow V W j u). split; [assumption | now left].
  - apply different. destruct (right' i w) as [_ value']; [apply in_or_app; right; now left |]. congruence.
Qed.

Lemma nothing_written before i w : flat_map (written V W) before = [] -> ~ In (Written V W i w) before.
Proof.
  intros none there. assert (In (i, w) (flat_map (written V W) before)) as here.
  { apply in_flat_map. exists (Written V W i w). split; [assumption | now left]. }
  rewrite none in here. destruct here.
Qed.

Lemma reads_app l k : reads V W (l ++ k) = reads V W l + reads V W k.
Proof. unfold reads. now rewrite flat_map_app, app_length. Qed.

(* As many reads as places that were read. *)
Lemma places_are_reads l : (forall j, j < columns -> exists v, In (FromRow V W j v) l) -> columns <= reads V W l.
Proof.
  intros all. set (places := flat_map (fun e => match e with FromRow _ _ p _ => [p] | _ => [] end) l).
  assert (length places <= reads V W l) as few.
  { unfold places, reads. clear. induction l as [| [p v | p v | p v] l IH]; simpl; lia. }
  assert (length (seq 0 columns) <= length places) as many.
  { apply NoDup_incl_length; [apply seq_NoDup |]. intros j near. apply in_seq in near.
    destruct (all j) as [v there]; [lia |]. unfold places. apply in_flat_map.
    exists (FromRow V W j v). split; [assumption | now left]. }
  rewrite seq_length in many. lia.
Qed.

(* What a run comes to: the state at the first write, what is read from there on, and the outputs by these alone. *)
Definition told (x : list V) : Q * list V := at_first_write V Q W act steps start blank (element x).

Lemma outputs_by_what_is_told x :
  computes -> depends -> 0 < columns -> is_row x ->
  columns + length (snd (told x)) <= reads_of x /\
  forall rest, exists outputs,
    replay V Q W act missing steps (fst (told x)) (snd (told x) ++ rest) = Some outputs /\
    (forall i w, In (i, w) outputs -> w = f x i) /\ (forall i, i < columns -> exists w, In (i, w) outputs).
Proof.
  intros correct dependent some row. destruct (correct x row) as (events & all & right & complete).
  destruct (first_write V Q W act steps start blank (element x) events all)
    as (before & after & scratch & -> & none & state & again & start_).
  unfold told. rewrite state. cbn [fst snd].
  assert (forall i w, In (Written V W i w) (before ++ after) -> In (Written V W i w) after) as late.
  { intros i w there. apply in_app_or in there. destruct there as [there | there]; [| assumption].
    now apply nothing_written in there. }
  split.
  - unfold reads_of. rewrite all, reads_app. apply Nat.add_le_mono_r.
    destruct (complete 0 some) as [w there]. apply late in there.
    destruct start_ as [-> | (i & u & later & ->)]; [destruct there |].
    apply places_are_reads. apply (all_is_read_before_a_write correct dependent x before i u later row all).
  - intros rest. exists (flat_map (written V W) after).
    rewrite (replay_run V Q W act missing steps _ scratch (element x) after rest again). split; [reflexivity |]. split.
    + intros i w there. apply in_flat_map in there.
      destruct there as ([p v | p v | p v] & there & here); simpl in here; try tauto.
      destruct here as [same | []]. injection same as -> ->.
      apply (right i w). apply in_or_app. now right.
    + intros i inside. destruct (complete i inside) as [w there]. exists w. apply late in there. apply in_flat_map.
      exists (Written V W i w). split; [assumption | now left].
Qed.

Theorem reads_once x : computes -> depends -> 0 < columns -> is_row x -> columns <= reads_of x.
Proof. intros correct dependent some row. destruct (outputs_by_what_is_told x correct dependent some row). lia. Qed.

(* The same told, the same outputs: rows that begin alike are then the same. *)
Lemma told_apart t u r :
  computes -> depends -> separates -> 0 < columns -> is_row (missing :: t) -> is_row (missing :: u) ->
  length (snd (told (missing :: t))) <= r -> length (snd (told (missing :: u))) <= r ->
  fst (told (missing :: t)) = fst (told (missing :: u)) ->
  snd (told (missing :: t)) ++ repeat missing (r - length (snd (told (missing :: t)))) =
  snd (told (missing :: u)) ++ repeat missing (r - length (snd (told (missing :: u)))) ->
  t = u.
Proof.
  intros correct dependent separate some row row' _ _ state what. apply (separate missing); try assumption.
  intros i inside.
  destruct (outputs_by_what_is_told _ correct dependent some row) as [_ outputs].
  destruct (outputs_by_what_is_told _ correct dependent some row') as [_ outputs'].
  destruct (outputs (repeat missing (r - length (snd (told (missing :: t)))))) as (o & found & right & complete).
  destruct (outputs' (repeat missing (r - length (snd (told (missing :: u)))))) as (o' & found' & right' & _).
  rewrite state, what, found' in found. injection found as <-.
  destruct (complete i inside) as [w there]. rewrite <- (right i w there). symmetry. symmetry. now apply right'.
Qed.

(* With a state of less than a row, a row must be read twice, but for what the state holds and one element. *)
Theorem reads_twice k :
  computes -> depends -> separates -> 0 < columns -> 2 <= length values -> length states <= length values ^ k ->
  exists x, is_row x /\ 2 * columns - 1 - k <= reads_of x.
Proof.
  intros correct dependent separate some two few.
  assert (forall t, In t (lists V values (columns - 1)) -> is_row (missing :: t)) as rows.
  { intros t there. apply lists_only in there. unfold is_row. simpl. lia. }
  destruct (Exists_dec (fun t => 2 * columns - 1 - k <= reads_of (missing :: t)) (lists V values (columns - 1)))
    as [found | none].
  - intros t. apply le_dec.
  - apply Exists_exists in found. destruct found as (t & there & many). exists (missing :: t). auto.
  - exfalso. set (r := columns - 2 - k).
    assert (forall t, In t (lists V values (columns - 1)) ->
            k <= columns - 2 /\ 2 <= columns /\ length (snd (told (missing :: t))) <= r) as short.
    { intros t there. destruct (outputs_by_what_is_told _ correct dependent some (rows t there)) as [total _].
      assert (reads_of (missing :: t) < 2 * columns - 1 - k) as less.
      { apply not_le. intros many. apply none. apply Exists_exists. now exists t. }
      unfold r. lia. }
    set (g := fun t => (fst (told (missing :: t)),
                        snd (told (missing :: t)) ++ repeat missing (r - length (snd (told (missing :: t)))))).
    assert (NoDup (map g (lists V values (columns - 1)))) as different.
    { apply map_differs; [now apply lists_differ |]. intros t u here there same. injection same as state what.
      apply (told_apart t u r); try assumption; try (apply rows; assumption); apply short; assumption. }
    assert (incl (map g (lists V values (columns - 1))) (list_prod states (lists V values r))) as within.
    { intros pair there. apply in_map_iff in there. destruct there as (t & <- & there). apply in_prod; [apply all_states |].
      apply lists_all; [| intros v _; apply all_values]. destruct (short t there) as (_ & _ & size).
      rewrite app_length, repeat_length. lia. }
    pose proof (NoDup_incl_length different within) as count.
    rewrite map_length, prod_length, !lists_length in count.
    assert (k <= columns - 2 /\ 2 <= columns) as [room two'].
    { destruct (lists V values (columns - 1)) as [| t rest] eqn:all_.
      - apply (f_equal (@length _)) in all_. rewrite lists_length in all_. simpl in all_.
        apply Nat.pow_nonzero in all_; lia.
      - destruct (short t (or_introl eq_refl)) as (? & ? & _). lia. }
    assert (length values ^ (columns - 1) <= length values ^ (columns - 2)) as much.
    { replace (columns - 2) with (k + r) by (unfold r; lia). rewrite Nat.pow_add_r.
      eapply Nat.le_trans; [exact count |]. now apply Nat.mul_le_mono_r. }
    apply Nat.pow_le_mono_r_iff in much; lia.
Qed.
End LowerBound.

(* ---- softmax *)

Section Softmax.
Open Scope R_scope.
Variable V : Type.
Variable real : V -> R.  (* the number that an element is *)
Hypothesis real_apart : forall a b, real a = real b -> a = b.
Variable missing : V.

Fixpoint normaliser (x : list V) : R :=
  match x with
  | [] => 0
  | v :: rest => exp (real v) + normaliser rest
  end.

Definition softmax (x : list V) (i : nat) : R := exp (real (nth i x missing)) / normaliser x.

Lemma same_inverse a b : 0 < a -> 0 < b -> / a = / b -> a = b.
Proof.
  intros left_ right_ same. apply (f_equal Rinv) in same. rewrite !Rinv_inv in same. exact same.
Qed.

Lemma normaliser_app l k : normaliser (l ++ k) = normaliser l + normaliser k.
Proof. induction l as [| v l IH]; simpl; [lra | rewrite IH; lra]. Qed.

Lemma normaliser_positive x : (0 < length x)%nat -> 0 < normaliser x.
Proof.
  destruct x as [| v x]; simpl; [lia | intros _]. pose proof (exp_pos (real v)).
  assert (0 <= normaliser x); [| lra]. clear. induction x as [| v x IH]; simpl; [lra |]. pose proof (exp_pos (real v)). lra.
Qed.

Lemma split_at x j : (j < length x)%nat -> x = firstn j x ++ nth j x missing :: skipn (S j) x.
Proof.
  revert j. induction x as [| v x IH]; intros [| j]; simpl; intros near; try lia; [reflexivity |].
  f_equal. apply IH. lia.
Qed.

Lemma softmax_depends (values : list V) columns :
  NoDup values -> (2 <= length values)%nat -> (2 <= columns)%nat -> depends V R columns softmax.
Proof.
  intros different two wide x i j row inside near. unfold is_row in row.
  set (a := nth j x missing).
  assert (exists v, v <> a) as [v other].
  { destruct values as [| u [| w rest]]; simpl in two; try lia. inversion_clear different as [| ? ? new _].
    destruct (Req_dec (real u) (real a)) as [same | apart].
    - exists w. intros ->. apply new. left. symmetry. now apply real_apart.
    - exists u. congruence. }
  exists v. unfold softmax. intros same.
  assert (real v <> real a) as apart by (intros e; now apply other, real_apart).
  assert (exp (real v) <> exp (real a)) as apart' by (intros e; now apply apart, exp_inv).
  set (rest := normaliser (firstn j x) + normaliser (skipn (S j) x)).
  assert (normaliser x = rest + exp (real a)) as before.
  { rewrite (split_at x j) at 1 by lia. rewrite normaliser_app. cbn [normaliser]. unfold rest, a. ring. }
  assert (normaliser (with_element V x j v) = rest + exp (real v)) as after.
  { unfold with_element. rewrite normaliser_app. cbn [normaliser]. unfold rest. ring. }
  assert (0 < rest) as some.
  { unfold rest. rewrite <- normaliser_app. apply normaliser_positive.
    rewrite app_length, firstn_length, skipn_length. lia. }
  rewrite before, after in same. pose proof (exp_pos (real a)). pose proof (exp_pos (real v)).
  destruct (Nat.eq_dec i j) as [-> | elsewhere].
  - assert (nth j (with_element V x j v) missing = v) as here.
    { unfold with_element. rewrite app_nth2; rewrite firstn_length; [| lia]. now replace (j - _)%nat with 0%nat by lia. }
    rewrite here in same. fold a in same. apply apart'.
    apply (f_equal (fun y => y * (rest + exp (real v)) * (rest + exp (real a)))) in same. field_simplify in same; [| lra ..].
    nra.
  - pose proof (with_element_elsewhere V missing x j v i) as elsewhere'. unfold element in elsewhere'.
    rewrite elsewhere' in same by (assumption || lia). pose proof (exp_pos (real (nth i x missing))) as top.
    apply Rmult_eq_reg_l in same; [| lra]. apply same_inverse in same; lra.
Qed.

Lemma softmax_separates columns : (0 < columns)%nat -> separates V R columns softmax.
Proof.
  unfold separates, is_row, softmax. intros some v x y size size' same.
  assert (normaliser (v :: x) = normaliser (v :: y)) as total.
  { pose proof (same 0%nat some) as first. cbn [nth] in first. pose proof (exp_pos (real v)).
    apply Rmult_eq_reg_l in first; [| lra]. apply same_inverse in first; [assumption | ..];
      apply normaliser_positive; simpl; lia. }
  assert (0 < normaliser (v :: y)) as positive by (apply normaliser_positive; simpl; lia).
  apply (nth_ext x y missing missing); [simpl in *; lia |]. intros i near.
  assert (S i < columns)%nat as inside by (simpl in size; lia).
  pose proof (same (S i) inside) as here. rewrite total in here. cbn [nth] in here.
  apply Rmult_eq_reg_r in here; [| apply Rinv_neq_0_compat; lra]. now apply real_apart, exp_inv.
Qed.

Variable Q : Type.
Variable values : list V.
Variable states : list Q.
Variable columns steps : nat.
Variable act : Q -> action V Q R.
Variable start : Q.
Variable blank : nat -> V.
Hypothesis values_differ : NoDup values.
Hypothesis all_values : forall v, In v values.
Hypothesis all_states : forall q, In q states.
Hypothesis at_least_two_values : (2 <= length values)%nat.
Hypothesis at_least_two_columns : (2 <= columns)%nat.
Hypothesis it_computes_softmax : computes V Q R missing columns softmax act start blank steps.

Notation reads_for := (reads_of V Q R missing act start blank steps).

(* A row that fits on chip is read once by `cached`, and less will not do. *)
Theorem softmax_reads_every_element x : length x = columns -> (columns <= reads_for x)%nat.
Proof.
  apply (reads_once V Q R missing columns softmax act start blank steps); try assumption; try lia.
  now apply (softmax_depends values).
Qed.

Theorem nothing_is_written_before_all_is_read x before i w after :
  length x = columns -> run V Q R act steps start blank (element V missing x) = Some (before ++ Written V R i w :: after) ->
  forall j, (j < columns)%nat -> exists v, In (FromRow V R j v) before.
Proof.
  apply (all_is_read_before_a_write V Q R missing columns softmax act start blank steps); try assumption.
  now apply (softmax_depends values).
Qed.

(* `online` reads 2C times; with k elements' worth of states no algorithm reads less than 2C - 1 - k for every row. *)
Theorem softmax_reads_twice k :
  (length states <= length values ^ k)%nat -> exists x, length x = columns /\ (2 * columns - 1 - k <= reads_for x)%nat.
Proof.
  apply (reads_twice V Q R values values_differ all_values missing states all_states columns softmax act start blank steps);
    try assumption; try lia.
  - now apply (softmax_depends values).
  - apply softmax_separates. lia.
Qed.
End Softmax.
