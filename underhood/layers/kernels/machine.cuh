// What kernels ask of an NVIDIA GPU.

#pragma once

#define DEVICE __device__
// A kernel of which so many programs shall fit on a multiprocessor, as far as registers go.
#define KERNEL_FOR(programs) __global__ __launch_bounds__(PROGRAM_THREADS, programs)
#define KERNEL KERNEL_FOR(1)
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
