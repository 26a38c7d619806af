// The kernel of gated_step.cuh on a CPU.

#include "emulation.h"

#include "gated_step.cuh"

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
