import { format } from "d3-format";

const groupDigits = format(",");
const fourDigits = format(",.4~g");

/** Return a number as text: 1,000 with a comma, four significant digits of a fraction, and a real minus sign. */
export function count(value: number): string {
  if (!Number.isFinite(value)) return value > 0 ? "∞" : value < 0 ? "−∞" : "not a number";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return groupDigits(value).replace("-", "−");
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replaceAll("-", "−");
  if (size >= 1000) return groupDigits(Math.round(value)).replace("-", "−");
  return fourDigits(value).replace("-", "−");
}

/** Return a power of ten as text, such as 10⁻³, for the labels of an axis. */
export function power(value: number): string {
  const exponent = String(Math.round(Math.log10(value)));
  return `10${[...exponent].map((digit) => (digit === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[+digit])).join("")}`;
}
