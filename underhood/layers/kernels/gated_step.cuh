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
//   states   ∂H = Δ [W_m; W_x]           units of 8 neurons and 32 tokens, shared by all warps
//
// run on tensor cores (`parts.cuh`). W_m and W_x have scales of their own; those of Δ are
// chosen so that both halves of Δ [W_m; W_x] have one scale. Scales of H and Δ come from bounds that
// only grow from chunk to chunk:
//
//   |h| ≤ max |u|² · Σ_t |λ|^t · Σ|W_in_m| · Σ|W_in_x|,    |Δ_m| ≤ max |slope| · Σ|D| · max |g|
//
// The same text is compiled for a CPU (`emulation.h`), where the tests run it.

#pragma once

#include "parts.cuh"

// Sizes that the compiler is told: NEURON_TILES and GATE_TILES of 8, TOKENS of a chunk, TIME, D_IN,
// HIDDEN, GATED, D_OUT, PROGRAM_THREADS, the threads of a program, and what BYTES of shared memory
// and NUMBERS of results they come to (`gated_step.py` chooses).
constexpr int NT = NEURON_TILES, TILES = GATE_TILES, MT = TOKENS / 16;
constexpr int WIDTH = 8 * NT, GATES = 8 * TILES, PLACES = TOKENS / TIME;
constexpr int WARPS = PROGRAM_THREADS / 32;
// From a row to the next: an odd number of 16 bytes, so that 8 rows lie in different banks.
constexpr int HS = 8 * (NT | 1), GS = 2 * GATES + 8;
// Steps of a walk whose inputs are read together.
constexpr int STRIDE = TIME < 8 ? TIME : 8;
// Numbers of the output weights that a thread brings to the chip.
constexpr int BROUGHT = (2 * GATES * WIDTH + PROGRAM_THREADS - 1) / PROGRAM_THREADS;
// Largest sizes so far: W_m and W_x, gates m and g, input weights with decay, inputs, slopes, D.
enum Bound {
  WEIGHTS,
  GATE_SIZES = WEIGHTS + 2,
  INPUTS = GATE_SIZES + 2,
  TOKEN_SIZE,
  SLOPES,
  READOUT,
  BOUNDS
};
// Gradients of a neuron by its input weights and λ.
constexpr int INPUT_SLOPES = 2 * (D_IN + 1) + 1;
constexpr int SHARED_FLOATS = 2 * GATES * HS + 2 * TOKENS * HS + TOKENS * GS + TOKENS * D_IN +
                              TOKENS * D_OUT + D_OUT * GATES + BOUNDS +
                              PLACES * HIDDEN * INPUT_SLOPES;
// Numbers that a program writes: ∂W_out_m, ∂W_out_x, ∂D, ∂W_in_m, ∂W_in_x, ∂λ, loss.
constexpr int WRITTEN = 2 * GATED * HIDDEN + D_OUT * GATED + 2 * HIDDEN * (D_IN + 1) + HIDDEN + 1;
static_assert(4 * SHARED_FLOATS == BYTES && WRITTEN == NUMBERS, "gated_step.py counts otherwise");

struct Problem {
  int members, parts, batch;
  // Arrays with a leading axis of members, in the order of their names in gated_step.py.
  const float *W_in_m, *W_in_x, *decay, *W_out_m, *W_out_x, *D, *xs, *targets;
  // [members, parts, NUMBERS]
  float *partial;
};

// Read at once: the inputs of a token.
struct alignas(D_IN % 4 ? 4 : 16) Token {
  float x[D_IN];
};

// ∂H = Δ [W_m; W_x] for 32 tokens, from token `first` on, and N tiles of neurons, from `tile` on.
template <int N>
DEVICE inline void by_states(Parts delta, Parts W, float *dH, float unscale, int first, int tile) {
  const int lane = THREAD % 32, group = lane / 4, quad = lane % 4;
  float sum[N][2][4];
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int c = 0; c < 4; c++) sum[n][i][c] = 0.f;
  const int at = along_columns(HS) + 8 * tile, row = along_columns(GS) + first * GS;
