// How each state looks and reads. Colours are after Okabe and Ito, which colour-blind people can tell apart, and
// each has a mark of its own.

import type { State } from "./api";

export type CellState = State | "missing";

export interface Look {
  color: string;
  ink: string;
  mark: string;
  words: string;
}

export const LOOKS: Record<CellState, Look> = {
  published: { color: "#007A59", ink: "#ffffff", mark: "✓", words: "Published" },
  quarantined: { color: "#E69F00", ink: "#1a1a1a", mark: "Q", words: "Published, with rows in quarantine" },
  running: { color: "#56B4E9", ink: "#1a1a1a", mark: "▶", words: "Running" },
  queued: { color: "#CC79A7", ink: "#1a1a1a", mark: "…", words: "Waiting" },
  failed: { color: "#B34700", ink: "#ffffff", mark: "✕", words: "Failed" },
  empty: { color: "#9a9a9a", ink: "#1a1a1a", mark: "0", words: "Nothing published" },
  missing: { color: "transparent", ink: "currentColor", mark: "?", words: "Missing" },
};

export const ORDER: CellState[] = ["published", "quarantined", "running", "queued", "failed", "empty", "missing"];
