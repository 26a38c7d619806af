// The kernels of lstm_walk.cuh on an NVIDIA GPU, called by XLA.

#include "calls.cuh"
#include "machine.cuh"
// What a machine does comes before what is done with it.
#include "lstm_walk.cuh"

static Walk walk_of(const Floats &W, const Floats &xs) {
  const auto shape = xs.dimensions();
  Walk p = {};
  p.batch = (int)shape[shape.size() - 3];
  p.members = (int)(xs.element_count() / ((size_t)p.batch * TIME * D_IN));
  p.parts = (p.batch + SEQUENCES - 1) / SEQUENCES;
  p.W = data(W), p.xs = data(xs);
  return p;
}

static ffi::Error launch(void (*kernel)(Walk), const Walk &p, int floats, cudaStream_t stream) {
  const int bytes = 4 * floats;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess) {
    kernel<<<p.members * p.parts, PROGRAM_THREADS, bytes, stream>>>(p);
    error = cudaGetLastError();
  }
  return answer(error);
}

static ffi::Error forward(cudaStream_t stream, Floats W, Floats xs, ffi::Result<Floats> states,
                          ffi::Result<Floats> saved) {
  Walk p = walk_of(W, xs);
  p.states = data(*states), p.saved = reinterpret_cast<Four *>(saved->untyped_data());
  return launch(lstm_forward, p, FORWARD_FLOATS, stream);
}

static ffi::Error backward(cudaStream_t stream, Floats W, Floats xs, Floats saved, Floats slopes,
                           ffi::Result<Floats> by_W) {
  Walk p = walk_of(W, xs);
  p.saved = reinterpret_cast<Four *>(saved.untyped_data());
  p.slopes = data(slopes), p.by_W = data(*by_W);
  return launch(lstm_backward, p, BACKWARD_FLOATS, stream);
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(LstmForward, forward,
                              ON_STREAM.Arg<Floats>().Arg<Floats>().Ret<Floats>().Ret<Floats>(),
                              REPEATABLE);

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    LstmBackward, backward,
    ON_STREAM.Arg<Floats>().Arg<Floats>().Arg<Floats>().Arg<Floats>().Ret<Floats>(), REPEATABLE);
