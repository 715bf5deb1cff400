/** Downloads of pictures and numbers; pictures have the colours of the screen. */

const STYLE_PROPERTIES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "fill-opacity", "opacity", "font-size", "font-family", "font-weight", "text-anchor", "dominant-baseline", "image-rendering", "paint-order", "visibility", "display"];

/** Save all drawings of a view as one SVG, one below the other. */
export function saveSVG(container: HTMLElement, name: string): void {
  saveText(svgOf(container).text, `${name}.svg`, "image/svg+xml");
}

/** Save the same SVG as a PNG, at three times its size on the screen. */
export async function savePNG(container: HTMLElement, name: string): Promise<void> {
  const { text, width, height } = svgOf(container);
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await picture.decode();
  const canvas = document.createElement("canvas");
  canvas.width = 3 * width;
  canvas.height = 3 * height;
  canvas.getContext("2d")!.drawImage(picture, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, "image/png"));
  if (!blob) throw new Error("the browser made no picture");
  download(blob, `${name}.png`);
}

export function saveText(text: string, name: string, type: string): void {
  download(new Blob([text], { type }), name);
}

function download(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function svgOf(container: HTMLElement): { text: string; width: number; height: number } {
  const drawings = [...container.querySelectorAll<SVGSVGElement>("svg.drawing")];
  if (!drawings.length) throw new Error("this view has no drawing");
  const sizes = drawings.map((svg) => svg.getBoundingClientRect());
  const width = Math.ceil(Math.max(...sizes.map((size) => size.width)));
  const height = Math.ceil(sizes.reduce((sum, size) => sum + size.height, 0));
  const result = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  result.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  result.setAttribute("width", String(width));
  result.setAttribute("height", String(height));
  result.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const paper = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  paper.setAttribute("width", "100%");
  paper.setAttribute("height", "100%");
  paper.setAttribute("fill", getComputedStyle(document.body).backgroundColor);
  result.append(paper);
  let top = 0;
  drawings.forEach((svg, n) => {
    const copy = svg.cloneNode(true) as SVGSVGElement;
    copyStyle(svg, copy);
    copy.setAttribute("x", "0");
    copy.setAttribute("y", String(top));
    copy.setAttribute("width", String(sizes[n].width));
    copy.setAttribute("height", String(sizes[n].height));
    result.append(copy);
    top += sizes[n].height;
  });
  return { text: new XMLSerializer().serializeToString(result), width, height };
}

/** Copy the style of each element, which the page's style sheets define, into a copy of it. */
function copyStyle(source: Element, target: Element): void {
  const style = getComputedStyle(source);
  for (const property of STYLE_PROPERTIES) {
    const value = style.getPropertyValue(property);
    if (!value) continue;
    target.removeAttribute(property);
    (target as SVGElement).style.setProperty(property, rgbOf(value));
  }
  target.removeAttribute("class");
  for (let n = 0; n < source.children.length; n++) copyStyle(source.children[n], target.children[n]);
}

/** Return a colour of `color-mix` in the older rgb notation, which SVG programs know. */
function rgbOf(value: string): string {
  return value.replace(/^color\(srgb ([\d.]+) ([\d.]+) ([\d.]+)(?: \/ ([\d.]+))?\)$/, (_, r, g, b, a = "1") => {
    const [red, green, blue] = [r, g, b].map((part) => Math.round(255 * Number(part)));
    return a === "1" ? `rgb(${red}, ${green}, ${blue})` : `rgba(${red}, ${green}, ${blue}, ${a})`;
  });
}
