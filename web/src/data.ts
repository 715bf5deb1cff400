/** The numbers that posenc computed and put into the page. `posenc.lab.views` writes them; the forms are said here. */

import type { Schedule } from "./formulas";

export interface Head {
  distance: number[];
  heads: number[][];
}

/** A rotary before and after its schedule; wavelengths in positions, null where a pair stands still. */
export interface RotarySpectrum {
  spec: string;
  base: number;
  width: number;
  trained_length: number;
  schedule: Schedule | null;
  /** Whether the schedule depends on the declared horizon: the numbers here are then those at the trained length. */
  by_horizon: boolean;
  plain: (number | null)[];
  wavelengths: (number | null)[];
  temperature: number;
}

/** A learned table of a checkpoint, one position in every `step`. */
export interface LearnedTable {
  name: string;
  size: number[];
  step: number;
  /** Cosines in hundredths, row by row, each up to and with the diagonal. */
  similarity: number[][];
  components: number[][];
  /** Of the variance, of all components, largest first. */
  shares: number[];
}

/** What a checkpoint says of positions. Its texts come from a file that somebody else wrote. */
export interface Checkpoint {
  name: string;
  architecture: string;
  format: string;
  parts: string[][];
  doubts: { title: string; said: string[] }[];
  /** `before`: the trained length before a schedule stretched the model, where that is another one. */
  spectra: (Omit<RotarySpectrum, "trained_length"> & { name: string; trained_length: number | null; before: number | null })[];
  tables: LearnedTable[];
  biases: (Head & { name: string; every_head: number })[];
  left_out: string[];
}

/** One encoding of the page. What cannot be known without training is null: nothing is drawn for it. */
export interface Encoding {
  name: string;
  spec: string;
  idea: string;
  formula: string;
  source: string;
  doors: string[];
  /** Its place in the palette: an encoding has one colour everywhere. */
  place: number;
  sections: Record<string, any> & { spectrum?: RotarySpectrum[] | null };
}

export interface Data {
  schema: number;
  version: string;
  command: string;
  title: string;
  encodings: Encoding[];
  sections: Record<string, any> & { checkpoint?: Checkpoint };
}

/** The data of the page; empty where it has none, as while the bundle is tried by itself. */
export function dataOf(page: Document): Data {
  const element = page.getElementById("posenc-data");
  if (!element?.textContent) throw new Error("this page carries no numbers: write it by posenc explore");
  return JSON.parse(element.textContent);
}
