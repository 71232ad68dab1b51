// How each state looks and reads, in the colours that Airflow has for its own. Colour-blind people tell them apart by
// the mark.

import type { State } from "./api";

export type CellState = State | "missing";

export interface Look {
  /** Of Airflow's theme. */
  palette: string;
  mark: string;
  words: string;
}

export const LOOKS: Record<CellState, Look> = {
  failed: { palette: "failed", mark: "✕", words: "Failed" },
  missing: { palette: "none", mark: "?", words: "Missing" },
  quarantined: { palette: "warning", mark: "Q", words: "Published, with rows in quarantine" },
  running: { palette: "running", mark: "▶", words: "Running" },
  held: { palette: "deferred", mark: "!", words: "Waiting for a person" },
  queued: { palette: "queued", mark: "…", words: "Waiting" },
  published: { palette: "success", mark: "✓", words: "Published" },
  empty: { palette: "none", mark: "0", words: "Nothing published" },
};

/** What a person should look at is first. */
export const ORDER: CellState[] = ["failed", "missing", "held", "quarantined", "running", "queued", "published", "empty"];

/** Chakra's properties of a box in a state's colours: what failed stands out. */
export function colorsOf(state: CellState): Record<string, string> {
  const { palette } = LOOKS[state];
  if (state === "missing") return { borderColor: "fg.muted", borderStyle: "dashed", borderWidth: "1.5px", color: "fg" };
  const [bg, color] = state === "failed" ? ["solid", "contrast"] : ["muted", "fg"];
  return { bg: `${palette}.${bg}`, borderColor: `${palette}.solid`, borderWidth: "1.5px", color: `${palette}.${color}` };
}