#pragma unroll 1
  for (int k = 0; k < TILES; k++) {
    Rows a[2];
    Columns b[2];
    load_columns<true>(b, W, at + 16 * k * HS);
#pragma unroll
    for (int i = 0; i < 2; i++) load_rows<false>(a[i], delta, row + 16 * i * GS + 16 * k);
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
      for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) multiply(sum[n][i], a[i], b[n], step);
  }
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float *to = dH + (first + 16 * i + group) * HS + 8 * (tile + n) + 2 * quad;
      const float(&c)[4] = sum[n][i];
      *reinterpret_cast<Pair *>(to) = {c[0] * unscale, c[1] * unscale};
      *reinterpret_cast<Pair *>(to + 8 * HS) = {c[2] * unscale, c[3] * unscale};
    }
}

KERNEL void gated_step(Problem p) {
  SHARED_MEMORY(shared);
  const int thread = THREAD, threads = PROGRAM_THREADS;
  const int warp = thread / 32, lane = thread % 32, group = lane / 4, quad = lane % 4;
  const int member = BLOCK / p.parts, part = BLOCK % p.parts;

  float *room = shared;
  auto take = [&room](int numbers) {
    float *begin = room;
    room += numbers;
    return begin;
  };
  auto halves = [&take](int rows, int stride) {
    Half *begin = reinterpret_cast<Half *>(take(rows * stride));
    return Parts{begin, begin + rows * stride};
  };
  const Parts W = halves(2 * GATES, HS);       // the matrix of m above that of g
  const Parts H = halves(TOKENS, HS);
  const Parts delta = halves(TOKENS, GS);
  float *outputs = reinterpret_cast<float *>(delta.big);  // by warp, before delta is needed
  float *dH = take(TOKENS * HS);
  float *xs = take(TOKENS * D_IN);      // [tokens, d_in]
  float *slope = take(TOKENS * D_OUT);  // [tokens, d_out]
  float *D = take(D_OUT * GATES);       // [d_out, GATES]
  float *bounds = take(BOUNDS);
  float *sums = take(PLACES * HIDDEN * INPUT_SLOPES);  // [places, hidden, INPUT_SLOPES]

  if (thread < BOUNDS) bounds[thread] = 0.f;
  BARRIER();

  // A walking thread has one neuron and one place in the chunk, the same in every chunk.
  const int neuron = thread % WIDTH, place = thread / WIDTH;
  const bool walks = place < PLACES, real = walks && neuron < HIDDEN;
  const size_t neuron_at = ((size_t)member * HIDDEN + neuron) * (D_IN + 1);
  const float decay = real ? READ(p.decay + (size_t)member * HIDDEN + neuron) : 0.f;

  float brought[BROUGHT], largest[2] = {0.f, 0.f};
#pragma unroll
  for (int i = 0; i < BROUGHT; i++) {
    const int at = thread + i * threads, row = at / WIDTH, column = at % WIDTH, gate = row % GATES;
    const float *from = row < GATES ? p.W_out_m : p.W_out_x;
    const bool inside = row < 2 * GATES && gate < GATED && column < HIDDEN;
    // Without a branch, all numbers are on their way at once.
    const size_t number = inside ? (size_t)gate * HIDDEN + column : 0;
    const float weight = READ(from + (size_t)member * GATED * HIDDEN + number);
    brought[i] = inside ? weight : 0.f;
#pragma unroll
    for (int side = 0; side < 2; side++)
      if ((row >= GATES) == side) largest[side] = larger(largest[side], size_of(brought[i]));
  }
#pragma unroll
  for (int side = 0; side < 2; side++) raise(bounds + WEIGHTS + side, largest[side]);
  float all = 0.f;
  for (int gate = thread; gate < GATES; gate += threads) {
    float sum = 0.f;
    for (int o = 0; o < D_OUT; o++) {
      const float d = gate < GATED ? READ(p.D + ((size_t)member * D_OUT + o) * GATED + gate) : 0.f;
      D[o * GATES + gate] = d;
      sum += size_of(d);
    }
    all = larger(all, sum);
  }
  raise(bounds + READOUT, all);
  float in_m_size = 0.f, in_x_size = 0.f, kept = 0.f;
  if (real) {
    for (int i = 0; i <= D_IN; i++) {
      in_m_size += size_of(READ(p.W_in_m + neuron_at + i));
      in_x_size += size_of(READ(p.W_in_x + neuron_at + i));
    }
    for (int t = 0; t < TIME; t++) kept = 1.f + size_of(decay) * kept;
  }
  raise(bounds + INPUTS, in_m_size * in_x_size * kept);
  BARRIER();
  const int e_W[2] = {exponent_for(bounds[WEIGHTS]), exponent_for(bounds[WEIGHTS + 1])};
#pragma unroll
  for (int i = 0; i < BROUGHT; i++) {
    const int at = thread + i * threads, row = at / WIDTH;
    if (row < 2 * GATES)
      write_parts(W, row * HS + at % WIDTH, brought[i] * power(e_W[row < GATES ? 0 : 1]));
  }

  for (int i = thread; i < PLACES * HIDDEN * INPUT_SLOPES; i += threads) sums[i] = 0.f;
  float loss = 0.f, by_D[D_OUT][2], by_W[NT][4];
#pragma unroll
  for (int o = 0; o < D_OUT; o++) by_D[o][0] = by_D[o][1] = 0.f;
#pragma unroll
  for (int n = 0; n < NT; n++)
#pragma unroll
    for (int c = 0; c < 4; c++) by_W[n][c] = 0.f;
  // A thread has rows of two tiles, each of m or of g. Such rows are multiplied by 2^e_by_W.
  const int sides[2] = {2 * warp < TILES ? 0 : 1, 2 * warp + 1 < TILES ? 0 : 1};
  int e_by_W[2] = {2 * LARGEST_EXPONENT, 2 * LARGEST_EXPONENT};

  const int chunks = p.batch / PLACES;
  const float scale = 1.f / ((float)p.batch * TIME * D_OUT);
  for (int chunk = part; chunk < chunks; chunk += p.parts) {
    const size_t first = ((size_t)member * p.batch + (size_t)chunk * PLACES) * TIME;
    BARRIER();
    // The constant input of the bias is 1.
    float token_size = 1.f;
    for (int i = thread; i < TOKENS * D_IN; i += threads) {
      xs[i] = READ(p.xs + first * D_IN + i);
      token_size = larger(token_size, size_of(xs[i]));
    }
    raise(bounds + TOKEN_SIZE, token_size);
    for (int i = thread; i < TOKENS * D_OUT; i += threads)
      slope[i] = READ(p.targets + first * D_OUT + i);
    BARRIER();
    const int e_H = exponent_for(bounds[INPUTS] * bounds[TOKEN_SIZE] * bounds[TOKEN_SIZE]);

    // Forward through time.
    if (walks) {
      float in_m[D_IN + 1], in_x[D_IN + 1], h = 0.f;
#pragma unroll
      for (int i = 0; i <= D_IN; i++) {
        in_m[i] = real ? READ(p.W_in_m + neuron_at + i) : 0.f;
        in_x[i] = real ? READ(p.W_in_x + neuron_at + i) : 0.f;
      }
      const float scale_H = power(e_H);
#pragma unroll 1
      for (int t = 0; t < TIME; t += STRIDE) {
        const int row = place * TIME + t;
        float written[STRIDE];
#pragma unroll
        for (int s = 0; s < STRIDE; s++) {
          const Token u = reinterpret_cast<const Token *>(xs)[row + s];
          float m = in_m[D_IN], g = in_x[D_IN];
#pragma unroll
          for (int i = 0; i < D_IN; i++) {
            m += in_m[i] * u.x[i];
            g += in_x[i] * u.x[i];
          }
          written[s] = m * g;
        }
#pragma unroll
        for (int s = 0; s < STRIDE; s++) {
          h = decay * h + written[s];
          write_parts(H, (row + s) * HS + neuron, h * scale_H);
        }
      }
    }
    BARRIER();

    // Gates m and g of all tokens; then this warp's share of the outputs.
    float gates[MT][2][4], gate_sizes[2] = {0.f, 0.f};
    const int column = 8 * warp + 2 * quad;
    if (warp < TILES) {
#pragma unroll
      for (int i = 0; i < MT; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) gates[i][0][c] = gates[i][1][c] = 0.f;
      // Tiles of m in a row of two, then those of g.
      const int at = (lane / 16 * GATES + 8 * warp + lane % 8) * HS + 8 * (lane / 8 % 2);
#pragma unroll 1
      for (int k = 0; k < NT; k += 2) {
        // The second half of the last block may be past the neurons.
        const bool whole = k + 1 < NT;
        Columns b[2];
        load_columns<false>(b, W, at + 8 * k);
#pragma unroll
        for (int side = 0; side < 2; side++)
          if (!whole) b[side].big[1] = b[side].small[1] = 0;
#pragma unroll
        for (int start = 0; start < MT; start += 2) {
          Rows a[2];
#pragma unroll
          for (int i = 0; i < 2; i++) {
            load_rows<false>(a[i], H, along_columns(HS) + 16 * (start + i) * HS + 8 * k);
            if (!whole) a[i].big[2] = a[i].big[3] = a[i].small[2] = a[i].small[3] = 0;
          }
#pragma unroll
          for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
              for (int side = 0; side < 2; side++)
                multiply(gates[start + i][side], a[i], b[side], step);
        }
      }
#pragma unroll
      for (int side = 0; side < 2; side++) {
        const float unscale = power(-e_W[side] - e_H);
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
          for (int c = 0; c < 4; c++) {
            gates[i][side][c] *= unscale;
            gate_sizes[side] = larger(gate_sizes[side], size_of(gates[i][side][c]));
          }
      }
      // A thread's gates are the columns 2·quad and 2·quad + 1 of the warp's tile.
      Pair d[D_OUT];
#pragma unroll
      for (int o = 0; o < D_OUT; o++) d[o] = *reinterpret_cast<Pair *>(D + o * GATES + column);
#pragma unroll
      for (int i = 0; i < MT; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int row = 16 * i + 8 * half + group;
          const float left = gates[i][0][2 * half] * gates[i][1][2 * half];
          const float right = gates[i][0][2 * half + 1] * gates[i][1][2 * half + 1];
#pragma unroll
          for (int o = 0; o < D_OUT; o++) {
            float y = left * d[o].first + right * d[o].second;
            y += SHUFFLE_XOR(y, 1);
            y += SHUFFLE_XOR(y, 2);
            if (quad == 0) outputs[(warp * TOKENS + row) * D_OUT + o] = y;
          }
        }
    }
#pragma unroll
    for (int side = 0; side < 2; side++) raise(bounds + GATE_SIZES + side, gate_sizes[side]);
    BARRIER();
    float slope_size = 0.f;
    for (int i = thread; i < TOKENS * D_OUT; i += threads) {
      float y = 0.f;
#pragma unroll
      for (int w = 0; w < TILES; w++) y += outputs[w * TOKENS * D_OUT + i];
      const float error = y - slope[i];
      loss += 0.5f * scale * error * error;
      slope[i] = scale * error;
      slope_size = larger(slope_size, size_of(slope[i]));
    }
    raise(bounds + SLOPES, slope_size);
    BARRIER();

    // Back through the gates.
    const float left_size = bounds[SLOPES] * bounds[READOUT];
    // Both halves of Δ W have one scale, because they are summed.
    const int of_m = exponent_for(left_size * bounds[GATE_SIZES + 1]) + e_W[0];
    const int of_g = exponent_for(left_size * bounds[GATE_SIZES]) + e_W[1];
    const int e_by_H = of_m < of_g ? of_m : of_g;
    const int e_delta[2] = {e_by_H - e_W[0], e_by_H - e_W[1]};
    if (warp < TILES) {
      const float scale_m = power(e_delta[0]), scale_g = power(e_delta[1]);
      Pair d[D_OUT];
#pragma unroll
      for (int o = 0; o < D_OUT; o++) d[o] = *reinterpret_cast<Pair *>(D + o * GATES + column);
#pragma unroll
      for (int i = 0; i < MT; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int row = 16 * i + 8 * half + group;
          const float m0 = gates[i][0][2 * half], m1 = gates[i][0][2 * half + 1];
          const float g0 = gates[i][1][2 * half], g1 = gates[i][1][2 * half + 1];
          float left = 0.f, right = 0.f;
#pragma unroll
          for (int o = 0; o < D_OUT; o++) {
            const float e = slope[row * D_OUT + o];
            left += e * d[o].first;
            right += e * d[o].second;
            by_D[o][0] += e * (m0 * g0);
            by_D[o][1] += e * (m1 * g1);
          }
          write_pair(delta, row * GS + column, left * g0 * scale_m, right * g1 * scale_m);
          write_pair(delta, row * GS + GATES + column, left * m0 * scale_g, right * m1 * scale_g);
        }
    }
    BARRIER();

    // Gradients by the output weights.
    if (warp < TILES) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        // Bounds grow, so e can only fall.
        const int e = e_H + e_delta[sides[half]];
        if (e == e_by_W[half]) continue;
        const float change = power(e - e_by_W[half]);
#pragma unroll
        for (int n = 0; n < NT; n++)
          by_W[n][2 * half] *= change, by_W[n][2 * half + 1] *= change;
        e_by_W[half] = e;
      }
      const int at = along_rows(GS) + 16 * warp;
#pragma unroll 1
      for (int k = 0; k < MT; k++) {
        Rows a;
        load_rows<true>(a, delta, at + 16 * k * GS);
#pragma unroll
        for (int start = 0; start < NT; start += 4) {
          Columns b[2][2];
#pragma unroll
          for (int n = 0; n < 4 && start + n < NT; n += 2)
            load_columns<true>(b[n / 2], H, along_columns(HS) + 16 * k * HS + 8 * (start + n));
#pragma unroll
          for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int n = 0; n < 4 && start + n < NT; n++)
              multiply(by_W[start + n], a, b[n / 2][n % 2], step);
        }
      }
    }
    // Gradients by the states, in units of 8 neurons and 32 tokens: as many for each warp.
    constexpr int UNITS = NT * MT / 2, EACH = (UNITS + WARPS - 1) / WARPS;
    const float unscale = power(-e_by_H);
