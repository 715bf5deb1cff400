/** The types of the numbers that posenc computes and `posenc.lab.views` writes into the page. */

import type { Schedule } from "./formulas";

/** The bias of each head at each distance. */
export interface DistanceBiases {
  distance: number[];
  heads: number[][];
}

/** A quantity of two patches of a picture by offset, other patch minus patch, from -15 to 15 on both axes. */
export interface OffsetMap {
  name: string;
  quantity: "logit" | "cosine" | "bias";
  /** Whether the encoding has parameters; they have random initial values. */
  is_random: boolean;
  /** Patches per side, or "0" for any -> [head][row][column]; null if only training gives the numbers. */
  offsets: Record<string, number[][][]> | null;
}

export interface AxesSection {
  /** The sizes of the pictures (patches per side). */
  sides: number[];
  /** The size of the heads (channels). */
  head_dim: number;
  maps: OffsetMap[];
}

/** An encoding of the page or the catalogue, with its doors. */
export interface CatalogueEntry {
  name: string;
  doors: string[];
  group: string;
  idea: string;
  /** What a KV cache stores or does in addition to k and v. */
  cache: string;
}

/** A rotary without and with its schedule; wavelengths in positions, null for a pair that does not rotate. */
export interface RotarySpectrum {
  spec: string;
  base: number;
  width: number;
  trained_length: number;
  schedule: Schedule | null;
  /** Whether the schedule depends on the horizon; these numbers are then those at the trained length. */
  by_horizon: boolean;
  plain: (number | null)[];
  wavelengths: (number | null)[];
  temperature: number;
}

/** The effect on a cached key if its token moves. */
export interface Moves {
  /** The value of posenc's `Encoding.moves`. */
  way: "exact" | "unturned" | "recomputed" | "never";
  /** Whether the encoding reads positions on one axis; otherwise the other fields are empty. */
  in_rows: boolean;
  /** The cache's error if a token must not move. */
  refusal: string;
  /** Whether the key is rotated again when its token moves. */
  is_rotated: boolean;
  /** The angle of each pair for one place (radians), if known. */
  angles: number[] | null;
}

/** One encoding of the page. Numbers that exist only after training are null, and views omit them. */
export interface Encoding {
  name: string;
  spec: string;
  doors: string[];
  /** The encoding as one Python file that needs PyTorch alone, or the reason why there is none. */
  file: { text: string; reason: string };
  /** `added` is the fixed table that the encoding adds to embeddings, [T][dim]; `training` has tables after training. */
  sections: Record<string, any> & { added?: number[][] | null; moves?: Moves; spectrum?: RotarySpectrum[] | null };
}

/** Attention weights [layers][heads][queries][keys] in thousandths; a row ends with its last nonzero weight. */
export type Weights = (number | null)[][][][];

/** The attention of one trained model on one sequence. */
export interface Model {
  label: string;
  seed: number;
  learned: boolean;
  tokens: string[];
  /** The keys `with` and `without` are those of lab records: with positions, and with positions removed. */
  with: Weights;
  without: Weights;
}

/** The scores of the seeds that learned, at one length. */
export interface Point {
  length: number;
  /** Null stands for infinity, which JSON does not have. */
  median: number | null;
  seeds: (number | null)[];
}

/** One encoding on one task: how many of its runs learned, and their scores at each length. */
export interface EncodingScores {
  label: string;
  learned: number;
  runs: number;
  /** A text about how many runs learned; empty if all did. */
  seeds: string;
  /** A text with the score at the trained length. */
  in_range: string;
  points: Record<string, Point[]>;
}

export interface TaskScores {
  task: string;
  trained_lengths: number[];
  unit: string;
  measures: { id: string; name: string }[];
  gate: string;
  encodings: EncodingScores[];
}

/** The data of the whole page, mostly from the records of a comparison. */
export interface Sections {
  run: { provenance: string; labels: string[] };
  attention: { tasks: { task: string; models: Model[] }[]; left_out: string[] };
  extrapolation: { tasks: TaskScores[] };
  /** The order test without position. */
  order: OrderTest;
  axes: AxesSection;
  doors: CatalogueEntry[];
}

/** The change of each output by direction of attention, for one layer and for two, [orders][tokens]. */
export type OrderTest = Record<"bidirectional" | "causal", number[][][]>;

export interface Data {
  schema: number;
  version: string;
  command: string;
  title: string;
  encodings: Encoding[];
  /** The palette index of each encoding of the page, the catalogue or the run. */
  places: Record<string, number>;
  sections: Partial<Sections>;
}

/** Return the data of the page. */
export function dataOf(page: Document): Data {
  const element = page.getElementById("posenc-data");
  if (!element?.textContent) throw new Error("this page has no data: write it with posenc explore");
  return JSON.parse(element.textContent);
}
