/** The numbers that posenc computed and put into the page. `posenc.lab.views` writes them; the forms are said here. */

import type { Schedule } from "./formulas";

/** A number for each head at each distance. */
export interface Head {
  distance: number[];
  heads: number[][];
}

/** What patches of a picture have in common, by offset: other minus patch, from -15 to 15 on both axes. */
export interface PlaneMap {
  name: string;
  what: "logit" | "cosine" | "bias";
  /** Whether it has parameters, which are as they were drawn at the start. */
  drawn: boolean;
  /** Patches on a side, or "0" for all -> [head][row][column]; null where training decides all of it. */
  offsets: Record<string, number[][][]> | null;
}

export interface OnTwoAxes {
  /** Of pictures, in patches. */
  sides: number[];
  /** Of the heads that the maps are of (channels). */
  head_dim: number;
  maps: PlaneMap[];
}

/** An encoding of the page or the catalogue, and the doors that it opens. */
export interface Opened {
  name: string;
  doors: string[];
  group: string;
  idea: string;
  /** What a KV cache holds or does besides k and v. */
  cache: string;
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

/** What becomes of a cached key whose token moves. */
export interface Moves {
  /** As posenc's `Encoding.moves` says it. */
  way: "exact" | "unturned" | "recomputed" | "never";
  /** Whether it reads places along one axis; where it does not, the rest is empty. */
  in_rows: boolean;
  /** What a cache says where a token may not move. */
  refusal: string;
  /** Whether the key of a token that moves is turned again. */
  turned: boolean;
  /** By how much for each place, pair by pair (radians), where that is known. */
  angles: number[] | null;
}

/** One encoding of the page. What cannot be known without training is null: nothing is drawn for it. */
export interface Encoding {
  name: string;
  spec: string;
  doors: string[];
  /** `added`: what it adds at each position [T][dim], where that is fixed. */
  sections: Record<string, any> & { added?: number[][] | null; moves?: Moves; spectrum?: RotarySpectrum[] | null };
}

/** Attention weights [layers][heads][queries][keys] in thousandths; a row ends with the last key that has any. */
export type Weights = (number | null)[][][][];

/** One trained model of an encoding, asked about one sequence. */
export interface Model {
  label: string;
  seed: number;
  learned: boolean;
  tokens: string[];
  with: Weights;
  /** The same model with its positions removed. */
  without: Weights;
}

/** At one length, the seeds that learned. */
export interface Point {
  length: number;
  /** Null where it is infinite, which JSON has no word for. */
  median: number | null;
  seeds: (number | null)[];
}

/** One encoding on one task: how many of its runs learned, and what these score at each length. */
export interface Reach {
  label: string;
  learned: number;
  of: number;
  /** How many learned, in words, where that needs saying. */
  seeds: string;
  /** The score at the trained length, in words. */
  in_range: string;
  points: Record<string, Point[]>;
}

export interface Curves {
  task: string;
  trained: number[];
  unit: string;
  measures: { id: string; name: string }[];
  gate: string;
  encodings: Reach[];
}

/** What belongs to the page: what the records of a comparison say, and so on. */
export interface Sections {
  run: { made: string; labels: string[] };
  attention: { tasks: { task: string; models: Model[] }[]; left_out: string[] };
  extrapolation: { tasks: Curves[] };
  /** The order test without position. */
  order: OrderTest;
  axes: OnTwoAxes;
  doors: Opened[];
}

/** By the direction of attention, for one layer and for two: [orders][tokens], how far each output moves. */
export type OrderTest = Record<"bidirectional" | "causal", number[][][]>;

export interface Data {
  schema: number;
  version: string;
  command: string;
  title: string;
  encodings: Encoding[];
  /** The place in the palette of each encoding, of the page, the catalogue or the run. */
  places: Record<string, number>;
  sections: Partial<Sections>;
}

/** The data of the page; empty where it has none, as while the bundle is tried by itself. */
export function dataOf(page: Document): Data {
  const element = page.getElementById("posenc-data");
  if (!element?.textContent) throw new Error("this page carries no numbers: write it by posenc explore");
  return JSON.parse(element.textContent);
}
