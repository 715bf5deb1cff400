/** Readings of attention weights. */

/** Return the weights of one head as [queries][keys]; the page has them in thousandths, cut after the last one. */
export function weights(rows: (number | null)[][]): number[][] {
  return rows.map((row) =>
    Array.from(rows, (_, key) => (key >= row.length ? 0 : row[key] === null ? Number.NaN : (row[key] as number) / 1000)),
  );
}

/**
 * Return the mean weight at each distance (query minus key, in tokens), over all pairs at this distance.
 *
 * Distances below 0 are omitted if no key after its query has any weight, as under a causal mask.
 */
export function weightByDistance(matrix: number[][]): { distance: number; mean: number }[] {
  const tokens = matrix.length;
  const ahead = matrix.some((row, query) => row.some((weight, key) => key > query && weight > 0));
  const means = [];
  for (let distance = ahead ? 1 - tokens : 0; distance < tokens; distance++) {
    let sum = 0;
    for (let query = Math.max(0, distance); query < tokens + Math.min(0, distance); query++)
      sum += matrix[query][query - distance];
    means.push({ distance, mean: sum / (tokens - Math.abs(distance)) });
  }
  return means;
}
