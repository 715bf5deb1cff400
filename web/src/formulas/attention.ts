/** What is read off attention weights. */

/** Weights of one head as they stand in the page, in thousandths and cut after the last, as [queries][keys]. */
export function weights(rows: (number | null)[][]): number[][] {
  return rows.map((row) =>
    Array.from(rows, (_, key) => (key >= row.length ? 0 : row[key] === null ? Number.NaN : (row[key] as number) / 1000)),
  );
}

/**
 * The mean weight at each distance (query minus key, in tokens): over all pairs that lie so far apart.
 *
 * Distances below 0 are left out where no key behind a query has any weight, as under a causal mask.
 */
export function weightByDistance(matrix: number[][]): { distance: number; mean: number }[] {
  const tokens = matrix.length;
  const ahead = matrix.some((row, query) => row.some((weight, key) => key > query && weight > 0));
  const found = [];
  for (let distance = ahead ? 1 - tokens : 0; distance < tokens; distance++) {
    let sum = 0;
    for (let query = Math.max(0, distance); query < tokens + Math.min(0, distance); query++)
      sum += matrix[query][query - distance];
    found.push({ distance, mean: sum / (tokens - Math.abs(distance)) });
  }
  return found;
}
