/** Rotary (RoPE): the position rotates pairs of channels. arXiv 2104.09864 section 3.2.2. */

import { frequencies } from "./sinusoidal";

/** The channels of pair k: k and k + width/2 in the half layout, 2k and 2k + 1 in the interleaved layout. */
export type Layout = "half" | "interleaved";

export function channelsOfPair(pair: number, width: number, layout: Layout): [number, number] {
  return layout === "half" ? [pair, pair + width / 2] : [2 * pair, 2 * pair + 1];
}

/** Return the wavelength of each pair (positions), fastest first. */
export function wavelengths(width: number, base: number): number[] {
  return frequencies(width, base).map((f) => (2 * Math.PI) / f);
}

/** Return a query or a key [width] with each pair rotated by the position times the pair's frequency. */
export function rotate(vector: readonly number[], position: number, base: number, layout: Layout): number[] {
  const rotated = [...vector];
  frequencies(vector.length, base).forEach((f, pair) => {
    const [first, second] = channelsOfPair(pair, vector.length, layout);
    const [cos, sin] = [Math.cos(position * f), Math.sin(position * f)];
    rotated[first] = vector[first] * cos - vector[second] * sin;
    rotated[second] = vector[second] * cos + vector[first] * sin;
  });
  return rotated;
}

/**
 * Return the logit of a rotated query and a rotated key at each distance (position of the query minus that of the
 * key), scaled by width^-1/2.
 */
export function logits(
  query: readonly number[],
  key: readonly number[],
  distances: readonly number[],
  base: number,
  layout: Layout,
): number[] {
  const width = query.length;
  const waves = frequencies(width, base).map((f, pair) => {
    const [first, second] = channelsOfPair(pair, width, layout);
    return {
      f,
      even: query[first] * key[first] + query[second] * key[second],
      odd: query[first] * key[second] - query[second] * key[first],
    };
  });
  return distances.map(
    (n) => waves.reduce((sum, { f, even, odd }) => sum + even * Math.cos(n * f) + odd * Math.sin(n * f), 0) / Math.sqrt(width),
  );
}
