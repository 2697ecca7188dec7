(** * Windows that slide: the queue of two stacks

    A state has no inverse: what leaves a window cannot be taken out of a sum.  The queue of two stacks
    (SlidingLogSumExp in frontends/windows.py) needs none.  Shown here:

    - after any sequence of pushes and pops it answers with the fold of what is in the window.  That needs associativity
      and the identity only.  Without any law its answer is still a tree over the contents in their order, which is what
      bounds of rounding errors start from;
    - it costs at most three merges a push on average, and window + 1 in the worst push, the read included;
    - windows cut from two neighbouring blocks (native/scans_window.inl.h) are the same windows.

    No axiom is used. *)

From Coq Require Import List Arith Lia.
From OnlineSoftmax Require Import Monoid.
Import ListNotations.

Section Windows.

Context {M : Type}.
Variable merge : M -> M -> M.
Variable nothing : M.

Local Notation tree := (@Monoid.tree M).
Local Notation fold := (Monoid.fold merge nothing).
Local Notation merged := (Monoid.merged merge nothing).

(** ** The queue of two stacks

    [fresh]: newer entries, oldest first; [prefix]: all of them merged; [suffixes]: of the older entries the merge
    of all, of all but the oldest, and so on: the head is what the next read needs, and dropping it drops the
    oldest entry. *)
Record queue := Queue { fresh : list M; prefix : M; suffixes : list M }.

Definition empty_queue := Queue [] nothing [].

Definition push (x : M) (q : queue) : queue := Queue (fresh q ++ [x]) (merge (prefix q) x) (suffixes q).

(** The merged suffixes of a list, longest first, each made of the next shorter one by one merge. *)
Fixpoint suffixes_of (xs : list M) : list M :=
  match xs with
  | [] => []
  | x :: rest =>
      match suffixes_of rest with
      | [] => [x]
      | s :: shorter => merge x s :: s :: shorter
      end
  end.

Definition turn (q : queue) : queue := Queue [] nothing (suffixes_of (fresh q)).

(** Drops the oldest entry; of an empty queue nothing. *)
Definition pop (q : queue) : queue :=
  let ready := match suffixes q with [] => turn q | _ => q end in
  Queue (fresh ready) (prefix ready) (tl (suffixes ready)).

Definition aggregate (q : queue) : M :=
  match suffixes q with
  | [] => prefix q
  | s :: _ => merge s (prefix q)
  end.

Definition size (q : queue) : nat := length (fresh q) + length (suffixes q).

(** A history of the queue, and what a plain list would hold after it. *)
Inductive step := Push (x : M) | Pop.

Definition do_step (q : queue) (s : step) : queue :=
  match s with
  | Push x => push x q
  | Pop => pop q
  end.

Definition run (history : list step) : queue := fold_left do_step history empty_queue.

Definition list_step (xs : list M) (s : step) : list M :=
  match s with
  | Push x => xs ++ [x]
  | Pop => tl xs
  end.

Definition contents (history : list step) : list M := fold_left list_step history [].

(** A stream through a window of [w] entries. *)
Definition slide (w : nat) (q : queue) (x : M) : queue := push x (if size q =? w then pop q else q).

Definition stream (w : nat) (xs : list M) : queue := fold_left (slide w) xs empty_queue.

(** The last [w] entries of a list; all of a shorter one. *)
Definition last_ones (w : nat) (xs : list M) : list M := skipn (length xs - w) xs.

(** ** Its cost, in merges *)

Definition cost_of_push : nat := 1.
Definition cost_of_pop (q : queue) : nat := match suffixes q with [] => length (fresh q) - 1 | _ => 0 end.
Definition cost_of_read (q : queue) : nat := match suffixes q with [] => 0 | _ => 1 end.

(** One entry into a window of [w], and the result read. *)
Definition cost_of_slide (w : nat) (q : queue) (x : M) : nat :=
  (if size q =? w then cost_of_pop q else 0) + cost_of_push + cost_of_read (slide w q x).

Fixpoint cost_of_stream (w : nat) (q : queue) (xs : list M) : nat :=
  match xs with
  | [] => 0
  | x :: rest => cost_of_slide w q x + cost_of_stream w (slide w q x) rest
  end.

(** ** Without any law: what the queue computes is a tree over its contents *)

