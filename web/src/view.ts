import type { Component } from "svelte";
import type { Data } from "./data";

/** What a view says of itself: each file of views/ exports one. */
export interface About {
  /** Its name in addresses. */
  id: string;
  /** Where it stands on the page. */
  place: number;
  title: string;
  /** The one sentence that says what to see. */
  see: string;
  /** Why it is so, in a few sentences. */
  why: string;
  /** The lesson of the course that explains it: its place in the course, and the name of its files. */
  lesson?: { place: number; name: string };
  /** The page of the documentation that tells more, in the repository. */
  page: string;
  /** Whether the page has what it needs; where it has not, what to ask for. */
  missing?: (data: Data) => string;
}

export interface View {
  about: About;
  default: Component<{ data: Data }>;
}

const files = import.meta.glob<View>("./views/*.svelte", { eager: true });

/** All views, in their order: a new one is a new file. */
export const views: View[] = Object.values(files).sort((a, b) => a.about.place - b.about.place);
