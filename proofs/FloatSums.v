(* Rounded sums of exponentials: how far off a sum may be, entry by entry.

   A computed sum s at the pivot m is held between two true sums. In these the entry x counts with an exponential
   that errs by a factor of at most exp (u * (m - x) + k), where k counts the operations on its way. Rounded exponents
   telescope: however often the pivot moves on, what they cost is u * (m - x), as if the last pivot had been known
   from the start. So the three operations below change the counts alone:

     an exponential         k = e1                       [term_near]
     an addition            k grows by u                 [plus_near]
     a rescale              k grows by e1 + u            [rescale_near]; where the pivot stays, by nothing [stay]

   Underflow, gradual or to zero, adds 3 * n * tiny * exp K to all that, for n entries of counts up to K: nothing
   beside a sum that is 1 at least.

   The claim here is about sums whose pivot is known first, added in any order: [batch_near]. Entries are real
   numbers of the format; an entry of -inf has exponential 0, and adding 0 is exact. *)

From Coq Require Import ZArith Reals Psatz List.
From Flocq Require Import Core.
From OnlineSoftmax Require Import Rounding.
Import ListNotations.
Open Scope R_scope.

Fixpoint sum (l : list R) : R := match l with [] => 0 | a :: r => a + sum r end.

(* Entries in the order they are added in: a tree of additions. *)
Inductive order := One (x : R) | Plus (a b : order).

Fixpoint entries (t : order) : list R :=
  match t with One x => [x] | Plus a b => entries a ++ entries b end.

Fixpoint top (t : order) : R :=
  match t with One x => x | Plus a b => Rmax (top a) (top b) end.

(* Most additions that an entry goes through. *)
Fixpoint depth (t : order) : nat :=
  match t with One _ => 0 | Plus a b => S (max (depth a) (depth b)) end.

(* x0 + x1 + ..., one after another. *)
Definition running (x : R) (xs : list R) : order := fold_left (fun t y => Plus t (One y)) xs (One x).

Section Sums.

Variable F : Format.
Variable E : Exponential F.

Notation u := (u F).
Notation tiny := (tiny F).
Notation rnd := (rnd F).
Notation number := (number F).

(* exp (x - m), from a rounded difference; what a sum at the pivot p is multiplied by at m is the same function. *)
Definition term (x m : R) : R := expf F E (rnd (x - m)).

