// The kernel of gated_step.cuh on an NVIDIA GPU, called by XLA.

#include <cuda_runtime.h>

#include "xla/ffi/api/ffi.h"

#define DEVICE __device__
#define DEVICE_AND_HOST __host__ __device__
#define KERNEL __global__ __launch_bounds__(PROGRAM_THREADS)
#define THREAD ((int)threadIdx.x)
#define THREADS ((int)blockDim.x)
#define BLOCK ((int)blockIdx.x)
#define BLOCKS ((int)gridDim.x)
#define BARRIER() __syncthreads()
#define SHUFFLE_XOR(value, mask) __shfl_xor_sync(0xffffffffu, value, mask)
#define SHARED_MEMORY(name) extern __shared__ float name[]

__device__ inline unsigned to_tf32(float x) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}
__device__ inline unsigned as_bits(float x) { return __float_as_uint(x); }
__device__ inline float as_float(unsigned bits) { return __uint_as_float(bits); }
__device__ inline void mma(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                           unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

#include "gated_step.cuh"

namespace ffi = xla::ffi;

using Floats = ffi::AnyBuffer;

static const float *data(const Floats &buffer) {
  return reinterpret_cast<const float *>(buffer.untyped_data());
}

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

  // As many programs as run at once, each with the same number of chunks.
  const int bytes = 4 * SHARED_FLOATS, chunks = p.batch / PLACES;
  int device = 0, processors = 0, at_once = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  cudaError_t error =
      cudaFuncSetAttribute(gated_step, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess)
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&at_once, gated_step, PROGRAM_THREADS,
                                                          bytes);
  if (error != cudaSuccess) return ffi::Error::Internal(cudaGetErrorString(error));
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
  error = cudaGetLastError();
  return error == cudaSuccess ? ffi::Error::Success()
                              : ffi::Error::Internal(cudaGetErrorString(error));
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(GatedStep, step,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
