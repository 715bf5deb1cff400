/**
 * The state of the page. Everything that the reader can change is a setting, and the address contains all settings, so
 * a link opens the page in the same state. The position, pair and head under the pointer are common to all views.
 */

export type Value = number | string | boolean;
type Check = (value: Value) => boolean;

interface Setting {
  read(): Value;
  write(value: Value): void;
  start: Value;
  isAllowed: Check;
}

const settings = new Map<string, Setting>();
/** The address's texts of settings whose view is not drawn yet. */
const pendingTexts = new Map<string, string>();
/** The number of settings; when a view adds its own, effects that write the address run again. */
let settingCount = $state(0);
/** The address that the timer will write. */
let nextAddress: string | undefined;
let timer: ReturnType<typeof setTimeout> | undefined;
/** The address that was last read or written. If the browser has another one, the reader typed it; it is read next. */
let lastAddress = location.hash;

/**
 * Return the settings of one view, or of all: an object with these start values, which the address keeps.
 *
 * A setting keeps its start value if the address has a value of another type, or one that its check rejects.
 */
export function settingsOf<T extends Record<string, Value>>(
  view: string,
  start: T,
  checks: Partial<Record<keyof T, Check>> = {},
): T {
  const now = $state({ ...start });
  for (const name of Object.keys(start) as (keyof T & string)[]) {
    const key = view ? `${view}.${name}` : name;
    const setting: Setting = {
      read: () => now[name],
      write: (value) => ((now as Record<string, Value>)[name] = value),
      start: start[name],
      isAllowed: checks[name] ?? (() => true),
    };
    settings.set(key, setting);
    const text = pendingTexts.get(key);
    if (text !== undefined) setFromText(setting, text);
    pendingTexts.delete(key);
  }
  settingCount = settings.size;
  return now;
}

/** Return a check that a value is a number from `min` to `max`. */
export const inRange = (min: number, max: number): Check => (value) =>
  typeof value === "number" && value >= min && value <= max;

/** Return a check that a value is a multiple of `step` from `min` to `max`, by default an integer. */
export const integer = (min: number, max: number, step = 1): Check => (value) =>
  inRange(min, max)(value) && Number(value) % step === 0;

/** Return a check that a value is in a list. */
export const oneOf = (values: readonly Value[]): Check => (value) => values.includes(value);

function setFromText(setting: Setting, text: string): void {
  const value = parse(text, setting.start);
  if (value !== undefined && setting.isAllowed(value)) setting.write(value);
}

function parse(text: string, example: Value): Value | undefined {
  if (typeof example === "boolean") return text === "true" ? true : text === "false" ? false : undefined;
  if (typeof example === "string") return text.slice(0, 500);
  const number = text.trim() === "" ? Number.NaN : Number(text);
  return Number.isFinite(number) ? number : undefined;
}

/** Return the address of a view in the current state; settings with their start value are omitted. */
export function currentAddress(view: string): string {
  const parameters = new URLSearchParams();
  if (settingCount)
    for (const [key, setting] of settings) {
      const value = setting.read();
      if (value !== setting.start) parameters.set(key, String(value));
    }
  for (const [key, text] of pendingTexts) parameters.set(key, text);
  const query = parameters.toString();
  return `#${view}${query ? `?${query}` : ""}`;
}

/** Return the address of a view with these settings, and with the current appearance of the page. */
export function addressOf(view: string, query: string): string {
  const parameters = new URLSearchParams(query);
  for (const name of ["look", "only", "keys"] as const)
    if (pageSettings[name] !== settings.get(name)!.start) parameters.set(name, String(pageSettings[name]));
  return `#${view}${parameters.size ? `?${parameters}` : ""}`;
}

/** Set all settings from an address, and return the view that it names. Omitted settings get their start values. */
export function readAddress(hash: string): string {
  const [view, query = ""] = hash.replace(/^#/, "").split(/\?(.*)/s);
  const parameters = new URLSearchParams(query);
  lastAddress = hash;
  pendingTexts.clear();
  for (const [key, setting] of settings) {
    const text = parameters.get(key);
    setting.write(setting.start);
    if (text !== null) setFromText(setting, text);
  }
  for (const [key, text] of parameters) if (!settings.has(key)) pendingTexts.set(key, text);
  return view;
}

/** Write the settings into the address after a short delay, so a moving slider causes one write. */
export function keepInAddress(view: string): void {
  nextAddress = currentAddress(view);
  clearTimeout(timer);
  timer = setTimeout(write, 150);
}

/** Add a view to the browser's history, so the back button undoes this step. */
export function visit(view: string): void {
  write();
  const address = currentAddress(view);
  if (address !== location.hash) history.pushState(null, "", address);
  lastAddress = location.hash;
}

/** Write the settings into the address at once. */
export function putInAddress(view: string): void {
  clearTimeout(timer);
  nextAddress = currentAddress(view);
  write();
}

function write(): void {
  clearTimeout(timer);
  if (nextAddress !== undefined && location.hash === lastAddress) {
    if (nextAddress !== lastAddress) history.replaceState(history.state, "", nextAddress);
    lastAddress = location.hash;
  }
  nextAddress = undefined;
}

/** Return the current value of each setting, by its name in the address. */
export const settingsNow = (): Record<string, Value> =>
  Object.fromEntries([...settings].map(([key, setting]) => [key, setting.read()]));

/** The settings of all views: what the reader points at, the colours, one view or all, and whether J and K are keys. */
export const pageSettings = settingsOf(
  "",
  { position: 12, other: 5, pair: 2, head: 0, encoding: "", look: "", only: true as boolean, keys: true },
  {
    position: integer(0, 4096),
    other: integer(0, 4096),
    pair: integer(0, 512),
    head: integer(0, 256),
    look: oneOf(["", "light", "dark"]),
  },
);
