// Attention and its network over one sequence, token by token, with everything kept.
import { largestEntry, makeMatrix, matrixDifference, matrixProduct } from "./linalg.js";
import { matrixTimesVector } from "./linalg.js";

// y_t = (Σ_{s≤t} v_s k_sᵀ) q_t: the state is the key-value matrix.
export function streamAttention({ W_V, W_K, W_Q }, inputs) {
  const state = makeMatrix(W_V.rows, W_K.rows);
  return inputs.map((input) => {
    const value = matrixTimesVector(W_V, input);
    const key = matrixTimesVector(W_K, input);
    const query = matrixTimesVector(W_Q, input);
    value.forEach((v, i) => key.forEach((k, j) => {
      state.data[i * state.columns + j] += v * k;
    }));
    const keyValues = makeMatrix(state.rows, state.columns, state.data.slice());
    return { value, key, query, keyValues, output: matrixTimesVector(keyValues, query) };
  });
}

// h_t = λ⊙h_{t−1} + (W_in_m x̃)⊙(W_in_x x̃), y_t = D((W_out_m h)⊙(W_out_x h)) with x̃ = [x;1];
// with a side gate x̃ = x and y_t = D((W_side x)⊙h).
export function streamNetwork(layer, inputs) {
  const constant = layer.W_side ? [] : [1];
  let hidden = new Float64Array(layer.W_in_m.rows);
  return inputs.map((token) => {
    const input = Float64Array.from([...token, ...constant]);
    const gateInM = matrixTimesVector(layer.W_in_m, input);
    const gateInX = matrixTimesVector(layer.W_in_x, input);
    const written = gateInM.map((a, p) => a * gateInX[p]);
    hidden = hidden.map((h, p) => layer.decay[p] * h + written[p]);
    const [gateOutM, gateOutX] = layer.W_side
      ? [matrixTimesVector(layer.W_side, input), hidden]
      : [matrixTimesVector(layer.W_out_m, hidden), matrixTimesVector(layer.W_out_x, hidden)];
    const gated = gateOutM.map((a, p) => a * gateOutX[p]);
    const output = matrixTimesVector(layer.D, gated);
    return { input, gateInM, gateInX, written, hidden, gateOutM, gateOutX, gated, output };
  });
}

// What the memory neurons hold as a matrix Z, and W_V (Σ x xᵀ) M = L Z R read back from it.
export function decodeMemory({ rows, columns, E, L, R }, hidden) {
  const cells = matrixTimesVector(E, hidden.subarray(0, E.columns));
  const memory = makeMatrix(rows, columns, cells);
  return { memory, readBack: matrixProduct(matrixProduct(L, memory), R) };
}

// Both over the same inputs, step by step. `difference` is network minus attention; for outputs,
// for W_V (Σ x xᵀ) M, and for Σ v kᵀ itself in the full form, whose neurons are its entries.
export function simulateBoth(attention, construction, inputs) {
  const attended = streamAttention(attention, inputs);
  if (construction.refusal) {
    return { steps: attended.map((one) => ({ attention: one })), largest: null };
  }
  const steps = streamNetwork(construction.layer, inputs).map((network, t) => {
    const { memory, readBack } = decodeMemory(construction.layout, network.hidden);
    const { keyValues, output } = attended[t];
    const expected = matrixProduct(keyValues, attention.W_Q);
    return {
      attention: { ...attended[t], readBack: expected },
      network: { ...network, memory, readBack },
      difference: network.output.map((y, i) => y - output[i]),
      memoryDifference: matrixDifference(readBack, expected),
      keyValueDifference: construction.form === "full" ? matrixDifference(memory, keyValues) : null,
    };
  });
  return { steps, largest: largestDifferences(steps) };
}

function largestDifferences(steps) {
  const over = (pick) => largestEntry(steps.map((step) => largestEntry(pick(step))));
  return {
    difference: over((step) => step.difference),
    memoryDifference: over((step) => step.memoryDifference.data),
    output: over((step) => step.attention.output),
    readBack: over((step) => step.attention.readBack.data),
  };
}

// Typed arrays and matrices as plain lists, for JSON.
export function plainNumbers(value) {
  if (ArrayBuffer.isView(value)) return Array.from(value);
  if (value && value.data instanceof Float64Array) {
    return Array.from({ length: value.rows }, (_, i) =>
      Array.from(value.data.subarray(i * value.columns, (i + 1) * value.columns)));
  }
  if (Array.isArray(value)) return value.map(plainNumbers);
  if (value && typeof value === "object") {
    const entries = Object.entries(value).map(([name, one]) => [name, plainNumbers(one)]);
    return Object.fromEntries(entries);
  }
  return value;
}
