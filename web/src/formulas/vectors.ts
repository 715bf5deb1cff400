/** Products of vectors, and random vectors. */

export function dot(a: readonly number[], b: readonly number[]): number {
  let sum = 0;
  for (let n = 0; n < a.length; n++) sum += a[n] * b[n];
  return sum;
}

export function product(matrix: readonly (readonly number[])[], vector: readonly number[]): number[] {
  return matrix.map((row) => dot(row, vector));
}

/** Return the dot products [T][T] of all rows with each other; with `cosine`, their cosine similarities. */
export function similarity(rows: readonly (readonly number[])[], cosine: boolean): number[][] {
  const norms = rows.map((row) => (cosine ? Math.sqrt(dot(row, row)) : 1));
  const products = rows.map((a, p) => rows.slice(0, p + 1).map((b, q) => dot(a, b) / (norms[p] * norms[q])));
  return rows.map((_, p) => rows.map((_, q) => (q <= p ? products[p][q] : products[q][p])));
}

/** Return independent numbers from N(0, 1), the same for the same seed, by Mulberry32 and the Box-Muller transform. */
export function normals(seed: number, size: number): number[] {
  let state = seed >>> 0;
  const uniform = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let bits = Math.imul(state ^ (state >>> 15), state | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
  };
  return Array.from({ length: size }, () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform()));
}
