// The rotation of Q and K before they are quantised: one orthogonal matrix for all rows, which leaves
// every product of a row of Q and one of K as it is and deals what a few columns hold to their
// neighbours. For host and device alike: both give the same bits.
//
// A row is parted into blocks of 32 columns, what is left of it into one of 16 and one of 8 as it fits
// (head dims are multiples of 8). Of a block signs are turned, then it is multiplied by the Hadamard
// matrix of its size over the root of its size: columns 8 and 16 apart first, then 1, 2 and 4.
// Blocks of 128 would be no better: with e4m3's own exponents 32 columns level a block as well
// (relative error of O within 9% of each other on seven kinds of input; 16 columns up to 15% above).
#pragma once

namespace greenfast::core {

inline constexpr int kRotatedColumns = 8;  // of a part: neighbours that one thread has
inline constexpr int kRotatedParts = 4;    // of a block, at most

/// The block that a part of a row of `parts` belongs to: its first part, and 1, 2 or 4 parts.
struct RotationBlock {
  int first, parts;
};
constexpr RotationBlock rotation_block(int part, int parts) {
  const int first = part / kRotatedParts * kRotatedParts, rest = parts - first;
  if (rest >= 4) return {first, 4};
  if (rest < 2) return {first, 1};
  return part < first + 2 ? RotationBlock{first, 2} : RotationBlock{first + 2, 1};
}

/// One over the root of a block's columns.
constexpr float rotation_factor(int parts) {
  return parts == 4 ? 0.17677669529663687f : parts == 2 ? 0.25f : 0.35355339059327373f;
}

constexpr void add_and_subtract(float& a, float& b) {
  const float sum = a + b;
  b = a - b;
  a = sum;
}

/// The last of it, within a part. Signs are turned here: of equal columns, which a bias of all of a row
/// makes, a Hadamard matrix alone would make one large one.
constexpr void rotate_part(float (&x)[kRotatedColumns]) {
  x[3] = -x[3];
  x[7] = -x[7];
  for (int step = 1; step < kRotatedColumns; step *= 2)
    for (int i = 0; i < kRotatedColumns; ++i)
      if ((i & step) == 0) add_and_subtract(x[i], x[i + step]);
}

/// Without rotated_value.
constexpr void rotate_block(float (&x)[kRotatedParts][kRotatedColumns], int parts) {
  for (int i = 0; i < kRotatedColumns; ++i) {
    if (parts >= 2) add_and_subtract(x[0][i], x[1][i]);
    if (parts == 4) {
      add_and_subtract(x[2][i], x[3][i]);
      add_and_subtract(x[0][i], x[2][i]);
      add_and_subtract(x[1][i], x[3][i]);
    }
  }
  for (auto& part : x) rotate_part(part);
}

/// What becomes of a sum. Zeros are positive, however they came about: also where the product is too
/// small for a float, of which a fused addition of 0 would keep the sign.
constexpr float rotated_value(float sum, float factor) {
  const float value = sum * factor;
  return value == 0.0f ? 0.0f : value;
}

/// A row of `parts` parts, in place.
constexpr void rotate_row(float* row, int parts) {
  for (int part = 0; part < parts;) {
    const RotationBlock block = rotation_block(part, parts);
    float x[kRotatedParts][kRotatedColumns] = {};
    for (int i = 0; i < block.parts * kRotatedColumns; ++i)
      x[i / kRotatedColumns][i % kRotatedColumns] = row[part * kRotatedColumns + i];
    rotate_block(x, block.parts);
    for (int i = 0; i < block.parts * kRotatedColumns; ++i)
      row[part * kRotatedColumns + i] =
          rotated_value(x[i / kRotatedColumns][i % kRotatedColumns], rotation_factor(block.parts));
    part += block.parts;
  }
}

}  // namespace greenfast::core
