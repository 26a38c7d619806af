// Products of float32 matrices on tensor cores, in float16 with float32's accuracy.
//
// A matrix is scaled by a power of two 2^e, so that its entries stay below 2^15. An entry is kept as
// two numbers of 11 bits, x·2^e ≈ big + small, with an error of at most 2⁻²³ of x, or 2⁻³⁹ of the
// largest entry that is possible. Then x·y ≈ big·small + small·big + big·big leaves out at most 2⁻²²
// of a product.
//
// What the machine does is in `machine.cuh` for an NVIDIA GPU, and in `emulation.h` for a CPU.

#pragma once

// Read at once: two numbers side by side.
struct alignas(8) Pair {
  float first, second;
};

// A matrix in two parts.
struct Parts {
  Half *big, *small;
};

// Two neighbours in a row, each in two parts: a register holds two numbers of 16 bits.
struct Neighbours {
  unsigned big, small;
};

DEVICE inline Neighbours split(float first, float second) {
  Neighbours parts;
  parts.big = pack_halves(first, second);
  parts.small =
      pack_halves(first - half_value(parts.big & 0xffff), second - half_value(parts.big >> 16));
  return parts;
}

DEVICE inline void write_parts(Parts to, int at, float x) {
  const Neighbours parts = split(x, 0.f);
  to.big[at] = (Half)parts.big, to.small[at] = (Half)parts.small;
}

DEVICE inline void write_pair(Parts to, int at, float first, float second) {
  const Neighbours parts = split(first, second);
  *reinterpret_cast<unsigned *>(to.big + at) = parts.big;
  *reinterpret_cast<unsigned *>(to.small + at) = parts.small;
}

// e for numbers up to a bound: bound·2^e is at most 2^15. Sums of two e are exponents of a float.
constexpr int LARGEST_EXPONENT = 60;
DEVICE inline int exponent_for(float bound) {
  const int e = 14 + 127 - (int)(as_bits(bound) >> 23);
  return e > LARGEST_EXPONENT ? LARGEST_EXPONENT : e < -LARGEST_EXPONENT ? -LARGEST_EXPONENT : e;
}
// 2^e; 0 or infinity where a float has no such power.
DEVICE inline float power(int e) {
  return e < -126 ? 0.f : as_float((unsigned)(127 + (e < 128 ? e : 128)) << 23);
}

// Raise a bound to the largest |x| of a warp.
DEVICE inline void raise(float *bound, float x) {
#pragma unroll
  for (int other = 1; other < 32; other *= 2) {
    const float theirs = SHUFFLE_XOR(x, other);
    x = x > theirs ? x : theirs;
  }
  // Numbers that are not negative have the order of their bits.
  if (THREAD % 32 == 0) ATOMIC_MAX(reinterpret_cast<unsigned *>(bound), as_bits(x));
}
DEVICE inline float larger(float x, float y) { return x > y ? x : y; }
DEVICE inline float size_of(float x) { return x < 0.f ? -x : x; }

// A 16×16 block of a, and a 16×8 block of b, spread over a warp.
struct Rows {
  unsigned big[4], small[4];
};
struct Columns {
  unsigned big[2], small[2];
};

// c += a·b in three steps. Other sums take the same step in between, because a step waits for the
// one before.
constexpr int STEPS = 3;
DEVICE inline void multiply(float (&c)[4], const Rows &a, const Columns &b, int step) {
  mma(c, step == 0 ? a.small : a.big, step == 1 ? b.small : b.big);
}

// What a thread points at for `load_tiles`: a row of one of four 8×8 tiles. Tiles lie in a row of
// two, then in the next; or in a column of two, then in the next.
DEVICE inline int along_rows(int stride) {
  const int lane = THREAD % 32;
  return (lane % 8 + 8 * (lane / 16)) * stride + 8 * (lane / 8 % 2);
}
DEVICE inline int along_columns(int stride) {
  const int lane = THREAD % 32;
  return (lane % 8 + 8 * (lane / 8 % 2)) * stride + 8 * (lane / 16);
}

template <bool TURNED>
DEVICE inline void load_rows(Rows &a, Parts from, int at) {
  load_tiles<TURNED>(a.big, from.big + at);
  load_tiles<TURNED>(a.small, from.small + at);
}
template <bool TURNED>
DEVICE inline void load_columns(Columns (&b)[2], Parts from, int at) {
  unsigned big[4], small[4];
  load_tiles<TURNED>(big, from.big + at);
  load_tiles<TURNED>(small, from.small + at);
#pragma unroll
  for (int i = 0; i < 4; i++) b[i / 2].big[i % 2] = big[i], b[i / 2].small[i % 2] = small[i];
}
