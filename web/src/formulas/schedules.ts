/**
 * Schedules of rotary: functions from plain frequencies to (frequencies, temperature). Names and options are those of
 * posenc's specs; each file of posenc.schedules names its source.
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
  /** The frequency of each pair (radians per position), fastest first. */
  frequencies: number[];
  /** The factor of cosines and sines; logits get its square. */
  temperature: number;
}

/** The inputs of a schedule besides its options. */
interface Rotary {
  base: number;
  width: number;
  /** The declared length of a sequence (positions). */
  horizon: number;
}

type SpectrumFunction = (plain: number[], schedule: Schedule, rotary: Rotary) => Spectrum;

const TURN = 2 * Math.PI;

/** Return the frequencies and the temperature of a rotary with a schedule, at a declared horizon. */
export function scheduledSpectrum(schedule: Schedule | null, rotary: Rotary): Spectrum {
  const plain = plainFrequencies(rotary.width, rotary.base);
  if (!schedule) return { frequencies: plain, temperature: 1 };
  if (!Object.hasOwn(SPECTRA, schedule.name))
    throw new Error(`no schedule ${schedule.name} here; there are: ${Object.keys(SPECTRA).join(", ")}`);
  return SPECTRA[schedule.name](plain, schedule, rotary);
}

/** Whether the page can compute a schedule, including the schedules nested in it. */
export function isComputable(schedule: Schedule | null): boolean {
  return !schedule || (Object.hasOwn(SPECTRA, schedule.name) && isComputable(schedule.inner ?? null));
}

const SPECTRA: Record<string, SpectrumFunction> = {
  linear: (plain, { factor = 1 }) => spectrumOf(plain.map((f) => f / factor)),
  ntk: (plain, { factor = 1 }) => spectrumOf(withLargerBase(plain, factor)),
  ntk_fixed: (plain, { factor = 1 }) => spectrumOf(plain.map((f, k) => f * factor ** (-(k + 1) / plain.length))),
  ntk_mixed: (plain, { factor = 1, power = 0.625 }) =>
    spectrumOf(plain.map((f, k) => f * factor ** -(((k + 1) / plain.length) ** power))),
  dynamic_linear: (plain, schedule, rotary) => spectrumOf(plain.map((f) => f / stretch(schedule, rotary))),
  dynamic_ntk: (plain, schedule, rotary) => {
    const factor = schedule.factor ?? 1;
    return spectrumOf(withLargerBase(plain, factor * stretch(schedule, rotary) - (factor - 1)));
  },
  ntk_by_parts: (plain, schedule) =>
    spectrumOf(byParts(plain, schedule, sharesByTurns(plain, schedule, schedule.alpha ?? 1, schedule.beta ?? 32))),
  llama3: (plain, schedule) =>
    spectrumOf(byParts(plain, schedule, sharesByTurns(plain, schedule, schedule.low ?? 1, schedule.high ?? 4))),
  part_ntk: (plain, schedule, rotary) => {
    const factor = schedule.factor ?? 1;
    const slowShares = sharesByPair(plain, pairRamp(schedule, rotary, 1.25, 0.75, true));
    const fastShares = sharesByPair(plain, pairRamp(schedule, rotary, 16, 2, true));
    return spectrumOf(
      withLargerBase(plain, factor).map((f, k) => {
        const mixture = (plain[k] / factor) * (1 - slowShares[k]) + f * slowShares[k];
        return mixture * (1 - fastShares[k]) + plain[k] * fastShares[k];
      }),
    );
  },
  yarn: (plain, schedule, rotary) => {
    const { beta_fast = 32, beta_slow = 1, truncate = true, ramp = "pairs" } = schedule;
    const shares =
      ramp === "turns"
        ? sharesByTurns(plain, schedule, beta_slow, beta_fast)
        : sharesByPair(plain, pairRamp(schedule, rotary, beta_fast, beta_slow, truncate));
    return spectrumOf(byParts(plain, schedule, shares), yarnTemperature(schedule));
  },
  dynamic_yarn: (plain, schedule, rotary) => {
    const factor = Math.max(schedule.factor ?? 1, stretch(schedule, rotary));
    return SPECTRA.yarn(plain, { ...schedule, factor, ramp: "pairs" }, rotary);
  },
  clipped: (plain, schedule, rotary) => {
    const slow = schedule.pairs ?? plain.filter((f) => TURN / f > trainedLength(schedule)).length;
    const count = Math.min(slow, plain.length);
    const { frequencies, temperature } = scheduledSpectrum(schedule.inner ?? null, rotary);
    const share = (j: number) => (j < 0 ? 1 : schedule.soft === false ? 0 : (1 + Math.cos((Math.PI * j) / Math.max(count - 1, 1))) / 2);
    return spectrumOf(frequencies.map((f, k) => f * share(k - plain.length + count)), temperature);
  },
  resonance: (_, schedule, rotary) => {
    const { frequencies, temperature } = scheduledSpectrum(schedule.inner ?? null, rotary);
    return spectrumOf(frequencies.map((f) => TURN / Math.round(TURN / f)), temperature);
  },
  longrope: (plain, schedule, rotary) => {
    const long = stretch(schedule, rotary) > 1;
    const divisors = (long ? schedule.long_factor : schedule.short_factor) ?? [];
    const temperature = schedule.attention_factor ?? Math.sqrt(1 + Math.log(schedule.factor ?? 1) / Math.log(trainedLength(schedule)));
    return spectrumOf(plain.map((f, k) => f / divisors[k]), (long ? schedule.long_mscale : schedule.short_mscale) || temperature);
  },
};

