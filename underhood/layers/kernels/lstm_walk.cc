// The kernels of lstm_walk.cuh on a CPU.

#include "emulation.h"

#include "lstm_walk.cuh"

extern "C" void lstm_walk_emulated(int members, int batch, const float *W, const float *xs,
                                   const float *slopes, float *states, float *by_W) {
  const int parts = (batch + SEQUENCES - 1) / SEQUENCES;
  std::vector<Four> saved((size_t)members * parts * TIME * SLOTS * PROGRAM_THREADS);
  Walk p = {members, parts, batch, W, xs, slopes, states, saved.data(), by_W};
  run(members * parts, PROGRAM_THREADS, FORWARD_FLOATS, [&] { lstm_forward(p); });
  run(members * parts, PROGRAM_THREADS, BACKWARD_FLOATS, [&] { lstm_backward(p); });
}
