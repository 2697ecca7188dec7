(* Streaming with a fused multiply-add: s * r + t with one rounding.

   A rise of the maximum then costs an exponential, and no product: with the notation of FloatStreaming.v the entry x_i
   errs by exp (u * (m - x_i) + k_i) at the most, where k_i = (n - i + 1) * u + c_i * e1 + e1. *)

From Coq Require Import ZArith Reals Psatz List.
From OnlineSoftmax Require Import Rounding FloatSums FloatTerms FloatWeights FloatStreaming.
Import ListNotations.
Open Scope R_scope.

Section Fused.

Variable F : Format.
Variable E : Exponential F.

Notation u := (u F).
Notation rnd := (rnd F).
Notation number := (number F).
Notation term := (term F E).
Notation near := (near F).
Notation e1 := (e1 F E).
Notation counts_from := (counts_from F E).
Notation counts_of := (counts_of F E).
Notation cost := (cost F E).

(* The update with a fused multiply-add. *)
Fixpoint stream_fma_from (m s : R) (xs : list R) : R * R :=
  match xs with
  | [] => (m, s)
  | x :: rest =>
      let m' := Rmax m x in
      stream_fma_from m' (rnd (s * term m m' + term x m')) rest
  end.

Definition streaming_fma (x : R) (xs : list R) : R * R := stream_fma_from x 1 xs.

Lemma fma_from_near : forall xs K m s ts,
  near K m s ts -> 1 <= s -> number m -> Forall number xs -> e1 <= K ->
  let '(m', s') := stream_fma_from m s xs in
  let k := INR (length xs) * u + INR (rises m xs) * e1 in
  near (K + k) m' s' (more k ts ++ counts_from e1 m (ones xs)) /\ 1 <= s' /\ number m'.
