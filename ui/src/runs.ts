// The runs of one slice, as they are listed: the newest first. Pure.

import type { SliceLine } from "./api";

/** Whether the run is done with its slice: of one that waits for a person, nothing is published yet. */
export function hasResult({ outcome }: SliceLine): boolean {
  return outcome !== null && outcome !== "held";
}

/** The newest run: trials are tables of their own. */
export function newestOf(line: SliceLine, history: SliceLine[]): SliceLine {
  return history.find(({ trial }) => trial === line.trial) ?? line;
}

/** What is published although this run, the newest, published nothing. */
export function publishedUnder(line: SliceLine, history: SliceLine[]): SliceLine | null {
  if (hasResult(line)) return null;
  const isOfTable = ({ trial, table }: SliceLine) => trial === line.trial && table === line.table;
  return history.find((run) => isOfTable(run) && run.published_version !== null) ?? null;
}
