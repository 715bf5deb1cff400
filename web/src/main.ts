import { mount } from "svelte";
import App from "./App.svelte";
import { dataOf } from "./data";
import * as formulas from "./formulas";
import { settingsNow } from "./state.svelte";
import { views } from "./view";

export { formulas, settingsNow };

/** The names of the views, for authors of pages. */
export const names = views.map((view) => view.description.id);

/** Fill the explorer's element, where the page has one. */
function fill(page: Document): void {
  const target = page.getElementById("explorer");
  if (target) mount(App, { target, props: { data: dataOf(page) } });
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => fill(document));
else fill(document);
