#!/usr/bin/env bash
# Run the native tests on an emulated CPU that has AVX2, FMA and F16C and nothing newer: an instruction of a newer set
# outside its own kernels would end the run. Debian: apt-get install qemu-user (7.2 or newer emulates AVX2)
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v qemu-x86_64 >/dev/null; then
  echo "check_avx2: qemu-x86_64 not found; on Debian: apt-get install qemu-user" >&2
  exit 2
fi

# Static: the C library's own choice of instructions is then all that is emulated besides ours.
"${CMAKE:-cmake}" -S native/tests -B build/avx2 -DCMAKE_BUILD_TYPE=Release -DCMAKE_EXE_LINKER_FLAGS=-static
"${CMAKE:-cmake}" --build build/avx2 --parallel
qemu-x86_64 -cpu Haswell build/avx2/native_tests --expect avx2 --no-walls
