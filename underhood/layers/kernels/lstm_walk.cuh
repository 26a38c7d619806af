// An LSTM's walk through time over a batch of sequences, and the way back, each in one kernel.
//
//   a = W [h_{t−1}; x_t; 1] for the gates f, g, o and the candidate c̃
//   c_t = f⊙c_{t−1} + g⊙c̃,  h_t = o⊙tanh(c_t)
//
// Back, with η_t = ∂loss/∂h_t in all and γ' the share of c_t in c_{t+1}:
//
//   γ = γ' + η⊙o⊙(1−tanh²c),  δ_f = γ⊙c_{t−1}⊙f(1−f),  δ_g = γ⊙c̃⊙g(1−g),  δ_o = η⊙tanh(c)⊙o(1−o)
//   δ_c̃ = γ⊙g⊙(1−c̃²),  η_{t−1} += Vᵀδ,  ∂W += δ [h_{t−1}; x_t; 1]ᵀ,  V the columns of W for h
//
// A program (block) has 16 sequences of one member; a warp has 8 neurons with all their gates, so a
// thread holds what belongs to its 4 pairs of sequence and neuron from step to step. Only h and δ
// pass through shared memory, where W stays too. Products run on tensor cores (`parts.cuh`).
//
// The same text is compiled for a CPU (`emulation.h`), where the tests run it.

#pragma once

#include "parts.cuh"

// Sizes that the compiler is told: TIME, D_IN, HIDDEN, NEURON_TILES of 8, PROGRAM_THREADS, a warp for
// each tile, and the BYTES of shared memory that they come to (`lstm_walk.py` chooses).
constexpr int NT = NEURON_TILES, WIDTH = 8 * NT, GATES = 4, ROWS = GATES * WIDTH, SEQUENCES = 16;
// Columns of W on the chip: those for h, then those for x and the constant; both fill blocks of 16.
constexpr int INPUT_TILES = (D_IN + 8) / 8;
constexpr int KH = 16 * ((NT + 1) / 2), K = KH + 16 * ((INPUT_TILES + 1) / 2);
// From a row to the next: an odd number of 16 bytes, so that 8 rows lie in different banks.
constexpr int KS = K + 8, VS = KH + 8, RS = ROWS + 8;
// Columns of W as it is given, [GATES, HIDDEN, GIVEN].
constexpr int GIVEN = HIDDEN + D_IN + 1;
// What a thread keeps of a step: f, g, o, c̃ and c of its 4 pairs.
constexpr int SLOTS = 5;
// Largest sizes so far: V, the other columns of W, inputs, δ.
enum Bound { STATE_WEIGHTS, INPUT_WEIGHTS, TOKEN_SIZE, DELTA, BOUNDS };
constexpr int FORWARD_FLOATS = ROWS * KS + 2 * SEQUENCES * KS + BOUNDS;
constexpr int BACKWARD_FLOATS = ROWS * VS + SEQUENCES * (RS + KS) + BOUNDS;
static_assert(4 * (FORWARD_FLOATS > BACKWARD_FLOATS ? FORWARD_FLOATS : BACKWARD_FLOATS) == BYTES,
              "lstm_walk.py counts otherwise");

struct alignas(16) Four {
  float of[4];
};

struct Walk {
  int members, parts, batch;
  // [members, GATES, HIDDEN, GIVEN], [members, batch, TIME, D_IN], [members, TIME, batch, HIDDEN]
  const float *W, *xs, *slopes;
  // [members, TIME, batch, HIDDEN], [members, parts, TIME, SLOTS, PROGRAM_THREADS, 4],
  // [members, parts, GATES, HIDDEN, GIVEN]
  float *states;
  Four *saved;
  float *by_W;
};

DEVICE inline float sigmoid(float a) { return 1.f / (1.f + expf(-a)); }

// W[row, column] as it lies on the chip.
DEVICE inline float weight(const Walk &p, int member, int row, int column) {
  const int neuron = row % WIDTH, from = column < KH ? column : HIDDEN + column - KH;
  const bool inside = neuron < HIDDEN && (column < KH ? column < HIDDEN : column - KH <= D_IN);
  const size_t at = (((size_t)member * GATES + row / WIDTH) * HIDDEN + neuron) * GIVEN + from;
  const float value = READ(p.W + (inside ? at : 0));
  return inside ? value : 0.f;
}

// x_t of a sequence of this program; 0 beyond the batch.
DEVICE inline float input(const Walk &p, int member, int sequence, int t, int i) {
  const size_t row = (size_t)member * p.batch + sequence;
  return sequence < p.batch ? READ(p.xs + (row * TIME + t) * D_IN + i) : 0.f;
}

