(* What each algorithm reads and writes, counted from the algorithm itself, and that it computes softmax.

   Programs move elements between a row x and a row y in memory and registers on chip, and compute on registers. A read or
   a write of an element costs one; what happens on chip costs nothing here. Programs know the length of the row, not its
   contents, and nothing is kept in memory but y. Each algorithm of the library is such a program; that it ends with
   softmax(x) in y is shown over the real numbers, its cost is the number of its reads and writes, and the registers that
   it writes are all it has on chip. The running maximum starts with the first element, which stands for -inf here.

   TrafficBound.v has what no algorithm can do better. *)
From Coq Require Import Reals List Lia Lra Arith.
Open Scope R_scope.

(* ---- programs and their cost *)

Definition registers : Type := nat -> R.

Inductive program : Type :=
| Read (place register : nat)                        (* register := x[place] *)
| Write (place register : nat)                       (* y[place] := register *)
| Assign (register : nat) (value : registers -> R)     (* register := a function of all registers *)
| Nothing
| Then (first second : program).

Fixpoint for_each (n : nat) (body : nat -> program) : program :=
  match n with
  | O => Nothing
  | S m => Then (for_each m body) (body m)
  end.

Definition put (r : nat -> R) (place : nat) (value : R) : nat -> R :=
  fun other => if Nat.eqb other place then value else r other.

(* What registers and y are after a program. *)
Fixpoint after (p : program) (x : nat -> R) (state : registers * (nat -> R)) : registers * (nat -> R) :=
  match p with
  | Read i j => (put (fst state) j (x i), snd state)
  | Write i j => (fst state, put (snd state) i (fst state j))
  | Assign j value => (put (fst state) j (value (fst state)), snd state)
  | Nothing => state
  | Then first second => after second x (after first x state)
  end.

Fixpoint reads (p : program) : nat :=
  match p with
  | Read _ _ => 1
  | Then first second => reads first + reads second
  | _ => 0
  end.

Fixpoint writes (p : program) : nat :=
  match p with
  | Write _ _ => 1
  | Then first second => writes first + writes second
  | _ => 0
  end.

(* Registers needed: one more than the last that is written. *)
Fixpoint width (p : program) : nat :=
  match p with
  | Read _ j | Assign j _ => S j
  | Then first second => Nat.max (width first) (width second)
  | _ => 0
  end.

(* Bytes that R rows of C elements of b bytes move. *)
Definition bytes (p : program) (rows b : nat) : nat := (reads p + writes p) * rows * b.

Lemma reads_for_each n body k : (forall i, (i < n)%nat -> reads (body i) = k) -> reads (for_each n body) = (k * n)%nat.
Proof. induction n as [| n IH]; simpl; intros each; [lia |]. rewrite IH, each by (intros; try apply each; lia). lia. Qed.

Lemma writes_for_each n body k : (forall i, (i < n)%nat -> writes (body i) = k) -> writes (for_each n body) = (k * n)%nat.
Proof. induction n as [| n IH]; simpl; intros each; [lia |]. rewrite IH, each by (intros; try apply each; lia). lia. Qed.

(* ---- the algorithms *)

Section Algorithms.
Variable C : nat.

(* Registers: 0 the maximum m, 1 the sum s, 2 the element at hand, 3 the new maximum. *)
Definition maximum_of (i : nat) : program :=
  Then (Read i 2) (Assign 0 (fun r => if Nat.eqb i 0 then r 2%nat else Rmax (r 0%nat) (r 2%nat))).
Definition sum_of (i : nat) : program :=
  Then (Read i 2) (Assign 1 (fun r => r 1%nat + exp (r 2%nat - r 0%nat))).
Definition push (i : nat) : program :=
  Then (Read i 2)
 (Then (Assign 3 (fun r => if Nat.eqb i 0 then r 2%nat else Rmax (r 0%nat) (r 2%nat)))
 (Then (Assign 1 (fun r => if Nat.eqb i 0 then exp (r 2%nat - r 3%nat)
                         else r 1%nat * exp (r 0%nat - r 3%nat) + exp (r 2%nat - r 3%nat)))
       (Assign 0 (fun r => r 3%nat)))).
