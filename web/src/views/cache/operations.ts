/** Operations on the cache: as text in an address, and as code in Python. */

import { type CachedToken, type Operation, sinksAndWindow } from "../../formulas";

const NUMBERS: Record<string, number> = { crop: 1, drop: 2, evict: 2, evict_in_place: 2, move: 3, splice: 1 };
const MAX_STEPS = 999;

/** The number of operations that an address can hold. */
export const MAX_OPERATIONS = 12;

function numbersOf(operation: Operation): number[] {
  switch (operation.name) {
    case "crop":
      return [operation.tokens];
    case "drop":
      return [operation.start, operation.end];
    case "evict":
      return [operation.sinks, operation.window];
    case "move":
      return [operation.start, operation.end, operation.steps];
    case "splice":
      return [operation.place];
  }
}

/** Return the text of an operation, such as drop-5-13. */
export function operationText(operation: Operation): string {
  const name = operation.name === "evict" && !operation.renumber ? "evict_in_place" : operation.name;
  return [name, ...numbersOf(operation)].join("-");
}

/** Return the operations of an address, in their order; undefined if one is invalid or there are too many. */
export function parseOperations(text: string): Operation[] | undefined {
  const operations = text === "" ? [] : text.split(".").map(parseOperation);
  return operations.length <= MAX_OPERATIONS && operations.every((operation) => operation !== undefined) ? operations : undefined;
}

function parseOperation(text: string): Operation | undefined {
  const [, name, rest] = /^([a-z_]+)((?:--?\d{1,3})+)$/.exec(text) ?? [];
  if (!name) return undefined;
  const [a, b, c] = [...rest.matchAll(/-(-?\d+)/g)].map(([, number]) => Number(number));
  const count = [a, b, c].filter((number) => number !== undefined).length;
  if (NUMBERS[name] !== count || a < 0 || b < 0 || Math.abs(c ?? 0) > MAX_STEPS) return undefined;
  switch (name) {
    case "crop":
      return { name, tokens: a };
    case "drop":
      return { name, start: a, end: b };
    case "move":
      return { name, start: a, end: b, steps: c };
    case "splice":
      return { name, place: a };
    default:
      return { name: "evict", sinks: a, window: b, renumber: name === "evict" };
  }
}

/** Return the line of Python that does an operation on a cache with these tokens. */
export function pythonLine(operation: Operation, cache: readonly CachedToken[]): string {
  switch (operation.name) {
    case "crop":
      return `cache.crop(${operation.tokens})`;
    case "drop":
      return `cache.drop(slice(${operation.start}, ${operation.end}))`;
    case "evict": {
      const keep = sinksAndWindow(cache, operation).map((token) => token.place);
      return `cache.evict([${keep.join(", ")}]${operation.renumber ? "" : ", renumber=False"})`;
    }
    case "move":
      return `cache.move(slice(${operation.start}, ${operation.end}), by=${operation.steps})`;
    case "splice":
      return `cache.splice(document, ${operation.place})`;
  }
}
