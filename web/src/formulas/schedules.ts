/**
 * Schedules of rotary: from plain frequencies to (frequencies, temperature). Names and options are those of posenc's
 * specs; each file of posenc.schedules names its source.
 */

import { frequencies as plainFrequencies } from "./sinusoidal";

export interface Schedule {
  name: string;
  factor?: number;
  trained_length?: number | null;
  beta_fast?: number;
  beta_slow?: number;
  truncate?: boolean;
  ramp?: string;
  attention_factor?: number | null;
  mscale?: number | null;
  mscale_all_dim?: number | null;
  mscale_rule?: string;
  low?: number;
  high?: number;
  alpha?: number;
  beta?: number;
  power?: number;
  pairs?: number | null;
  soft?: boolean;
  inner?: Schedule | null;
  short_factor?: number[];
  long_factor?: number[];
  short_mscale?: number | null;
  long_mscale?: number | null;
}

export interface Spectrum {
  /** Of each pair, radians per position, fastest first. */
  frequencies: number[];
  /** What cosines and sines are multiplied by, so that logits are by its square. */
  temperature: number;
}

/** What a schedule reads besides its own options. */
interface Rotary {
  base: number;
  width: number;
  /** The declared length of a sequence (positions). */
  horizon: number;
}

type Computed = (plain: number[], own: Schedule, of: Rotary) => Spectrum;

const TURN = 2 * Math.PI;

/** The frequencies and the temperature that a schedule makes of plain rotary, at a declared horizon. */
export function scheduled(schedule: Schedule | null, of: Rotary): Spectrum {
  const plain = plainFrequencies(of.width, of.base);
  if (!schedule) return { frequencies: plain, temperature: 1 };
  if (!Object.hasOwn(COMPUTED, schedule.name))
    throw new Error(`no schedule ${schedule.name} here; there are: ${Object.keys(COMPUTED).join(", ")}`);
  return COMPUTED[schedule.name](plain, schedule, of);
}

/** Whether the page can compute a schedule itself, and what comes first within it. */
export function isComputed(schedule: Schedule | null): boolean {
  return !schedule || (Object.hasOwn(COMPUTED, schedule.name) && isComputed(schedule.inner ?? null));
}

const COMPUTED: Record<string, Computed> = {
  linear: (plain, { factor = 1 }) => warm(plain.map((f) => f / factor)),
  ntk: (plain, { factor = 1 }) => warm(withLargerBase(plain, factor)),
  ntk_fixed: (plain, { factor = 1 }) => warm(plain.map((f, k) => f * factor ** (-(k + 1) / plain.length))),
  ntk_mixed: (plain, { factor = 1, power = 0.625 }) =>
    warm(plain.map((f, k) => f * factor ** -(((k + 1) / plain.length) ** power))),
  dynamic_linear: (plain, own, of) => warm(plain.map((f) => f / stretch(own, of))),
  dynamic_ntk: (plain, own, of) => {
    const factor = own.factor ?? 1;
    return warm(withLargerBase(plain, factor * stretch(own, of) - (factor - 1)));
  },
  ntk_by_parts: (plain, own) => warm(byParts(plain, own, keptByTurns(plain, own, own.alpha ?? 1, own.beta ?? 32))),
  llama3: (plain, own) => warm(byParts(plain, own, keptByTurns(plain, own, own.low ?? 1, own.high ?? 4))),
  part_ntk: (plain, own, of) => {
    const factor = own.factor ?? 1;
    const near = keptByPair(plain, pairRamp(own, of, 1.25, 0.75, true));
    const far = keptByPair(plain, pairRamp(own, of, 16, 2, true));
    return warm(
      withLargerBase(plain, factor).map((aware, k) => {
        const mixed = (plain[k] / factor) * (1 - near[k]) + aware * near[k];
        return mixed * (1 - far[k]) + plain[k] * far[k];
      }),
    );
  },
  yarn: (plain, own, of) => {
    const { beta_fast = 32, beta_slow = 1, truncate = true, ramp = "pairs" } = own;
    const kept =
      ramp === "turns"
        ? keptByTurns(plain, own, beta_slow, beta_fast)
        : keptByPair(plain, pairRamp(own, of, beta_fast, beta_slow, truncate));
    return warm(byParts(plain, own, kept), yarnTemperature(own));
  },
  dynamic_yarn: (plain, own, of) => {
    const factor = Math.max(own.factor ?? 1, stretch(own, of));
    return COMPUTED.yarn(plain, { ...own, factor, ramp: "pairs" }, of);
  },
  clipped: (plain, own, of) => {
    const slow = own.pairs ?? plain.filter((f) => TURN / f > trainedLength(own)).length;
    const count = Math.min(slow, plain.length);
    const { frequencies, temperature } = scheduled(own.inner ?? null, of);
    const kept = (j: number) => (j < 0 ? 1 : own.soft === false ? 0 : (1 + Math.cos((Math.PI * j) / Math.max(count - 1, 1))) / 2);
    return warm(frequencies.map((f, k) => f * kept(k - plain.length + count)), temperature);
  },
  resonance: (_, own, of) => {
    const { frequencies, temperature } = scheduled(own.inner ?? null, of);
    return warm(frequencies.map((f) => TURN / Math.round(TURN / f)), temperature);
  },
  longrope: (plain, own, of) => {
    const long = stretch(own, of) > 1;
    const divisors = (long ? own.long_factor : own.short_factor) ?? [];
    const both = own.attention_factor ?? Math.sqrt(1 + Math.log(own.factor ?? 1) / Math.log(trainedLength(own)));
    return warm(plain.map((f, k) => f / divisors[k]), (long ? own.long_mscale : own.short_mscale) || both);
  },
};

