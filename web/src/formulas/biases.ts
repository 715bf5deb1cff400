/** Biases by distance, and what learned biases read of it. Sources: the encodings' own files in posenc. */

import { frequencies } from "./sinusoidal";

/** ALiBi's slope of each head (logit per position), of any number. arXiv 2108.12409 section 3, and its code. */
export function alibiSlopes(heads: number): number[] {
  const below = 2 ** Math.floor(Math.log2(heads));
  const first = Array.from({ length: below }, (_, h) => 2 ** ((-8 * (h + 1)) / below));
  const second = Array.from({ length: heads - below }, (_, h) => 2 ** ((-8 * (2 * h + 1)) / (2 * below)));
  return [...first, ...second];
}

/** KERPLE's bias: a logarithm or a power of the distance. arXiv 2205.09921 equations 3 and 4. */
export function kerple(distance: number, kind: "log" | "power", r1: number, r2: number): number {
  const d = Math.abs(distance);
  return kind === "log" ? -r1 * Math.log1p(r2 * d) : -r1 * d ** r2;
}

/** What Sandwich's sum of cosines is, before a head's share of it. arXiv 2212.10356 section 5, exponents from 0. */
export function sandwichSum(distance: number, width: number, base = 10_000): number {
  return frequencies(width, base).reduce((sum, f) => sum + Math.cos(distance * f), 0);
}

/** Sandwich's bias: head h = 0..heads-1 has the share heads / (8 (h + 1)) of the sum. */
export function sandwich(distance: number, head: number, heads: number, width: number, base = 10_000): number {
  return (heads / (8 * (head + 1))) * sandwichSum(distance, width, base);
}

/**
 * The whole distance at which each of T5's buckets of one side begins, without the first, which begins at 0.
 *
 * Distance d is past logarithmic edge s when (d/exact)^n >= (maxDistance/exact)^s: in whole numbers, since logarithms
 * are not sure of the edges.
 */
export function t5Edges(side: number, maxDistance: number): number[] {
  const exact = side / 2;
  const n = side - exact;
  const near = Array.from({ length: exact }, (_, d) => d + 1);
  const far = Array.from({ length: n - 1 }, (_, s) => {
    const bound = BigInt(maxDistance) ** BigInt(s + 1) * BigInt(exact) ** BigInt(n - s - 1);
    let [low, high] = [exact, maxDistance];
    while (low < high) {
      const middle = Math.floor((low + high) / 2);
      if (BigInt(middle) ** BigInt(n) >= bound) high = middle;
      else low = middle + 1;
    }
    return low;
  });
  return [...near, ...far];
}

/** T5's bucket of a whole signed distance, query minus key, by what `t5Edges` gave. arXiv 1910.10683 section 2.1. */
export function t5Bucket(distance: number, edges: readonly number[], causal: boolean): number {
  const d = causal ? Math.max(distance, 0) : Math.abs(distance);
  const bucket = edges.reduce((passed, edge) => passed + Number(d >= edge), 0);
  return bucket + (!causal && distance < 0 ? edges.length + 1 : 0);
}

/** FIRE's network is given the distance's logarithm as a share of how far back the query sees. arXiv 2310.04418. */
export function fireShare(distance: number, query: number, length: number, rate = 0.1): number {
  return Math.log1p(rate * Math.abs(distance)) / (Math.log1p(rate * Math.max(length, query)) + 1e-6);
}

/** The row of Shaw's tables that a signed distance, query minus key, reads. arXiv 1803.02155 section 3.2. */
export function shawRow(distance: number, maxDistance: number): number {
  return Math.max(-maxDistance, Math.min(maxDistance, -distance)) + maxDistance;
}

/** The softmax over keys of equal content, from their biases alone; keys without a number get no weight. */
export function weightsOf(biases: readonly number[]): number[] {
  const most = Math.max(...biases.filter((bias) => !Number.isNaN(bias)));
  const shares = biases.map((bias) => (Number.isNaN(bias) ? 0 : Math.exp(bias - most)));
  const sum = shares.reduce((a, b) => a + b, 0);
  return shares.map((share) => share / sum);
}

/** How many keys hold a share of the weight, the heaviest first. */
export function keysThatHold(share: number, weights: readonly number[]): number {
  const heaviest = Float64Array.from(weights).sort().reverse();
  let held = 0;
  // A billionth is the rounding of a sum of some hundred weights.
  const needed = heaviest.findIndex((weight) => (held += weight) >= share - 1e-9);
  return needed + 1;
}
