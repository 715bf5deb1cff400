/** Sines and cosines added to embeddings; frequencies of rotary. arXiv 1706.03762 section 3.5, 2104.09864 section 3.2.2. */

/** Plain frequencies base^(-2k/width) of width/2 pairs (radians per position), fastest first. */
export function frequencies(width: number, base: number): number[] {
  return Array.from({ length: width / 2 }, (_, pair) => base ** ((-2 * pair) / width));
}

/** What is added at one position: sine and cosine of each pair in turn. [dim] */
export function sinusoidal(position: number, dim: number, base: number): number[] {
  return frequencies(dim, base).flatMap((f) => [Math.sin(position * f), Math.cos(position * f)]);
}
