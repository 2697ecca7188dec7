// A block of a matrix copied with rows and columns exchanged.
#pragma once
#include <cstdint>
#include <cstring>

namespace osm {

// A square of registers of 16 bytes.
template <class U>
struct Square {
  static constexpr int W = 16 / sizeof(U);
  typedef U V __attribute__((vector_size(16)));
  V row[W];

  void turn();  // rows to columns
};
template <>
inline void Square<uint64_t>::turn() {
  const V a = row[0], b = row[1];
  row[0] = __builtin_shufflevector(a, b, 0, 2), row[1] = __builtin_shufflevector(a, b, 1, 3);
}
template <>
inline void Square<uint32_t>::turn() {
  const V a = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5),
          b = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
  const V c = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5),
          d = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
  row[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5), row[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
  row[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5), row[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}
template <>
inline void Square<uint16_t>::turn() {
  // Three times the halves of rows i and i + 4 are put one into the other: the bits of the places go round.
  for (int round = 0; round < 3; ++round) {
    V next[8];
    for (int i = 0; i < 4; ++i) {
      next[2 * i] = __builtin_shufflevector(row[i], row[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      next[2 * i + 1] = __builtin_shufflevector(row[i], row[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    std::memcpy(row, next, sizeof row);
  }
}

// to[j][i] = from[i][j] for i < lines, j < width; steps in bytes from line to line, the elements of a line adjacent.
template <class U>
void copy_turned(const char* from, int64_t from_step, char* to, int64_t to_step, int64_t lines, int64_t width) {
  constexpr int64_t W = Square<U>::W, size = sizeof(U);
  const auto one = [&](int64_t i, int64_t j) {
    std::memcpy(to + j * to_step + i * size, from + i * from_step + j * size, (size_t)size);
  };
  int64_t i = 0;
  for (; i + W <= lines; i += W) {
    int64_t j = 0;
    for (; j + W <= width; j += W) {
      Square<U> square;
      for (int64_t k = 0; k < W; ++k) std::memcpy(&square.row[k], from + (i + k) * from_step + j * size, 16);
      square.turn();
      for (int64_t k = 0; k < W; ++k) std::memcpy(to + (j + k) * to_step + i * size, &square.row[k], 16);
    }
    for (; j < width; ++j)
      for (int64_t k = 0; k < W; ++k) one(i + k, j);
  }
  for (; i < lines; ++i)
    for (int64_t j = 0; j < width; ++j) one(i, j);
}
inline void copy_turned(int64_t size, const char* from, int64_t from_step, char* to, int64_t to_step, int64_t lines,
                        int64_t width) {
  if (size == 4)
    copy_turned<uint32_t>(from, from_step, to, to_step, lines, width);
  else if (size == 8)
    copy_turned<uint64_t>(from, from_step, to, to_step, lines, width);
  else
    copy_turned<uint16_t>(from, from_step, to, to_step, lines, width);
}

}  // namespace osm
