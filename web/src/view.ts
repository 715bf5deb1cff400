import type { Component } from "svelte";
import type { Data } from "./data";

/** The description of a view, which each file of views/ exports. */
export interface ViewDescription {
  /** The view's name in addresses. */
  id: string;
  /** The view's rank on the page; smaller numbers come first. */
  place: number;
  title: string;
  /** One sentence about what the view shows. */
  summary: string;
  /** The reason, in a few sentences. */
  explanation: string;
  /** The lesson that explains the view: its place in the course, and the name of its files. */
  lesson?: { place: number; name: string };
  /** The path of the documentation's page in the repository. */
  page: string;
  /** Questions that the view answers, each with the settings for the answer in the form of an address. */
  questions: [question: string, settings: string][];
  /** Whether the page has the data of the view; without this function every page has. */
  isAvailable?: (data: Data) => boolean;
}

/** Return the first words of a title, for lists. */
export const shortTitle = ({ title }: ViewDescription): string => title.split(/[:,]/)[0];

export interface View {
  description: ViewDescription;
  default: Component<{ data: Data }>;
}

const files = import.meta.glob<View>("./views/*.svelte", { eager: true });

/** All views, by rank; a new file in views/ is a new view. */
export const views: View[] = Object.values(files).sort((a, b) => a.description.place - b.description.place);

/** Return the views that the page has data for. */
export const viewsOf = (data: Data): View[] => views.filter(({ description }) => description.isAvailable?.(data) ?? true);
