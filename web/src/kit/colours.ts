import type { Data } from "../data";

/** The colours of the page's palette; the page has a light and a dark value of each. */
export const colour = (place: number): string => `var(--c${place % 8})`;

/** A colour for letters, which have to stand out more than lines do. */
export const inLetters = (colour: string): string => `color-mix(in srgb, ${colour} 65%, var(--ink))`;

/** The place in the palette of an encoding, by its name: that which it has in posenc's figures. */
const placeOf = (data: Data, name: string): number => data.places[name] ?? 0;

/** The colour of an encoding, the same everywhere. */
export const colourOf = (data: Data, name: string): string => colour(placeOf(data, name));

/** The dashes of its line: the palette comes round after eight, and lines of the next eight are dashed. */
export const dashOf = (data: Data, name: string): string | undefined => (placeOf(data, name) % 16 < 8 ? undefined : "7 3");
