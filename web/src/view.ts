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
  /** Questions that it answers, each with the settings of the answer as an address has them. */
  ask: [question: string, settings: string][];
  /** Whether the page has what it draws; without a word of it, every page has. */
  has?: (data: Data) => boolean;
}

/** The first words of a title, for lists. */
export const named = ({ title }: About): string => title.split(/[:,]/)[0];

export interface View {
  about: About;
  default: Component<{ data: Data }>;
}

const files = import.meta.glob<View>("./views/*.svelte", { eager: true });

/** All views, in their order: a new one is a new file. */
export const views: View[] = Object.values(files).sort((a, b) => a.about.place - b.about.place);

/** The views that a page has something to draw for. */
export const viewsOf = (data: Data): View[] => views.filter(({ about }) => about.has?.(data) ?? true);
