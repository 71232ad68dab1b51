// What a failure says beside its sentence: where it was, how far the run had come, and what to change. Pure.

import type { FailureLine, FailureStory, Reason, SliceLine, UpstreamTask } from "./api";
import { count } from "./format";
import { listed } from "./text";

/** Of kinds that no rerun alone can fix: what has to change before one. */
const FIRST: Record<string, string> = {
  input: "Change the DAG's arguments or the data first: a run of the same fails again.",
  model: "Make the model available first: a run of the same fails again.",
  cluster: "Change the cluster, or what the task asks of it, first: a run of the same fails again.",
  connection: "Change the Airflow connection first: a run of the same fails again.",
  no_connection: "Add the Airflow connection first: a run of the same fails again.",
};

const OWN_CODE = "Where your own code failed, change it first: a run of the same fails again.";
const UPSTREAM = "Have the tasks before it succeed first: clear those that failed with what is downstream of them.";

const TOO_MANY = "Change what made the rows fail, ask for them once more, or accept that they are missing.";

export function changeFirst({ failure, upstream }: Pick<SliceLine, "failure" | "upstream">): string | null {
  if (upstream !== null) return UPSTREAM;
  if (failure === null) return null;
  if (hasTooManyFailed(failure)) return TOO_MANY;
  const isOfOwnCode = failure.kind === "transient" && ((failure as Partial<FailureStory>).frames ?? []).length > 0;
  return FIRST[failure.kind] ?? (isOfOwnCode ? OWN_CODE : null);
}

/** Whether more rows failed than the task lets. */
export function hasTooManyFailed(failure: FailureLine | null): boolean {
  return failure?.code === "too_many_failed";
}

/** Where nothing tells why. */
export const NO_REASON = "Its task left no reason: its log may have one.";

/** Whether Airflow's log, or the table, may say more of why a run failed. */
export function lacksReason(failure: FailureLine | null): boolean {
  return failure === null || failure.kind === "stopped";
}

/** What is known of a failure, where the task's own record says less. */
export function failureOf<T extends FailureLine>(failure: T | null, reason: Reason | null): T | Reason["failure"] {
  return failure ?? reason?.failure ?? null;
}

/** That a person marked the run as failed, and what is left of it; null where that is not why. */
export function markedWords(failure: FailureLine | null, reason: Reason | null): string | null {
  if (!reason?.is_marked || !lacksReason(failureOf(failure, reason))) return null;
  const finished = failureOf(failure, reason)?.counts.finished ?? 0;
  const kept = finished > 0 ? ` Its ${count(finished)} finished rows are kept.` : "";
  return `${reason.marked_by ?? "Somebody"} marked this run as failed.${kept}`;
}

/** Which tasks failed before one that therefore did not run. */
export function upstreamWords(upstream: UpstreamTask[]): string {
  return `did not run, because ${listed(upstream.map(({ task_id }) => task_id)) || "a task before it"} failed`;
}

/** Whether what an earlier run published is there, and not what this one asks for. */
export function isOfPublished(failure: FailureLine | null): boolean {
  return failure?.code === "published";
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

/** `195 planned = 62 answered + 3 failed (2 invalid output) + 130 left`: rows that failed are finished, too. */
export function countWords({ planned, finished, failed = 0, ...more }: Record<string, number>): string {
  const kinds = Object.entries(more).filter(([, rows]) => rows > 0).map(([name, rows]) => `${count(rows)} ${name.replaceAll("_", " ")}`);
  const parts = [
    [finished === undefined ? 0 : finished - failed, "answered"],
    [failed, `failed${kinds.length > 0 ? ` (${kinds.join(", ")})` : ""}`],
    [(planned ?? 0) - (finished ?? 0), "left"],
  ] as const;
  if (planned === undefined || parts.some(([rows]) => rows < 0)) return "";
  const sum = parts.filter(([rows, name]) => rows > 0 || name === "answered").map(([rows, name]) => `${count(rows)} ${name}`);
  return `${count(planned)} planned = ${sum.join(" + ")}`;
}
