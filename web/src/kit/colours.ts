import type { Data, Encoding } from "../data";

/** The colours of the page's palette; the page has a light and a dark value of each. */
export const colour = (place: number): string => `var(--c${place % 8})`;

/** The colour of an encoding, the same everywhere. */
export const colourOf = (encoding: Encoding): string => colour(encoding.place);

/** The colour of an encoding of a run by its name there; those that the page does not show otherwise come after it. */
export function colourOfLabel(data: Data, label: string): string {
  const shown = data.encodings.find((encoding) => encoding.name === label);
  if (shown) return colourOf(shown);
  const others = (data.sections.run?.labels ?? []).filter((l) => !data.encodings.some((e) => e.name === l));
  return colour(data.encodings.length + others.indexOf(label));
}
