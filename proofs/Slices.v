(** * Slices, bins and sums of 64 bits: the formats of the bit-exact state

    Exact.v holds for any format that is lawful.  Shown here:

    - the slices of a term (rounded to whole units from the top down, ties to even) are the same whatever the top bin
      is, and 0 above the term's own bin: slicing is a pure function of term and bin;
    - they are at most 2^(W - 1) in size, so 2^(63 - W) elements fit a sum of 64 bits;
    - terms W * K binary places below the maximum's have no slice left: skipping them changes no bit;
    - bins rise with the exponent of the term, and in lse-22x3/1 exponents rise with the element;
    - with sums kept whole or wrapped at 64 bits, so that Exact.v speaks of lse-22x3/1 and lse-32x4/1.  Sums that wrap
      are the whole ones modulo 2^64, and equal to them while these fit.

    All over Z, so that it computes: tests/test_proofs_exact.py holds the running code to the examples at the end.
    No axiom is used. *)

From Coq Require Import ZArith List Permutation Bool Lia.
From OnlineSoftmax Require Import Monoid ExactLaw Exact.
Import ListNotations.
Local Open Scope Z_scope.

(** ** Rounding and slicing *)

(** n / 2^s to the nearest whole number, ties to even. *)
Definition nearest (n s : Z) : Z :=
  if s <=? 0 then n * 2 ^ - s
  else
    let q := n / 2 ^ s in
    match 2 * (n mod 2 ^ s) ?= 2 ^ s with
    | Lt => q
    | Gt => q + 1
    | Eq => if Z.even q then q else q + 1
    end.

(** What is left of n / 2^s, in units of 2^-s; nothing of a whole number. *)
Definition rest (n s : Z) : Z := if s <=? 0 then 0 else n - nearest n s * 2 ^ s.

(** The first [count] slices, W bits each, of n / 2^s in units of the top one. *)
Fixpoint cut (W : Z) (count : nat) (n s : Z) : list Z :=
  match count with
  | O => []
  | S c => nearest n s :: cut W c (rest n s) (s - W)
  end.

Lemma nearest_half n s : 0 < s -> Z.abs (2 * (n - nearest n s * 2 ^ s)) <= 2 ^ s.
Proof.
  intro S. unfold nearest. destruct (Z.leb_spec s 0); [lia|].
  pose proof (Z.pow_pos_nonneg 2 s). pose proof (Z.div_mod n (2 ^ s)). pose proof (Z.mod_pos_bound n (2 ^ s)).
  set (q := n / 2 ^ s) in *. set (r := n mod 2 ^ s) in *. set (u := 2 ^ s) in *.
  destruct (Z.compare_spec (2 * r) u); [destruct (Z.even q)| |]; nia.
Qed.

(** Less than half a unit is rounded to 0. *)
Lemma nearest_of_less n s : 0 < s -> 0 <= n -> 2 * n < 2 ^ s -> nearest n s = 0.
Proof.
  intros S N L. unfold nearest. destruct (Z.leb_spec s 0); [lia|].
  rewrite Z.div_small, Z.mod_small by lia. destruct (Z.compare_spec (2 * n) (2 ^ s)); try lia.
Qed.

