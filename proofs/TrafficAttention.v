(* What attention reads and writes: standard, which has N by M scores in memory, and FlashAttention, which has not.

   One head, N queries, M keys and values, d numbers each, in tiles of at most B_q queries and B_k keys; whole tiles are
   loaded and stored by loops, and the counts are those of the loops. src/online_softmax/traffic/attention.py has the same
   operand by operand. *)
From Coq Require Import Lia Arith List.

Inductive moves : Type :=
| Load (numbers : nat)
| Store (numbers : nat)
| Then (first second : moves)
| Nothing.

Fixpoint for_each (n : nat) (body : nat -> moves) : moves :=
  match n with
  | O => Nothing
  | S m => Then (for_each m body) (body m)
  end.

Fixpoint loaded (p : moves) : nat :=
  match p with
  | Load n => n
  | Then first second => loaded first + loaded second
  | _ => 0
  end.

Fixpoint stored (p : moves) : nat :=
  match p with
  | Store n => n
  | Then first second => stored first + stored second
  | _ => 0
  end.

(* Tiles that n takes, and the size of the i-th: the last may be smaller. *)
Definition tiles (n block : nat) : nat := (n + block - 1) / block.
Definition tile (n block i : nat) : nat := Nat.min block (n - i * block).

Fixpoint sum_to (n : nat) (f : nat -> nat) : nat := match n with O => 0 | S m => sum_to m f + f m end.

Lemma loaded_for_each n body : loaded (for_each n body) = sum_to n (fun i => loaded (body i)).
Proof. induction n as [| n IH]; simpl; [| rewrite IH]; reflexivity. Qed.
Lemma stored_for_each n body : stored (for_each n body) = sum_to n (fun i => stored (body i)).
Proof. induction n as [| n IH]; simpl; [| rewrite IH]; reflexivity. Qed.

Lemma sum_to_same n f g : (forall i, f i = g i) -> sum_to n f = sum_to n g.
Proof. intros same. induction n as [| n IH]; simpl; [| rewrite IH, same]; reflexivity. Qed.
Lemma sum_to_plus n f g : sum_to n (fun i => f i + g i) = sum_to n f + sum_to n g.
Proof. induction n as [| n IH]; simpl; [reflexivity | rewrite IH; lia]. Qed.
Lemma sum_to_times n f k : sum_to n (fun i => f i * k) = sum_to n f * k.
Proof. induction n as [| n IH]; simpl; [reflexivity | rewrite IH; lia]. Qed.
Lemma sum_to_product n f k : sum_to n (fun i => k * f i) = k * sum_to n f.
Proof. induction n as [| n IH]; simpl; [lia | rewrite IH; lia]. Qed.
Lemma sum_to_constant n k : sum_to n (fun _ => k) = n * k.
Proof. induction n as [| n IH]; simpl; [reflexivity | rewrite IH; lia]. Qed.

Lemma first_tiles n block m : sum_to m (tile n block) = Nat.min n (m * block).
Proof. induction m as [| m IH]; [simpl; lia |]. cbn [sum_to]. rewrite IH. unfold tile. lia. Qed.

(* The tiles of n make n. *)
Lemma all_tiles n block : 0 < block -> sum_to (tiles n block) (tile n block) = n.
Proof.
  intros some. rewrite first_tiles. apply Nat.min_l. unfold tiles.
  pose proof (Nat.div_mod (n + block - 1) block) as parts. pose proof (Nat.mod_upper_bound (n + block - 1) block). nia.
Qed.

Section Attention.
Variables N M d B_q B_k : nat.
Hypothesis some_queries : 0 < B_q.
Hypothesis some_keys : 0 < B_k.

Definition queries_at (i : nat) : nat := tile N B_q i.
Definition keys_at (j : nat) : nat := tile M B_k j.

(* Queries and the output stay on chip while keys and values go by; m and s too, and log-sum-exps are stored last. *)
Definition flash : moves :=
  for_each (tiles N B_q) (fun i =>
    Then (Load (queries_at i * d))
   (Then (for_each (tiles M B_k) (fun j => Then (Load (keys_at j * d)) (Load (keys_at j * d))))
   (Then (Store (queries_at i * d)) (Store (queries_at i))))).

Definition make_scores : moves :=
  for_each (tiles N B_q) (fun i => for_each (tiles M B_k) (fun j =>
    Then (Load (queries_at i * d)) (Then (Load (keys_at j * d)) (Store (queries_at i * keys_at j))))).
Definition softmax_of_scores : moves := for_each N (fun _ => Then (Load M) (Store M)).
Definition weigh_values : moves :=
  for_each (tiles N B_q) (fun i =>
    Then (for_each (tiles M B_k) (fun j => Then (Load (queries_at i * keys_at j)) (Load (keys_at j * d))))
         (Store (queries_at i * d))).
Definition standard : moves := Then make_scores (Then softmax_of_scores weigh_values).

(* A sum over all tiles, and the cost of a loop's body. *)
Ltac sums :=
  repeat first [ rewrite sum_to_plus | rewrite sum_to_times | rewrite sum_to_product | rewrite sum_to_constant
               | rewrite all_tiles by assumption ]; try ring.
Ltac body :=
  intros i; unfold queries_at, keys_at; cbn [loaded stored];
  repeat first [ rewrite loaded_for_each | rewrite stored_for_each | progress cbn [loaded stored] ]; sums.

(* Queries once, keys and values once a tile of queries. *)
Theorem flash_loads : loaded flash = N * d + tiles N B_q * (2 * (M * d)).
Proof.
  unfold flash. rewrite loaded_for_each, (sum_to_same _ _ (fun i => tile N B_q i * d + 2 * (M * d))); [sums | body].
Qed.

Theorem flash_stores : stored flash = N * d + N.
Proof.
  unfold flash. rewrite stored_for_each, (sum_to_same _ _ (fun i => tile N B_q i * d + tile N B_q i)); [sums | body].
Qed.

Lemma make_scores_moves :
  loaded make_scores = tiles M B_k * (N * d) + tiles N B_q * (M * d) /\ stored make_scores = N * M.
Proof.
  unfold make_scores. rewrite loaded_for_each, stored_for_each. split.
  - rewrite (sum_to_same _ _ (fun i => tiles M B_k * (tile N B_q i * d) + M * d)); [sums | body].
  - rewrite (sum_to_same _ _ (fun i => tile N B_q i * M)); [sums | body].
Qed.

Lemma weigh_values_moves : loaded weigh_values = N * M + tiles N B_q * (M * d) /\ stored weigh_values = N * d.
Proof.
  unfold weigh_values. rewrite loaded_for_each, stored_for_each. split.
  - rewrite (sum_to_same _ _ (fun i => tile N B_q i * M + M * d)); [sums | body].
  - rewrite (sum_to_same _ _ (fun i => tile N B_q i * d)); [sums | body].
Qed.

(* N*M scores and as many weights are written, and read again. *)
Theorem standard_loads : loaded standard = 2 * (N * M) + tiles M B_k * (N * d) + tiles N B_q * (2 * (M * d)).
Proof.
  unfold standard. cbn [loaded]. destruct make_scores_moves as [-> _], weigh_values_moves as [-> _].
  unfold softmax_of_scores. rewrite loaded_for_each. cbn [loaded]. sums.
Qed.

Theorem standard_stores : stored standard = 2 * (N * M) + N * d.
Proof.
  unfold standard. cbn [stored]. destruct make_scores_moves as [_ ->], weigh_values_moves as [_ ->].
  unfold softmax_of_scores. rewrite stored_for_each. cbn [stored]. sums.
Qed.
End Attention.
