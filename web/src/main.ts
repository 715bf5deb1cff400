import { mount } from "svelte";
import App from "./App.svelte";
import { dataOf } from "./data";
import * as formulas from "./formulas";
import One from "./One.svelte";
import { settingsNow } from "./state.svelte";
import { views, viewsOf } from "./view";

export { formulas, settingsNow };

/** The names of the views, for who writes pages. */
export const names = views.map((view) => view.about.id);

/** Fill a page: the explorer where it has a place for it, single views where it names them. */
function fill(page: Document): void {
  const whole = page.getElementById("explorer");
  const singles = [...page.querySelectorAll<HTMLElement>("[data-view]")];
  if (!whole && !singles.length) return;
  const data = dataOf(page);
  if (whole) mount(App, { target: whole, props: { data } });
  for (const target of singles) {
    const view = views.find((v) => v.about.id === target.dataset.view);
    if (!view) throw new Error(`there is no view ${target.dataset.view}`);
    if (viewsOf(data).includes(view)) mount(One, { target, props: { view, data } });
  }
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => fill(document));
else fill(document);