Lemma nearest_monotone n m s : n <= m -> nearest n s <= nearest m s.
Proof.
  intro L. unfold nearest. destruct (Z.leb_spec s 0).
  { apply Z.mul_le_mono_nonneg_r; [apply Z.pow_nonneg; lia | assumption]. }
  pose proof (Z.pow_pos_nonneg 2 s).
  pose proof (Z.div_mod n (2 ^ s)). pose proof (Z.mod_pos_bound n (2 ^ s)).
  pose proof (Z.div_mod m (2 ^ s)). pose proof (Z.mod_pos_bound m (2 ^ s)).
  set (u := 2 ^ s) in *. set (q := n / u) in *. set (r := n mod u) in *.
  set (q' := m / u) in *. set (r' := m mod u) in *.
  assert (C : q < q' \/ q = q' /\ r <= r') by nia.
  destruct (Z.compare_spec (2 * r) u), (Z.compare_spec (2 * r') u);
    destruct (Z.even q) eqn:?, (Z.even q') eqn:?; try lia;
    destruct C as [C|[C D]]; try lia; congruence.
Qed.

(** A bin above half a unit of which the number stays has nothing of it. *)
Lemma cut_from_above W c n s :
  0 < W -> 0 <= n -> (0 < s + W -> 2 * n < 2 ^ (s + W)) -> (s + W <= 0 -> n = 0) ->
  cut W (S c) n (s + W) = 0 :: cut W c n s.
Proof.
  intros HW N L Z0. cbn [cut]. replace (s + W - W) with s by lia.
  destruct (Z.leb_spec (s + W) 0) as [H|H].
  - rewrite Z0 by assumption. unfold nearest, rest. destruct (Z.leb_spec (s + W) 0); [|lia].
    rewrite Z.mul_0_l. reflexivity.
  - unfold rest. destruct (Z.leb_spec (s + W) 0); [lia|].
    rewrite nearest_of_less by auto. now rewrite Z.mul_0_l, Z.sub_0_r.
Qed.

Lemma nth_cut W c d n s k : (k < c)%nat -> (k < d)%nat -> nth k (cut W c n s) 0 = nth k (cut W d n s) 0.
Proof.
  revert d n s k. induction c as [|c IH]; intros [|d] n s [|k] A B; try lia; [reflexivity|].
  cbn [cut nth]. apply IH; lia.
Qed.

(** Slices are at most half a unit of the bin above in size. *)
Lemma cut_small W c n s k :
  0 < W -> Z.abs (2 * n) <= 2 ^ (s + W) -> (s + W < 0 -> n = 0) ->
  Z.abs (nth k (cut W c n s) 0) <= 2 ^ (W - 1).
Proof.
  intro HW. assert (P : 0 <= 2 ^ (W - 1)) by (apply Z.pow_nonneg; lia).
  assert (PW : 2 ^ W = 2 * 2 ^ (W - 1)) by (rewrite <- Z.pow_succ_r by lia; f_equal; lia).
  revert n s k. induction c as [|c IH]; intros n s k L Z0; [destruct k; cbn; lia|].
  destruct k as [|k]; cbn [cut nth].
  - unfold nearest. destruct (Z.leb_spec s 0) as [S|S].
    + destruct (Z.ltb_spec (s + W) 0); [rewrite Z0 by assumption; rewrite Z.mul_0_l; cbn; lia|].
      rewrite Z.abs_mul, (Z.abs_eq (2 ^ - s)) by (apply Z.pow_nonneg; lia).
      assert (E : (2 ^ (s + W) * 2 ^ - s)%Z = 2 ^ W) by (rewrite <- Z.pow_add_r by lia; f_equal; lia).
      assert (0 <= 2 ^ - s) by (apply Z.pow_nonneg; lia). nia.
    + pose proof (nearest_half n s S) as H. unfold nearest in H. destruct (Z.leb_spec s 0); [lia|].
      assert (E : 2 ^ (s + W) = 2 ^ s * 2 ^ W) by (apply Z.pow_add_r; lia).
      assert (0 < 2 ^ s) by (apply Z.pow_pos_nonneg; lia).
      set (q := match _ with Lt => _ | Gt => _ | Eq => _ end) in *. set (u := 2 ^ s) in *.
      set (h := 2 ^ (W - 1)) in *.
      (* |q u| <= |n| + u/2 <= u h + u/2, and q is whole *)
      assert (Z.abs q * (2 * u) <= (2 * h + 1) * u) by nia.
      nia.
  - apply IH.
    + unfold rest. replace (s - W + W) with s by lia. destruct (Z.leb_spec s 0) as [S|S].
      * rewrite Z.mul_0_r. cbn. apply Z.pow_nonneg. lia.
      * now apply nearest_half.
    + intro S. unfold rest. destruct (Z.leb_spec s 0); [reflexivity|lia].
Qed.

(** ** Terms and bins

    The term of x is T(x) = p(x) * 2^(n(x) - F) with F bits after the point of p: p is in [0, 2). *)

Section Terms.

Variables W fraction : Z.
Variable exponent : Z -> Z.
Variable significand : Z -> Z.
Variables least greatest : Z.

Hypothesis W_positive : 0 < W.
Hypothesis fraction_positive : 0 <= fraction.
Hypothesis significand_range : forall x, 0 <= significand x < 2 ^ (fraction + 1).
Hypothesis exponent_monotone : forall x y, least <= x -> x <= y -> y <= greatest -> exponent x <= exponent y.

(** floor((n + 1) / W) *)
Definition bin_of (x : Z) : Z := (exponent x + 1) / W.

(** The slices for top bin b, as [exact.slices] makes them: the term in units of 2^(W b) first. *)
Definition slices (count : nat) (x b : Z) : list Z :=
  cut W count (significand x) (W * b - (exponent x - fraction)).

(** The slice of x in bin j, from its own bin down: of what is above it nothing. *)
Definition slice_in (x j : Z) : Z :=
  let own := bin_of x in
  if own <? j then 0 else nth (Z.to_nat (own - j)) (slices (S (Z.to_nat (own - j))) x own) 0.

Lemma own_bin x : exponent x + 2 <= W * bin_of x + W.
Proof. unfold bin_of. pose proof (Z.mul_succ_div_gt (exponent x + 1) W). lia. Qed.

Lemma term_is_less_than_half_a_unit_above x j :
  0 <= j -> let s := W * (bin_of x + j) - (exponent x - fraction) in 0 < s + W /\ 2 * significand x < 2 ^ (s + W).
Proof.
  intros J s. pose proof (own_bin x). assert (fraction + 2 <= s + W) by nia. split; [lia|].
  apply Z.lt_le_trans with (2 * 2 ^ (fraction + 1)); [pose proof (significand_range x); lia|].
  rewrite <- Z.pow_succ_r by lia. apply Z.pow_le_mono_r; lia.
Qed.

(** Slicing is a pure function of term and bin: whatever the top bin, a slot holds the slice of its own bin. *)
Theorem slices_from_any_top x b count k :
  bin_of x <= b -> (k < count)%nat -> nth k (slices count x b) 0 = slice_in x (b - Z.of_nat k).
Proof.
  intro L. set (j := Z.to_nat (b - bin_of x)). replace b with (bin_of x + Z.of_nat j) by lia. clearbody j. clear b L.
  revert count k. induction j as [|j IH]; intros count k B.
  - unfold slice_in. rewrite Z.add_0_r.
    destruct (Z.ltb_spec (bin_of x) (bin_of x - Z.of_nat k)); [lia|].
    replace (Z.to_nat (bin_of x - (bin_of x - Z.of_nat k))) with k by lia. apply nth_cut; lia.
  - destruct count as [|c]; [lia|].
    pose proof (term_is_less_than_half_a_unit_above x (Z.of_nat j)) as [Q H]; [lia|].
    assert (E : slices (S c) x (bin_of x + Z.of_nat (S j)) = 0 :: slices c x (bin_of x + Z.of_nat j)).
    { unfold slices. rewrite <- cut_from_above by (trivial; try lia; apply significand_range).
      f_equal. lia. }
    rewrite E. destruct k as [|k]; cbn [nth].
    + unfold slice_in. destruct (Z.ltb_spec (bin_of x) (bin_of x + Z.of_nat (S j) - Z.of_nat 0)); [reflexivity|lia].
    + rewrite IH by lia. f_equal. lia.
Qed.

(** Of what lies K bins below the top nothing is left: such elements may be skipped. *)
Theorem skipping_far_elements_is_exact x m count k :
  exponent x + W * Z.of_nat count <= exponent m -> (k < count)%nat -> nth k (slices count x (bin_of m)) 0 = 0.
Proof.
  intros L B. assert (D : bin_of x + Z.of_nat count <= bin_of m).
  { unfold bin_of. rewrite <- Z.div_add by lia. apply Z.div_le_mono; lia. }
  rewrite slices_from_any_top by lia. unfold slice_in.
  destruct (Z.ltb_spec (bin_of x) (bin_of m - Z.of_nat k)); [reflexivity|lia].
Qed.

Lemma slice_in_small x j : Z.abs (slice_in x j) <= 2 ^ (W - 1).
Proof.
  unfold slice_in. destruct (_ <? j); [apply Z.pow_nonneg; lia|].
  pose proof (term_is_less_than_half_a_unit_above x 0) as [Q H]; [lia|]. rewrite Z.add_0_r in *.
  pose proof (significand_range x).
  apply cut_small; trivial; lia.
Qed.

(** Slices are at most half a unit of the next bin in size. *)
Theorem slices_are_small x b count k :
  bin_of x <= b -> (k < count)%nat -> Z.abs (nth k (slices count x b) 0) <= 2 ^ (W - 1).
Proof. intros. rewrite slices_from_any_top by assumption. apply slice_in_small. Qed.

(** The format of these terms, with [count] slots and sums kept by [w]. *)
Definition terms_format (count : nat) (w : Z -> Z) : format :=
  Format count least greatest bin_of slice_in w.

Theorem terms_format_is_lawful count w :
  (forall a b, w (a + w b) = w (a + b)) -> w 0 = 0 -> lawful (terms_format count w).
Proof.
  intros A B. split; cbn [bin slice wrap least_plain greatest_plain terms_format]; trivial.
  - intros x y L M N. unfold bin_of. apply Z.div_le_mono; [assumption|]. pose proof (exponent_monotone x y). lia.
  - intros x j _ L. unfold slice_in. destruct (Z.ltb_spec (bin_of x) j); [reflexivity|lia].
Qed.

(** ** Sums of 64 bits *)

Definition whole (v : Z) : Z := v.

(** A sum as int64 holds it, in two's complement. *)
Definition wrap64 (v : Z) : Z := (v + 2 ^ 63) mod 2 ^ 64 - 2 ^ 63.

Lemma wrap64_sum a b : wrap64 (a + wrap64 b) = wrap64 (a + b).
Proof.
  unfold wrap64. f_equal. replace (a + ((b + 2 ^ 63) mod 2 ^ 64 - 2 ^ 63) + 2 ^ 63) with
    (a + (b + 2 ^ 63) mod 2 ^ 64) by ring.
  rewrite Zplus_mod_idemp_r. f_equal. ring.
Qed.

Lemma wrap64_fits v : - 2 ^ 63 <= v < 2 ^ 63 -> wrap64 v = v.
Proof. intro H. unfold wrap64. rewrite Z.mod_small; lia. Qed.

#[local] Instance whole_lawful count : lawful (terms_format count whole).
Proof. now apply terms_format_is_lawful. Qed.

#[local] Instance wrap64_lawful count : lawful (terms_format count wrap64).
Proof. apply terms_format_is_lawful; [exact wrap64_sum | reflexivity]. Qed.

Variable count : nat.

Definition whole_state : list number -> state := @state_of (terms_format count whole).
Definition state64 : list number -> state := @state_of (terms_format count wrap64).

Lemma term_of_either m x k : @term (terms_format count wrap64) m x k = @term (terms_format count whole) m x k.
Proof. reflexivity. Qed.

(** Sums that wrap are the whole ones modulo 2^64. *)
Theorem overflow_is_modulo_2_64 xs :
  top (state64 xs) = top (whole_state xs) /\ sums (state64 xs) = map wrap64 (sums (whole_state xs)).
Proof.
  split; [reflexivity|]. unfold state64, whole_state, state_of, slots. cbn zeta. cbn [sums K terms_format].
  rewrite map_map. apply map_ext. intro k.
  rewrite (@total_is_wrapped (terms_format count wrap64) _), (@total_is_wrapped (terms_format count whole) _).
  reflexivity.
Qed.

(** Up to 2^(63 - W) elements, 2^41 in lse-22x3/1 and 2^31 in lse-32x4/1, no sum wraps. *)
Theorem sums_fit xs : W <= 63 -> Z.of_nat (length xs) <= 2 ^ (63 - W) -> sums (state64 xs) = sums (whole_state xs).
Proof.
  intros HW N. destruct (overflow_is_modulo_2_64 xs) as [_ ->].
  rewrite <- (map_id (sums (whole_state xs))) at 2. apply map_ext_in. intros v I.
  apply wrap64_fits. unfold whole_state, state_of, slots in I. cbn zeta in I. cbn [sums K terms_format] in I.
  apply in_map_iff in I. destruct I as (k & <- & _).
  rewrite (@total_is_wrapped (terms_format count whole) _). cbn [wrap terms_format]. unfold whole at 1 3.
  set (m := maximum xs). clearbody m.
  assert (P : 1 <= 2 ^ (W - 1)) by (pose proof (Z.pow_pos_nonneg 2 (W - 1)); lia).
  assert (T : forall x, Z.abs (@term (terms_format count whole) m x k) <= 2 ^ (W - 1)).
  { intro x. unfold term. destruct m, x; try (cbn; lia).
    - destruct (plain _); [destruct (plain _)|destruct (_ && _)]; try (cbn; lia). apply slice_in_small.
    - destruct (k =? 0)%nat; cbn; lia. }
  assert (S : forall ys, Z.abs (whole_sum (fun x => @term (terms_format count whole) m x k) ys)
                         <= Z.of_nat (length ys) * 2 ^ (W - 1)).
  { induction ys as [|y ys IH]; cbn [whole_sum length]; [cbn; lia|].
    specialize (T y). rewrite Nat2Z.inj_succ, Z.mul_succ_l. lia. }
  specialize (S xs).
  assert (E : 2 ^ (63 - W) * 2 ^ (W - 1) = 2 ^ 62) by (rewrite <- Z.pow_add_r by lia; f_equal; lia).
  assert (Z.of_nat (length xs) * 2 ^ (W - 1) <= 2 ^ (63 - W) * 2 ^ (W - 1))
    by (apply Z.mul_le_mono_nonneg_r; lia).
  assert (2 ^ 62 < 2 ^ 63) by reflexivity. lia.
Qed.

End Terms.

(** ** lse-22x3/1

    Elements are float32 in units of 2^-149; log2(e) is 0x1715476 * 2^-24, and n = round(x * log2(e)). *)

Definition exponent_22x3 (x : Z) : Z := nearest (x * 24204406) 173.

Theorem exponents_of_22x3_rise x y : x <= y -> exponent_22x3 x <= exponent_22x3 y.
Proof. intro L. apply nearest_monotone. lia. Qed.

Definition format_22x3 (significand : Z -> Z) : format :=
  terms_format 22 24 exponent_22x3 significand (- 2 ^ 179) (2 ^ 179) 3 wrap64.

(** Whatever the polynomial returns, as long as it is in [0, 2). *)
Theorem format_22x3_is_lawful significand :
  (forall x, 0 <= significand x < 2 ^ 25) -> lawful (format_22x3 significand).
Proof.
  intro R. apply wrap64_lawful; try lia; auto. intros. now apply exponents_of_22x3_rise.
Qed.

(** ** lse-32x4/1

    Elements are float64 in units of 2^-1074; [exponent] is n, which has to rise with x. *)

Definition format_32x4 (exponent significand : Z -> Z) : format :=
  terms_format 32 53 exponent significand (- 2 ^ 1136) (2 ^ 1136) 4 wrap64.

Theorem format_32x4_is_lawful exponent significand :
  (forall x, 0 <= significand x < 2 ^ 54) ->
  (forall x y, - 2 ^ 1136 <= x -> x <= y -> y <= 2 ^ 1136 -> exponent x <= exponent y) ->
  lawful (format_32x4 exponent significand).
Proof. intros R M. apply wrap64_lawful; try lia; auto. Qed.

(** So Exact.v speaks of the running formats.  Its two main claims once more, for lse-22x3/1. *)
Corollary merge_22x3_assoc significand a b c : (forall x, 0 <= significand x < 2 ^ 25) ->
  let merge := @merge (format_22x3 significand) in merge a (merge b c) = merge (merge a b) c.
Proof. intro R. apply (@merge_assoc_in_bits _ (format_22x3_is_lawful _ R)). Qed.

Corollary any_tree_22x3 significand t parts row : (forall x, 0 <= significand x < 2 ^ 25) ->
  let state_of := @state_of (format_22x3 significand) in
  let merge := @merge (format_22x3 significand) in
  leaves t = map state_of parts -> Permutation (concat parts) row -> merged merge (state_of []) t = state_of row.
Proof. intro R. apply (@any_tree_over_any_parts_in_any_order _ (format_22x3_is_lawful _ R)). Qed.

(** ** Examples

    Slices of exp(x) for x = 1, -3.25, 14.9 and -20 in float32, and 1 and 21.7 in float64, under the bin of the term and
    under the next: the numbers of the running code. *)

Example slices_22x3_1 : cut 22 3 22802600 23 = [3; -1181612; 0].
Proof. reflexivity. Qed.
Example slices_22x3_1_above : cut 22 3 22802600 45 = [0; 3; -1181612].
Proof. reflexivity. Qed.
Example slices_22x3_2 : cut 22 3 20816746 7 = [162631; -720896; 0].
Proof. reflexivity. Qed.
Example slices_22x3_3 : cut 22 3 23663420 25 = [1; -1236376; -2097152].
Proof. reflexivity. Qed.
Example slices_22x3_3_above : cut 22 3 23663420 47 = [0; 1; -1236376].
Proof. reflexivity. Qed.
Example slices_22x3_4 : cut 22 3 18565226 9 = [36260; 868352; 0].
Proof. reflexivity. Qed.
Example slices_32x4_1 : cut 32 4 12242053029736146 52 = [3; -1209970333; -1964171264; 0].
Proof. reflexivity. Qed.
Example slices_32x4_2 : cut 32 4 11139101516240988 54 = [1; -1639198540; -127832064; 0].
Proof. reflexivity. Qed.
