import type { Data } from "../data";

/** Return a colour of the page's palette; each has a light and a dark value. */
export const colour = (place: number): string => `var(--c${place % 8})`;

/** Return a colour for text, which needs more contrast than lines. */
export const textColour = (colour: string): string => `color-mix(in srgb, ${colour} 65%, var(--ink))`;

/** Return the palette index of an encoding, the same as in posenc's figures. */
const placeOf = (data: Data, name: string): number => data.places[name] ?? 0;

/** Return the colour of an encoding, the same in all views. */
export const colourOf = (data: Data, name: string): string => colour(placeOf(data, name));

/** Return the dashes of an encoding's line: colours repeat after eight, and the next eight lines are dashed. */
export const dashOf = (data: Data, name: string): string | undefined => (placeOf(data, name) % 16 < 8 ? undefined : "7 3");
