/** Sinusoids, and the frequencies that rotary has too. arXiv 1706.03762 section 3.5, 2104.09864 section 3.2.2. */

/** Return the plain frequencies base^(-2k/width) of width/2 pairs (radians per position), fastest first. */
export function frequencies(width: number, base: number): number[] {
  return Array.from({ length: width / 2 }, (_, pair) => base ** ((-2 * pair) / width));
}

/** Return the sinusoidal vector [dim] of a position: the sine and the cosine of each pair, interleaved. */
export function sinusoidal(position: number, dim: number, base: number): number[] {
  return frequencies(dim, base).flatMap((f) => [Math.sin(position * f), Math.cos(position * f)]);
}

/** Return M_k [dim][dim] with PE(p + k) = M_k PE(p) for every p; it rotates each pair by k times its frequency. */
export function shift(k: number, dim: number, base: number): number[][] {
  const matrix = Array.from({ length: dim }, () => new Array<number>(dim).fill(0));
  frequencies(dim, base).forEach((f, pair) => {
    const [sine, cosine] = [2 * pair, 2 * pair + 1];
    matrix[sine][sine] = matrix[cosine][cosine] = Math.cos(k * f);
    matrix[sine][cosine] = Math.sin(k * f);
    matrix[cosine][sine] = -Math.sin(k * f);
  });
  return matrix;
}
