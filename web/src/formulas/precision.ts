/** What fewer digits do to an angle. A number is rounded as torch rounds: first to float32, then to the format, ties to even. */

export const FORMATS = ["float32", "float16", "bfloat16"] as const;
export type Format = (typeof FORMATS)[number];

/** Bits of a significand behind its first one, the least exponent of a normal number, and the largest number. */
const SHAPES = {
  float16: { bits: 10, least: -14, largest: 65_504 },
  bfloat16: { bits: 7, least: -126, largest: (2 - 2 ** -7) * 2 ** 127 },
};

const view = new DataView(new ArrayBuffer(4));

/** The number of a format that is nearest. */
export function rounded(value: number, format: Format): number {
  const single = Math.fround(value);
  if (format === "float32" || !Number.isFinite(single) || single === 0) return single;
  const { bits, least, largest } = SHAPES[format];
  view.setFloat32(0, single);
  const exponent = Math.max(((view.getUint32(0) >>> 23) & 255) - 127, least);
  const step = 2 ** (exponent - bits);
  const near = toEven(single / step) * step;
  return Math.abs(near) > largest ? Math.sign(near) * Number.POSITIVE_INFINITY : near;
}

function toEven(value: number): number {
  const below = Math.floor(value);
  const rest = value - below;
  return rest === 0.5 ? below + (below % 2 === 0 ? 0 : 1) : Math.round(value);
}

/** What is kept in the format: position, frequency and angle, or one of the first two alone. */
export type Kept = "all" | "position" | "frequency";

/** The angle (radians) of a pair at a position, where what is kept in the format is rounded to it. */
export function angleIn(format: Format, position: number, frequency: number, kept: Kept = "all"): number {
  const p = kept === "frequency" ? position : rounded(position, format);
  const f = kept === "position" ? frequency : rounded(frequency, format);
  return kept === "all" ? rounded(p * f, format) : p * f;
}
