/** Biases by distance, and the inputs of learned biases. The encodings' files in posenc name the sources. */

import { frequencies } from "./sinusoidal";

/** Return ALiBi's slope of each head (logit per position), for any number. arXiv 2108.12409 section 3, and its code. */
export function alibiSlopes(heads: number): number[] {
  const power = 2 ** Math.floor(Math.log2(heads));
  const first = Array.from({ length: power }, (_, h) => 2 ** ((-8 * (h + 1)) / power));
  const second = Array.from({ length: heads - power }, (_, h) => 2 ** ((-8 * (2 * h + 1)) / (2 * power)));
  return [...first, ...second];
}

/** Return KERPLE's bias, a logarithm or a power of the distance. arXiv 2205.09921 equations 3 and 4. */
export function kerple(distance: number, kind: "log" | "power", r1: number, r2: number): number {
  const d = Math.abs(distance);
  return kind === "log" ? -r1 * Math.log1p(r2 * d) : -r1 * d ** r2;
}

/** Return Sandwich's sum of cosines, without a head's factor. arXiv 2212.10356 section 5, exponents from 0. */
export function sandwichSum(distance: number, width: number, base = 10_000): number {
  return frequencies(width, base).reduce((sum, f) => sum + Math.cos(distance * f), 0);
}

/** Return Sandwich's bias: head h = 0..heads-1 multiplies the sum by heads / (8 (h + 1)). */
export function sandwich(distance: number, head: number, heads: number, width: number, base = 10_000): number {
  return (heads / (8 * (head + 1))) * sandwichSum(distance, width, base);
}

/**
 * Return the first distance of each of T5's buckets of one side, except the first bucket, which begins at 0.
 *
 * Distance d reaches the logarithmic edge s when (d/exact)^n >= (maxDistance/exact)^s. Integers compute this, because
 * logarithms round at the edges.
 */
export function t5Edges(side: number, maxDistance: number): number[] {
  const exact = side / 2;
  const n = side - exact;
  const linear = Array.from({ length: exact }, (_, d) => d + 1);
  const logarithmic = Array.from({ length: n - 1 }, (_, s) => {
    const bound = BigInt(maxDistance) ** BigInt(s + 1) * BigInt(exact) ** BigInt(n - s - 1);
    let [low, high] = [exact, maxDistance];
    while (low < high) {
      const middle = Math.floor((low + high) / 2);
      if (BigInt(middle) ** BigInt(n) >= bound) high = middle;
      else low = middle + 1;
    }
    return low;
  });
  return [...linear, ...logarithmic];
}

/** Return T5's bucket of an integer distance, query minus key; `t5Edges` gives the edges. arXiv 1910.10683 section 2.1. */
export function t5Bucket(distance: number, edges: readonly number[], causal: boolean): number {
  const d = causal ? Math.max(distance, 0) : Math.abs(distance);
  const bucket = edges.reduce((count, edge) => count + Number(d >= edge), 0);
  return bucket + (!causal && distance < 0 ? edges.length + 1 : 0);
}

/** Return the input of FIRE's network: log distance divided by the log of the query's range. arXiv 2310.04418. */
export function fireShare(distance: number, query: number, length: number, rate = 0.1): number {
  return Math.log1p(rate * Math.abs(distance)) / (Math.log1p(rate * Math.max(length, query)) + 1e-6);
}

/** Return the row of Shaw's tables for a signed distance, query minus key. arXiv 1803.02155 section 3.2. */
export function shawRow(distance: number, maxDistance: number): number {
  return Math.max(-maxDistance, Math.min(maxDistance, -distance)) + maxDistance;
}

/** Return the softmax of the biases, as for keys with equal content; a key whose bias is NaN gets weight 0. */
export function weightsOf(biases: readonly number[]): number[] {
  const maximum = Math.max(...biases.filter((bias) => !Number.isNaN(bias)));
  const shares = biases.map((bias) => (Number.isNaN(bias) ? 0 : Math.exp(bias - maximum)));
  const sum = shares.reduce((a, b) => a + b, 0);
  return shares.map((share) => share / sum);
}

/** Return how many of the heaviest keys together have a share of the weight. */
export function keysThatHold(share: number, weights: readonly number[]): number {
  const heaviest = Float64Array.from(weights).sort().reverse();
  let sum = 0;
  // The tolerance covers the rounding error of a sum of a few hundred weights.
  const last = heaviest.findIndex((weight) => (sum += weight) >= share - 1e-9);
  return last + 1;
}
