/** The tokens of a KV cache and their positions after an operation, as src/posenc/cache/operations.py computes them. */

/** A cached token: its place, and the place for which its key was computed first. */
export interface CachedToken {
  token: string;
  place: number;
  first: number;
}

/** An operation on the cache; a range of places includes `start` and excludes `end`. */
export type Operation =
  | { name: "crop"; tokens: number }
  | { name: "drop"; start: number; end: number }
  | { name: "evict"; sinks: number; window: number; renumber: boolean }
  | { name: "move"; start: number; end: number; steps: number }
  | { name: "splice"; place: number };

/** Return a cache of new tokens, each at the place for which its key was computed. */
export const newCache = (text: string): CachedToken[] => [...text].map((token, place) => ({ token, place, first: place }));

/**
 * Return the tokens after an operation, sorted by place; a splice inserts `document`.
 *
 * `refusal` is the cache's error for an encoding whose keys must not move, else empty. All errors are the library's.
 */
export function applyOperation(cache: Cache, operation: Operation, document: Cache, refusal: string): CachedToken[] {
  const placements = newPlacements(cache, operation, document);
  if (refusal && placements.some(([token, place]) => token.place !== place)) throw new Error(refusal);
  return placements.map(([token, place]) => ({ ...token, place })).sort((a, b) => a.place - b.place);
}

type Cache = readonly CachedToken[];
type Placement = [CachedToken, number];

function newPlacements(cache: Cache, operation: Operation, document: Cache): Placement[] {
  const isIn = (x: { start: number; end: number }, { place }: CachedToken) => x.start <= place && place < x.end;
  switch (operation.name) {
    case "crop":
      return samePlaces(cache.filter((token) => token.place < operation.tokens));
    case "drop":
      return renumber(cache, cache.filter((token) => !isIn(operation, token)));
    case "evict": {
      const tokens = sinksAndWindow(cache, operation);
      return operation.renumber ? renumber(cache, tokens) : samePlaces(tokens);
    }
    case "move":
      return checkPlacements(cache.map((token) => [token, token.place + (isIn(operation, token) ? operation.steps : 0)]));
    case "splice":
      return splice(cache, operation.place, document);
  }
}

const samePlaces = (tokens: Cache): Placement[] => tokens.map((token) => [token, token.place]);

/** Return consecutive places, which start at the place of the first cached token. */
const renumber = (cache: Cache, tokens: Cache): Placement[] => tokens.map((token, n) => [token, cache[0].place + n]);

/** Return the tokens that an eviction keeps: the first and the newest. */
export function sinksAndWindow(cache: Cache, { sinks, window }: { sinks: number; window: number }): CachedToken[] {
  return cache.filter((_, n) => n < sinks || n >= cache.length - window);
}

/** Return the placements. Throws if a token is before place 0, or two tokens share a place. */
function checkPlacements(placements: Placement[]): Placement[] {
  const places = placements.map(([, place]) => place).sort((a, b) => a - b);
  if (places[0] < 0)
    throw new Error(`a token would come to order ${places[0]}, before the first place, 0; move it by less`);
  const duplicate = places.find((place, n) => place === places[n + 1]);
  if (duplicate !== undefined)
    throw new Error(`two tokens of a row would have order ${duplicate}; make room first, or forget what is there with drop(...)`);
  return placements;
}

function splice(cache: Cache, place: number, document: Cache): Placement[] {
  const end = cache.length ? cache[cache.length - 1].place + 1 : 0;
  if (place > end) throw new Error(`the cache holds ${end} tokens, and nothing can be put at ${place}`);
  return [
    ...cache.map((token): Placement => [token, token.place < place ? token.place : token.place + document.length]),
    ...document.map((token): Placement => [token, place + token.place]),
  ];
}
