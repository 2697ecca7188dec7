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
Import ListNotations.

(* ---- machines *)

Section Machines.
Variables V Q W : Type.

Inductive action : Type :=
| ReadRow (place : nat) (next : V -> Q)
| ReadScratch (place : nat) (next : V -> Q)
| StoreScratch (place : nat) (value : V) (next : Q)
| Write (place : nat) (value : W) (next : Q)
| Halt.

Inductive event : Type :=
| FromRow (place : nat) (value : V)
| FromScratch (place : nat) (value : V)
| Written (place : nat) (value : W).

Variable act : Q -> action.

Definition stored (scratch : nat -> V) (place : nat) (value : V) : nat -> V :=
  fun other => if Nat.eqb other place then value else scratch other.

(* What happens until the machine halts; nothing where it has not within so many steps. *)
Fixpoint run (steps : nat) (q : Q) (scratch row : nat -> V) : option (list event) :=
  match steps with
  | 0 => None
  | S fewer =>
      match act q with
      | ReadRow i next => option_map (cons (FromRow i (row i))) (run fewer (next (row i)) scratch row)
      | ReadScratch i next => option_map (cons (FromScratch i (scratch i))) (run fewer (next (scratch i)) scratch row)
      | StoreScratch i v next => run fewer next (stored scratch i v) row
      | Write i w next => option_map (cons (Written i w)) (run fewer next scratch row)
      | Halt => Some []
      end
  end.

Definition value_read (e : event) : list V :=
  match e with FromRow _ v | FromScratch _ v => [v] | Written _ _ => [] end.
Definition written (e : event) : list (nat * W) :=
  match e with Written i w => [(i, w)] | _ => [] end.
Definition reads (events : list event) : nat := length (flat_map value_read events).

Lemma run_longer steps q scratch row events more :
  run steps q scratch row = Some events -> run (steps + more) q scratch row = Some events.
Proof.
  revert q scratch events. induction steps as [| steps IH]; simpl; [discriminate |]. intros q scratch events.
  destruct (act q); try (apply IH); try tauto;
    (destruct (run steps _ _ _) as [rest |] eqn:found; [| discriminate]); intros same; rewrite (IH _ _ _ found); exact same.
Qed.

(* From a state on, what is written follows from the values that are read. *)
Fixpoint replay (missing : V) (steps : nat) (q : Q) (values : list V) : option (list (nat * W)) :=
  match steps with
  | 0 => None
  | S fewer =>
      match act q with
      | ReadRow _ next | ReadScratch _ next => replay missing fewer (next (hd missing values)) (tl values)
      | StoreScratch _ _ next => replay missing fewer next values
      | Write i w next => option_map (cons (i, w)) (replay missing fewer next values)
      | Halt => Some []
      end
  end.

Lemma replay_run missing steps q scratch row events rest :
  run steps q scratch row = Some events ->
  replay missing steps q (flat_map value_read events ++ rest) = Some (flat_map written events).
Proof.
  revert q scratch events. induction steps as [| steps IH]; simpl; [discriminate |]. intros q scratch events.
  destruct (act q); try (apply IH);
    try (intros same; injection same as <-; reflexivity);
    (destruct (run steps _ _ _) as [later |] eqn:found; [| discriminate]); intros same; injection same as <-;
    simpl; rewrite (IH _ _ _ found); reflexivity.
Qed.

(* The state in which the machine first writes, and what is read from there on. *)
Fixpoint at_first_write (steps : nat) (q : Q) (scratch row : nat -> V) : Q * list V :=
  match steps with
  | 0 => (q, [])
  | S fewer =>
      match act q with
      | ReadRow i next => at_first_write fewer (next (row i)) scratch row
      | ReadScratch i next => at_first_write fewer (next (scratch i)) scratch row
      | StoreScratch i v next => at_first_write fewer next (stored scratch i v) row
      | Write _ _ _ =>
          (q, match run steps q scratch row with Some events => flat_map value_read events | None => [] end)
      | Halt => (q, [])
      end
  end.

