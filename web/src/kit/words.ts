/** Return a text of at most `limit` letters. */
export const shorten = (text: string, limit: number): string =>
  text.length > limit ? `${text.slice(0, limit - 1)}…` : text;

const SIGNS: Record<string, string> = { " ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "": "∅" };

/** Return a token with visible signs for spaces and line ends. */
export const visible = (token: string): string =>
  token === "" ? SIGNS[""] : token.replace(/[ \n\t\r]/g, (letter) => SIGNS[letter]);
