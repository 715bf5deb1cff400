import { format } from "d3-format";

const grouped = format(",");
const significant = format(",.4~g");

/** One way to write numbers everywhere: 1,000 with a comma, four digits of what is not whole, a real minus. */
export function count(value: number): string {
  if (!Number.isFinite(value)) return value > 0 ? "∞" : value < 0 ? "−∞" : "not a number";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return grouped(value).replace("-", "−");
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replaceAll("-", "−");
  if (size >= 1000) return grouped(Math.round(value)).replace("-", "−");
  return significant(value).replace("-", "−");
}

/** A power of ten, short enough to stand beside an axis. */
export function power(value: number): string {
  const exponent = String(Math.round(Math.log10(value)));
  return `10${[...exponent].map((digit) => (digit === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[+digit])).join("")}`;
}
