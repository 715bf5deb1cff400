/** Rotary on the patches of a picture: the logit of a query and a key of ones, 1 with itself. */

import { frequencies } from "./sinusoidal";

const meanCosine = (distance: number, width: number, base: number): number =>
  frequencies(width, base).reduce((sum, f) => sum + Math.cos(distance * f), 0) / (width / 2);

/** Axial rotary at an offset of rows and columns: half the channels turn by each. arXiv 2403.13298 section 3.2. */
export function axialLogit(rows: number, columns: number, headDim: number, base: number): number {
  return (meanCosine(rows, headDim / 2, base) + meanCosine(columns, headDim / 2, base)) / 2;
}

/** Rotary on one axis, which counts the patches row by row: one row below is a whole row away. arXiv 2104.09864. */
export function rasterLogit(rows: number, columns: number, side: number, headDim: number, base: number): number {
  return meanCosine(rows * side + columns, headDim, base);
}
