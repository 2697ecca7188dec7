(* The constants of the C++ sources, exactly: (m, e) stands for m * 2^e. Coefficients lowest power first.
   Written by scripts/proof_coefficients.py from native/*.h; not to be edited. *)
From Coq Require Import ZArith List.
Import ListNotations.
Open Scope Z_scope.

(* native/exp.inl.h: Log2e<F32>::high *)
Definition f32_log2e_high : Z * Z := (12102203, -23).

(* native/exp.inl.h: Log2e<F32>::low *)
Definition f32_log2e_low : Z * Z := (338819, -44).

(* native/exp.inl.h: Log2e<F32>::fine *)
Definition f32_log2e_fine : Z * Z := (3, 9).

(* native/exp.inl.h: Log2e<F32>::magic *)
Definition f32_magic : Z * Z := (12583103, 0).

(* native/exp.inl.h: Coefficients<F32, 3> *)
Definition f32_degree_3 : list (Z * Z) :=
  [(5815679, -23);
   (16254513, -26);
   (922895, -24)].

(* native/exp.inl.h: Coefficients<F32, 4> *)
Definition f32_degree_4 : list (Z * Z) :=
  [(5814347, -23);
   (8061149, -25);
   (7503647, -27);
   (10289643, -30)].

(* native/exp.inl.h: Coefficients<F32, 5> *)
Definition f32_degree_5 : list (Z * Z) :=
  [(11629077, -24);
   (16121057, -26);
   (14900077, -28);
   (5192237, -29);
   (11398335, -33)].

(* native/exp.inl.h: Coefficients<F32, 6> *)
Definition f32_degree_6 : list (Z * Z) :=
  [(1453635, -21);
   (8060663, -25);
   (7449567, -27);
   (645487, -26);
   (1437827, -30);
   (10532269, -36)].

(* native/exp.inl.h: Log2e<F64>::high *)
Definition f64_log2e_high : Z * Z := (3248660424278399, -51).

(* native/exp.inl.h: Log2e<F64>::low *)
Definition f64_log2e_low : Z * Z := (1651415998432073, -106).

(* native/exp.inl.h: Log2e<F64>::fine *)
Definition f64_log2e_fine : Z * Z := (3, 12).

(* native/exp.inl.h: Log2e<F64>::magic *)
Definition f64_magic : Z * Z := (6755399441057279, 0).

(* native/exp.inl.h: Coefficients<F64, 11> *)
Definition f64_degree_11 : list (Z * Z) :=
  [(6243314768165359, -53);
   (1081884007225523, -52);
   (3999492529606753, -56);
   (2772236970561259, -58);
   (1537254591992989, -60);
   (5682899677810267, -65);
   (9003624876272409, -69);
   (1560204077501593, -70);
   (7690326549919917, -76);
   (2137558369220123, -78);
   (8617148487545099, -84)].

(* native/exp.inl.h: exp_unshifted's magic, float *)
Definition f32_unshifted_magic : Z * Z := (3, 22).

(* native/scans_double.inl.h: Coefficients<F64, 7> *)
Definition f64_degree_7 : list (Z * Z) :=
  [(6243314768165359, -53);
   (2163768034846321, -53);
   (7998985084335153, -57);
   (5544432181911227, -59);
   (6148992648975227, -62);
   (5704267979501939, -65);
   (4514974117130579, -68)].

(* native/exact.h: Law<float>::log2e *)
Definition exact32_log2e : Z * Z := (12102203, -23).

(* native/exact.h: Law<float>::large *)
Definition exact32_large : Z * Z := (1, 30).

(* native/exact.h: Law<float>::c *)
Definition exact32_polynomial : list (Z * Z) :=
  [(1453635, -21);
   (8060663, -25);
   (7449567, -27);
   (645487, -26);
   (1437827, -30);
   (10532269, -36)].

(* native/exact.h: Law<double>::log2e *)
Definition exact64_log2e : Z * Z := (3248660424278399, -51).

(* native/exact.h: Law<double>::large *)
Definition exact64_large : Z * Z := (1, 62).

(* native/exact.h: Law<double>::c *)
Definition exact64_polynomial : list (Z * Z) :=
  [(6243314768165359, -53);
   (8655072057804175, -55);
   (1999746264803379, -55);
   (2772236970567485, -58);
   (6149018367961111, -62);
   (5682899659959947, -65);
   (562726555778573, -65);
   (6240837199694283, -72);
   (7690316763684809, -76);
   (4264421479739845, -79);
   (2155316473965373, -82);
   (7964788791292531, -88)].

(* native/exact.h: Law<double>::log2e_low *)
Definition exact64_log2e_low : Z * Z := (1651415998432073, -106).

(* native/exact.h: Law<double>::far *)
Definition exact64_far : Z * Z := (1, 49).

(* native/same_log.h: the series of atanh *)
Definition log_series : list (Z * Z) :=
  [(6004799503160661, -54);
   (3602879701896397, -54);
   (2573485501354569, -54);
   (2001599834386887, -54);
   (3275345183542179, -55);
   (1385722962267845, -54);
   (4803839602528529, -56);
   (4238682002231055, -56);
   (948126237341157, -54);
   (857828500451523, -54);
   (1566469435607129, -55)].

(* native/same_log.h: log(2), first word *)
Definition log2_high : Z * Z := (6243314768165359, -53).

(* native/same_log.h: log(2), second word *)
Definition log2_low : Z * Z := (7525737178955839, -108).

(* native/tanh.inl.h: the series, as f32 has it *)
Definition f32_tanh_series : list (Z * Z) :=
  [(-11184811, -25);
   (8947849, -26);
   (-14486993, -28);
   (2935273, -27);
   (-9516827, -30);
   (1928509, -29);
   (-6252761, -32);
   (5068297, -33);
   (-4108207, -34);
   (3329987, -35)].

(* native/tanh.inl.h: the series, as f64 has it *)
Definition f64_tanh_series : list (Z * Z) :=
  [(-6004799503160661, -54);
   (4803839602528529, -55);
   (-1944411267690119, -55);
   (3151725453510781, -57);
   (-5109307421409853, -59);
   (258840103791599, -56);
   (-6713851087910371, -62);
   (1360510649948625, -61);
   (-2205576785511833, -63);
   (7151092814884781, -66)].
