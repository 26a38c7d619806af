// Small dense matrices in float64: { rows, columns, data }, data row by row in a Float64Array.
// Sizes may be zero, as in NumPy, because a rank may be.

export const FLOAT_EPS = 2 ** -52;

export function makeMatrix(rows, columns, data = new Float64Array(rows * columns)) {
  return { rows, columns, data };
}

export function matrixFrom(rows, columns, entry) {
  const made = makeMatrix(rows, columns);
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++) made.data[i * columns + j] = entry(i, j);
  }
  return made;
}

export function matrixFromRows(list, columns = list.length ? list[0].length : 0) {
  return matrixFrom(list.length, columns, (i, j) => list[i][j]);
}

export function matrixRows(A) {
  return Array.from({ length: A.rows }, (_, i) => Array.from(matrixRow(A, i)));
}

export function matrixRow(A, i) {
  return A.data.subarray(i * A.columns, (i + 1) * A.columns);
}

export function identityMatrix(n) {
  return matrixFrom(n, n, (i, j) => (i === j ? 1 : 0));
}

export function matrixTranspose(A) {
  return matrixFrom(A.columns, A.rows, (i, j) => A.data[j * A.columns + i]);
}

export function matrixProduct(A, B) {
  if (A.columns !== B.rows) throw new Error(`product of ${A.columns} columns and ${B.rows} rows`);
  const made = makeMatrix(A.rows, B.columns);
  for (let i = 0; i < A.rows; i++) {
    for (let k = 0; k < A.columns; k++) {
      const a = A.data[i * A.columns + k];
      for (let j = 0; j < B.columns; j++) {
        made.data[i * B.columns + j] += a * B.data[k * B.columns + j];
      }
    }
  }
  return made;
}

export function matrixTimesVector(A, x) {
  if (A.columns !== x.length) throw new Error(`${A.columns} columns times ${x.length} numbers`);
  const made = new Float64Array(A.rows);
  for (let i = 0; i < A.rows; i++) made[i] = dotProduct(matrixRow(A, i), x);
  return made;
}

export function matrixDifference(A, B) {
  return makeMatrix(A.rows, A.columns, A.data.map((a, p) => a - B.data[p]));
}

export function stackMatrices(parts, columns) {
  const made = makeMatrix(parts.reduce((sum, part) => sum + part.rows, 0), columns);
  let start = 0;
  for (const part of parts) {
    made.data.set(part.data, start);
    start += part.data.length;
  }
  return made;
}

export function joinMatrices(A, B) {
  return matrixFrom(A.rows, A.columns + B.columns, (i, j) =>
    j < A.columns ? A.data[i * A.columns + j] : B.data[i * B.columns + j - A.columns]);
}

export function pickRows(A, indices) {
  return matrixFrom(indices.length, A.columns, (i, j) => A.data[indices[i] * A.columns + j]);
}

export function pickColumns(A, indices) {
  return matrixFrom(A.rows, indices.length, (i, j) => A.data[i * A.columns + indices[j]]);
}

export function countTo(n, start = 0) {
  return Array.from({ length: Math.max(n - start, 0) }, (_, i) => start + i);
}

