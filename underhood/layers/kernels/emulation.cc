// The kernel of gated_step.cuh on a CPU: a thread per GPU thread, so that tests can run it anywhere.
//
// A barrier is a barrier. What a warp does together (mma, shuffle) goes through a table of the warp
// between two barriers of its 32 threads.

#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define DEVICE
#define DEVICE_AND_HOST
#define KERNEL
#define THREAD here.thread
#define THREADS here.threads
#define BLOCK here.block
#define BLOCKS here.blocks
#define BARRIER() here.all->arrive_and_wait()
#define SHUFFLE_XOR(value, mask) shuffle_xor(value, mask)
#define SHARED_MEMORY(name) float *name = here.shared

struct Warp {
  std::barrier<> together{32};
  float value[32];
  float a[32][4], b[32][2];
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
// Round to the 10 bits of TF32's fraction, halves away from zero.
static unsigned to_tf32(float x) { return (as_bits(x) + 0x1000u) & 0xffffe000u; }

static float shuffle_xor(float value, int mask) {
  Warp &warp = *here.warp;
  int lane = here.thread % 32;
  warp.value[lane] = value;
  warp.together.arrive_and_wait();
  float other = warp.value[lane ^ mask];
  warp.together.arrive_and_wait();
  return other;
}

// c += a·b with the layout of PTX's mma.m16n8k8; the operands' last 13 bits are dropped.
static void mma(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                unsigned b1) {
  Warp &warp = *here.warp;
  int lane = here.thread % 32, group = lane / 4, quad = lane % 4;
  unsigned a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
  for (int i = 0; i < 4; i++) warp.a[lane][i] = as_float(a[i] & 0xffffe000u);
  for (int i = 0; i < 2; i++) warp.b[lane][i] = as_float(b[i] & 0xffffe000u);
  warp.together.arrive_and_wait();
  for (int i = 0; i < 4; i++) {
    int row = group + 8 * (i / 2), column = 2 * quad + i % 2;
    for (int k = 0; k < 8; k++) {
      float left = warp.a[4 * (row % 8) + k % 4][row / 8 + 2 * (k / 4)];
      c[i] += left * warp.b[4 * column + k % 4][k / 4];
    }
  }
  warp.together.arrive_and_wait();
}

#include "gated_step.cuh"

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

// `sums` is [members, NUMBERS].
extern "C" void gated_step_emulated(int members, int parts, int batch, const float *W_in_m,
                                    const float *W_in_x, const float *decay, const float *W_out_m,
                                    const float *W_out_x, const float *D, const float *xs,
                                    const float *targets, float *sums) {
  std::vector<float> partial((size_t)members * parts * NUMBERS, NAN);
  Problem p = {members, parts,   batch, W_in_m, W_in_x,  decay,
               W_out_m, W_out_x, D,     xs,     targets, partial.data()};
  run(members * parts, PROGRAM_THREADS, SHARED_FLOATS, [&] { gated_step(p); });
  run(1, 1, 0, [&] { add_parts(partial.data(), sums, members, parts); });
}