const spectrumOf = (frequencies: number[], temperature = 1): Spectrum => ({ frequencies, temperature });

function trainedLength(schedule: Schedule): number {
  if (!schedule.trained_length) throw new Error(`${schedule.name} needs a trained length, and none is given`);
  return schedule.trained_length;
}

/** Return horizon / trained length, at least 1. */
const stretch = (schedule: Schedule, rotary: Rotary) => Math.max(1, rotary.horizon / trainedLength(schedule));

/** Return frequencies with a larger base: the fastest pair stays, the slowest is divided by the growth. */
const withLargerBase = (plain: number[], growth: number) => plain.map((f, k) => f * growth ** (-k / (plain.length - 1)));

/** Return frequencies of which each pair's share stays, and the rest is divided by the factor. */
const byParts = (plain: number[], { factor = 1 }: Schedule, shares: number[]) =>
  plain.map((f, k) => f * (shares[k] + (1 - shares[k]) / factor));

/** Return the share of each pair that stays: 0 up to `low` turns in the trained length, 1 from `high` turns on. */
function sharesByTurns(plain: number[], schedule: Schedule, low: number, high: number): number[] {
  return plain.map((f) => {
    const turns = (trainedLength(schedule) * f) / TURN;
    return high === low ? +(turns >= low) : clamp((turns - low) / (high - low));
  });
}

/** Return the fractional indices of the pairs that make `fast` and `slow` turns in the trained length. */
function pairRamp(schedule: Schedule, rotary: Rotary, fast: number, slow: number, truncate: boolean): [number, number] {
  const pair = (turns: number) =>
    (rotary.width * Math.log(trainedLength(schedule) / (TURN * turns))) / (2 * Math.log(rotary.base));
  const clip = (index: number) => Math.min(Math.max(index, 0), rotary.width - 1);
  const low = clip(truncate ? Math.floor(pair(fast)) : pair(fast));
  const high = clip(truncate ? Math.ceil(pair(slow)) : pair(slow));
  return [low, high === low ? high + 0.001 : high];
}

/** Return the share of each pair that stays: 1 up to index `low`, 0 from `high` on. */
const sharesByPair = (plain: number[], [low, high]: [number, number]) =>
  plain.map((_, k) => 1 - clamp((k - low) / (high - low)));

const clamp = (share: number) => Math.min(1, Math.max(0, share));

function yarnTemperature({ factor = 1, attention_factor, mscale, mscale_all_dim, mscale_rule }: Schedule): number {
  const scale = (m: number) => (factor <= 1 ? 1 : 0.1 * m * Math.log(factor) + 1);
  if (attention_factor != null) return attention_factor;
  if (mscale_rule !== "apart" && !(mscale && mscale_all_dim)) return scale(1);
  return scale(mscale ?? 1) / scale(mscale_all_dim ?? 0);
}