(* The sum of a tree's exponentials at the pivot m, each operation rounded. *)
Fixpoint sum_at (m : R) (t : order) : R :=
  match t with
  | One x => term x m
  | Plus a b => rnd (sum_at m a + sum_at m b)
  end.

(* What one exponential costs, as an exponent; [gap] is 0 unless differences are flushed to zero. *)
Definition e1 : R := err F E / (1 - err F E) + gap F.

(* --- a computed sum between two true ones --- *)

(* Entries with their counts. *)
Definition counted := list (R * R).

Definition least (m : R) (ts : counted) : R := sum (map (fun t => exp ((1 + u) * (fst t - m) - snd t)) ts).
Definition most (m : R) (ts : counted) : R := sum (map (fun t => exp ((1 - u) * (fst t - m) + snd t)) ts).

Definition all (k : R) (xs : list R) : counted := map (fun x => (x, k)) xs.
Definition more (k : R) (ts : counted) : counted := map (fun t => (fst t, snd t + k)) ts.

Definition underflow (K : R) (ts : counted) : R := INR (length ts) * tiny * exp K.

(* [within 3 K m s ts]: s is a sum of the entries' exponentials at m, of counts at most K. *)
Record within (c K m s : R) (ts : counted) : Prop := {
  counts : Forall (fun t => fst t <= m /\ 0 <= snd t <= K) ts;
  from_below : least m ts - c * underflow K ts <= s;
  from_above : s <= most m ts + c * underflow K ts
}.

(* The same of a number that is not negative. *)
Definition near (K m s : R) (ts : counted) : Prop := within 3 K m s ts /\ number s /\ 0 <= s.

(* --- lists --- *)

Lemma sum_app : forall a b, sum (a ++ b) = sum a + sum b.
Proof. induction a as [|x a IH]; intros b; simpl; [ring|rewrite IH; ring]. Qed.

Lemma least_app : forall m a b, least m (a ++ b) = least m a + least m b.
Proof. intros. unfold least. now rewrite map_app, sum_app. Qed.

Lemma most_app : forall m a b, most m (a ++ b) = most m a + most m b.
Proof. intros. unfold most. now rewrite map_app, sum_app. Qed.

Lemma more_app : forall k a b, more k (a ++ b) = more k a ++ more k b.
Proof. intros. unfold more. apply map_app. Qed.

Lemma more_all : forall k l xs, more k (all l xs) = all (l + k) xs.
Proof. intros. unfold more, all. rewrite map_map. reflexivity. Qed.

Lemma all_app : forall k a b, all k (a ++ b) = all k a ++ all k b.
Proof. intros. unfold all. apply map_app. Qed.

Lemma length_more : forall k ts, length (more k ts) = length ts.
Proof. intros. unfold more. apply map_length. Qed.

Lemma underflow_pos : forall K ts, 0 <= underflow K ts.
Proof.
  intros. unfold underflow. pose proof (tiny_range F). pose proof (exp_pos K). pose proof (pos_INR (length ts)).
  apply Rmult_le_pos; [apply Rmult_le_pos|]; lra.
Qed.

Lemma underflow_app : forall K a b, underflow K (a ++ b) = underflow K a + underflow K b.
Proof. intros. unfold underflow. rewrite app_length, plus_INR. ring. Qed.

Lemma underflow_more : forall k K ts, underflow (K + k) (more k ts) = underflow K ts * exp k.
Proof. intros. unfold underflow. rewrite length_more, exp_plus. ring. Qed.

Lemma exp_le : forall a b, a <= b -> exp a <= exp b.
Proof. intros a b [H| ->]; [apply Rlt_le, exp_increasing, H|apply Rle_refl]. Qed.

Lemma exp_le_1 : forall a, a <= 0 -> exp a <= 1.
Proof. intros a H. pose proof (exp_le a 0 H). rewrite exp_0 in *. assumption. Qed.

Lemma exp_ge_1 : forall a, 0 <= a -> 1 <= exp a.
Proof. intros a H. pose proof (exp_le 0 a H). rewrite exp_0 in *. assumption. Qed.

(* A new pivot and new counts multiply all of a sum by one factor. *)
Lemma least_moved : forall k p m ts, least m (more k ts) = least p ts * exp ((1 + u) * (p - m) - k).
Proof.
  intros k p m ts. unfold least, more.
  induction ts as [|t ts IH]; simpl; [ring|]. rewrite IH, (Rmult_plus_distr_r (exp _) (sum _)), <- exp_plus. f_equal. f_equal. ring.
Qed.

Lemma most_moved : forall k p m ts, most m (more k ts) = most p ts * exp ((1 - u) * (p - m) + k).
Proof.
  intros k p m ts. unfold most, more.
  induction ts as [|t ts IH]; simpl; [ring|]. rewrite IH, (Rmult_plus_distr_r (exp _) (sum _)), <- exp_plus. f_equal. f_equal. ring.
Qed.

Lemma least_more : forall k m ts, least m (more k ts) = least m ts * exp (- k).
Proof. intros. rewrite (least_moved k m m). f_equal. f_equal. ring. Qed.

Lemma most_more : forall k m ts, most m (more k ts) = most m ts * exp k.
Proof. intros. rewrite (most_moved k m m). f_equal. f_equal. ring. Qed.

Lemma least_range : forall K m ts, Forall (fun t => fst t <= m /\ 0 <= snd t <= K) ts ->
  0 <= least m ts <= INR (length ts).
Proof.
  intros K m ts H. pose proof (u_range F). induction H as [|t ts Ht _ IH].
  - simpl. unfold least. simpl. lra.
  - unfold least in *. cbn [map sum length]. rewrite S_INR.
    pose proof (exp_pos ((1 + u) * (fst t - m) - snd t)).
    assert (exp ((1 + u) * (fst t - m) - snd t) <= 1); [|lra].
    apply exp_le_1. destruct Ht as [Ht [Hk _]]. nra.
Qed.

Lemma most_range : forall K m ts, Forall (fun t => fst t <= m /\ 0 <= snd t <= K) ts ->
  0 <= most m ts <= INR (length ts) * exp K.
Proof.
  intros K m ts H. pose proof (u_range F). induction H as [|t ts Ht _ IH].
  - simpl. unfold most. simpl. lra.
  - unfold most in *. cbn [map sum length]. rewrite S_INR.
    pose proof (exp_pos ((1 - u) * (fst t - m) + snd t)).
    assert (exp ((1 - u) * (fst t - m) + snd t) <= exp K) by (apply exp_le; destruct Ht as [Ht [_ Hk]]; nra). lra.
Qed.

Lemma counts_more : forall k K p m ts, 0 <= k -> p <= m ->
  Forall (fun t => fst t <= p /\ 0 <= snd t <= K) ts ->
  Forall (fun t => fst t <= m /\ 0 <= snd t <= K + k) (more k ts).
Proof.
  intros k K p m ts Hk Hp H. unfold more. apply Forall_map.
  apply Forall_impl with (2 := H). intros [x l]. simpl. lra.
Qed.

Lemma within_weaken : forall c K L m s ts, 0 <= c -> K <= L -> within c K m s ts -> within c L m s ts.
Proof.
  intros c K L m s ts Hc HK [C A B].
  assert (c * underflow K ts <= c * underflow L ts).
  { apply Rmult_le_compat_l; [exact Hc|]. unfold underflow. apply Rmult_le_compat_l.
    - pose proof (tiny_range F). pose proof (pos_INR (length ts)). apply Rmult_le_pos; lra.
    - now apply exp_le. }
  split; [|lra|lra]. apply Forall_impl with (2 := C). intros t. lra.
Qed.

Lemma near_weaken : forall K L m s ts, K <= L -> near K m s ts -> near L m s ts.
Proof. intros K L m s ts HK [A B]. split; [|exact B]. apply within_weaken with K; [lra|exact HK|exact A]. Qed.

(* Counts may be taken to be greater than they are. *)
Lemma all_weaken : forall k l m v xs, k <= l -> near k m v (all k xs) -> near l m v (all l xs).
Proof.
  intros k l m v xs Hkl [[C L U] [Nv Hv]]. split; [|now split].
  assert (M : all l xs = more (l - k) (all k xs)) by (rewrite more_all; f_equal; ring).
  pose proof (least_range k m _ C). pose proof (most_range k m _ C). pose proof (underflow_pos k (all k xs)).
  assert (E1 : 1 <= exp (l - k)) by (apply exp_ge_1; lra).
  assert (E2 : exp (- (l - k)) <= 1) by (apply exp_le_1; lra).
  rewrite M. replace l with (k + (l - k)) at 1 by ring.
  split; [apply counts_more with (p := m); [lra|lra|exact C]| |]; rewrite underflow_more.
  - rewrite least_more. nra.
  - rewrite most_more. nra.
Qed.

(* --- an exponential --- *)

Lemma e0_range : 0 <= err F E / (1 - err F E) <= / 3.
Proof.
  pose proof (err_range F E). split.
  - apply Rmult_le_pos; [lra|]. apply Rlt_le, Rinv_0_lt_compat. lra.
  - apply Rmult_le_reg_r with (1 - err F E); [lra|]. unfold Rdiv. rewrite Rmult_assoc, Rinv_l by lra. lra.
Qed.

Lemma e1_pos : 0 <= e1.
Proof. pose proof e0_range. pose proof (gap_range F). unfold e1. lra. Qed.

Lemma exp_errs : exp (- (err F E / (1 - err F E))) <= 1 - err F E /\ 1 + err F E <= exp (err F E / (1 - err F E)).
Proof.
  pose proof (err_range F E) as H. set (e := err F E) in *.
  destruct H as [H0 H1]. pose proof (exp_ineq1_le (e / (1 - e))) as Hx.
  assert (Hd : 1 + e / (1 - e) = / (1 - e)) by (field; lra).
  split.
  - rewrite exp_Ropp. apply Rle_trans with (/ / (1 - e)); [|rewrite Rinv_inv; lra].
    apply Rinv_le_contravar; [|lra]. apply Rinv_0_lt_compat. lra.
  - apply Rle_trans with (2 := Hx). apply Rplus_le_compat_l.
    apply Rmult_le_reg_r with (1 - e); [lra|]. unfold Rdiv. rewrite Rmult_assoc, Rinv_l by lra. nra.
Qed.

Lemma term_number : forall x m, number x -> number m -> x <= m -> number (term x m) /\ 0 <= term x m <= 1.
Proof.
  intros x m Nx Nm H. unfold term.
  assert (rnd (x - m) <= 0) by (apply rnd_nonpos; lra).
  split; [apply expf_number|apply expf_range]; try assumption; apply number_rnd.
Qed.

Lemma term_same : forall m, term m m = 1.
Proof. intros m. unfold term. rewrite Rminus_diag_eq by reflexivity. rewrite (rnd_number F 0 (number_0 F)). apply expf_0. Qed.

(* The two ways an exponential comes out: normal and off by a factor, or small and off by tiny, too. *)
Lemma term_cases : forall x m, number x -> number m -> x <= m ->
  let low := exp ((1 + u) * (x - m) - e1) in
  let high := exp ((1 - u) * (x - m) + e1) in
  (normal F <= term x m /\ low <= term x m <= high) \/
  (term x m <= / 4 /\ low - tiny <= term x m <= high + tiny).
Proof.
  intros x m Nx Nm H low high.
  pose proof (rnd_difference F x m Nx Nm H) as Hd.
  assert (Hneg : rnd (x - m) <= 0) by (apply rnd_nonpos; lra).
  pose proof (number_rnd F (x - m)) as Nd.
  pose proof (expf_small F E _ Nd Hneg) as Hs. pose proof (expf_normal F E _ Nd Hneg) as Hn.
  pose proof (err_range F E) as He. destruct exp_errs as [He1 He2].
  unfold term. set (d := rnd (x - m)) in *. pose proof (exp_pos d) as Hp.
  assert (L : low <= (1 - err F E) * exp d).
  { unfold low, e1. apply Rle_trans with (exp (- (err F E / (1 - err F E))) * exp d).
    - rewrite <- exp_plus. apply exp_le. lra.
    - apply Rmult_le_compat_r; lra. }
  assert (U : (1 + err F E) * exp d <= high).
  { unfold high, e1. apply Rle_trans with (exp (err F E / (1 - err F E)) * exp d).
    - apply Rmult_le_compat_r; lra.
    - rewrite <- exp_plus. apply exp_le. lra. }
  apply Rabs_le_inv in Hs.
  destruct (Rle_or_lt (normal F) ((1 - err F E) * exp d)) as [C|C].
  - left. specialize (Hn C). apply Rabs_le_inv in Hn. lra.
  - right. pose proof (normal_range F). pose proof (tiny_range F).
    assert (/ 2 * exp d <= (1 - err F E) * exp d) by (apply Rmult_le_compat_r; lra).
    assert (err F E * exp d <= / 4 * exp d) by (apply Rmult_le_compat_r; lra).
    assert (exp d < 2 * normal F) by lra. split; lra.
Qed.

Lemma term_near : forall x m, number x -> number m -> x <= m -> near e1 m (term x m) [(x, e1)].
Proof.
  intros x m Nx Nm H. destruct (term_number x m Nx Nm H) as [N R].
  split; [|split; [exact N|lra]].
  pose proof (term_cases x m Nx Nm H) as C. pose proof e1_pos. pose proof (tiny_range F).
  assert (tiny <= underflow e1 [(x, e1)]).
  { unfold underflow. simpl. rewrite Rmult_1_l.
    assert (1 <= exp e1) by now apply exp_ge_1. nra. }
  split.
  - constructor; [simpl; lra|constructor].
  - unfold least. simpl. lra.
  - unfold most. simpl. lra.
Qed.

(* --- an addition --- *)

(* A rounding adds u to every count, and to the underflow what it may add itself. *)
Lemma rounded_within : forall c c' K m v w ts, 0 <= c <= c' -> within c K m v ts ->
  v * exp (- u) - (c' - c) * underflow K ts <= w <= v * exp u + (c' - c) * underflow K ts ->
  within c' (K + u) m w (more u ts).
Proof.
  intros c c' K m v w ts Hc [C L U] [Hl Hu]. pose proof (u_range F) as Hr.
  destruct (exp_u_le F) as [E1 E2]. pose proof (exp_pos (- u)) as E3.
  pose proof (underflow_pos K ts) as Hw. set (W := underflow K ts) in *.
  assert (A : (least m ts - c * W) * exp (- u) <= v * exp (- u)) by (apply Rmult_le_compat_r; lra).
  assert (B : v * exp u <= (most m ts + c * W) * exp u) by (apply Rmult_le_compat_r; lra).
  assert (G : W <= W * exp u) by nra.
  assert (c * (W * exp (- u)) <= c * W) by (apply Rmult_le_compat_l; nra).
  assert (c' * W <= c' * (W * exp u)) by (apply Rmult_le_compat_l; lra).
  assert ((c' - c) * W <= (c' - c) * (W * exp u)) by (apply Rmult_le_compat_l; lra).
  split; [apply counts_more with (p := m); [lra|lra|exact C]| |]; fold W; rewrite underflow_more; fold W.
  - rewrite least_more. lra.
  - rewrite most_more. lra.
Qed.

Lemma within_app : forall c K m s t a b,
  within c K m s a -> within c K m t b -> within c K m (s + t) (a ++ b).
Proof.
  intros c K m s t a b [Ca La Ua] [Cb Lb Ub]. split; [now apply Forall_app| |].
  - rewrite least_app, underflow_app. lra.
  - rewrite most_app, underflow_app. lra.
Qed.

Lemma plus_near : forall K m s t a b,
  near K m s a -> near K m t b -> near (K + u) m (rnd (s + t)) (more u (a ++ b)).
Proof.
  intros K m s t a b [Wa [Ns Hs]] [Wb [Nt Ht]].
  split; [|split; [apply number_rnd|apply rnd_nonneg; lra]].
  apply rounded_within with (c := 3) (v := s + t); [lra|now apply within_app|].
  pose proof (rnd_sum F s t Ns Nt Hs Ht). lra.
Qed.

(* --- a rescale --- *)

Lemma near_not_empty : forall c K m s ts, within c K m s ts -> 1 <= s -> 1 <= INR (length ts).
Proof.
  intros c K m s [|t ts] [_ _ U] Hs.
  - unfold most, underflow in U. simpl in U. lra.
  - cbn [length]. rewrite S_INR. pose proof (pos_INR (length ts)). lra.
Qed.

(* The product before it is rounded. *)
Lemma scaled_within : forall K p m s ts, near K p s ts -> 1 <= s -> number p -> number m -> p <= m ->
  (normal F <= s * term p m /\ within 3 (K + e1) m (s * term p m) (more e1 ts)) \/
  within 2 (K + e1) m (s * term p m) (more e1 ts).
Proof.
  intros K p m s ts [[C L U] [Ns Hs]] H1 Np Nm Hpm.
  pose proof (term_cases p m Np Nm Hpm) as T. simpl in T.
  destruct (term_number p m Np Nm Hpm) as [_ Hr].
  set (r := term p m) in *.
  pose proof (least_range K p ts C) as Hl. pose proof (most_range K p ts C) as Hm.
  pose proof (tiny_range F) as Ht. pose proof (normal_range F) as Hn. pose proof e1_pos as He.
  assert (HK : 0 <= K \/ ts = []).
  { destruct C as [|t ts Ct _]; [now right|left; lra]. }
  assert (Hn1 : INR (length ts) * tiny <= underflow K ts).
  { unfold underflow. pose proof (pos_INR (length ts)). destruct HK as [HK| ->]; [|simpl; lra].
    assert (1 <= exp K) by now apply exp_ge_1.
    assert (0 <= INR (length ts) * tiny) by (apply Rmult_le_pos; lra). nra. }
  assert (Hn2 : most p ts * tiny <= underflow K ts).
  { unfold underflow. apply Rle_trans with (INR (length ts) * exp K * tiny); [|lra].
    apply Rmult_le_compat_r; lra. }
  pose proof (underflow_pos K ts) as Hw.
  assert (Hg : underflow K ts <= underflow (K + e1) (more e1 ts)).
  { rewrite underflow_more. assert (1 <= exp e1) by now apply exp_ge_1. nra. }
  pose proof (counts_more e1 K p m ts He Hpm C) as C'.
  set (W := underflow K ts) in *. set (lo := least p ts) in *. set (hi := most p ts) in *.
  assert (A : s * r <= (hi + 3 * W) * r) by (apply Rmult_le_compat_r; lra).
  assert (B : (lo - 3 * W) * r <= s * r) by (apply Rmult_le_compat_r; lra).
  set (bl := exp ((1 + u) * (p - m) - e1)) in *. set (bh := exp ((1 - u) * (p - m) + e1)) in *.
  destruct T as [[Hnr [Lr Ur]]|[Hsr [Lr Ur]]]; [left|right].
  - assert (3 * W * r <= 3 * W * 1) by (apply Rmult_le_compat_l; lra).
    split; [apply Rle_trans with (1 * r); [lra|apply Rmult_le_compat_r; lra]|]. split; [exact C'| |].
    + rewrite (least_moved e1 p m). fold lo bl. assert (lo * bl <= lo * r) by (apply Rmult_le_compat_l; lra). lra.
    + rewrite (most_moved e1 p m). fold hi bh. assert (hi * r <= hi * bh) by (apply Rmult_le_compat_l; lra). lra.
  - assert (3 * W * r <= 3 * W * / 4) by (apply Rmult_le_compat_l; lra).
    split; [exact C'| |].
    + rewrite (least_moved e1 p m). fold lo bl.
      assert (lo * (bl - tiny) <= lo * r) by (apply Rmult_le_compat_l; lra).
      assert (lo * tiny <= INR (length ts) * tiny) by (apply Rmult_le_compat_r; lra). lra.
    + rewrite (most_moved e1 p m). fold hi bh.
      assert (hi * r <= hi * (bh + tiny)) by (apply Rmult_le_compat_l; lra). lra.
Qed.

Lemma rescale_near : forall K p m s ts, near K p s ts -> 1 <= s -> number p -> number m -> p <= m ->
  near (K + (e1 + u)) m (rnd (s * term p m)) (more (e1 + u) ts).
Proof.
  intros K p m s ts N H1 Np Nm Hpm.
  pose proof (scaled_within K p m s ts N H1 Np Nm Hpm) as W.
  destruct (term_number p m Np Nm Hpm) as [_ Hr]. pose proof (near_not_empty _ _ _ _ _ (proj1 N) H1) as Hn.
  destruct N as [[C _ _] _].
  assert (Hv : 0 <= s * term p m) by nra.
  split; [|split; [apply number_rnd|now apply rnd_nonneg]].
  pose proof e1_pos. pose proof (tiny_range F).
  assert (M : more (e1 + u) ts = more u (more e1 ts)).
  { unfold more. rewrite map_map. apply map_ext. intros t. simpl. f_equal. ring. }
  rewrite M, <- Rplus_assoc.
  assert (Hw : tiny <= underflow (K + e1) (more e1 ts)).
  { unfold underflow. rewrite length_more.
    assert (0 <= K) by (destruct C as [|t l Ct _]; [simpl in Hn; lra|lra]).
    assert (1 <= exp (K + e1)) by (apply exp_ge_1; lra).
    assert (tiny <= INR (length ts) * tiny) by nra. nra. }
  destruct W as [[Hx W]|W].
  - apply rounded_within with (2 := W); [lra|]. pose proof (rnd_normal F _ Hx). lra.
  - apply rounded_within with (2 := W); [lra|]. pose proof (rnd_any F _ Hv). lra.
Qed.

(* Where the pivot stays, the factor is 1 and nothing is rounded. *)
Lemma stay : forall m s, number s -> rnd (s * term m m) = s.
Proof. intros m s Ns. rewrite term_same, Rmult_1_r. now apply rnd_number. Qed.

(* --- the maximum first, then sums in any order --- *)

Lemma top_ge : forall t x, In x (entries t) -> x <= top t.
Proof.
  induction t as [y|a IHa b IHb]; simpl; intros x H.
  - destruct H as [->|[]]. lra.
  - apply in_app_or in H. destruct H as [H|H].
    + apply Rle_trans with (2 := Rmax_l _ _). auto.
    + apply Rle_trans with (2 := Rmax_r _ _). auto.
Qed.

Lemma top_in : forall t, In (top t) (entries t).
Proof.
  induction t as [y|a IHa b IHb]; simpl; [now left|]. apply in_or_app.
  unfold Rmax. destruct (Rle_dec (top a) (top b)); auto.
Qed.

(* At any pivot no entry is above, in any order of summation: depth roundings and an exponential. *)
Theorem batch_near : forall t m, Forall number (entries t) -> number m -> top t <= m ->
  near (INR (depth t) * u + e1) m (sum_at m t) (all (INR (depth t) * u + e1) (entries t)).
Proof.
  pose proof (u_range F) as Hu. pose proof e1_pos as He.
  induction t as [x|a IHa b IHb]; intros m N Nm H.
  - cbn [depth entries sum_at top] in *. change (INR 0) with 0. rewrite Rmult_0_l, Rplus_0_l. inversion N. now apply term_near.
  - cbn [entries top] in N, H. apply Forall_app in N. destruct N as [Na Nb].
    pose proof (Rmax_l (top a) (top b)). pose proof (Rmax_r (top a) (top b)).
    specialize (IHa m Na Nm ltac:(lra)). specialize (IHb m Nb Nm ltac:(lra)).
    cbn [sum_at entries depth]. set (d := max (depth a) (depth b)).
    rewrite all_app. replace (INR (S d) * u + e1) with (INR d * u + e1 + u) by (rewrite S_INR; ring).
    set (K := INR d * u + e1). rewrite <- !(more_all u K), <- more_app. unfold K.
    apply plus_near.
    + apply all_weaken with (2 := IHa). apply Rplus_le_compat_r, Rmult_le_compat_r; [lra|]. apply le_INR. unfold d. lia.
    + apply all_weaken with (2 := IHb). apply Rplus_le_compat_r, Rmult_le_compat_r; [lra|]. apply le_INR. unfold d. lia.
Qed.

Lemma depth_running : forall xs t, depth (fold_left (fun t y => Plus t (One y)) xs t) = (length xs + depth t)%nat.
Proof.
  induction xs as [|x xs IH]; intros t; simpl; [reflexivity|]. rewrite IH. simpl. lia.
Qed.

End Sums.
