/** The effect of number formats on an angle. Rounding is torch's: first to float32, then to the format, ties to even. */

export const FORMATS = ["float32", "float16", "bfloat16"] as const;
export type Format = (typeof FORMATS)[number];

/** The explicit bits of the significand, the smallest exponent of a normal number, and the largest number. */
const SHAPES = {
  float16: { bits: 10, least: -14, largest: 65_504 },
  bfloat16: { bits: 7, least: -126, largest: (2 - 2 ** -7) * 2 ** 127 },
};

const view = new DataView(new ArrayBuffer(4));

/** Return the nearest number that the format has. */
export function roundToFormat(value: number, format: Format): number {
  const single = Math.fround(value);
  if (format === "float32" || !Number.isFinite(single) || single === 0) return single;
  const { bits, least, largest } = SHAPES[format];
  view.setFloat32(0, single);
  const exponent = Math.max(((view.getUint32(0) >>> 23) & 255) - 127, least);
  const step = 2 ** (exponent - bits);
  const nearest = roundToEven(single / step) * step;
  return Math.abs(nearest) > largest ? Math.sign(nearest) * Number.POSITIVE_INFINITY : nearest;
}

function roundToEven(value: number): number {
  const floor = Math.floor(value);
  const rest = value - floor;
  return rest === 0.5 ? floor + (floor % 2 === 0 ? 0 : 1) : Math.round(value);
}

/** The factors that are rounded to the format: position, frequency and angle, or only one of the first two. */
export type RoundedPart = "all" | "position" | "frequency";

/** Return the angle (radians) of a pair at a position, with the given parts rounded to the format. */
export function angleIn(format: Format, position: number, frequency: number, part: RoundedPart = "all"): number {
  const p = part === "frequency" ? position : roundToFormat(position, format);
  const f = part === "position" ? frequency : roundToFormat(frequency, format);
  return part === "all" ? roundToFormat(p * f, format) : p * f;
}