// Raise the bounds on weights and inputs.
DEVICE inline void find_bounds(const Walk &p, float *bounds, int member, int first) {
  // The constant input is 1.
  float states = 0.f, inputs = 0.f, tokens = 1.f;
  for (int i = THREAD; i < ROWS * K; i += PROGRAM_THREADS) {
    const float w = size_of(weight(p, member, i / K, i % K));
    if (i % K < KH)
      states = larger(states, w);
    else
      inputs = larger(inputs, w);
  }
  for (int i = THREAD; i < SEQUENCES * TIME * D_IN; i += PROGRAM_THREADS) {
    const int sequence = first + i / (TIME * D_IN), t = i / D_IN % TIME;
    tokens = larger(tokens, size_of(input(p, member, sequence, t, i % D_IN)));
  }
  raise(bounds + STATE_WEIGHTS, states);
  raise(bounds + INPUT_WEIGHTS, inputs);
  raise(bounds + TOKEN_SIZE, tokens);
}

// Write x_t and the constant beside h.
DEVICE inline void write_inputs(const Walk &p, Parts to, float scale, int member, int first, int t) {
  for (int i = THREAD; i < SEQUENCES * (D_IN + 1); i += PROGRAM_THREADS) {
    const int row = i / (D_IN + 1), column = i % (D_IN + 1);
    const float x = column < D_IN ? input(p, member, first + row, t, column) : 1.f;
    write_parts(to, row * KS + KH + column, x * scale);
  }
}

DEVICE inline Parts parts_at(float *room, int rows, int stride) {
  Half *begin = reinterpret_cast<Half *>(room);
  return {begin, begin + rows * stride};
}

DEVICE inline void clear(float *room, int numbers) {
  for (int i = THREAD; i < numbers; i += PROGRAM_THREADS) room[i] = 0.f;
}

// |h| < 1.
constexpr int E_STATES = 14;

KERNEL void lstm_forward(Walk p) {
  SHARED_MEMORY(shared);
  const int warp = THREAD / 32, lane = THREAD % 32, group = lane / 4, quad = lane % 4;
  const int member = BLOCK / p.parts, first = SEQUENCES * (BLOCK % p.parts);

  const Parts W = parts_at(shared, ROWS, KS);
  // [h_{t−1}; x_t; 1], and the same of the step after.
  float *room = shared + ROWS * KS, *bounds = room + 2 * SEQUENCES * KS;
  auto read = [room](int t) { return parts_at(room + t % 2 * SEQUENCES * KS, SEQUENCES, KS); };
  if (THREAD < BOUNDS) bounds[THREAD] = 0.f;
  clear(room, 2 * SEQUENCES * KS);
  BARRIER();
  find_bounds(p, bounds, member, first);
  BARRIER();
  const int e_x = exponent_for(bounds[TOKEN_SIZE]);
  // Both groups of columns have one scale, because they are summed.
  const int by_states = E_STATES + exponent_for(bounds[STATE_WEIGHTS]);
  const int by_inputs = e_x + exponent_for(bounds[INPUT_WEIGHTS]);
  const int e = by_states < by_inputs ? by_states : by_inputs;
  for (int i = THREAD; i < ROWS * K; i += PROGRAM_THREADS) {
    const int row = i / K, column = i % K;
    const float scale = power(e - (column < KH ? E_STATES : e_x));
    write_parts(W, row * KS + column, weight(p, member, row, column) * scale);
  }
  const float scale_x = power(e_x), scale_h = power(E_STATES), unscale = power(-e);
  write_inputs(p, read(0), scale_x, member, first, 0);
  BARRIER();

  float c[4] = {0.f, 0.f, 0.f, 0.f};
  Four *saved = p.saved + (size_t)BLOCK * TIME * SLOTS * PROGRAM_THREADS + THREAD;
#pragma unroll 1
  for (int t = 0; t < TIME; t++) {
    const Parts now = read(t), next = read(t + 1);
    float sums[GATES][4];
#pragma unroll
    for (int gate = 0; gate < GATES; gate++)
#pragma unroll
      for (int i = 0; i < 4; i++) sums[gate][i] = 0.f;
    // Tiles of one gate in a row of two, then those of the next gate.
    const int at = (lane / 16 * WIDTH + 8 * warp + lane % 8) * KS + 8 * (lane / 8 % 2);
#pragma unroll
    for (int k = 0; k < K; k += 16) {
      Rows a;
      Columns b[GATES / 2][2];
      load_rows<false>(a, now, along_columns(KS) + k);
#pragma unroll
      for (int pair = 0; pair < GATES / 2; pair++)
        load_columns<false>(b[pair], W, at + 2 * pair * WIDTH * KS + k);
#pragma unroll
      for (int step = 0; step < STEPS; step++)
#pragma unroll
        for (int gate = 0; gate < GATES; gate++)
          multiply(sums[gate], a, b[gate / 2][gate % 2], step);
    }
    if (t + 1 < TIME) write_inputs(p, next, scale_x, member, first, t + 1);
    Four f, g, o, candidate, cell;
    float h[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      f.of[i] = sigmoid(sums[0][i] * unscale);
      g.of[i] = sigmoid(sums[1][i] * unscale);
      o.of[i] = sigmoid(sums[2][i] * unscale);
      candidate.of[i] = tanhf(sums[3][i] * unscale);
      c[i] = f.of[i] * c[i] + g.of[i] * candidate.of[i];
      cell.of[i] = c[i];
      h[i] = o.of[i] * tanhf(c[i]);
    }
    const Four kept[SLOTS] = {f, g, o, candidate, cell};
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++)
      saved[(size_t)(t * SLOTS + slot) * PROGRAM_THREADS] = kept[slot];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = group + 8 * half, neuron = 8 * warp + 2 * quad;
      write_pair(next, row * KS + neuron, h[2 * half] * scale_h, h[2 * half + 1] * scale_h);
      float *to = p.states + (((size_t)member * TIME + t) * p.batch + first + row) * HIDDEN;
#pragma unroll
      for (int side = 0; side < 2; side++)
        if (first + row < p.batch && neuron + side < HIDDEN)
          to[neuron + side] = h[2 * half + side];
    }
    BARRIER();
  }
}

