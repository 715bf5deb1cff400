import type { Data, Encoding } from "../data";

/** The colours of the page's palette; the page has a light and a dark value of each. */
export const colour = (place: number): string => `var(--c${place % 8})`;

/** A colour for letters, which have to stand out more than lines do. */
export const inLetters = (colour: string): string => `color-mix(in srgb, ${colour} 65%, var(--ink))`;

/** The colour of an encoding, the same everywhere. */
export const colourOf = (encoding: Encoding): string => colour(encoding.place);

/** The place in the palette of an encoding of a run, by its name there; those that the page has not come after it. */
export function placeOf(data: Data, label: string): number {
  const shown = data.encodings.find((encoding) => encoding.name === label);
  if (shown) return shown.place;
  const others = (data.sections.run?.labels ?? []).filter((l) => !data.encodings.some((e) => e.name === l));
  return data.encodings.length + others.indexOf(label);
}

/** The palette comes round after eight: lines of the next eight are dashed. */
export const dashOf = (place: number): string | undefined => (place % 16 < 8 ? undefined : "7 3");
