import type { Encoding } from "../data";

/** The colours of the page's palette; the page has a light and a dark value of each. */
export const colour = (place: number): string => `var(--c${place % 8})`;

/** The colour of an encoding, the same everywhere. */
export const colourOf = (encoding: Encoding): string => colour(encoding.place);