KERNEL_FOR(2) void lstm_backward(Walk p) {
  SHARED_MEMORY(shared);
  const int warp = THREAD / 32, lane = THREAD % 32, group = lane / 4, quad = lane % 4;
  const int member = BLOCK / p.parts, first = SEQUENCES * (BLOCK % p.parts);

  const Parts V = parts_at(shared, ROWS, VS);
  float *delta_room = shared + ROWS * VS, *read_room = delta_room + SEQUENCES * RS;
  const Parts delta = parts_at(delta_room, SEQUENCES, RS);  // [sequences, ROWS]
  const Parts read = parts_at(read_room, SEQUENCES, KS);    // [h_{t−1}; x_t; 1]
  float *bounds = read_room + SEQUENCES * KS;
  if (THREAD < BOUNDS) bounds[THREAD] = 0.f;
  clear(read_room, SEQUENCES * KS);
  BARRIER();
  find_bounds(p, bounds, member, first);
  BARRIER();
  const int e_x = exponent_for(bounds[TOKEN_SIZE]), e_V = exponent_for(bounds[STATE_WEIGHTS]);
  for (int i = THREAD; i < ROWS * KH; i += PROGRAM_THREADS) {
    const int row = i / KH, column = i % KH;
    write_parts(V, row * VS + column, weight(p, member, row, column) * power(e_V));
  }
  const float scale_x = power(e_x), scale_h = power(E_STATES);

  // ∂W in blocks of 16 rows, two a warp, and tiles of columns; multiplied by 2^(e_delta + …).
  constexpr int TILES = NT + INPUT_TILES;
  float by_W[2][TILES][4], by_h[4], by_c[4];
#pragma unroll
  for (int i = 0; i < 4; i++) by_h[i] = by_c[i] = 0.f;
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) by_W[m][n][i] = 0.f;
  int e_delta = LARGEST_EXPONENT;

  const Four *saved = p.saved + (size_t)BLOCK * TIME * SLOTS * PROGRAM_THREADS + THREAD;
  auto kept = [&](int t, int slot) { return saved[(size_t)(t * SLOTS + slot) * PROGRAM_THREADS]; };