export function dotProduct(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

export function largestEntry(numbers) {
  let largest = 0;
  for (const number of numbers) largest = Math.max(largest, Math.abs(number));
  return largest;
}

// A = U diag(s) Vᵀ with square orthogonal U and V, s descending.
// One-sided Jacobi: rotate pairs of columns until all are orthogonal. Their lengths are s.
export function fullSvd(A) {
  if (A.rows < A.columns) {
    const { U, s, V } = fullSvd(matrixTranspose(A));
    return { U: V, s, V: U };
  }
  const scale = largestEntry(A.data) || 1;
  const columns = matrixRows(matrixTranspose(A)).map((column) => column.map((a) => a / scale));
  const rotated = matrixRows(identityMatrix(A.columns));
  // What is below this is rounding; orthogonality to it means nothing and would never converge.
  const noise = FLOAT_EPS * Math.sqrt(columns.reduce((sum, a) => sum + dotProduct(a, a), 0));
  for (let sweep = 0, turned = true; turned && sweep < 60; sweep++) {
    turned = false;
    for (let p = 0; p < columns.length; p++) {
      for (let q = p + 1; q < columns.length; q++) {
        turned = rotatePair(columns, rotated, p, q, noise) || turned;
      }
    }
  }
  const lengths = columns.map((column) => Math.sqrt(dotProduct(column, column)));
  const order = countTo(columns.length).sort((p, q) => lengths[q] - lengths[p]);
  const left = order.filter((p) => lengths[p] > noise)
    .map((p) => columns[p].map((a) => a / lengths[p]));
  return {
    U: matrixTranspose(matrixFromRows(completeBasis(left, A.rows), A.rows)),
    s: Float64Array.from(order, (p) => lengths[p] * scale),
    V: matrixTranspose(matrixFromRows(order.map((p) => rotated[p]), A.columns)),
  };
}

function rotatePair(columns, rotated, p, q, noise) {
  const a = dotProduct(columns[p], columns[p]);
  const b = dotProduct(columns[q], columns[q]);
  const c = dotProduct(columns[p], columns[q]);
  if (Math.min(a, b) <= noise * noise || Math.abs(c) <= 2 * FLOAT_EPS * Math.sqrt(a * b)) {
    return false;
  }
  const zeta = (b - a) / (2 * c);
  const tangent = (zeta < 0 ? -1 : 1) / (Math.abs(zeta) + Math.hypot(1, zeta));
  const cosine = 1 / Math.hypot(1, tangent);
  const sine = cosine * tangent;
  for (const list of [columns, rotated]) {
    const [first, second] = [list[p], list[q]];
    list[p] = first.map((x, i) => cosine * x - sine * second[i]);
    list[q] = first.map((x, i) => sine * x + cosine * second[i]);
  }
  return true;
}

// Orthonormal vectors extended to a basis of ℝⁿ by what is left of the unit vectors.
function completeBasis(vectors, n) {
  const basis = [...vectors];
  while (basis.length < n) {
    const rests = countTo(n).map((i) => {
      const rest = countTo(n).map((j) => (i === j ? 1 : 0));
      // Twice, because the first pass leaves rounding where little is left.
      for (const vector of [...basis, ...basis]) {
        const along = dotProduct(vector, rest);
        for (let j = 0; j < n; j++) rest[j] -= along * vector[j];
      }
      return rest;
    });
    const sizes = rests.map((rest) => Math.sqrt(dotProduct(rest, rest)));
    const best = sizes.indexOf(Math.max(...sizes));
    basis.push(rests[best].map((a) => a / sizes[best]));
  }
  return basis;
}

// How many singular values are not rounding: `numerical_rank` in constructions/sources/heads.py.
export function numericalRank(s, A, floor = 0) {
  if (s.length === 0) return 0;
  const threshold = Math.max(Math.max(A.rows, A.columns) * FLOAT_EPS * s[0], floor);
  return s.filter((one) => one > threshold).length;
}

// Gauss–Jordan with the largest pivot; for matrices whose rank has been checked.
export function matrixInverse(A) {
  const n = A.rows;
  const rows = matrixRows(joinMatrices(A, identityMatrix(n)));
  for (let column = 0; column < n; column++) {
    let pivot = column;
    for (let i = column + 1; i < n; i++) {
      if (Math.abs(rows[i][column]) > Math.abs(rows[pivot][column])) pivot = i;
    }
    [rows[column], rows[pivot]] = [rows[pivot], rows[column]];
    const scaled = rows[column].map((a) => a / rows[column][column]);
    rows[column] = scaled;
    for (let i = 0; i < n; i++) {
      const factor = rows[i][column];
      if (i !== column) rows[i] = rows[i].map((a, j) => a - factor * scaled[j]);
    }
  }
  return matrixFromRows(rows.map((row) => row.slice(n)), n);
}

// mulberry32 and Box–Muller: the same draws for the same seed and stream.
export function seededRandom(seed, stream) {
  let state = (Math.imul(seed, 0x9e3779b1) ^ Math.imul(stream + 1, 0x85ebca6b)) >>> 0;
  function uniform() {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  }
  function normal() {
    return Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  }
  return { uniform, normal };
}
