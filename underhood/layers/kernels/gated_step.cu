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
#define SHARED_MEMORY(name) extern __shared__ __align__(16) float name[]
// Reads what no program writes, so the compiler may read early.
#define READ(from) __ldg(from)

#define ATOMIC_MAX(to, value) atomicMax(to, value)

using Half = unsigned short;

__device__ inline unsigned as_bits(float x) { return __float_as_uint(x); }
__device__ inline float as_float(unsigned bits) { return __uint_as_float(bits); }
__device__ inline unsigned pack_halves(float low, float high) {
  unsigned packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ inline float half_value(unsigned bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((Half)bits));
  return x;
}
__device__ inline void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <bool TURNED>
__device__ inline void load_tiles(unsigned (&tiles)[4], const Half *row) {
  const unsigned at = (unsigned)__cvta_generic_to_shared(row);
  if (TURNED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(at)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(at)
                 : "memory");
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
