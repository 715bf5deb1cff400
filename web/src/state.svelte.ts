/**
 * What the page shows now. Everything that a reader can change is a setting, and every setting is in the address, so
 * that a link shows to somebody else what one sees oneself. What is pointed at is shared by all views.
 */

export type Value = number | string | boolean;
type Check = (value: Value) => boolean;

interface Setting {
  read(): Value;
  write(value: Value): void;
  start: Value;
  allowed: Check;
}

const settings = new Map<string, Setting>();
/** What the address said of settings whose view has not been drawn yet. */
const waiting = new Map<string, string>();
/** How many settings there are, so that who wrote an address writes it anew when a view brings its own. */
let many = $state(0);
/** What the address is about to become. */
let due: string | undefined;
let timer: ReturnType<typeof setTimeout> | undefined;
/** The address as it was read or written last; another one was typed meanwhile, and is about to be read. */
let known = location.hash;

/**
 * The settings of one view, or of all: an object whose fields start as given, and are kept in the address.
 *
 * A field of the address that is not of its kind, or that `allowed` refuses, is left as it starts.
 */
export function settingsOf<T extends Record<string, Value>>(
  view: string,
  start: T,
  allowed: Partial<Record<keyof T, Check>> = {},
): T {
  const now = $state({ ...start });
  for (const name of Object.keys(start) as (keyof T & string)[]) {
    const key = view ? `${view}.${name}` : name;
    const setting: Setting = {
      read: () => now[name],
      write: (value) => ((now as Record<string, Value>)[name] = value),
      start: start[name],
      allowed: allowed[name] ?? (() => true),
    };
    settings.set(key, setting);
    const said = waiting.get(key);
    if (said !== undefined) take(setting, said);
    waiting.delete(key);
  }
  many = settings.size;
  return now;
}

/** Whether a number lies between two others; for `allowed`. */
export const between = (least: number, most: number): Check => (value) =>
  typeof value === "number" && value >= least && value <= most;

/** Whether a whole number lies between two others, and is a multiple of a third; for `allowed`. */
export const whole = (least: number, most: number, of = 1): Check => (value) =>
  between(least, most)(value) && Number(value) % of === 0;

/** Whether a value is one of a list; for `allowed`. */
export const oneOf = (values: readonly Value[]): Check => (value) => values.includes(value);

function take(setting: Setting, said: string): void {
  const value = parsed(said, setting.start);
  if (value !== undefined && setting.allowed(value)) setting.write(value);
}

function parsed(said: string, like: Value): Value | undefined {
  if (typeof like === "boolean") return said === "true" ? true : said === "false" ? false : undefined;
  if (typeof like === "string") return said.slice(0, 500);
  const number = said.trim() === "" ? Number.NaN : Number(said);
  return Number.isFinite(number) ? number : undefined;
}

/** The settings that are not as they start, as they stand in an address. */
export function written(view: string): string {
  const changed = new URLSearchParams();
  if (many)
    for (const [key, setting] of settings) {
      const value = setting.read();
      if (value !== setting.start) changed.set(key, String(value));
    }
  for (const [key, said] of waiting) changed.set(key, said);
  const query = changed.toString();
  return `#${view}${query ? `?${query}` : ""}`;
}

/** The address of a view with these settings; how the page looks stays as it is. */
export function addressOf(view: string, said: string): string {
  const asked = new URLSearchParams(said);
  for (const name of ["look", "only", "keys"] as const)
    if (shared[name] !== settings.get(name)!.start) asked.set(name, String(shared[name]));
  return `#${view}${asked.size ? `?${asked}` : ""}`;
}

/** Take over what an address says; returns the view that it names. Settings that it leaves out start anew. */
export function readAddress(hash: string): string {
  const [view, query = ""] = hash.replace(/^#/, "").split(/\?(.*)/s);
  const said = new URLSearchParams(query);
  known = hash;
  waiting.clear();
  for (const [key, setting] of settings) {
    const value = said.get(key);
    setting.write(setting.start);
    if (value !== null) take(setting, value);
  }
  for (const [key, value] of said) if (!settings.has(key)) waiting.set(key, value);
  return view;
}

/** Write the settings into the address a moment from now, and only once for a slider that moves. */
export function keepInAddress(view: string): void {
  due = written(view);
  clearTimeout(timer);
  timer = setTimeout(write, 150);
}

/** Go to a view as a step that the browser's back button takes back. */
export function visit(view: string): void {
  write();
  const address = written(view);
  if (address !== location.hash) history.pushState(null, "", address);
  known = location.hash;
}

/** Put what a view shows now into the address at once. */
export function putInAddress(view: string): void {
  clearTimeout(timer);
  due = written(view);
  write();
}

function write(): void {
  clearTimeout(timer);
  if (due !== undefined && location.hash === known) {
    if (due !== known) history.replaceState(history.state, "", due);
    known = location.hash;
  }
  due = undefined;
}

/** The settings that are there, by their names in an address, and what they are now. */
export const settingsNow = (): Record<string, Value> =>
  Object.fromEntries([...settings].map(([key, setting]) => [key, setting.read()]));

/** What is pointed at, in all views alike; and how the page looks: one view at a time, and whether J and K go on. */
export const shared = settingsOf(
  "",
  { position: 12, other: 5, pair: 2, head: 0, encoding: "", look: "", only: true as boolean, keys: true },
  {
    position: whole(0, 4096),
    other: whole(0, 4096),
    pair: whole(0, 512),
    head: whole(0, 256),
    look: oneOf(["", "light", "dark"]),
  },
);
