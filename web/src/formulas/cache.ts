/** Which tokens a cache holds, and where they stand, after what is done to it: src/posenc/cache/operations.py. */

/** A token that is held: where it stands, and where its key was turned first. */
export interface Cached {
  token: string;
  place: number;
  first: number;
}

/** What can be done; a range of places is from `from` up to `to`, without it. */
export type Operation =
  | { name: "crop"; tokens: number }
  | { name: "drop"; from: number; to: number }
  | { name: "evict"; sinks: number; window: number; renumber: boolean }
  | { name: "move"; from: number; to: number; by: number }
  | { name: "splice"; place: number };

/** Tokens that were just computed: each stands where its key was turned. */
export const computed = (tokens: string): Cached[] => [...tokens].map((token, place) => ({ token, place, first: place }));

/**
 * The tokens after an operation, by their places. `document` is what is spliced.
 *
 * `refusal` is what the cache says where the encoding does not let its keys move; empty where it does. Throws what the
 * library raises.
 */
export function operated(held: readonly Cached[], operation: Operation, document: readonly Cached[], refusal: string): Cached[] {
  const stands = placed(held, operation, document);
  if (refusal && stands.some(([one, place]) => one.place !== place)) throw new Error(refusal);
  return stands.map(([one, place]) => ({ ...one, place })).sort((a, b) => a.place - b.place);
}

type Placed = [Cached, number][];

function placed(held: readonly Cached[], operation: Operation, document: readonly Cached[]): Placed {
  const within = (one: Cached, { from, to }: { from: number; to: number }) => from <= one.place && one.place < to;
  switch (operation.name) {
    case "crop":
      return stay(held.filter((one) => one.place < operation.tokens));
    case "drop":
      return closedUp(held, held.filter((one) => !within(one, operation)));
    case "evict": {
      const kept = evicted(held, operation);
      return operation.renumber ? closedUp(held, kept) : stay(kept);
    }
    case "move":
      return checked(held.map((one) => [one, one.place + (within(one, operation) ? operation.by : 0)]));
    case "splice":
      return spliced(held, operation.place, document);
  }
}

const stay = (kept: readonly Cached[]): Placed => kept.map((one) => [one, one.place]);

/** They count up from where the first of all stood. */
const closedUp = (held: readonly Cached[], kept: readonly Cached[]): Placed => kept.map((one, n) => [one, held[0].place + n]);

/** The first and the newest tokens. */
export function evicted(held: readonly Cached[], { sinks, window }: { sinks: number; window: number }): Cached[] {
  return held.filter((_, n) => n < sinks || n >= held.length - window);
}

/** Throws where a token came before the first place, or upon another one. */
function checked(stands: Placed): Placed {
  const places = stands.map(([, place]) => place).sort((a, b) => a - b);
  if (places[0] < 0)
    throw new Error(`a token would come to order ${places[0]}, before the first place, 0; move it by less`);
  const shared = places.find((place, n) => place === places[n + 1]);
  if (shared !== undefined)
    throw new Error(`two tokens of a row would have order ${shared}; make room first, or forget what is there with drop(...)`);
  return stands;
}

function spliced(held: readonly Cached[], place: number, document: readonly Cached[]): Placed {
  const end = held.length ? held[held.length - 1].place + 1 : 0;
  if (place > end) throw new Error(`the cache holds ${end} tokens, and nothing can be put at ${place}`);
  return [
    ...held.map((one): [Cached, number] => [one, one.place < place ? one.place : one.place + document.length]),
    ...document.map((one): [Cached, number] => [one, place + one.place]),
  ];
}
