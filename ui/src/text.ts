// Text that others wrote, so that it shows what it holds and changes nothing around it. Pure.

/** The page's own, whichever Airflow's UI is in: some of those are written from right to left. */
export const LANGUAGE = { dir: "ltr", lang: "en" };

/** Control characters, and those that turn the direction of writing, also of what follows. */
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

/** Where names only tell things apart, longer ones are cut. */
export const NAME = 80;

/** Shows characters that could not be seen: `a‹202E›b`. */
export function visible(text: string): string {
  return text.replace(HIDDEN, (c) => `‹${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}›`);
}

export function shortName(text: string, most: number = NAME): string {
  const shown = visible(text);
  return shown.length <= most ? shown : `${shown.slice(0, most - 1)}…`;
}

/** Names in a sentence: `a, b and 3 more`. */
export function listed(names: string[], most = 8): string {
  const shown = names.slice(0, most).map((name) => shortName(name)).join(", ");
  return names.length > most ? `${shown} and ${names.length - most} more` : shown;
}