Definition divide (i : nat) : program :=
  Then (Read i 2) (Then (Assign 2 (fun r => exp (r 2%nat - r 0%nat) / r 1%nat)) (Write i 2)).

Definition naive : program :=
  Then (Then (Assign 0 (fun _ => 0)) (Then (Assign 1 (fun _ => 0)) (for_each C sum_of))) (for_each C divide).
Definition three_pass : program :=
  Then (Then (for_each C maximum_of) (Then (Assign 1 (fun _ => 0)) (for_each C sum_of))) (for_each C divide).
Definition online : program := Then (for_each C push) (for_each C divide).
(* The log-sum-exp, in register 2. *)
Definition logsumexp : program := Then (for_each C push) (Assign 2 (fun r => r 0%nat + ln (r 1%nat))).

(* The row in registers from 4 on. *)
Definition keep (i : nat) : program :=
  Then (Read i (4 + i)) (Assign 0 (fun r => if Nat.eqb i 0 then r (4 + i)%nat else Rmax (r 0%nat) (r (4 + i)%nat))).
Definition sum_of_kept (i : nat) : program := Assign 1 (fun r => r 1%nat + exp (r (4 + i)%nat - r 0%nat)).
Definition divide_kept (i : nat) : program :=
  Then (Assign 2 (fun r => exp (r (4 + i)%nat - r 0%nat) / r 1%nat)) (Write i 2).
Definition cached : program :=
  Then (for_each C keep) (Then (Assign 1 (fun _ => 0)) (Then (for_each C sum_of_kept) (for_each C divide_kept))).

Ltac count :=
  unfold naive, three_pass, online, logsumexp, cached; cbn [reads writes];
  repeat first [ rewrite (reads_for_each _ _ 1) by (intros; reflexivity)
               | rewrite (reads_for_each _ _ 0) by (intros; reflexivity)
               | rewrite (writes_for_each _ _ 1) by (intros; reflexivity)
               | rewrite (writes_for_each _ _ 0) by (intros; reflexivity) ].

(* (reads, writes) *)
Definition cost (p : program) : nat * nat := (reads p, writes p).

Theorem naive_costs : cost naive = (2 * C, C)%nat.
Proof. unfold cost. count. f_equal; lia. Qed.
Theorem three_pass_costs : cost three_pass = (3 * C, C)%nat.
Proof. unfold cost. count. f_equal; lia. Qed.
Theorem online_costs : cost online = (2 * C, C)%nat.
Proof. unfold cost. count. f_equal; lia. Qed.
Theorem cached_costs : cost cached = (C, C)%nat.
Proof. unfold cost. count. f_equal; lia. Qed.
Theorem logsumexp_costs : cost logsumexp = (C, 0)%nat.
Proof. unfold cost. count. f_equal; lia. Qed.

Lemma bytes_of_cost p r w rows b : cost p = (r, w) -> bytes p rows b = ((r + w) * rows * b)%nat.
Proof. unfold cost, bytes. intros same. now injection same as -> ->. Qed.

(* T: bytes of the row, times the number of rows. *)
Corollary bytes_by_algorithm rows b :
  let T := (rows * C * b)%nat in
  bytes naive rows b = (3 * T)%nat /\ bytes three_pass rows b = (4 * T)%nat /\ bytes online rows b = (3 * T)%nat /\
  bytes cached rows b = (2 * T)%nat /\ bytes logsumexp rows b = T.
Proof.
  rewrite (bytes_of_cost _ _ _ _ _ naive_costs), (bytes_of_cost _ _ _ _ _ three_pass_costs),
    (bytes_of_cost _ _ _ _ _ online_costs), (bytes_of_cost _ _ _ _ _ cached_costs),
    (bytes_of_cost _ _ _ _ _ logsumexp_costs).
  repeat split; ring.
Qed.

(* The registers each needs: a few, or the row and a few. *)
Lemma width_for_each n body k : (forall i, (i < n)%nat -> (width (body i) <= k)%nat) -> (width (for_each n body) <= k)%nat.
Proof.
  induction n as [| n IH]; simpl; intros each; [lia |].
  apply Nat.max_lub; [apply IH; intros; apply each | apply each]; lia.
