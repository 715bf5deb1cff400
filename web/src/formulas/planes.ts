/** Rotary on the patches of a picture: the logit of a query and a key of ones, divided by its value at offset 0. */

import { frequencies } from "./sinusoidal";

const meanCosine = (distance: number, width: number, base: number): number =>
  frequencies(width, base).reduce((sum, f) => sum + Math.cos(distance * f), 0) / (width / 2);

/** Return axial rotary's logit at an offset; half the channels read rows, half columns. arXiv 2403.13298 section 3.2. */
export function axialLogit(rows: number, columns: number, headDim: number, base: number): number {
  return (meanCosine(rows, headDim / 2, base) + meanCosine(columns, headDim / 2, base)) / 2;
}

/** Return the logit of rotary that counts patches row by row: the next row is `side` patches away. arXiv 2104.09864. */
export function rasterLogit(rows: number, columns: number, side: number, headDim: number, base: number): number {
  return meanCosine(rows * side + columns, headDim, base);
}
