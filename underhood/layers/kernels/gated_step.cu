// The kernel of gated_step.cuh on an NVIDIA GPU, called by XLA.

#include "calls.cuh"
#include "machine.cuh"
// What a machine does comes before what is done with it.
#include "gated_step.cuh"

// `partial` has room for MOST_PARTS programs of each member; its contents mean nothing afterwards.
static ffi::Error step(cudaStream_t stream, Floats W_in_m, Floats W_in_x, Floats decay,
                       Floats W_out_m, Floats W_out_x, Floats D, Floats xs, Floats targets,
                       ffi::Result<Floats> sums, ffi::Result<Floats> partial) {
  const auto shown = xs.dimensions();
  Problem p = {};
  p.batch = (int)shown[shown.size() - 3];
  p.members = (int)(xs.element_count() / ((size_t)p.batch * TIME * D_IN));
  p.W_in_m = data(W_in_m), p.W_in_x = data(W_in_x), p.decay = data(decay);
  p.W_out_m = data(W_out_m), p.W_out_x = data(W_out_x), p.D = data(D);
  p.xs = data(xs), p.targets = data(targets);

  // The largest power of two of programs a member that run at once, with equal numbers of chunks.
  const int bytes = 4 * SHARED_FLOATS, chunks = p.batch / PLACES;
  int device = 0, processors = 0, at_once = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  cudaError_t error =
      cudaFuncSetAttribute(gated_step, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess)
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&at_once, gated_step, PROGRAM_THREADS,
                                                          bytes);
  if (error != cudaSuccess) return answer(error);
  p.parts = 1;
  while (2 * p.parts <= MOST_PARTS && chunks % (2 * p.parts) == 0 &&
         2 * p.parts * p.members <= processors * at_once)
    p.parts *= 2;

  float *result = reinterpret_cast<float *>(sums->untyped_data());
  p.partial = p.parts > 1 ? reinterpret_cast<float *>(partial->untyped_data()) : result;
  gated_step<<<p.members * p.parts, PROGRAM_THREADS, bytes, stream>>>(p);
  if (p.parts > 1) {
    const size_t blocks = (size_t)p.members * NUMBERS / PROGRAM_THREADS + 1;
    add_parts<<<blocks < 4096 ? (int)blocks : 4096, PROGRAM_THREADS, 0, stream>>>(
        p.partial, result, p.members, p.parts);
  }
  return answer(cudaGetLastError());
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(GatedStep, step,
                              ON_STREAM.Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>(),
                              REPEATABLE);
