import { getContext, setContext } from "svelte";

/** The content of a view as a sentence and numbers, for screen readers, the table and the button "Data". */
export interface Figure {
  /** One sentence with the most important numbers. */
  sentence: string;
  columns: string[];
  rows: (string | number)[][];
}

const KEY = Symbol("figure");

interface Holder {
  figure: (() => Figure) | undefined;
}

/** Create the holder of a view's figure; its frame calls this. */
export function holder(): Holder {
  const context = $state<Holder>({ figure: undefined });
  setContext(KEY, context);
  return context;
}

/** Give the view's figure to its frame, as a function, so the frame always has the current state. */
export function offer(figure: () => Figure): void {
  getContext<Holder>(KEY).figure = figure;
}
