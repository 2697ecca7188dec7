#!/usr/bin/env bash
# Build the kernels and their native tests for arm64 and run them under user-mode emulation, so that the NEON code is
# checked on an x86-64 machine. Debian: apt-get install g++-aarch64-linux-gnu qemu-user
set -euo pipefail
cd "$(dirname "$0")/.."

for tool in aarch64-linux-gnu-g++ qemu-aarch64; do
  if ! command -v "$tool" >/dev/null; then
    echo "check_neon: $tool not found; on Debian: apt-get install g++-aarch64-linux-gnu qemu-user" >&2
    exit 2
  fi
done

# Static: the emulator then needs no arm64 libraries.
"${CMAKE:-cmake}" -S native/tests -B build/neon -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
  -DCMAKE_EXE_LINKER_FLAGS=-static
"${CMAKE:-cmake}" --build build/neon --parallel
qemu-aarch64 build/neon/native_tests --expect neon