Proof.
  pose proof (u_range F) as Hu. pose proof (e1_pos F E) as He. pose proof (normal_range F) as Hnr.
  induction xs as [|x rest IH]; intros K m s ts N Hs Nm Nx HK.
  - simpl. rewrite !Rmult_0_l, !Rplus_0_r, more_0, app_nil_r. now split.
  - cbn [stream_fma_from]. inversion_clear Nx as [|? ? Nx1 Nx2].
    set (m' := Rmax m x) in *. set (c := INR (if Rlt_dec m x then 1 else 0)).
    assert (Hc : 0 <= c) by apply pos_INR.
    assert (Nm' : number m') by (unfold m', Rmax; destruct (Rle_dec m x); assumption).
    pose proof (term_near F E x m' Nx1 Nm' (Rmax_r _ _)) as [T _].
    destruct (term_number F E x m' Nx1 Nm' (Rmax_r _ _)) as [_ Tr].
    assert (P : within F 3 (K + c * e1) m' (s * term m m') (more (c * e1) ts) /\ 1 <= s * term m m' + term x m').
    { unfold c, m'. destruct (Rlt_dec m x) as [H|H].
      - rewrite Rmax_right by lra. change (INR 1) with 1. rewrite Rmult_1_l, term_same.
        pose proof (term_number F E m x Nm Nx1 ltac:(lra)) as [_ R]. split; [|nra].
        destruct (scaled_within F E K m x s ts N Hs Nm Nx1 ltac:(lra)) as [[_ W]|[C L U]]; [exact W|].
        pose proof (underflow_pos F (K + e1) (more e1 ts)). split; [exact C|lra|lra].
      - rewrite Rmax_left by lra. change (INR 0) with 0. rewrite Rmult_0_l, more_0, Rplus_0_r, term_same, Rmult_1_r.
        split; [exact (proj1 N)|]. pose proof (term_number F E x m Nx1 Nm ltac:(lra)) as [_ R]. lra. }
    destruct P as [P P1].
    assert (W : near (K + c * e1 + u) m' (rnd (s * term m m' + term x m')) (more u (more (c * e1) ts ++ all e1 [x]))).
    { split; [|split; [apply number_rnd|apply rnd_nonneg; lra]].
      apply rounded_within with (c := 3) (v := s * term m m' + term x m'); [lra| |].
      - apply within_app; [exact P|]. apply within_weaken with e1; [lra|nra|exact T].
      - pose proof (rnd_normal F (s * term m m' + term x m') ltac:(lra)). lra. }
    specialize (IH _ _ _ _ W (rnd_ge_1 F _ P1) Nm' Nx2 ltac:(nra)).
    destruct (stream_fma_from m' _ rest) as [M S].
    cbn [length]. rewrite rises_cons, S_INR, plus_INR. fold c m'. cbn [ones map counts_from top]. fold m' (ones rest).
    rewrite tops_of_ones, length_ones.
    destruct IH as [IH1 IH2]. split; [|exact IH2].
    set (l := INR (length rest) * u + INR (rises m' rest) * e1) in *.
    replace (K + ((INR (length rest) + 1) * u + (c + INR (rises m' rest)) * e1)) with (K + c * e1 + u + l)
      by (unfold l; ring).
    replace (more ((INR (length rest) + 1) * u + (c + INR (rises m' rest)) * e1) ts ++
      all (cost e1 (depth (One x) + 1 + length rest) (rises m' rest)) (entries (One x)) ++ counts_from e1 m' (ones rest))
      with (more l (more u (more (c * e1) ts ++ all e1 [x])) ++ counts_from e1 m' (ones rest)); [exact IH1|].
    rewrite app_assoc. f_equal. rewrite more_more, more_app, more_more, more_all. f_equal.
    + f_equal. unfold l. ring.
    + cbn [entries depth]. f_equal. unfold cost, l. rewrite !plus_INR. simpl (INR 0). simpl (INR 1). ring.
Qed.

Lemma fma_top : forall xs m s, fst (stream_fma_from m s xs) = fold_left Rmax xs m.
Proof. induction xs as [|x xs IH]; intros m s; [reflexivity|]. simpl. apply IH. Qed.

Theorem streaming_fma_near : forall x xs, Forall number (x :: xs) ->
  let '(m, s) := streaming_fma x xs in
  let K := INR (length xs) * u + INR (rises x xs) * e1 + e1 in
  near K m s (counts_of e1 (One x) (ones xs)) /\ 1 <= s.
Proof.
  intros x xs N. inversion_clear N as [|? ? Nx Nxs].
  pose proof (term_near F E x x Nx Nx (Rle_refl _)) as T. rewrite term_same in T.
  pose proof (fma_from_near xs e1 x 1 _ T (Rle_refl _) Nx Nxs (Rle_refl _)) as P.
  unfold streaming_fma. destruct (stream_fma_from x 1 xs) as [m s]. cbv zeta in *. destruct P as [P [P1 _]].
  split; [|exact P1]. unfold counts_of. rewrite tops_of_ones, length_ones.
  unfold cost. cbn [depth top entries Nat.add].
  replace (INR (length xs) * u + INR (rises x xs) * e1 + e1)
    with (e1 + (INR (length xs) * u + INR (rises x xs) * e1)) by ring.
  exact P.
Qed.

Theorem streaming_fma_error : forall x xs, Forall number (x :: xs) ->
  let '(m, s) := streaming_fma x xs in
  let S := total m (x :: xs) in
  let K := INR (length xs) * u + INR (rises x xs) * e1 + e1 in
  Rabs (ln s - ln S) <= u * (ln (count (x :: xs)) - ln S) + K + 3 * count (x :: xs) * tiny F * exp K.
Proof.
  intros x xs N. pose proof (streaming_fma_near x xs N) as H. pose proof (fma_top xs x 1) as T.
  unfold streaming_fma in *. destruct (stream_fma_from x 1 xs) as [m s]. cbv zeta in *. destruct H as [[H _] Hs].
  simpl in T. pose proof (counts_of_values F E e1 (One x) (ones xs)) as V.
  rewrite entries_of_ones in V. cbn [entries app] in V.
  rewrite <- V. apply log_error with (1 := H); [exact Hs|]. rewrite V, T.
  pose proof (fold_max_in (ones xs) x [x] (or_introl eq_refl)) as I.
  rewrite tops_of_ones, entries_of_ones in I. exact I.
Qed.

End Fused.
