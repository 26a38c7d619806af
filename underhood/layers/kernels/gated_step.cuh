// Loss and gradient of a gated RNN on a batch of sequences, in one kernel.
//
//   h_t = λ⊙h_{t−1} + (W_in_m u_t)⊙(W_in_x u_t),  u = [x; 1]
//   m = W_out_m h,  g = W_out_x h,  y = D(m⊙g),  loss = ½·mean (y − target)²
//
// One program (block) takes a share of one member's sequences, in chunks of 16·MT tokens, and keeps
// all that belongs to a chunk in shared memory; gradients stay in registers until the end. Only the
// two walks through time are sequential. The three products of matrices,
//
//   gates    [m | g] = H [W_m; W_x]ᵀ     a warp per 8 gate outputs, both halves
//   weights  ∂[W_m; W_x] += Δᵀ H         a warp per 16 rows of the two stacked matrices
//   states   ∂H = Δ [W_m; W_x]           a warp per 8 neurons
//
// run on tensor cores: a float32 number is split into two of TF32's 11 bits, x = big + small, and
// x·y ≈ big·small + small·big + big·big, which leaves out 2⁻²² of a product.
//
// The same text is compiled for a CPU (`emulation.h`), where the tests run it.

#pragma once

// Sizes that the compiler is told: NEURON_TILES and GATE_TILES of 8, TOKENS of a chunk, TIME, D_IN,
// HIDDEN, GATED, D_OUT, and PROGRAM_THREADS, the threads of a program (`gated_step.py` chooses).
constexpr int NT = NEURON_TILES, TILES = GATE_TILES, MT = TOKENS / 16;
constexpr int WIDTH = 8 * NT, GATES = 8 * TILES, PLACES = TOKENS / TIME;
// Row lengths in shared memory: 8 rows of 4 numbers, or 4 rows of 8, lie in different banks.
constexpr int HS = WIDTH + 4, GS = 2 * GATES + 8;
constexpr int SHARED_FLOATS =
    2 * GATES * HS + 2 * TOKENS * HS + TOKENS * GS + TOKENS * D_IN + TOKENS * D_OUT + D_OUT * GATES;
// Numbers that a program writes: ∂W_out_m, ∂W_out_x, ∂D, ∂W_in_m, ∂W_in_x, ∂λ, loss.
constexpr int NUMBERS = 2 * GATED * HIDDEN + D_OUT * GATED + 2 * HIDDEN * (D_IN + 1) + HIDDEN + 1;

struct Problem {
  int members, parts, batch;
  // Arrays with a leading axis of members, in the order of their names in gated_step.py.
  const float *W_in_m, *W_in_x, *decay, *W_out_m, *W_out_x, *D, *xs, *targets;
  // [members, parts, NUMBERS]
  float *partial;
};

struct Split {
  unsigned big, small;
};

DEVICE inline Split split(float x) {
  Split parts;
  parts.big = to_tf32(x);
  parts.small = as_bits(x - as_float(parts.big));
  return parts;
}

// c += a·b for a 16×8 block a and an 8×8 block b, spread over a warp.
DEVICE inline void multiply(float (&c)[4], const Split (&a)[4], const Split (&b)[2]) {
  mma(c, a[0].small, a[1].small, a[2].small, a[3].small, b[0].big, b[1].big);
  mma(c, a[0].big, a[1].big, a[2].big, a[3].big, b[0].small, b[1].small);
  mma(c, a[0].big, a[1].big, a[2].big, a[3].big, b[0].big, b[1].big);
}