Qed.

Theorem online_needs_4_registers : (width online <= 4)%nat.
Proof.
  unfold online. cbn [width].
  apply Nat.max_lub; apply width_for_each; intros; unfold push, divide; cbn [width]; lia.
Qed.

Theorem cached_keeps_the_row : (width cached <= C + 4)%nat.
Proof.
  unfold cached. cbn [width]. repeat apply Nat.max_lub;
    try (apply width_for_each; intros; unfold keep, sum_of_kept, divide_kept; cbn [width]); lia.
Qed.

(* ---- they compute softmax *)

Variable x : nat -> R.

Fixpoint sum_to (n : nat) (f : nat -> R) : R := match n with O => 0 | S m => sum_to m f + f m end.
(* Of the first n + 1 elements. *)
Fixpoint greatest (n : nat) : R := match n with O => x 0%nat | S m => Rmax (greatest m) (x n) end.

Definition softmax (i : nat) : R := exp (x i) / sum_to C (fun j => exp (x j)).
Definition computes (p : program) : Prop :=
  forall state i, (i < C)%nat -> snd (after p x state) i = softmax i.

Lemma sum_next n f : sum_to (S n) f = sum_to n f + f n.
Proof. reflexivity. Qed.
Lemma greatest_next n : greatest (S n) = Rmax (greatest n) (x (S n)).
Proof. reflexivity. Qed.

Lemma sum_shifted n m : sum_to n (fun j => exp (x j - m)) = sum_to n (fun j => exp (x j)) * exp (- m).
Proof.
  induction n as [| n IH]; simpl; [ring |]. rewrite IH. unfold Rminus. rewrite exp_plus. ring.
Qed.

Lemma sum_positive n : (0 < n)%nat -> 0 < sum_to n (fun j => exp (x j)).
Proof.
  destruct n as [| n]; [lia | intros _]. simpl. pose proof (exp_pos (x n)).
  assert (0 <= sum_to n (fun j => exp (x j))); [| lra].
  clear. induction n as [| n IH]; simpl; [lra |]. pose proof (exp_pos (x n)). lra.
Qed.

(* Whatever m is, dividing by the sum under it is softmax. *)
Lemma divided i m : (i < C)%nat -> exp (x i - m) / sum_to C (fun j => exp (x j - m)) = softmax i.
Proof.
  intros inside. rewrite sum_shifted. unfold softmax, Rminus. rewrite exp_plus.
  pose proof (sum_positive C ltac:(lia)). pose proof (exp_pos (- m)). field. split; apply Rgt_not_eq; assumption.
Qed.

Lemma after_next n body state :
  after (for_each (S n) body) x state = after (body n) x (after (for_each n body) x state).
Proof. reflexivity. Qed.

(* One turn of a loop, from what the turns before left behind. *)
Ltac turn n name IH :=
  rewrite after_next;
  destruct (after (for_each n name) x _) as [r y] eqn:before; intros r' y' same;
  specialize (IH r y eq_refl); unfold name in same; simpl in same; injection same as <- <-; unfold put; simpl.

(* The last pass. *)
Lemma divide_writes n state r y :
  after (for_each n divide) x state = (r, y) ->
  r 0%nat = fst state 0%nat /\ r 1%nat = fst state 1%nat /\
  forall i, (i < n)%nat -> y i = exp (x i - fst state 0%nat) / fst state 1%nat.
Proof.
  revert r y. induction n as [| n IH].
  - intros r y same. destruct state. simpl in same. injection same as <- <-. repeat split; intros; lia.
  - turn n divide IH. destruct IH as (same0 & same1 & done). repeat split; try assumption.
    intros i inside. rewrite same0, same1. destruct (Nat.eqb_spec i n) as [-> | other]; [reflexivity | apply done; lia].
Qed.

(* What is left to show of an algorithm: m, whatever it is, and the sum under it. *)
Lemma divide_computes p m :
  (forall state, fst (after p x state) 0%nat = m /\ fst (after p x state) 1%nat = sum_to C (fun j => exp (x j - m))) ->
  computes (Then p (for_each C divide)).
