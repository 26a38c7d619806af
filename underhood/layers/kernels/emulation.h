// What kernels ask of a GPU, on a CPU: a thread per GPU thread, so that tests can run them anywhere.
//
// A barrier is a barrier. What a warp does together (mma, shuffle) goes through a table of the warp
// between two barriers of its 32 threads.

#pragma once

#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define DEVICE
#define KERNEL_FOR(programs)
#define KERNEL
#define THREAD here.thread
#define THREADS here.threads
#define BLOCK here.block
#define BLOCKS here.blocks
#define BARRIER() here.all->arrive_and_wait()
#define SHUFFLE_XOR(value, mask) shuffle_xor(value, mask)
#define SHARED_MEMORY(name) float *name = here.shared
#define READ(from) (*(from))
#define ATOMIC_MAX(to, value) atomic_max(to, value)

using Half = std::uint16_t;

struct Warp {
  std::barrier<> together{32};
  float value[32];
  unsigned a[32][4], b[32][2];
  const Half *row[32];
};

struct Place {
  int thread, threads, block, blocks;
  std::barrier<> *all;
  Warp *warp;
  float *shared;
};
thread_local Place here;

static float as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
static unsigned as_bits(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
static float half_value(unsigned bits) {
  unsigned exponent = bits >> 10 & 31, fraction = bits & 1023;
  float size = exponent == 31 ? (fraction ? NAN : INFINITY)
               : exponent    ? std::ldexp(1024.f + fraction, (int)exponent - 25)
                             : std::ldexp((float)fraction, -24);
  return bits & 0x8000 ? -size : size;
}
// Round to the nearest float16, halves to even.
static unsigned half_bits(float x) {
  unsigned sign = as_bits(x) >> 16 & 0x8000;
  float size = std::fabs(x);
  if (std::isnan(x)) return 0x7fff;
  if (size >= 65520.f) return sign | 0x7c00;
  // Float16 has a step of 2⁻²⁴ up to 2⁻¹⁴, then one of 2⁻¹⁰ of the power of two below.
  int exponent = size < std::ldexp(1.f, -14) ? -14 : std::ilogb(size);
  unsigned steps = (unsigned)std::nearbyint(std::ldexp(size, 10 - exponent));
  return sign | (steps + ((unsigned)(exponent + 14) << 10));
}
static unsigned pack_halves(float low, float high) { return half_bits(low) | half_bits(high) << 16; }

static void atomic_max(unsigned *to, unsigned value) {
  std::atomic_ref<unsigned> held(*to);
  unsigned now = held.load();
  while (now < value && !held.compare_exchange_weak(now, value)) {
  }
}

static float shuffle_xor(float value, int mask) {
  Warp &warp = *here.warp;
  int lane = here.thread % 32;
  warp.value[lane] = value;
  warp.together.arrive_and_wait();
  float other = warp.value[lane ^ mask];
  warp.together.arrive_and_wait();
  return other;
}

static float half_of(unsigned bits, int which) { return half_value(bits >> 16 * which & 0xffff); }

// c += a·b with the layout of PTX's mma.m16n8k16 of float16.
static void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  Warp &warp = *here.warp;
  int lane = here.thread % 32, group = lane / 4, quad = lane % 4;
  for (int i = 0; i < 4; i++) warp.a[lane][i] = a[i];
  for (int i = 0; i < 2; i++) warp.b[lane][i] = b[i];
  warp.together.arrive_and_wait();
  for (int i = 0; i < 4; i++) {
    int row = group + 8 * (i / 2), column = 2 * quad + i % 2;
    for (int k = 0; k < 16; k++) {
      int from = k % 8 / 2;
      float left = half_of(warp.a[4 * (row % 8) + from][row / 8 + 2 * (k / 8)], k % 2);
      c[i] += left * half_of(warp.b[4 * column + from][k / 8], k % 2);
    }
  }
  warp.together.arrive_and_wait();
}

// PTX's ldmatrix of four 8×8 tiles: a thread points at a row, and gets two neighbours of each tile.
template <bool TURNED>
static void load_tiles(unsigned (&tiles)[4], const Half *row) {
  Warp &warp = *here.warp;
  int lane = here.thread % 32;
  warp.row[lane] = row;
  warp.together.arrive_and_wait();
  for (int i = 0; i < 4; i++) {
    unsigned numbers[2];
    for (int j = 0; j < 2; j++)
      numbers[j] = TURNED ? warp.row[8 * i + 2 * (lane % 4) + j][lane / 4]
                          : warp.row[8 * i + lane / 4][2 * (lane % 4) + j];
    tiles[i] = numbers[0] | numbers[1] << 16;
  }
  warp.together.arrive_and_wait();
}

template <typename Kernel>
static void run(int blocks, int threads, int floats, Kernel kernel) {
  for (int block = 0; block < blocks; block++) {
    // What nothing wrote is not a number.
    std::vector<float> shared(floats, NAN);
    std::barrier<> all(threads);
    std::vector<std::unique_ptr<Warp>> warps;
    for (int i = 0; i < (threads + 31) / 32; i++) warps.push_back(std::make_unique<Warp>());
    std::vector<std::thread> team;
    for (int thread = 0; thread < threads; thread++)
      team.emplace_back([&, thread] {
        here = {thread, threads, block, blocks, &all, warps[thread / 32].get(), shared.data()};
        kernel();
      });
    for (auto &worker : team) worker.join();
  }
}