KERNEL void gated_step(Problem p) {
  SHARED_MEMORY(shared);
  const int thread = THREAD, threads = PROGRAM_THREADS;
  const int warp = thread / 32, lane = thread % 32, group = lane / 4, quad = lane % 4;
  const int member = BLOCK / p.parts, part = BLOCK % p.parts;

  float *W = shared;                  // [2·GATES, HS], the matrix of m above that of g
  float *H = W + 2 * GATES * HS;      // [tokens, HS]
  float *dH = H + TOKENS * HS;        // [tokens, HS]
  float *delta = dH + TOKENS * HS;    // [tokens, GS]; before that, outputs by warp
  float *xs = delta + TOKENS * GS;    // [tokens, d_in]
  float *slope = xs + TOKENS * D_IN;  // [tokens, d_out]
  float *D = slope + TOKENS * D_OUT;  // [d_out, GATES]

  for (int i = thread; i < 2 * GATES * HS; i += threads) {
    int row = i / HS, column = i % HS, gate = row % GATES;
    const float *from = row < GATES ? p.W_out_m : p.W_out_x;
    bool inside = gate < GATED && column < HIDDEN;
    W[i] = inside ? from[((size_t)member * GATED + gate) * HIDDEN + column] : 0.f;
  }
  for (int i = thread; i < D_OUT * GATES; i += threads) {
    int output = i / GATES, gate = i % GATES;
    D[i] = gate < GATED ? p.D[((size_t)member * D_OUT + output) * GATED + gate] : 0.f;
  }

  // A walking thread has one neuron and one place in the chunk, the same in every chunk.
  const int neuron = thread % WIDTH, place = thread / WIDTH;
  const bool walks = place < PLACES, real = walks && neuron < HIDDEN;
  float in_m[D_IN + 1], in_x[D_IN + 1], by_in_m[D_IN + 1], by_in_x[D_IN + 1];
#pragma unroll
  for (int i = 0; i <= D_IN; i++) {
    size_t at = ((size_t)member * HIDDEN + neuron) * (D_IN + 1) + i;
    in_m[i] = real ? p.W_in_m[at] : 0.f;
    in_x[i] = real ? p.W_in_x[at] : 0.f;
    by_in_m[i] = by_in_x[i] = 0.f;
  }
  const float decay = real ? p.decay[(size_t)member * HIDDEN + neuron] : 0.f;
  float by_decay = 0.f, loss = 0.f;
  float by_D[D_OUT][2], by_W[NT][4];
#pragma unroll
  for (int o = 0; o < D_OUT; o++) by_D[o][0] = by_D[o][1] = 0.f;
#pragma unroll
  for (int n = 0; n < NT; n++)
#pragma unroll
    for (int c = 0; c < 4; c++) by_W[n][c] = 0.f;

  const int chunks = p.batch / PLACES;
  const float scale = 1.f / ((float)p.batch * TIME * D_OUT);
  for (int chunk = part; chunk < chunks; chunk += p.parts) {
    const size_t first = ((size_t)member * p.batch + (size_t)chunk * PLACES) * TIME;
    BARRIER();
    for (int i = thread; i < TOKENS * D_IN; i += threads) xs[i] = p.xs[first * D_IN + i];
    BARRIER();

    // Forward through time.
    if (walks) {
      float h = 0.f;
      for (int t = 0; t < TIME; t++) {
        const int row = place * TIME + t;
        float m = in_m[D_IN], g = in_x[D_IN];
#pragma unroll
        for (int i = 0; i < D_IN; i++) {
          float u = xs[row * D_IN + i];
          m += in_m[i] * u;
          g += in_x[i] * u;
        }
        h = decay * h + m * g;
        H[row * HS + neuron] = h;
      }
    }
    BARRIER();

    // Gates; then this warp's share of the outputs.
    float m[MT][4], g[MT][4];
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
      for (int c = 0; c < 4; c++) m[i][c] = g[i][c] = 0.f;
    if (warp < TILES) {
#pragma unroll 1
      for (int k = 0; k < NT; k++) {
        const float *row_m = W + (8 * warp + group) * HS + 8 * k + quad;
        const float *row_g = row_m + GATES * HS;
        Split b_m[2] = {split(row_m[0]), split(row_m[4])};
        Split b_g[2] = {split(row_g[0]), split(row_g[4])};
#pragma unroll
        for (int i = 0; i < MT; i++) {
          const float *row = H + (16 * i + group) * HS + 8 * k + quad;
          Split a[4] = {split(row[0]), split(row[8 * HS]), split(row[4]), split(row[8 * HS + 4])};
          multiply(m[i], a, b_m);
          multiply(g[i], a, b_g);
        }
      }
      // A thread's gates are the columns 2·quad and 2·quad + 1 of the warp's tile.
      const int column = 8 * warp + 2 * quad;
#pragma unroll
      for (int i = 0; i < MT; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int row = 16 * i + 8 * half + group;
          float left = m[i][2 * half] * g[i][2 * half];
          float right = m[i][2 * half + 1] * g[i][2 * half + 1];
          for (int o = 0; o < D_OUT; o++) {
            float y = left * D[o * GATES + column] + right * D[o * GATES + column + 1];
            y += SHUFFLE_XOR(y, 1);
            y += SHUFFLE_XOR(y, 2);
            if (quad == 0) delta[(warp * TOKENS + row) * D_OUT + o] = y;
          }
        }
    }
    BARRIER();
    for (int i = thread; i < TOKENS * D_OUT; i += threads) {
      float y = 0.f;
      for (int w = 0; w < TILES; w++) y += delta[w * TOKENS * D_OUT + i];
      float error = y - p.targets[first * D_OUT + i];
      loss += 0.5f * scale * error * error;
      slope[i] = scale * error;
    }
    BARRIER();

    // Back through the gates.
    if (warp < TILES) {
      const int column = 8 * warp + 2 * quad;
#pragma unroll
      for (int i = 0; i < MT; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int row = 16 * i + 8 * half + group;
          float left = 0.f, right = 0.f;
          const float product0 = m[i][2 * half] * g[i][2 * half];
          const float product1 = m[i][2 * half + 1] * g[i][2 * half + 1];
#pragma unroll
          for (int o = 0; o < D_OUT; o++) {
            const float e = slope[row * D_OUT + o];
            left += e * D[o * GATES + column];
            right += e * D[o * GATES + column + 1];
            by_D[o][0] += e * product0;
            by_D[o][1] += e * product1;
          }
          float *to = delta + row * GS + column;
          to[0] = left * g[i][2 * half];
          to[1] = right * g[i][2 * half + 1];
          to[GATES] = left * m[i][2 * half];
          to[GATES + 1] = right * m[i][2 * half + 1];
        }
    }
    BARRIER();

    // Gradients by the output weights.
    if (warp < TILES) {
#pragma unroll 1
      for (int k = 0; k < 2 * MT; k++) {
        const float *at = delta + (8 * k + quad) * GS + 16 * warp + group;
        Split a[4] = {split(at[0]), split(at[8]), split(at[4 * GS]), split(at[4 * GS + 8])};
        const float *row = H + (8 * k + quad) * HS + group;
#pragma unroll
        for (int n = 0; n < NT; n++) {
          Split b[2] = {split(row[8 * n]), split(row[4 * HS + 8 * n])};
          multiply(by_W[n], a, b);
        }
      }
    }
    // Gradients by the states.
    for (int n = warp; n < NT; n += (PROGRAM_THREADS / 32)) {
      float sum[MT][4];
#pragma unroll
      for (int i = 0; i < MT; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) sum[i][c] = 0.f;
#pragma unroll 1
      for (int k = 0; k < 2 * TILES; k++) {
        const float *at = W + (8 * k + quad) * HS + 8 * n + group;
        Split b[2] = {split(at[0]), split(at[4 * HS])};
#pragma unroll
        for (int i = 0; i < MT; i++) {
          const float *row = delta + (16 * i + group) * GS + 8 * k + quad;
          Split a[4] = {split(row[0]), split(row[8 * GS]), split(row[4]), split(row[8 * GS + 4])};
          multiply(sum[i], a, b);
        }
      }
#pragma unroll
      for (int i = 0; i < MT; i++) {
        float *to = dH + (16 * i + group) * HS + 8 * n + 2 * quad;
        to[0] = sum[i][0];
        to[1] = sum[i][1];
        to[8 * HS] = sum[i][2];
        to[8 * HS + 1] = sum[i][3];
      }
    }
    BARRIER();

    // Backward through time.
    if (walks) {
      float by_h = 0.f;
      for (int t = TIME - 1; t >= 0; t--) {
        const int row = place * TIME + t;
        by_h = dH[row * HS + neuron] + decay * by_h;
        if (t > 0) by_decay += by_h * H[(row - 1) * HS + neuron];
        float u[D_IN], m_in = in_m[D_IN], g_in = in_x[D_IN];
#pragma unroll
        for (int i = 0; i < D_IN; i++) {
          u[i] = xs[row * D_IN + i];
          m_in += in_m[i] * u[i];
          g_in += in_x[i] * u[i];
        }
        const float by_m = by_h * g_in, by_g = by_h * m_in;
#pragma unroll
        for (int i = 0; i < D_IN; i++) {
          by_in_m[i] += by_m * u[i];
          by_in_x[i] += by_g * u[i];
        }
        by_in_m[D_IN] += by_m;
        by_in_x[D_IN] += by_g;
      }
    }
  }
  BARRIER();

  // What this program found.
  float *out = p.partial + (size_t)BLOCK * NUMBERS;
  if (warp < TILES) {
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int c = 0; c < 4; c++) {
        const int row = 16 * warp + group + 8 * (c / 2), column = 8 * n + 2 * quad + c % 2;
        const int gate = row % GATES;
        if (gate < GATED && column < HIDDEN)
          out[((row / GATES) * GATED + gate) * HIDDEN + column] = by_W[n][c];
      }
  }
  out += 2 * GATED * HIDDEN;
  if (warp < TILES) {
#pragma unroll
    for (int o = 0; o < D_OUT; o++)
#pragma unroll
      for (int side = 0; side < 2; side++) {
        float total = by_D[o][side];
        total += SHUFFLE_XOR(total, 4);
        total += SHUFFLE_XOR(total, 8);
        total += SHUFFLE_XOR(total, 16);
        const int gate = 8 * warp + 2 * quad + side;
        if (group == 0 && gate < GATED) out[o * GATED + gate] = total;
      }
  }
  out += D_OUT * GATED;
  // Sums over the places of a chunk, and of the loss over threads, in the memory of delta.
  const int each = 2 * (D_IN + 1) + 1;
  if (real) {
    float *to = delta + (place * HIDDEN + neuron) * each;
#pragma unroll
    for (int i = 0; i <= D_IN; i++) {
      to[i] = by_in_m[i];
      to[D_IN + 1 + i] = by_in_x[i];
    }
    to[2 * (D_IN + 1)] = by_decay;
  }
  dH[thread] = loss;
  BARRIER();
  for (int i = thread; i < HIDDEN * each; i += threads) {
    float total = 0.f;
    for (int s = 0; s < PLACES; s++) total += delta[s * HIDDEN * each + i];
    const int of = i / each, which = i % each;
    if (which == 2 * (D_IN + 1))
      out[2 * HIDDEN * (D_IN + 1) + of] = total;
    else
      out[(which / (D_IN + 1)) * HIDDEN * (D_IN + 1) + of * (D_IN + 1) + which % (D_IN + 1)] = total;
  }
  if (thread == 0) {
    float total = 0.f;
    for (int i = 0; i < threads; i++) total += dH[i];
    out[2 * HIDDEN * (D_IN + 1) + HIDDEN] = total;
  }
}

// Sums over the programs of each member, in one order.
KERNEL void add_parts(const float *partial, float *sums, int members, int parts) {
  for (size_t i = (size_t)BLOCK * THREADS + THREAD; i < (size_t)members * NUMBERS;
       i += (size_t)BLOCKS * THREADS) {
    const size_t member = i / NUMBERS, number = i % NUMBERS;
    float total = 0.f;
    for (int part = 0; part < parts; part++)
      total += partial[(member * parts + part) * NUMBERS + number];
    sums[i] = total;
  }
}
