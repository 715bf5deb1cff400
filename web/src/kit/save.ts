/** Pictures and numbers as files: what is drawn, with the colours that it has on the screen. */

const PARTS = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "fill-opacity", "opacity", "font-size", "font-family", "font-weight", "text-anchor", "dominant-baseline", "image-rendering", "paint-order", "visibility", "display"];

/** Save all drawings of a view as one SVG, below each other. */
export function saveSVG(place: HTMLElement, name: string): void {
  saveText(drawn(place).text, `${name}.svg`, "image/svg+xml");
}

/** The same as a PNG, at three times its size on the screen. */
export async function savePNG(place: HTMLElement, name: string): Promise<void> {
  const { text, width, height } = drawn(place);
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await picture.decode();
  const canvas = document.createElement("canvas");
  canvas.width = 3 * width;
  canvas.height = 3 * height;
  canvas.getContext("2d")!.drawImage(picture, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise<Blob | null>((done) => canvas.toBlob(done, "image/png"));
  if (!blob) throw new Error("the browser made no picture");
  hand(blob, `${name}.png`);
}

export function saveText(text: string, name: string, type: string): void {
  hand(new Blob([text], { type }), name);
}

function hand(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function drawn(place: HTMLElement): { text: string; width: number; height: number } {
  const drawings = [...place.querySelectorAll<SVGSVGElement>("svg.drawing")];
  if (!drawings.length) throw new Error("this view has no drawing");
  const sizes = drawings.map((drawing) => drawing.getBoundingClientRect());
  const width = Math.ceil(Math.max(...sizes.map((size) => size.width)));
  const height = Math.ceil(sizes.reduce((sum, size) => sum + size.height, 0));
  const whole = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  whole.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  whole.setAttribute("width", String(width));
  whole.setAttribute("height", String(height));
  whole.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const paper = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  paper.setAttribute("width", "100%");
  paper.setAttribute("height", "100%");
  paper.setAttribute("fill", getComputedStyle(document.body).backgroundColor);
  whole.append(paper);
  let top = 0;
  drawings.forEach((drawing, n) => {
    const copy = drawing.cloneNode(true) as SVGSVGElement;
    dress(drawing, copy);
    copy.setAttribute("x", "0");
    copy.setAttribute("y", String(top));
    copy.setAttribute("width", String(sizes[n].width));
    copy.setAttribute("height", String(sizes[n].height));
    whole.append(copy);
    top += sizes[n].height;
  });
  return { text: new XMLSerializer().serializeToString(whole), width, height };
}

/** Write into a copy how each of its parts is drawn, which comes from style sheets on the page. */
function dress(from: Element, to: Element): void {
  const style = getComputedStyle(from);
  for (const part of PARTS) {
    const value = style.getPropertyValue(part);
    if (!value) continue;
    to.removeAttribute(part);
    (to as SVGElement).style.setProperty(part, plain(value));
  }
  to.removeAttribute("class");
  for (let n = 0; n < from.children.length; n++) dress(from.children[n], to.children[n]);
}

/** A mixed colour in the older way of writing, which programs that draw SVG know. */
function plain(value: string): string {
  return value.replace(/^color\(srgb ([\d.]+) ([\d.]+) ([\d.]+)(?: \/ ([\d.]+))?\)$/, (_, r, g, b, a = "1") => {
    const [red, green, blue] = [r, g, b].map((part) => Math.round(255 * Number(part)));
    return a === "1" ? `rgb(${red}, ${green}, ${blue})` : `rgba(${red}, ${green}, ${blue}, ${a})`;
  });
}