#pragma unroll 1
    for (int unit = warp * EACH; unit < UNITS && unit < (warp + 1) * EACH; unit++) {
      const int token = 32 * (unit / NT), tile = unit % NT;
      if (tile + 1 < NT && unit + 1 < (warp + 1) * EACH)
        by_states<2>(delta, W, dH, unscale, token, tile), unit++;
      else
        by_states<1>(delta, W, dH, unscale, token, tile);
    }
    BARRIER();

    // Backward through time.
    if (walks) {
      float in_m[D_IN + 1], in_x[D_IN + 1], by_in_m[D_IN + 1], by_in_x[D_IN + 1];
      float by_h = 0.f, by_decay = 0.f;
#pragma unroll
      for (int i = 0; i <= D_IN; i++) {
        by_in_m[i] = by_in_x[i] = 0.f;
        in_m[i] = real ? READ(p.W_in_m + neuron_at + i) : 0.f;
        in_x[i] = real ? READ(p.W_in_x + neuron_at + i) : 0.f;
      }
      const float unscale_H = power(-e_H);
#pragma unroll 1
      for (int t = TIME - STRIDE; t >= 0; t -= STRIDE) {
        const int row = place * TIME + t;
        float slopes[STRIDE];
#pragma unroll
        for (int s = STRIDE - 1; s >= 0; s--) {
          by_h = dH[(row + s) * HS + neuron] + decay * by_h;
          slopes[s] = by_h;
          if (t + s > 0) {
            const int before = (row + s - 1) * HS + neuron;
            const float h = half_value(H.big[before]) + half_value(H.small[before]);
            by_decay += by_h * (h * unscale_H);
          }
        }
#pragma unroll
        for (int s = 0; s < STRIDE; s++) {
          const Token u = reinterpret_cast<const Token *>(xs)[row + s];
          float m = in_m[D_IN], g = in_x[D_IN];
#pragma unroll
          for (int i = 0; i < D_IN; i++) {
            m += in_m[i] * u.x[i];
            g += in_x[i] * u.x[i];
          }
          const float by_m = slopes[s] * g, by_g = slopes[s] * m;
#pragma unroll
          for (int i = 0; i < D_IN; i++) {
            by_in_m[i] += by_m * u.x[i];
            by_in_x[i] += by_g * u.x[i];
          }
          by_in_m[D_IN] += by_m;
          by_in_x[D_IN] += by_g;
        }
      }
      if (real) {
        float *to = sums + (place * HIDDEN + neuron) * INPUT_SLOPES;
#pragma unroll
        for (int i = 0; i <= D_IN; i++) {
          to[i] += by_in_m[i];
          to[D_IN + 1 + i] += by_in_x[i];
        }
        to[2 * (D_IN + 1)] += by_decay;
      }
    }
  }
  BARRIER();

  // What this program found. Rows pass through the memory of W, to be written whole.
  float *out = p.partial + (size_t)BLOCK * NUMBERS, *rows = shared;
  if (warp < TILES) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float unscale = power(-e_by_W[half]);