(** The trees behind [suffixes_of] and [fold]. *)
Fixpoint suffix_tree (xs : list M) : tree :=
  match xs with
  | [] => Empty
  | [x] => Leaf x
  | x :: rest => Node (Leaf x) (suffix_tree rest)
  end.

Definition prefix_tree (xs : list M) : tree := fold_left (fun t x => Node t (Leaf x)) xs Empty.

Local Notation fold_snoc := (Monoid.fold_snoc merge nothing).

Lemma leaves_suffix_tree xs : leaves (suffix_tree xs) = xs.
Proof.
  induction xs as [|x [|y rest] IH]; try reflexivity.
  change (x :: leaves (suffix_tree (y :: rest)) = x :: y :: rest).
  now rewrite IH.
Qed.

Lemma prefix_tree_snoc xs x : prefix_tree (xs ++ [x]) = Node (prefix_tree xs) (Leaf x).
Proof. unfold prefix_tree. now rewrite fold_left_app. Qed.

Lemma leaves_prefix_tree xs : leaves (prefix_tree xs) = xs.
Proof.
  induction xs as [|x xs IH] using rev_ind; [reflexivity|].
  rewrite prefix_tree_snoc. cbn. now rewrite IH.
Qed.

Lemma merged_prefix_tree xs : merged (prefix_tree xs) = fold xs.
Proof.
  induction xs as [|x xs IH] using rev_ind; [reflexivity|].
  rewrite prefix_tree_snoc, fold_snoc. cbn. now rewrite IH.
Qed.

Lemma suffixes_of_cons x rest :
  exists s, suffixes_of (x :: rest) = s :: suffixes_of rest /\ s = merged (suffix_tree (x :: rest)).
Proof.
  revert x. induction rest as [|y rest IH]; intro x.
  - now exists x.
  - destruct (IH y) as (s & E & V).
    exists (merge x s). split.
    + cbn [suffixes_of] in *. now rewrite E.
    + change (merge x s = merge x (merged (suffix_tree (y :: rest)))). now rewrite V.
Qed.

Lemma length_suffixes_of xs : length (suffixes_of xs) = length xs.
Proof.
  induction xs as [|x xs IH]; [reflexivity|].
  destruct (suffixes_of_cons x xs) as (s & E & _). rewrite E. cbn. now rewrite IH.
Qed.

Lemma tl_suffixes_of xs : tl (suffixes_of xs) = suffixes_of (tl xs).
Proof.
  destruct xs as [|x xs]; [reflexivity|].
  now destruct (suffixes_of_cons x xs) as (s & -> & _).
Qed.

(** The queue [q] stands for the entries [old], which have been turned, followed by [new]. *)
Definition stands_for (q : queue) (old new : list M) : Prop :=
  fresh q = new /\ prefix q = fold new /\ suffixes q = suffixes_of old.

Lemma stands_for_push q old new x : stands_for q old new -> stands_for (push x q) old (new ++ [x]).
Proof.
  intros (F & P & S). repeat split; cbn; try congruence. now rewrite fold_snoc, P.
Qed.

Lemma stands_for_pop q old new :
  stands_for q old new ->
  stands_for (pop q) (tl (if length old =? 0 then new else old)) (if length old =? 0 then [] else new).
Proof.
  intros (F & P & S).
  destruct old as [|x old].
  - cbn in S. unfold pop. rewrite S. repeat split. cbn. rewrite F. apply tl_suffixes_of.
  - unfold pop. rewrite S. destruct (suffixes_of_cons x old) as (s & E & _). rewrite E.
    repeat split; cbn; try assumption. now rewrite S, E.
Qed.

Lemma stands_for_size q old new : stands_for q old new -> size q = length (old ++ new).
Proof.
  intros (F & _ & S). unfold size. rewrite F, S, length_suffixes_of, app_length. lia.
Qed.

Lemma stands_for_pop_app q old new :
  stands_for q old new -> exists old' new', stands_for (pop q) old' new' /\ old' ++ new' = tl (old ++ new).
Proof.
  intro H. pose proof (stands_for_pop q old new H) as H'.
  destruct old as [|x old]; cbn in H'.
  - exists (tl new), []. now rewrite app_nil_r.
  - now exists old, new.
Qed.

Lemma run_snoc history s : run (history ++ [s]) = do_step (run history) s.
Proof. unfold run. now rewrite fold_left_app. Qed.

Lemma contents_snoc history s : contents (history ++ [s]) = list_step (contents history) s.
Proof. unfold contents. now rewrite fold_left_app. Qed.

