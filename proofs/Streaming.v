(** Rows: one element at a time, in blocks, or along a tree, the state is the one of the definition.

    The definition: of a row, the maximum m and the sum of exp (x - m), -inf entries counting nothing. From it, and not
    assumed: the online update; streaming equals the definition, as a pair, by induction; the state of two rows one
    after the other is the merge of their states, so any cut into blocks, any order of the entries and any tree give
    the state of the row. Then: every exponent is at most 0; the normaliser lies in [1, C] and where it meets the ends;
    the rescale factor lies in (0, 1] and is 1 exactly when no new maximum arrives. *)

From Coq Require Import Reals List Lra Lia Permutation.
From OnlineSoftmax Require Import Law.
Import ListNotations.
Open Scope R_scope.

(** * The definition *)

Definition row : Type := list height.

(** The maximum of a row; of nothing, -inf. *)
Fixpoint row_max (x : row) : height :=
  match x with [] => minus_inf | h :: rest => hmax h (row_max rest) end.

(** The sum of exp (x_i - m) over a row. *)
Fixpoint sum_at (m : height) (x : row) : R :=
  match x with [] => 0 | h :: rest => weight h m + sum_at m rest end.

(** (max x, sum exp (x_i - max x)). *)
Definition state_of (x : row) : state := (row_max x, sum_at (row_max x) x).

(** One element at a time, from nothing. *)
Definition stream (x : row) : state := fold_left push x identity.

(** The row has an entry above -inf. *)
Definition has_finite (x : row) : Prop := exists r, In (fin r) x.

(** * Lemmas on maxima and sums *)

Lemma row_max_app : forall x y, row_max (x ++ y) = hmax (row_max x) (row_max y).
Proof. induction x as [|h x IH]; intro y; cbn; [reflexivity|]. now rewrite IH, hmax_assoc. Qed.

Lemma row_max_upper : forall x h, In h x -> hle h (row_max x).
Proof.
  induction x as [|a x IH]; cbn; [easy|]. intros h [<-|i].
  - apply hle_hmax_l.
  - eapply hle_trans; [now apply IH | apply hle_hmax_r].
Qed.

Lemma row_max_in : forall x m, row_max x = fin m -> In (fin m) x.
Proof.
  induction x as [|[|a] x IH]; cbn; intros m e; [easy | right; auto |].
  destruct (row_max x) as [|b]; cbn in e; [now left|].
  injection e as e. unfold Rmax in e. destruct (Rle_dec a b); subst; auto.
Qed.

Lemma row_max_finite : forall x, has_finite x <-> exists m, row_max x = fin m.
Proof.
  intro x; split.
  - intros [r i]. apply row_max_upper in i. destruct (row_max x) as [|m]; [easy | now exists m].
  - intros [m e]. exists m. now apply row_max_in.
Qed.