#pragma unroll
      for (int n = 0; n < NT; n++) {
        float *to = rows + (16 * warp + group + 8 * half) * HS + 8 * n + 2 * quad;
        *reinterpret_cast<Pair *>(to) = {by_W[n][2 * half] * unscale,
                                         by_W[n][2 * half + 1] * unscale};
      }
    }
  }
  dH[thread] = loss;
  BARRIER();
#pragma unroll 8
  for (int i = thread; i < 2 * GATED * HIDDEN; i += threads) {
    const int row = i / HIDDEN;
    out[i] = rows[(row + row / GATED * (GATES - GATED)) * HS + i % HIDDEN];
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
  for (int i = thread; i < HIDDEN * INPUT_SLOPES; i += threads) {
    float total = 0.f;
    for (int s = 0; s < PLACES; s++) total += sums[s * HIDDEN * INPUT_SLOPES + i];
    const int of = i / INPUT_SLOPES, which = i % INPUT_SLOPES;
    if (which == 2 * (D_IN + 1))
      out[2 * HIDDEN * (D_IN + 1) + of] = total;
    else
      out[(which / (D_IN + 1)) * HIDDEN * (D_IN + 1) + of * (D_IN + 1) + which % (D_IN + 1)] = total;
  }
  if (warp == 0) {
    float total = 0.f;
    for (int i = lane; i < threads; i += 32) total += dH[i];
#pragma unroll
    for (int other = 1; other < 32; other *= 2) total += SHUFFLE_XOR(total, other);
    if (lane == 0) out[2 * HIDDEN * (D_IN + 1) + HIDDEN] = total;
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
