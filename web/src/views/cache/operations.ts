/** What is done to the cache: as it stands in an address, on a button, and in Python. */

import { type Cached, evicted, type Operation } from "../../formulas";

const NUMBERS: Record<string, number> = { crop: 1, drop: 2, evict: 2, evict_in_place: 2, move: 3, splice: 1 };
const FARTHEST = 999;

/** So many operations stand in an address. */
export const MOST = 12;

function numbersOf(operation: Operation): number[] {
  switch (operation.name) {
    case "crop":
      return [operation.tokens];
    case "drop":
      return [operation.from, operation.to];
    case "evict":
      return [operation.sinks, operation.window];
    case "move":
      return [operation.from, operation.to, operation.by];
    case "splice":
      return [operation.place];
  }
}

/** One operation, such as drop-5-13. */
export function written(operation: Operation): string {
  const name = operation.name === "evict" && !operation.renumber ? "evict_in_place" : operation.name;
  return [name, ...numbersOf(operation)].join("-");
}

/** The operations of an address, in their order; nothing where it says others. */
export function read(text: string): Operation[] | undefined {
  const found = text === "" ? [] : text.split(".").map(one);
  return found.length <= MOST && found.every((operation) => operation !== undefined) ? found : undefined;
}

function one(text: string): Operation | undefined {
  const [, name, rest] = /^([a-z_]+)((?:--?\d{1,3})+)$/.exec(text) ?? [];
  if (!name) return undefined;
  const [a, b, c] = [...rest.matchAll(/-(-?\d+)/g)].map(([, number]) => Number(number));
  const count = [a, b, c].filter((number) => number !== undefined).length;
  if (NUMBERS[name] !== count || a < 0 || b < 0 || Math.abs(c ?? 0) > FARTHEST) return undefined;
  switch (name) {
    case "crop":
      return { name, tokens: a };
    case "drop":
      return { name, from: a, to: b };
    case "move":
      return { name, from: a, to: b, by: c };
    case "splice":
      return { name, place: a };
    default:
      return { name: "evict", sinks: a, window: b, renumber: name === "evict" };
  }
}

/** The same in Python, for a cache that holds these tokens. */
export function inPython(operation: Operation, held: readonly Cached[]): string {
  switch (operation.name) {
    case "crop":
      return `cache.crop(${operation.tokens})`;
    case "drop":
      return `cache.drop(slice(${operation.from}, ${operation.to}))`;
    case "evict": {
      const keep = evicted(held, operation).map((token) => token.place);
      return `cache.evict([${keep.join(", ")}]${operation.renumber ? "" : ", renumber=False"})`;
    }
    case "move":
      return `cache.move(slice(${operation.from}, ${operation.to}), by=${operation.by})`;
    case "splice":
      return `cache.splice(document, ${operation.place})`;
  }
}