const warm = (frequencies: number[], temperature = 1): Spectrum => ({ frequencies, temperature });

function trainedLength(own: Schedule): number {
  if (!own.trained_length) throw new Error(`${own.name} compares with the trained length, and none is given`);
  return own.trained_length;
}

/** Horizon / trained length, 1 or more. */
const stretch = (own: Schedule, of: Rotary) => Math.max(1, of.horizon / trainedLength(own));

/** The fastest pair as it is, the slowest divided by the growth. */
const withLargerBase = (plain: number[], growth: number) =>
  plain.map((f, k) => f * growth ** (-k / (plain.length - 1)));

/** Each pair divided by the factor, as far as it is not kept. */
const byParts = (plain: number[], { factor = 1 }: Schedule, kept: number[]) =>
  plain.map((f, k) => f * (kept[k] + (1 - kept[k]) / factor));

/** The share of each pair that stays: 0 up to `low` turns in the trained length, 1 from `high` on. */
function keptByTurns(plain: number[], own: Schedule, low: number, high: number): number[] {
  return plain.map((f) => {
    const turns = (trainedLength(own) * f) / TURN;
    return high === low ? +(turns >= low) : clamp((turns - low) / (high - low));
  });
}

/** The pair indices, not whole, that turn `fast` and `slow` times in the trained length. */
function pairRamp(own: Schedule, of: Rotary, fast: number, slow: number, truncate: boolean): [number, number] {
  const pair = (turns: number) =>
    (of.width * Math.log(trainedLength(own) / (TURN * turns))) / (2 * Math.log(of.base));
  const inside = (end: number) => Math.min(Math.max(end, 0), of.width - 1);
  const low = inside(truncate ? Math.floor(pair(fast)) : pair(fast));
  const high = inside(truncate ? Math.ceil(pair(slow)) : pair(slow));
  return [low, high === low ? high + 0.001 : high];
}

/** The share of each pair that stays: 1 up to the first end, 0 from the second on. */
const keptByPair = (plain: number[], [low, high]: [number, number]) =>
  plain.map((_, k) => 1 - clamp((k - low) / (high - low)));

const clamp = (share: number) => Math.min(1, Math.max(0, share));

function yarnTemperature({ factor = 1, attention_factor, mscale, mscale_all_dim, mscale_rule }: Schedule): number {
  const warmth = (m: number) => (factor <= 1 ? 1 : 0.1 * m * Math.log(factor) + 1);
  if (attention_factor != null) return attention_factor;
  if (mscale_rule !== "apart" && !(mscale && mscale_all_dim)) return warmth(1);
  return warmth(mscale ?? 1) / warmth(mscale_all_dim ?? 0);
}
