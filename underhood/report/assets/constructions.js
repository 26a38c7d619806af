// Attention { W_V, W_K, W_Q } → gated RNN: the forms of constructions/sources/factors.py and minimal.py,
// for one head without biases or decay.
//
// y_t = D((R_m m_t) ⊙ (R_q q_t)),  m_p(t) = Σ_{s≤t} (value_p·x_s)(key_p·x_s),  q = Q x
//
// Each form also says how its memory is laid out as a matrix Z with W_V (Σ x xᵀ) M = L Z R,
// M = W_KᵀW_Q, so that what the neurons hold can be compared with attention's own key-values.
import { FLOAT_EPS, countTo, fullSvd, matrixInverse, numericalRank } from "./linalg.js";
import { identityMatrix, makeMatrix, matrixFrom, matrixTranspose } from "./linalg.js";
import { matrixDifference, matrixProduct } from "./linalg.js";
import { joinMatrices, pickColumns, pickRows, stackMatrices } from "./linalg.js";

// `python` is what to give to underhood.compile. Side gating takes its default form, minimal.
export const FORMS = {
  full: { title: "full", python: { target: "gated_rnn", form: "full" }, build: fullForm },
  compact: {
    title: "compact",
    python: { target: "gated_rnn", form: "compact" },
    build: compactForm,
  },
  minimal: {
    title: "minimal",
    python: { target: "gated_rnn", form: "minimal" },
    build: (attention) => minimalForm(attention, "mixed"),
  },
  side: {
    title: "side gate",
    python: { target: "side_gated_rnn", form: "minimal" },
    build: (attention) => minimalForm(attention, "single"),
  },
};

// The network with the role of each neuron, or `refusal`: why there is none.
export function buildConstruction(attention, form) {
  const factors = FORMS[form].build(attention);
  if (factors.refusal) return { form, refusal: factors.refusal };
  const layer = form === "side" ? sideLayer(factors) : gatedLayer(factors, attention.W_V.columns);
  const roles = factors.pairs.map(([i, j]) => ({ kind: "memory", label: `kv[${i},${j}]` }));
  if (form !== "side") {
    for (let j = 0; j < factors.queries.rows; j++) roles.push({ kind: "query", label: `q[${j}]` });
  }
  return { form, refusal: null, layer, roles, layout: factors.layout, counts: countsOf(layer) };
}

function gatedLayer(factors, d) {
  const n = factors.values.rows;
  const r = factors.queries.rows;
  const products = factors.D.columns;
  const withZero = (rows) => joinMatrices(rows, makeMatrix(rows.rows, 1));
  // The constant 1 appended to x carries the queries in.
  const constant = matrixFrom(r, d + 1, (_, j) => (j === d ? 1 : 0));
  return {
    W_in_m: stackMatrices([withZero(factors.keys), constant], d + 1),
    W_in_x: stackMatrices([withZero(factors.values), withZero(factors.queries)], d + 1),
    decay: Float64Array.from(countTo(n + r), (p) => (p < n ? 1 : 0)),
    W_out_m: joinMatrices(makeMatrix(products, n), factors.R_q),
    W_out_x: joinMatrices(factors.R_m, makeMatrix(products, r)),
    D: factors.D,
  };
}

function sideLayer(factors) {
  return {
    W_in_m: factors.keys,
    W_in_x: factors.values,
    decay: new Float64Array(factors.values.rows).fill(1),
    W_side: matrixProduct(factors.R_q, factors.queries),
    D: factors.D,
  };
}

// Numbers in all arrays, zeros included, as in Python.
function countsOf(layer) {
  const parameters = Object.values(layer).reduce((sum, W) => sum + (W.data || W).length, 0);
  return { neurons: layer.W_in_m.rows, gates: layer.D.columns, parameters };
}

// Every entry of the key-value matrix.
function fullForm({ W_V, W_K, W_Q }) {
  const pairs = countTo(W_V.rows).flatMap((i) => countTo(W_K.rows).map((j) => [i, j]));
  return {
    values: pickRows(W_V, pairs.map(([i]) => i)),
    keys: pickRows(W_K, pairs.map(([, j]) => j)),
    pairs,
    queries: W_Q,
    R_m: identityMatrix(pairs.length),
    R_q: pickRows(identityMatrix(W_K.rows), pairs.map(([, j]) => j)),
    D: matrixFrom(W_V.rows, pairs.length, (i, p) => (pairs[p][0] === i ? 1 : 0)),
    layout: layoutOf(pairs, W_V.rows, W_K.rows, 0, identityMatrix(W_V.rows), W_Q),
  };
}