Lemma run_stands_for history : exists old new, stands_for (run history) old new /\ old ++ new = contents history.
Proof.
  induction history as [|s history IH] using rev_ind.
  - now exists [], [].
  - rewrite run_snoc, contents_snoc. destruct IH as (old & new & H & E). destruct s as [x|]; cbn.
    + exists old, (new ++ [x]). split; [now apply stands_for_push|]. now rewrite app_assoc, E.
    + destruct (stands_for_pop_app _ _ _ H) as (old' & new' & H' & E'). exists old', new'.
      split; [assumption|]. now rewrite E', E.
Qed.

Lemma aggregate_tree q old new :
  stands_for q old new -> exists t, leaves t = old ++ new /\ aggregate q = merged t.
Proof.
  intros (F & P & S). unfold aggregate. destruct old as [|x old].
  - rewrite S. exists (prefix_tree new). now rewrite leaves_prefix_tree, merged_prefix_tree, P.
  - destruct (suffixes_of_cons x old) as (s & E & V). rewrite S, E.
    exists (Node (suffix_tree (x :: old)) (prefix_tree new)). cbn [leaves merged].
    now rewrite leaves_suffix_tree, leaves_prefix_tree, merged_prefix_tree, P, V.
Qed.

(** After any history the answer is a tree over the contents in their order.  No law of [merge] is used: with
    rounded merges the bounds for trees apply to it. *)
Theorem window_is_a_tree history :
  exists t, leaves t = contents history /\ aggregate (run history) = merged t.
Proof.
  destruct (run_stands_for history) as (old & new & H & E). rewrite <- E. now apply aggregate_tree.
Qed.

Theorem queue_has_the_size_of_its_contents history : size (run history) = length (contents history).
Proof.
  destruct (run_stands_for history) as (old & new & H & E). rewrite <- E. now apply stands_for_size.
Qed.

(** A stream is a history. *)
Lemma slide_stands_for w q old new x :
  stands_for q old new ->
  exists old' new', stands_for (slide w q x) old' new' /\
    old' ++ new' = (if length (old ++ new) =? w then tl (old ++ new) else old ++ new) ++ [x].
