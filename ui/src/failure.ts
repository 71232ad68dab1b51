// What a failure says beside its sentence: where it was, how far the run had come, and what to change. Pure.

import type { FailureLine } from "./api";
import { count } from "./format";

/** Of kinds that no rerun can fix (`FINAL` of `contract/result/failure.py`): what has to change before one. */
const FIRST: Record<string, string> = {
  input: "Change the DAG's arguments or the data first: a run of the same fails again.",
  model: "Make the model available first: a run of the same fails again.",
  cluster: "Change the cluster, or what the task asks of it, first: a run of the same fails again.",
  connection: "Change the Airflow connection first: a run of the same fails again.",
};

const TOO_MANY = "Change what made the rows fail, ask for them once more, or accept that they are missing.";

export function changeFirst(failure: FailureLine | null): string | null {
  if (failure === null) return null;
  return hasTooManyFailed(failure) ? TOO_MANY : (FIRST[failure.kind] ?? null);
}

/** Whether more rows failed than the task lets. */
export function hasTooManyFailed(failure: FailureLine | null): boolean {
  return failure?.code === "too_many_failed";
}

/** A record's text, which has neither a capital, unless it is a name, nor a full stop. */
export function sentenceOf(text: string): string {
  const begun = /^[a-z]+ /.test(text) ? text.charAt(0).toUpperCase() + text.slice(1) : text;
  return /[.?!]$/.test(begun) ? begun : `${begun}.`;
}

const PLACES: [string, (at: string | number) => string][] = [
  ["file", (at) => String(at)],
  ["row", (at) => `row ${typeof at === "number" ? count(at) : at}`],
  ["column", (at) => `column ${at}`],
  ["worker", (at) => `worker ${at}`],
  ["node", (at) => `node ${at}`],
];

export function placeWords(place: Record<string, string | number>): string {
  return PLACES.flatMap(([name, words]) => (place[name] === undefined ? [] : [words(place[name])])).join(", ");
}

const COUNTS = ["planned", "finished", "failed"];

/** `195 planned, 65 finished`. */
export function countWords(counts: Record<string, number>): string {
  const rank = (name: string) => (COUNTS.indexOf(name) + COUNTS.length + 1) % (COUNTS.length + 1);
  const known = Object.entries(counts).filter(([name, rows]) => rows > 0 || COUNTS.includes(name));
  return known.sort(([a], [b]) => rank(a) - rank(b)).map(([name, rows]) => `${count(rows)} ${name.replaceAll("_", " ")}`).join(", ");
}