Lemma row_max_permutation : forall x y, Permutation x y -> row_max x = row_max y.
Proof.
  induction 1 as [|h x y _ IH|a b x|x y z _ IH _ IH']; cbn; try congruence.
  now rewrite !hmax_assoc, (hmax_comm b).
Qed.

Lemma sum_at_app : forall m x y, sum_at m (x ++ y) = sum_at m x + sum_at m y.
Proof. induction x as [|h x IH]; intro y; cbn; [ring|]. rewrite IH. ring. Qed.

Lemma sum_at_permutation : forall m x y, Permutation x y -> sum_at m x = sum_at m y.
Proof. induction 1; cbn; lra. Qed.

Lemma sum_at_nonneg : forall m x, 0 <= sum_at m x.
Proof.
  induction x as [|h x IH]; cbn; [lra|]. pose proof (weight_nonneg h m). lra.
Qed.

(** The step of the whole derivation: multiply and divide by exp m, inside the sum. *)
Lemma sum_at_rescaled : forall x m m', hle (row_max x) m -> sum_at m x * weight m m' = sum_at m' x.
Proof.
  induction x as [|h x IH]; cbn; intros m m' le; [ring|].
  rewrite Rmult_plus_distr_r, IH by (eapply hle_trans; [apply hle_hmax_r | exact le]).
  rewrite weight_weight by (eapply hle_trans; [apply hle_hmax_l | exact le]). reflexivity.
Qed.

(** * Streaming is the definition *)

(** m_{k+1} = max (m_k, x_k). *)
Theorem online_maximum : forall x h, row_max (x ++ [h]) = hmax (row_max x) h.
Proof. intros. rewrite row_max_app. cbn. now rewrite hmax_minus_inf_r. Qed.

(** s_{k+1} = s_k * exp (m_k - m_{k+1}) + exp (x_k - m_{k+1}), from the definition of s_{k+1}. *)
Theorem online_update : forall x h,
  let m := row_max x in
  let m' := row_max (x ++ [h]) in
  sum_at m' (x ++ [h]) = sum_at m x * weight m m' + weight h m'.
Proof.
  intros x h m m'. rewrite sum_at_app, sum_at_rescaled by apply hle_refl. cbn. ring.
Qed.

Lemma state_of_snoc : forall x h, state_of (x ++ [h]) = push (state_of x) h.
Proof.
  intros. unfold state_of, push; cbn [fst snd].
  rewrite online_update, online_maximum. reflexivity.
Qed.

(** The online algorithm gives exactly (max x, sum exp (x_i - max x)), for every row: empty, of -inf alone, or not. *)
Theorem streaming_is_batch : forall x, stream x = state_of x.
Proof.
  intro x. induction x as [|h x IH] using rev_ind; [reflexivity|].
  unfold stream. rewrite fold_left_app. cbn [fold_left].
  fold (stream x). now rewrite IH, state_of_snoc.
Qed.

(** The state of an append is the merge of the states. *)
Theorem state_of_append_is_merge : forall x y, state_of (x ++ y) = merge (state_of x) (state_of y).
Proof.
  intros. unfold state_of, merge; cbn [fst snd]. rewrite row_max_app, sum_at_app.
  now rewrite !sum_at_rescaled by apply hle_refl.
Qed.

(** A block pushed onto a state: one maximum and one sum, as [push] of the Python law does it. *)
Theorem streaming_goes_on : forall x y, fold_left push y (state_of x) = merge (state_of x) (state_of y).
Proof.
  intros. rewrite <- state_of_append_is_merge, <- !streaming_is_batch. unfold stream. now rewrite fold_left_app.
Qed.

(** The order of the entries does not matter. *)
Theorem state_of_any_order : forall x y, Permutation x y -> state_of x = state_of y.
Proof.
  intros x y p. unfold state_of. rewrite (row_max_permutation x y p). f_equal. now apply sum_at_permutation.
Qed.

Lemma row_of_minus_inf : forall x, row_max x = minus_inf -> forall m, sum_at m x = 0.
Proof.
  induction x as [|[|a] x IH]; cbn; intros e m; [reflexivity | rewrite (IH e); ring |].
  destruct (row_max x); discriminate.
Qed.

(** A row of -inf alone has the state of nothing. *)
Theorem state_of_minus_inf : forall x, ~ has_finite x -> state_of x = identity.
Proof.
  intros x none. unfold state_of. destruct (row_max x) as [|m] eqn:e.
  - now rewrite row_of_minus_inf.
  - destruct none. exists m. now apply row_max_in.
Qed.

(** Entries of -inf add nothing. *)
Theorem minus_inf_adds_nothing : forall x y, state_of (x ++ minus_inf :: y) = state_of (x ++ y).
Proof.
  intros. unfold state_of. rewrite !row_max_app, !sum_at_app. cbn. f_equal. ring.
Qed.

(** * Every state is valid; the normaliser *)

(** With m the maximum, every exponent x_i - m is at most 0. *)
Theorem exponents_nonpositive : forall x m r, row_max x = fin m -> In (fin r) x -> r - m <= 0.
Proof. intros x m r e i. apply row_max_upper in i. rewrite e in i. cbn in i. lra. Qed.

(** And one of them is 0. *)
Theorem greatest_exponent_is_0 : forall x m, row_max x = fin m -> exists r, In (fin r) x /\ r - m = 0.
Proof. intros x m e. exists m. split; [now apply row_max_in | ring]. Qed.

Lemma sum_at_ge : forall x h m, In h x -> weight h m <= sum_at m x.
Proof.
  induction x as [|a x IH]; cbn; [easy|]. intros h m [<-|i].
  - pose proof (sum_at_nonneg m x). lra.
  - apply IH with (m := m) in i. pose proof (weight_nonneg a m). lra.
Qed.

Lemma sum_at_le_length : forall x m, hle (row_max x) m -> sum_at m x <= INR (length x).
Proof.
  induction x as [|h x IH]; intros m le; [cbn; lra|].
  cbn [sum_at length row_max] in *. rewrite S_INR.
  assert (weight h m <= 1) by (apply weight_le_1; eapply hle_trans; [apply hle_hmax_l | exact le]).
  assert (sum_at m x <= INR (length x)) by (apply IH; eapply hle_trans; [apply hle_hmax_r | exact le]).
  lra.
Qed.

(** The normaliser lies in [1, C]: it cannot overflow, and a division by it is safe. *)
Theorem normaliser_bounds : forall x, has_finite x -> 1 <= snd (state_of x) <= INR (length x).
Proof.
  intros x f. apply row_max_finite in f as [m e]. unfold state_of; cbn [snd]. rewrite e. split.
  - rewrite <- (weight_self m). apply sum_at_ge. now apply row_max_in.
  - apply sum_at_le_length. rewrite e. apply hle_refl.
Qed.

(** C is met by C equal entries. *)
Theorem normaliser_greatest : forall r C, snd (state_of (repeat (fin r) C)) = INR C.
Proof.
  intros r C. destruct C as [|C]; [reflexivity|].
  assert (e : forall n, row_max (repeat (fin r) (S n)) = fin r).
  { induction n as [|n IH]; [reflexivity|]. cbn [repeat row_max] in *. rewrite IH. apply hmax_idem. }
  unfold state_of; cbn [snd]. rewrite e.
  induction (S C) as [|n IH]; [reflexivity|]. cbn [repeat sum_at]. rewrite IH, weight_self, S_INR. ring.
Qed.

(** 1 is met by one finite entry among -inf, *)
Theorem normaliser_least : forall r C, snd (state_of (fin r :: repeat minus_inf C)) = 1.
Proof.
  intros r C.
  assert (e : row_max (repeat minus_inf C) = minus_inf) by (induction C; cbn; auto).
  unfold state_of; cbn [row_max sum_at snd]. rewrite e. cbn [hmax].
  rewrite weight_self, (row_of_minus_inf _ e). ring.
Qed.

(** never by two finite entries, *)
Theorem normaliser_above_1 : forall x y r t, 1 < snd (state_of (fin r :: x ++ fin t :: y)).
Proof.
  intros x y r t. set (z := fin r :: x ++ fin t :: y).
  assert (p : Permutation z (fin r :: fin t :: x ++ y)) by
    (unfold z; constructor; symmetry; apply Permutation_middle).
  rewrite (state_of_any_order _ _ p). set (w := fin r :: fin t :: x ++ y).
  destruct (proj1 (row_max_finite w)) as [m e]; [exists r; now left|].
  unfold state_of; cbn [snd]. rewrite e. unfold w in *. cbn [sum_at].
  pose proof (sum_at_nonneg (fin m) (x ++ y)).
  pose proof (weight_pos r (fin m)). pose proof (weight_pos t (fin m)).
  pose proof (row_max_in _ _ e) as i. cbn [In] in i. destruct i as [i|[i|i]].
  - injection i as ->. rewrite weight_self. lra.
  - injection i as ->. rewrite weight_self. lra.
  - apply sum_at_ge with (m := fin m) in i. rewrite weight_self in i. lra.
Qed.

(** but as nearly as one likes by any number of them. *)
Theorem normaliser_near_1 : forall C eps, 0 < eps ->
  exists d, snd (state_of (fin 0 :: repeat (fin d) C)) < 1 + eps.
Proof.
  intros C eps pos. pose proof (pos_INR C) as nonneg.
  set (q := Rmin 1 (eps / (INR C + 1))).
  assert (0 < eps / (INR C + 1)) by (apply Rdiv_lt_0_compat; lra).
  assert (0 < q) by (unfold q; apply Rmin_glb_lt; lra).
  assert (q <= 1) by apply Rmin_l.
  assert (q <= eps / (INR C + 1)) by apply Rmin_r.
  exists (ln q).
  assert (ln q <= 0) by (rewrite <- ln_1; destruct (Req_dec q 1) as [->|]; [lra | left; apply ln_increasing; lra]).
  assert (low : forall n, hle (row_max (repeat (fin (ln q)) n)) (fin 0)).
  { induction n as [|n IH]; [exact I|]. cbn [repeat row_max]. now apply hmax_hle. }
  unfold state_of; cbn [row_max sum_at snd].
  assert (e : hmax (fin 0) (row_max (repeat (fin (ln q)) C)) = fin 0) by (rewrite hmax_comm; now apply hmax_of_hle).
  rewrite e, weight_self.
  assert (v : forall n, sum_at (fin 0) (repeat (fin (ln q)) n) = INR n * q).
  { induction n as [|n IH]; [cbn; ring|]. cbn [repeat sum_at]. rewrite IH, S_INR. cbn.
    rewrite Rminus_0_r, exp_ln by lra. ring. }
  rewrite v. apply Rplus_lt_compat_l.
  apply Rle_lt_trans with (INR C * (eps / (INR C + 1))); [now apply Rmult_le_compat_l|].
  apply Rlt_le_trans with ((INR C + 1) * (eps / (INR C + 1))).
  - apply Rmult_lt_compat_r; lra.
  - right. field. lra.
Qed.

Theorem state_of_valid : forall x, valid (state_of x).
Proof.
  intro x. unfold valid, state_of; cbn [fst snd]. destruct (row_max x) as [|m] eqn:e.
  - now apply row_of_minus_inf.
  - rewrite <- e. apply normaliser_bounds. apply row_max_finite. now exists m.
Qed.

(** * Blocks and trees *)

(** A tree over blocks of a row. *)
Inductive cut : Type :=
  | block (x : row)
  | join (a b : cut).

(** The entries under a tree, from left to right. *)
Fixpoint entries (c : cut) : row :=
  match c with block x => x | join a b => entries a ++ entries b end.

(** Each block read on its own, the states merged along the tree. *)
Fixpoint state_of_cut (c : cut) : state :=
  match c with block x => stream x | join a b => merge (state_of_cut a) (state_of_cut b) end.

(** Any tree over any blocks that hold the entries of a row, in any order, gives the state of the row. *)
Theorem any_tree_any_blocks : forall c x, Permutation (entries c) x -> state_of_cut c = state_of x.
Proof.
  intros c x p. rewrite <- (state_of_any_order _ _ p). clear x p.
  induction c as [x|a IHa b IHb]; cbn.
  - apply streaming_is_batch.
  - now rewrite IHa, IHb, state_of_append_is_merge.
Qed.

(** * The rescale factor *)

(** exp (m_k - m_{k+1}) lies in (0, 1], from the first finite entry on. *)
Theorem rescale_factor_bounds : forall x h m, row_max x = fin m ->
  0 < weight (row_max x) (row_max (x ++ [h])) <= 1.
Proof.
  intros x h m e. split.
  - rewrite e. apply weight_pos.
  - apply weight_le_1. rewrite online_maximum. apply hle_hmax_l.
Qed.

Lemma exp_eq_1 : forall t, exp t = 1 -> t = 0.
Proof. intros t e. apply exp_inv. now rewrite exp_0. Qed.

(** It is 1 exactly when no new maximum arrives, *)
Theorem rescale_factor_is_1_iff : forall x h m, row_max x = fin m ->
  (weight (row_max x) (row_max (x ++ [h])) = 1 <-> hle h (row_max x)).
Proof.
  intros x h m e. rewrite online_maximum, e. destruct h as [|r]; cbn.
  - rewrite Rminus_eq_0, exp_0. easy.
  - split.
    + intro w. apply exp_eq_1 in w. pose proof (Rmax_r m r). lra.
    + intro le. rewrite Rmax_left by exact le. rewrite Rminus_eq_0. apply exp_0.
Qed.

(** and the update is then s_{k+1} = s_k + exp (x_k - m_k). *)
Theorem update_without_new_maximum : forall x h, has_finite x -> hle h (row_max x) ->
  state_of (x ++ [h]) = (row_max x, snd (state_of x) + weight h (row_max x)).
Proof.
  intros x h f le. apply row_max_finite in f as [m e].
  rewrite state_of_snoc. unfold push, state_of; cbn [fst snd].
  rewrite hmax_comm, (hmax_of_hle _ _ le), e, weight_self. f_equal. ring.
Qed.

(** With a new maximum: s_{k+1} = s_k * exp (m_k - x_k) + 1. *)
Theorem update_with_new_maximum : forall x r, hle (row_max x) (fin r) ->
  state_of (x ++ [fin r]) = (fin r, snd (state_of x) * weight (row_max x) (fin r) + 1).
Proof.
  intros x r le. rewrite state_of_snoc. unfold push, state_of; cbn [fst snd].
  now rewrite (hmax_of_hle _ _ le), weight_self.
Qed.
