// Axes: from values to pixels and back, ticks that people can read, and short numbers.

/** A number for people: four digits, in scientific form where that is shorter. */
export function shortNumber(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) {
    return value.toExponential(2).replace("e+", "e").replace(/\.?0+e/, "e");
  }
  return String(Number(value.toPrecision(4)));
}

/** The range of some values, a little wider; on a log axis only what is positive counts. */
export function rangeOf(values, log) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value === null || !Number.isFinite(value) || (log && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return log ? [0.1, 1] : [0, 1];
  if (log) {
    const margin = low === high ? Math.log(2) : 0.04 * Math.log(high / low);
    return [low * Math.exp(-margin), high * Math.exp(margin)];
  }
  const margin = low === high ? Math.abs(low) / 10 || 1 : 0.04 * (high - low);
  return [low - margin, high + margin];
}

/** A map from [low, high] to pixels [from, to], with its inverse. */
export function scaleFor(range, pixels, log) {
  const warp = log ? Math.log : (value) => value;
  const unwarp = log ? Math.exp : (value) => value;
  const [low, high] = range.map(warp);
  const factor = (pixels[1] - pixels[0]) / (high - low);
  const scale = (value) => pixels[0] + (warp(value) - low) * factor;
  scale.invert = (pixel) => unwarp(low + (pixel - pixels[0]) / factor);
  return scale;
}

/** About `count` round values inside a range. */
export function ticksFor(range, log, count) {
  return log ? logTicks(range, count) : linearTicks(range, count);
}

function linearTicks([low, high], count) {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const ticks = [];
  for (let k = Math.ceil(low / step); k * step <= high; k += 1) {
    ticks.push(Number((k * step).toPrecision(12)));
  }
  return ticks;
}

function logTicks([low, high], count) {
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  if (last - first < 2) {
    const finer = [];
    for (let power = first - 1; power <= last + 1; power += 1) {
      for (const digit of [1, 2, 5]) {
        const value = digit * 10 ** power;
        if (value >= low && value <= high) finer.push(Number(value.toPrecision(3)));
      }
    }
    return finer.length > 1 ? finer : linearTicks([low, high], count);
  }
  const every = Math.max(1, Math.ceil((last - first + 1) / count));
  const ticks = [];
  for (let power = first; power <= last; power += every) ticks.push(Number(`1e${power}`));
  return ticks;
}