// Keys equal to values (or values to keys), so that the memory is symmetric.
function compactForm({ W_V, W_K, W_Q }) {
  const d = W_V.columns;
  const invertible = (W) => W.rows === d && numericalRank(fullSvd(W).s, W) === d;
  if (!invertible(W_V) && !invertible(W_K)) {
    const reasons = [["W_V", W_V], ["W_K", W_K]].map(([name, W]) => {
      const r = numericalRank(fullSvd(W).s, W);
      return `${name} (${W.rows}×${W.columns}) has rank ${r}, so no inverse.`;
    });
    return {
      refusal: `The compact form is not possible: ${reasons.join(" ")} `
        + "Use form='minimal', which needs no inverse.",
    };
  }
  const M = matrixProduct(matrixTranspose(W_K), W_Q);
  const [basis, queries, outputs] = invertible(W_V)
    ? [W_V, matrixProduct(matrixTranspose(matrixInverse(W_V)), M), identityMatrix(d)]
    : [W_K, W_Q, matrixProduct(W_V, matrixInverse(W_K))];
  const block = symmetricBlock(basis, outputs, "paper");
  return { ...block, queries, layout: layoutOf(block.pairs, d, d, d, outputs, queries) };
}

// D S w for S = Σ (basis x)(basis x)ᵀ, held by d(d+1)/2 neurons; `how` the products are made:
// paper   S_ij w_j, d² of them
// single  (S w)_i = Σ_{j≠i} S_ij (w_i + w_j) + (S_ii − Σ_{j≠i} S_ij) w_i, the bracket one neuron
// mixed   the same with S_ii as the neuron and the bracket in R_m
function symmetricBlock(basis, D, how) {
  const d = basis.rows;
  const pairs = countTo(d).flatMap((i) => countTo(d, i).map((j) => [i, j]));
  const values = pickRows(basis, pairs.map(([i]) => i));
  const keys = pickRows(basis, pairs.map(([, j]) => j));
  if (how === "paper") {
    const R_m = matrixFrom(d * d, pairs.length, (p, q) => {
      const [row, column] = [Math.floor(p / d), p % d];
      return Number(pairs[q][0] === Math.min(row, column) && pairs[q][1] === Math.max(row, column));
    });
    const R_q = matrixFrom(d * d, d, (p, j) => (p % d === j ? 1 : 0));
    const spread = matrixFrom(D.rows, d * d, (i, p) => D.data[i * d + Math.floor(p / d)]);
    return { values, keys, pairs, R_m, R_q, D: spread };
  }
  const R_q = matrixFrom(pairs.length, d, (p, j) => (pairs[p].includes(j) ? 1 : 0));
  const R_m = identityMatrix(pairs.length);
  pairs.forEach(([i, j], p) => {
    if (i !== j) return;
    if (how === "mixed") {
      pairs.forEach(([a, b], q) => {
        if (a !== b && (a === i || b === i)) R_m.data[p * pairs.length + q] = -1;
      });
    } else {
      for (let c = 0; c < basis.columns; c++) {
        let sum = 0;
        for (let row = 0; row < d; row++) sum += basis.data[row * basis.columns + c];
        keys.data[p * basis.columns + c] = 2 * basis.data[i * basis.columns + c] - sum;
      }
    }
  });
  return { values, keys, pairs, R_m, R_q, D: matrixProduct(D, matrixTranspose(R_q)) };
}

