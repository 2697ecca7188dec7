(* Machines with finitely many states that read a row, and what can be told of a run of one: ground for TrafficBound.v.

   A machine's state is all it has on chip: registers, counters, its place in the program. In each state it reads an
   element of the row, reads or writes a cell of scratch memory, writes an output, or halts. *)
From Coq Require Import List Lia Arith.
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
    + right. destruct (run steps next scratch row) as [later |]; [| discriminate].
      injection all as <-. now exists i, w, later.
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
    rewrite (same a other) in all'.
    destruct (run steps (next (row a)) scratch row') as [rest' |] eqn:found'; [| discriminate].
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