Proof.
  intro H. unfold slide. rewrite (stands_for_size _ _ _ H).
  destruct (length (old ++ new) =? w).
  - destruct (stands_for_pop_app _ _ _ H) as (old' & new' & H' & E). exists old', (new' ++ [x]).
    split; [now apply stands_for_push|]. now rewrite app_assoc, E.
  - exists old, (new ++ [x]). split; [now apply stands_for_push|]. now rewrite app_assoc.
Qed.

Lemma tl_skipn n (xs : list M) : tl (skipn n xs) = skipn (S n) xs.
Proof. revert xs. induction n as [|n IH]; intros [|x xs]; try reflexivity. cbn. apply IH. Qed.

Lemma last_ones_snoc w xs x :
  1 <= w ->
  last_ones w (xs ++ [x]) =
    (if length (last_ones w xs) =? w then tl (last_ones w xs) else last_ones w xs) ++ [x].
Proof.
  intro W. unfold last_ones. rewrite skipn_length, app_length. cbn [length].
  destruct (Nat.eqb_spec (length xs - (length xs - w)) w) as [E|E].
  - rewrite tl_skipn, skipn_app.
    replace (length xs + 1 - w) with (S (length xs - w)) by lia.
    replace (S (length xs - w) - length xs) with 0 by lia. reflexivity.
  - replace (length xs + 1 - w) with 0 by lia. now replace (length xs - w) with 0 by lia.
Qed.

Lemma stream_stands_for w xs :
  1 <= w -> exists old new, stands_for (stream w xs) old new /\ old ++ new = last_ones w xs.
Proof.
  intro W. induction xs as [|x xs IH] using rev_ind.
  - exists [], []. now repeat split.
  - unfold stream. rewrite fold_left_app. fold (stream w xs).
    destruct IH as (old & new & H & E).
    destruct (slide_stands_for w _ _ _ x H) as (old' & new' & H' & E').
    exists old', new'. split; [exact H'|]. rewrite E', E. symmetry. now apply last_ones_snoc.
Qed.

(** ** Cost *)

(** Each entry pays one merge in advance for its turn. *)
Lemma cost_of_slide_amortised w q x :
  cost_of_slide w q x + length (fresh (slide w q x)) <= length (fresh q) + 3.
Proof.
  unfold cost_of_slide, cost_of_push, cost_of_read, slide, push, pop, turn, cost_of_pop.
  destruct (size q =? w), (suffixes q) as [|s rest] eqn:S; cbn [fresh suffixes];
    rewrite ?S; cbn [fresh suffixes tl]; rewrite ?app_length; cbn [length];
    try destruct (tl _); try destruct rest; lia.
Qed.

(** A stream of [n] entries, the result read after each: at most [3 * n] merges, whatever the window. *)
Theorem stream_costs_three_merges_an_entry w xs : cost_of_stream w empty_queue xs <= 3 * length xs.
Proof.
  enough (G : forall q, cost_of_stream w q xs <= 3 * length xs + length (fresh q)).
  { specialize (G empty_queue). cbn in *. lia. }
  induction xs as [|x xs IH]; intro q; cbn [cost_of_stream length].
  - lia.
  - pose proof (cost_of_slide_amortised w q x). specialize (IH (slide w q x)). lia.
Qed.

(** One push with its read costs [w + 1] at most. *)
Theorem a_push_costs_window_plus_one w xs x : 1 <= w -> cost_of_slide w (stream w xs) x <= w + 1.
Proof.
  intro W. destruct (stream_stands_for w xs W) as (old & new & H & E).
  assert (L : length (old ++ new) <= w).
  { rewrite E. unfold last_ones. rewrite skipn_length. lia. }
  pose proof H as (F & _ & T). unfold cost_of_slide, cost_of_push.
  rewrite (stands_for_size _ _ _ H).
  assert (R : cost_of_read (slide w (stream w xs) x) <= 1).
  { unfold cost_of_read. destruct (suffixes (slide w (stream w xs) x)); lia. }
  assert (P : cost_of_pop (stream w xs) <= w - 1).
  { unfold cost_of_pop. rewrite T, F. rewrite app_length in L. destruct (suffixes_of old); lia. }
  destruct (length (old ++ new) =? w); lia.
Qed.

(** That much is needed: here a turn, the entry itself and the read cost one each. *)
Example a_window_of_two_needs_three a b c : cost_of_slide 2 (stream 2 [a; b]) c = 3.
Proof. reflexivity. Qed.

(** ** With the laws *)

Hypothesis merge_assoc : forall a b c, merge a (merge b c) = merge (merge a b) c.
Hypothesis merge_nothing_l : forall a, merge nothing a = a.
Hypothesis merge_nothing_r : forall a, merge a nothing = a.

Local Notation any_tree := (Monoid.any_tree merge nothing merge_assoc merge_nothing_l merge_nothing_r).
Local Notation fold_of_two_parts :=
  (Monoid.fold_of_two_parts merge nothing merge_assoc merge_nothing_l merge_nothing_r).

(** The queue of two stacks answers with the fold of what is in the window. *)
Theorem window_is_the_fold_of_its_contents history : aggregate (run history) = fold (contents history).
Proof.
  destruct (window_is_a_tree history) as (t & E & ->). now rewrite any_tree, E.
Qed.

(** A stream through a window of [w]: the fold of the last [w] entries. *)
Theorem stream_is_the_fold_of_the_last_entries w xs :
  1 <= w -> aggregate (stream w xs) = fold (last_ones w xs).
Proof.
  intro W. destruct (stream_stands_for w xs W) as (old & new & H & E).
  destruct (aggregate_tree _ _ _ H) as (t & L & ->). now rewrite any_tree, L, E.
Qed.

(** *** Windows from blocks

    A row is cut into blocks of [w].  The window that ends at entry [r] of a block is a suffix of the block before
    it followed by a prefix of this one. *)

Theorem window_of_two_blocks (w r : nat) (earlier before block : list M) :
  length before = w -> r < length block -> r < w ->
  fold (last_ones w (earlier ++ before ++ firstn (S r) block)) =
    merge (fold (skipn (S r) before)) (fold (firstn (S r) block)).
Proof.
  intros L R W. rewrite <- fold_of_two_parts. f_equal.
  unfold last_ones. rewrite !app_length, firstn_length_le by lia.
  rewrite skipn_app, skipn_all2 by lia. cbn [app].
  rewrite skipn_app.
  replace (length earlier + (length before + S r) - w - length earlier) with (S r) by lia.
  now replace (S r - length before) with 0 by lia.
Qed.

End Windows.