// Orthonormal bases [C A′] of W_V's rows and [C B′] of M's columns; CᵀSC is symmetric.
function minimalForm(attention, how) {
  const { W_V, W_K, W_Q } = attention;
  const d = W_V.columns;
  const M = matrixProduct(matrixTranspose(W_K), W_Q);
  const svd_V = fullSvd(W_V);
  const svd_M = fullSvd(M);
  const { r_V, r_M } = attentionRanks(attention);
  const spread = [[svd_M.s, r_M], [svd_V.s, r_V]].reduce((sum, [s, r]) =>
    sum + (r ? s[0] / s[r - 1] : 1), 0);
  const { C, A_rest, B_rest } = splitCommon(
    pickColumns(svd_V.V, countTo(r_V)),
    pickColumns(svd_M.U, countTo(r_M)),
    10 * Math.max(W_V.rows, d) * FLOAT_EPS * spread,
  );
  const k = C.columns;
  const A = joinMatrices(C, A_rest);
  const B = joinMatrices(C, B_rest);
  const L = matrixProduct(W_V, A);
  const shared = symmetricBlock(matrixTranspose(C), pickColumns(L, countTo(k)), how);
  const pairs = countTo(r_V).flatMap((i) => countTo(r_M).map((j) => [i, j]))
    .filter(([i, j]) => i >= k || j >= k);
  const valuesAlone = pickRows(matrixTranspose(A), pairs.map(([i]) => i));
  const keysAlone = pickRows(matrixTranspose(B), pairs.map(([, j]) => j));
  const allPairs = [...shared.pairs, ...pairs];
  // Without memory there is nothing to query.
  const queries = matrixTranspose(pickColumns(svd_M.V, countTo(allPairs.length ? r_M : 0)));
  const asked = stackMatrices([matrixProduct(shared.R_q, matrixTranspose(C)), keysAlone], d);
  const n = shared.pairs.length;
  return {
    values: stackMatrices([shared.values, valuesAlone], d),
    keys: stackMatrices([shared.keys, keysAlone], d),
    pairs: allPairs,
    queries,
    R_m: matrixFrom(allPairs.length, allPairs.length, (p, q) =>
      p < n && q < n ? shared.R_m.data[p * n + q] : Number(p === q)),
    R_q: matrixProduct(asked, matrixProduct(M, matrixTranspose(queries))),
    D: joinMatrices(shared.D, pickColumns(L, pairs.map(([i]) => i))),
    layout: layoutOf(allPairs, r_V, r_M, k, L, matrixProduct(matrixTranspose(B), M), how),
  };
}

// Orthonormal bases of A∩B, and of what A and B have besides it.
function splitCommon(A, B, tolerance) {
  // Columns of B that leave A by a sine below the tolerance are in A.
  const inside = matrixProduct(A, matrixProduct(matrixTranspose(A), B));
  const { s, V } = fullSvd(matrixDifference(B, inside));
  const common = countTo(B.columns).filter((j) => s[j] <= tolerance);
  const apart = countTo(B.columns).filter((j) => s[j] > tolerance);
  const C = matrixProduct(B, pickColumns(V, common));
  // What is orthogonal to C inside A: the last left singular vectors of AᵀC.
  const rotation = fullSvd(matrixProduct(matrixTranspose(A), C)).U;
  return {
    C,
    A_rest: matrixProduct(A, pickColumns(rotation, countTo(A.columns, common.length))),
    B_rest: matrixProduct(B, pickColumns(V, apart)),
  };
}

// Ranks of W_V and of M. M carries rounding of size eps·|W_K||W_Q| however small it is itself.
export function attentionRanks({ W_V, W_K, W_Q }) {
  const M = matrixProduct(matrixTranspose(W_K), W_Q);
  const size = (W) => fullSvd(W).s[0] || 0;
  const noise = Math.max(M.rows, M.columns) * FLOAT_EPS * size(W_K) * size(W_Q);
  return { r_V: numericalRank(fullSvd(W_V).s, W_V), r_M: numericalRank(fullSvd(M).s, M, noise) };
}

// Z [rows, columns] with Z = E m: entry (i, j) is a neuron, or the copy of (j, i) for i, j < k.
// With `single` products the diagonal neurons hold Z_ii − Σ_{j≠i} Z_ij, which E adds back.
function layoutOf(pairs, rows, columns, k, L, R, how = "paper") {
  const neuronAt = (i, j) => {
    const [a, b] = i < k && j < k ? [Math.min(i, j), Math.max(i, j)] : [i, j];
    return pairs.findIndex(([p, q]) => p === a && q === b);
  };
  const E = makeMatrix(rows * columns, pairs.length);
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++) {
      const row = (i * columns + j) * pairs.length;
      E.data[row + neuronAt(i, j)] = 1;
      if (how !== "single" || i !== j || i >= k) continue;
      for (const other of countTo(k)) if (other !== i) E.data[row + neuronAt(i, other)] = 1;
    }
  }
  return { rows, columns, symmetric: k, E, L, R };
}

// Sizes for weights of full rank, d inputs and d outputs: in closed form, for any d.
export function genericCounts(form, d) {
  const pairs = form === "full" ? d * d : (d * (d + 1)) / 2;
  const gates = form === "compact" ? d * d : pairs;
  if (form === "side") return { neurons: pairs, gates, parameters: 4 * pairs * d + pairs };
  const neurons = pairs + d;
  const parameters = 2 * neurons * (d + 1) + neurons + 2 * gates * neurons + d * gates;
  return { neurons, gates, parameters };
}
