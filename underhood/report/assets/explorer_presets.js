// What the explorer draws: attention weights and input sequences, from a seed.
import { countTo, identityMatrix, matrixFrom, matrixProduct } from "./linalg.js";
import { matrixTimesVector, pickRows, seededRandom } from "./linalg.js";

export const PRESETS = {
  random: "random",
  deficient: "rank-deficient",
  gd: "one step of gradient descent",
};

// settings: { d, T, preset, seed, rankV, rankK, dx }
export function drawAttention(settings) {
  const { d, preset, seed } = settings;
  const random = seededRandom(seed, 0);
  if (preset === "gd") return gradientStep(settings);
  const scale = Math.sqrt(d);
  // Two decimals, so that what is shown is what is computed with.
  const square = () => matrixFrom(d, d, () => Math.round((100 * random.normal()) / scale) / 100);
  if (preset === "random") return { W_V: square(), W_K: square(), W_Q: square() };
  const deficient = (rank) => {
    // Sixteenths and a power of two, so that the product is exact and so is its rank.
    const size = 2 ** -Math.round(Math.log2(Math.max(d * rank, 1)) / 2);
    const part = (rows, columns, unit) =>
      matrixFrom(rows, columns, () => Math.round(16 * random.normal()) * unit);
    return matrixProduct(part(d, rank, 1 / 16), part(rank, d, size / 16));
  };
  return { W_V: deficient(settings.rankV), W_K: deficient(settings.rankK), W_Q: square() };
}

// η*, the best step for T − 1 pairs with entries U(−√3, √3): tasks/regression.py.
export function stepSize({ T, dx }) {
  // A sequence of the query alone has no pairs; then the step of one pair, whose output is 0.
  return 1 / (Math.max(T - 1, 1) + dx - 2 + 9 / 5);
}

// Keys and queries read x, values read η*y: tokens are [x; y] with d_x + d_y = d.
function gradientStep(settings) {
  const { d, dx } = settings;
  const reads = pickRows(identityMatrix(d), countTo(dx));
  const step = stepSize(settings);
  const W_V = matrixFrom(d - dx, d, (i, j) => (j === dx + i ? step : 0));
  return { W_V, W_K: reads, W_Q: pickRows(reads, countTo(dx)) };
}

// Tokens from N(0, 1), or pairs [x; W*x] and then the query [x; 0] with `target` = W*x.
export function drawInputs({ d, T, dx, seed }, regression) {
  const random = seededRandom(seed, 1);
  if (!regression) {
    return { inputs: countTo(T).map(() => countTo(d).map(() => random.normal())), target: null };
  }
  const W = matrixFrom(d - dx, dx, () => random.normal() / Math.sqrt(dx));
  const pairs = countTo(T).map(() => {
    const x = countTo(dx).map(() => Math.sqrt(3) * (2 * random.uniform() - 1));
    return [x, Array.from(matrixTimesVector(W, x))];
  });
  const inputs = pairs.map(([x, y], t) => [...x, ...(t === T - 1 ? y.map(() => 0) : y)]);
  return { inputs, target: pairs[T - 1][1] };
}