Proof.
  intros ready state i inside. destruct (ready state) as [maximum sum]. cbn [after].
  destruct (after (for_each C divide) x (after p x state)) as [r y] eqn:last.
  destruct (divide_writes C _ r y last) as (_ & _ & done). simpl. rewrite (done i inside), maximum, sum.
  now apply divided.
Qed.

Lemma sum_pass n state r y :
  after (for_each n sum_of) x state = (r, y) ->
  r 0%nat = fst state 0%nat /\ r 1%nat = fst state 1%nat + sum_to n (fun j => exp (x j - fst state 0%nat)).
Proof.
  revert r y. induction n as [| n IH].
  - intros r y same. destruct state. simpl in same. injection same as <- <-. simpl. split; [reflexivity | ring].
  - turn n sum_of IH. destruct IH as [same0 sum]. split; [assumption |]. rewrite sum, same0. ring.
Qed.

Lemma maximum_pass n state r y : after (for_each (S n) maximum_of) x state = (r, y) -> r 0%nat = greatest n.
Proof.
  revert r y. induction n as [| n IH].
  - intros r y same. destruct state. simpl in same. injection same as <- <-. reflexivity.
  - turn (S n) maximum_of IH. now rewrite IH.
Qed.

Definition holds_m_and_s (n : nat) (r : registers) : Prop :=
  r 0%nat = greatest n /\ r 1%nat = sum_to (S n) (fun j => exp (x j - greatest n)).

Lemma first_push state : holds_m_and_s 0 (fst (after (push 0) x state)).
Proof. unfold holds_m_and_s, push, put. simpl. split; [reflexivity |]. symmetry. apply Rplus_0_l. Qed.

Lemma next_push n r y : holds_m_and_s n r -> holds_m_and_s (S n) (fst (after (push (S n)) x (r, y))).
Proof.
  intros [max sum]. unfold holds_m_and_s. rewrite (sum_next (S n)), greatest_next.
  set (m := greatest n) in *. set (m' := Rmax m (x (S n))).
  assert (sum_to (S n) (fun j => exp (x j - m)) * exp (m - m') = sum_to (S n) (fun j => exp (x j - m'))) as <-.
  { rewrite !sum_shifted, Rmult_assoc, <- exp_plus. do 2 f_equal. ring. }
  set (s := sum_to (S n) _) in *. clearbody s. unfold m'. rewrite <- max, <- sum. split; reflexivity.
Qed.

Lemma push_pass n state : holds_m_and_s n (fst (after (for_each (S n) push) x state)).
Proof.
  induction n as [| n IH]; [apply first_push |].
  rewrite after_next. destruct (after (for_each (S n) push) x state) as [r y]. now apply next_push.
Qed.

Theorem naive_computes_softmax : computes naive.
Proof.
  apply divide_computes with (m := 0). intros [r y]. cbn [after].
  destruct (after (for_each C sum_of) x _) as [r' y'] eqn:pass. apply sum_pass in pass.
  unfold put in pass. simpl in pass |- *.
  destruct pass as [-> ->]. split; [reflexivity | ring].
Qed.

Hypothesis not_empty : (0 < C)%nat.

Theorem three_pass_computes_softmax : computes three_pass.
Proof.
  apply divide_computes with (m := greatest (C - 1)). intros state. cbn [after].
  destruct (after (for_each C maximum_of) x state) as [r y] eqn:first.
  replace C with (S (C - 1)) in first by lia. apply maximum_pass in first.
  destruct (after (for_each C sum_of) x _) as [r' y'] eqn:pass. apply sum_pass in pass.
  unfold put in pass. simpl in pass |- *.
  rewrite first in pass. destruct pass as [-> ->]. split; [reflexivity | ring].
Qed.

Theorem online_computes_softmax : computes online.
Proof.
  apply divide_computes with (m := greatest (C - 1)). intros state.
  destruct (push_pass (C - 1) state) as [max sum]. replace (S (C - 1)) with C in max, sum by lia. now split.
Qed.

