import { getContext, setContext } from "svelte";

/** What a view shows now, in numbers: they are read out, stand in a table, and are what "Data" saves. */
export interface Shown {
  /** What the reader should know of it now, in a sentence. */
  said: string;
  columns: string[];
  rows: (string | number)[][];
}

const KEY = Symbol("figure");

interface Holder {
  shown: (() => Shown) | undefined;
}

/** For the frame around a view. */
export function holder(): Holder {
  const held = $state<Holder>({ shown: undefined });
  setContext(KEY, held);
  return held;
}

/** For a view: hand over what it shows, as a function, so that it is always what is on the screen. */
export function offer(shown: () => Shown): void {
  getContext<Holder>(KEY).shown = shown;
}