Lemma first_write steps q scratch row events :
  run steps q scratch row = Some events ->
  exists before after scratch',
    events = before ++ after /\ flat_map written before = [] /\
    at_first_write steps q scratch row = (fst (at_first_write steps q scratch row), flat_map value_read after) /\
    run steps (fst (at_first_write steps q scratch row)) scratch' row = Some after /\
    (after = [] \/ exists i w later, after = Written i w :: later).
Proof.
  revert q scratch events. induction steps as [| steps IH]; [discriminate |]. intros q scratch events all.
  pose proof all as whole. simpl in all |- *.
  assert (longer : forall p s r l, run steps p s r = Some l -> run (S steps) p s r = Some l).
  { intros p s r l found. rewrite <- Nat.add_1_r. now apply run_longer. }
  destruct (act q) as [i next | i next | i v next | i w next |] eqn:what.
  - destruct (run steps (next (row i)) scratch row) as [rest |] eqn:found; [| discriminate].
    injection all as <-. destruct (IH _ _ _ found) as (before & after & scratch' & -> & none & state & again & start).
    exists (FromRow i (row i) :: before), after, scratch'. repeat split; try assumption. apply longer. exact again.
  - destruct (run steps (next (scratch i)) scratch row) as [rest |] eqn:found; [| discriminate].
    injection all as <-. destruct (IH _ _ _ found) as (before & after & scratch' & -> & none & state & again & start).
    exists (FromScratch i (scratch i) :: before), after, scratch'. repeat split; try assumption. apply longer. exact again.
  - destruct (IH _ _ _ all) as (before & after & scratch' & -> & none & state & again & start).
    exists before, after, scratch'. repeat split; try assumption. apply longer. exact again.
  - exists [], events, scratch. simpl fst. rewrite all. repeat split.
    + simpl. rewrite what. exact all.
    + right. destruct (run steps next scratch row) as [later |]; [| discriminate]. injection all as <-. now exists i, w, later.
  - injection all as <-. exists [], [], scratch. repeat split; [| now left]. simpl. now rewrite what.
Qed.

(* A row that differs in a place not read before a write: the same happens up to it, and the same is written. *)
Lemma unread_place steps q scratch row row' j events' before i w after :
  (forall other, other <> j -> row' other = row other) ->
  run steps q scratch row = Some (before ++ Written i w :: after) ->
  run steps q scratch row' = Some events' ->
  (forall v, ~ In (FromRow j v) before) ->
  exists after', events' = before ++ Written i w :: after'.
Proof.
  intros same. revert q scratch events' before.
  induction steps as [| steps IH]; [discriminate |]. intros q scratch events' before.
  simpl. destruct (act q) as [a next | a next | a v next | a v next |].
  - destruct (run steps (next (row a)) scratch row) as [rest |] eqn:found; [| discriminate].
    intros all. injection all as all. destruct before as [| e before]; [discriminate |].
    injection all as <- ->. intros all' unread. assert (a <> j) as other.
    { intros ->. apply (unread (row j)). now left. }
    rewrite (same a other) in all'. destruct (run steps (next (row a)) scratch row') as [rest' |] eqn:found'; [| discriminate].
    injection all' as <-. destruct (IH _ _ _ _ found found') as [after' ->].
    + intros v there. apply (unread v). now right.
    + now exists after'.
  - destruct (run steps (next (scratch a)) scratch row) as [rest |] eqn:found; [| discriminate].
    intros all. injection all as all. destruct before as [| e before]; [discriminate |].
    injection all as <- ->. destruct (run steps (next (scratch a)) scratch row') as [rest' |] eqn:found'; [| discriminate].
    intros all' unread. injection all' as <-. destruct (IH _ _ _ _ found found') as [after' ->].
    + intros v there. apply (unread v). now right.
    + now exists after'.
  - apply IH.
  - destruct (run steps next scratch row) as [rest |] eqn:found; [| discriminate].
    destruct (run steps next scratch row') as [rest' |] eqn:found'; [| discriminate].
    intros all all' unread. injection all as all. injection all' as <-. destruct before as [| e before].
    + injection all as -> -> ->. now exists rest'.
    + injection all as <- ->. destruct (IH _ _ _ _ found found') as [after' ->].
      * intros u there. apply (unread u). now right.
      * now exists after'.
  - intros all. injection all as all. now destruct before.
Qed.
End Machines.

(* ---- lists *)

Lemma skipn_next (A : Type) n (l : list A) e rest : skipn n l = e :: rest -> skipn (S n) l = rest.
Proof.
  revert l. induction n as [| n IH]; intros [| first l]; simpl; intros same; try discriminate.
  - now injection same.
  - apply IH in same. exact same.
Qed.

(* All lists of n of the values. *)
Fixpoint lists (A : Type) (values : list A) (n : nat) : list (list A) :=
  match n with
  | 0 => [[]]
  | S m => flat_map (fun v => map (cons v) (lists A values m)) values
  end.

Lemma flat_map_length_constant (A B : Type) (g : A -> list B) n l :
  (forall a, length (g a) = n) -> length (flat_map g l) = length l * n.
Proof. intros each. induction l as [| a l IH]; [reflexivity |]. simpl. now rewrite app_length, IH, each. Qed.

Lemma lists_length A values n : length (lists A values n) = length values ^ n.
Proof.
  induction n as [| n IH]; [reflexivity |]. simpl.
  apply flat_map_length_constant. intros v. now rewrite map_length.
Qed.

Lemma lists_all A values n x : length x = n -> (forall v, In v x -> In v values) -> In x (lists A values n).
Proof.
  revert x. induction n as [| n IH]; intros [| v x]; simpl; intros size inside; try discriminate; [now left |].
  apply in_flat_map. exists v. split; [apply inside; now left |]. apply in_map. apply IH; [lia |].
  intros u there. apply inside. now right.
Qed.

Lemma lists_only A values n x : In x (lists A values n) -> length x = n /\ forall v, In v x -> In v values.
Proof.
  revert x. induction n as [| n IH]; simpl; intros x there.
  - destruct there as [<- | []]. split; [reflexivity | simpl; tauto].
  - apply in_flat_map in there. destruct there as (v & inside & there). apply in_map_iff in there.
    destruct there as (y & <- & there). destruct (IH y there) as [size within]. split; [simpl; lia |].
    intros u [<- | here]; [assumption | now apply within].
Qed.

Lemma map_differs (A B : Type) (g : A -> B) l :
  NoDup l -> (forall a b, In a l -> In b l -> g a = g b -> a = b) -> NoDup (map g l).
Proof.
  induction l as [| a l IH]; simpl; intros different injective; [constructor |].
  inversion_clear different as [| ? ? new rest]. constructor.
  - intros there. apply in_map_iff in there. destruct there as (b & same & there). apply new.
    rewrite (injective a b); [assumption | now left | now right | now symmetry].
  - apply IH; [assumption |]. intros b c here there. apply injective; now right.
Qed.

Lemma app_differs (A : Type) (l k : list A) :
  NoDup l -> NoDup k -> (forall a, In a l -> ~ In a k) -> NoDup (l ++ k).
Proof.
  induction l as [| a l IH]; simpl; intros left_ right_ apart; [assumption |].
  inversion_clear left_ as [| ? ? new rest]. constructor.
  - intros there. apply in_app_or in there. destruct there as [here | there]; [tauto |].
    now apply (apart a (or_introl eq_refl)).
  - apply IH; try assumption. intros b here. apply apart. now right.
Qed.

Lemma lists_differ A values n : NoDup values -> NoDup (lists A values n).
Proof.
  intros different. induction n as [| n IH]; simpl; [repeat constructor; simpl; tauto |].
  generalize (lists A values n) IH. clear IH. intros tails differ.
  induction different as [| v rest new _ IH]; simpl; [constructor |]. apply app_differs; [| assumption |].
  - apply map_differs; [assumption |]. intros a b _ _ same. now injection same.
  - intros a here there. apply in_map_iff in here. destruct here as (x & <- & _).
    apply in_flat_map in there. destruct there as (u & inside & there). apply in_map_iff in there.
    destruct there as (y & same & _). injection same as -> _. tauto.
Qed.

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
    + intros i w there. apply in_flat_map in there. destruct there as ([p v | p v | p v] & there & here); simpl in here; try tauto.
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
  { unfold rest. rewrite <- normaliser_app. apply normaliser_positive. rewrite app_length, firstn_length, skipn_length. lia. }
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