Theorem logsumexp_computes_its_name state : fst (after logsumexp x state) 2%nat = ln (sum_to C (fun j => exp (x j))).
Proof.
  destruct (push_pass (C - 1) state) as [max sum]. replace (S (C - 1)) with C in max, sum by lia.
  unfold logsumexp. cbn [after fst]. unfold put. cbn [Nat.eqb]. rewrite max, sum, sum_shifted.
  rewrite ln_mult; [| now apply sum_positive | apply exp_pos]. rewrite ln_exp. ring.
Qed.

Lemma keep_pass n state r y :
  after (for_each (S n) keep) x state = (r, y) -> r 0%nat = greatest n /\ forall i, (i < S n)%nat -> r (4 + i)%nat = x i.
Proof.
  revert r y. induction n as [| n IH].
  - intros r y same. destruct state. simpl in same. injection same as <- <-. split; [reflexivity |].
    intros i near. replace i with 0%nat by lia. reflexivity.
  - turn (S n) keep IH. destruct IH as [max kept]. split; [now rewrite Nat.eqb_refl, max |].
    intros i near. destruct (Nat.eqb_spec i (S n)) as [-> | other]; [reflexivity | apply (kept i); lia].
Qed.

Lemma sum_of_kept_pass n state r y :
  after (for_each n sum_of_kept) x state = (r, y) ->
  (forall j, j <> 1%nat -> r j = fst state j) /\
  r 1%nat = fst state 1%nat + sum_to n (fun i => exp (fst state (4 + i)%nat - fst state 0%nat)).
Proof.
  revert r y. induction n as [| n IH].
  - intros r y same. destruct state. simpl in same. injection same as <- <-. simpl. split; [reflexivity | ring].
  - turn n sum_of_kept IH. destruct IH as [others sum]. split.
    + intros j other. destruct (Nat.eqb_spec j 1); [tauto | now apply others].
    + rewrite sum, (others 0%nat), (others (S (S (S (S n))))) by lia. simpl. ring.
Qed.

Lemma divide_kept_pass n state r y :
  after (for_each n divide_kept) x state = (r, y) ->
  (forall j, j <> 2%nat -> r j = fst state j) /\
  forall i, (i < n)%nat -> y i = exp (fst state (4 + i)%nat - fst state 0%nat) / fst state 1%nat.
Proof.
  revert r y. induction n as [| n IH].
  - intros r y same. destruct state. simpl in same. injection same as <- <-. split; [reflexivity | intros; lia].
  - turn n divide_kept IH. destruct IH as [others done]. split.
    + intros j other. destruct (Nat.eqb_spec j 2); [tauto | now apply others].
    + intros i near. destruct (Nat.eqb_spec i n) as [-> | other]; [| apply done; lia].
      now rewrite (others 0%nat), (others 1%nat), (others (S (S (S (S n))))) by lia.
Qed.

Lemma sum_to_same n f g : (forall j, (j < n)%nat -> f j = g j) -> sum_to n f = sum_to n g.
Proof.
  induction n as [| n IH]; intros each; simpl; [reflexivity |].
  rewrite IH, each by (intros; try apply each; lia). reflexivity.
Qed.

Theorem cached_computes_softmax : computes cached.
Proof.
  intros state i inside. unfold cached. cbn [after].
  destruct (after (for_each C keep) x state) as [r y] eqn:first.
  replace C with (S (C - 1)) in first by lia. apply keep_pass in first. destruct first as [max kept].
  replace (S (C - 1)) with C in kept by lia.
  destruct (after (for_each C sum_of_kept) x _) as [r' y'] eqn:second. apply sum_of_kept_pass in second.
  destruct second as [others sum]. unfold put in others, sum. simpl in others, sum.
  destruct (after (for_each C divide_kept) x _) as [r'' y''] eqn:third. apply divide_kept_pass in third.
  destruct third as [_ done]. simpl in done |- *. rewrite (done i inside), sum.
  rewrite (others 0%nat), (others (S (S (S (S i))))) by lia. simpl. rewrite max, Rplus_0_l.
  assert (r (S (S (S (S i)))) = x i) as -> by exact (kept i inside).
  rewrite (sum_to_same C _ (fun j => exp (x j - greatest (C - 1)))); [now apply divided |].
  intros j near. now assert (r (S (S (S (S j)))) = x j) as -> by exact (kept j near).
Qed.
End Algorithms.