#pragma unroll 1
  for (int t = TIME - 1; t >= 0; t--) {
    const Four f = kept(t, 0), g = kept(t, 1), o = kept(t, 2), candidate = kept(t, 3);
    const Four c = kept(t, 4);
    Four o_before = {}, c_before = {};
    if (t > 0) o_before = kept(t - 1, 2), c_before = kept(t - 1, 4);
    float slopes[GATES][4], largest = 0.f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int row = first + group + 8 * (i / 2), neuron = 8 * warp + 2 * quad + i % 2;
      const bool inside = row < p.batch && neuron < HIDDEN;
      const size_t at = (((size_t)member * TIME + t) * p.batch + row) * HIDDEN + neuron;
      const float given = READ(p.slopes + (inside ? at : 0));
      const float eta = by_h[i] + (inside ? given : 0.f), squashed = tanhf(c.of[i]);
      by_c[i] += eta * o.of[i] * (1.f - squashed * squashed);
      slopes[0][i] = by_c[i] * c_before.of[i] * f.of[i] * (1.f - f.of[i]);
      slopes[1][i] = by_c[i] * candidate.of[i] * g.of[i] * (1.f - g.of[i]);
      slopes[2][i] = eta * squashed * o.of[i] * (1.f - o.of[i]);
      slopes[3][i] = by_c[i] * g.of[i] * (1.f - candidate.of[i] * candidate.of[i]);
      by_c[i] *= f.of[i];
#pragma unroll
      for (int gate = 0; gate < GATES; gate++) largest = larger(largest, size_of(slopes[gate][i]));
    }
    raise(bounds + DELTA, largest);
    // Now the products of the step after have been read, too.
    BARRIER();
    const int e = exponent_for(bounds[DELTA]);
    if (e != e_delta) {
      // The bound grows, so e can only fall.
      const float change = power(e - e_delta);
#pragma unroll
      for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
          for (int i = 0; i < 4; i++) by_W[m][n][i] *= change;
      e_delta = e;
    }
    const float scale = power(e_delta);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = group + 8 * half, neuron = 8 * warp + 2 * quad;
#pragma unroll
      for (int gate = 0; gate < GATES; gate++)
        write_pair(delta, row * RS + gate * WIDTH + neuron, slopes[gate][2 * half] * scale,
                   slopes[gate][2 * half + 1] * scale);
      float h[2];
#pragma unroll
      for (int side = 0; side < 2; side++)
        h[side] = o_before.of[2 * half + side] * tanhf(c_before.of[2 * half + side]) * scale_h;
      write_pair(read, row * KS + neuron, h[0], h[1]);
    }
    write_inputs(p, read, scale_x, member, first, t);
    BARRIER();

    // η_{t−1}: sums of even and odd blocks and of each step apart, because each waits for its last.
    float sums[2][STEPS][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int step = 0; step < STEPS; step++) sums[0][step][i] = sums[1][step][i] = 0.f;
    const Half *from = lane < 16 ? V.big : V.small;
#pragma unroll 2
    for (int k = 0; k < ROWS / 16; k++) {
      Rows a;
      unsigned tiles[4];
      load_rows<false>(a, delta, along_columns(RS) + 16 * k);
      load_tiles<true>(tiles, from + (16 * k + lane % 16) * VS + 8 * warp);
      const Columns b = {{tiles[0], tiles[1]}, {tiles[2], tiles[3]}};
#pragma unroll
      for (int step = 0; step < STEPS; step++) multiply(sums[k % 2][step], a, b, step);
    }
    const float unscale = power(-e_delta - e_V);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      by_h[i] = 0.f;
#pragma unroll
      for (int step = 0; step < STEPS; step++) by_h[i] += sums[0][step][i] + sums[1][step][i];
      by_h[i] *= unscale;
    }

    Rows a[2];
#pragma unroll
    for (int m = 0; m < 2; m++) load_rows<true>(a[m], delta, along_rows(RS) + 32 * warp + 16 * m);
#pragma unroll
    for (int start = 0; start < TILES; start += 2) {
      // Two tiles of columns: a pair may be the last of h and the first of x.
      const int tile = start + lane / 16, column = tile < NT ? 8 * tile : KH + 8 * (tile - NT);
      Columns b[2];
      load_columns<true>(b, read, lane % 16 * KS + (tile < TILES ? column : 0));
#pragma unroll
      for (int step = 0; step < STEPS; step++)
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
          for (int n = 0; n < 2 && start + n < TILES; n++)
            multiply(by_W[m][start + n], a[m], b[n], step);
    }
  }

  float *out = p.by_W + (size_t)BLOCK * GATES * HIDDEN * GIVEN;
#pragma unroll
  for (int n = 0; n < TILES; n++) {
    const float unscale = power(-e_delta - (n < NT ? E_STATES : e_x));
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = 32 * warp + 16 * m + group + 8 * (i / 2), neuron = row % WIDTH;
        const int column = 8 * (n < NT ? n : n - NT) + 2 * quad + i % 2;
        const bool inside = neuron < HIDDEN && (n < NT ? column < HIDDEN : column <= D_IN);
        const int place = n < NT ? column : HIDDEN + column;
        if (inside)
          out[((size_t)row / WIDTH * HIDDEN + neuron) * GIVEN + place] = by_W[m][n][i] * unscale;
      }
  }
}
