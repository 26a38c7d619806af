// What XLA hands to a kernel, and what it is told.

#pragma once

#include <cuda_runtime.h>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

using Floats = ffi::AnyBuffer;

static float *data(const Floats &buffer) { return reinterpret_cast<float *>(buffer.untyped_data()); }

static ffi::Error answer(cudaError_t error) {
  return error == cudaSuccess ? ffi::Error::Success()
                              : ffi::Error::Internal(cudaGetErrorString(error));
}

// How every handler begins. XLA may record its calls and repeat them, because a call depends on
// nothing but its arrays.
#define ON_STREAM ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()
#define REPEATABLE {xla::ffi::Traits::kCmdBufferCompatible}
