/** A text of at most so many letters. */
export const shortened = (text: string, most: number): string =>
  text.length > most ? `${text.slice(0, most - 1)}…` : text;

const SIGNS: Record<string, string> = { " ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "": "∅" };

/** A token that can be seen: spaces and ends of lines get signs. */
export const visible = (token: string): string =>
  token === "" ? SIGNS[""] : token.replace(/[ \n\t\r]/g, (letter) => SIGNS[letter]);
