// Which slices there are and which are missing. Pure.

import type { DateWithoutRun, RunWithoutSlice, SliceLine, State } from "./api";
import { isOfPublished } from "./failure";
import { hasResult, publishedUnder } from "./runs";

export type Grid = "days" | "hours" | "names";

export interface Cell {
  key: string;
  slice: SliceLine | null;
  /** The run that has not come to its slice, where there is one. */
  run?: RunWithoutSlice;
}

export interface Block {
  title: string;
  /** Cells before the first, so that each stands in its column. */
  lead: number;
  cells: (Cell | null)[];
}

const DAY = /^(\d{4})-?(\d{2})-?(\d{2})$/;
const HOUR = /^(\d{4})-?(\d{2})-?(\d{2})[T _-](\d{2})(?::?00){0,2}Z?$/;
const DAY_MS = 86_400_000;
const HOUR_MS = 3_600_000;

/** What a run's slices of the same name, of a task that is mapped over tables, are shown as: the first of these. */
const URGENCY: State[] = ["failed", "held", "running", "queued", "quarantined", "published", "empty"];

/** The latest run of each slice, as it is listed: the newest first. Trials are tables of their own. */
export function latest(slices: SliceLine[]): Map<string, SliceLine> {
  const found = new Map<string, SliceLine>();
  for (const slice of slices) {
    const known = found.get(slice.slice_key);
    const isWorse = known?.run_id === slice.run_id && URGENCY.indexOf(slice.state) < URGENCY.indexOf(known.state);
    if (!slice.trial && (known === undefined || isWorse)) found.set(slice.slice_key, slice);
  }
  return found;
}

/** The latest run of each slice that has figures: a later one may still run, or failed. */
export function latestWithFigures(slices: SliceLine[]): Map<string, SliceLine> {
  return latest(slices.filter(hasResult));
}

/**
 * The run whose version of each slice is published although a later run published none; null where only the later
 * one's failure knows of it, as Airflow forgets a task's figures when it runs again in the same run.
 */
export function publishedBefore(slices: SliceLine[]): Map<string, SliceLine | null> {
  const byKey = new Map<string, SliceLine[]>();
  for (const slice of slices) byKey.set(slice.slice_key, [...(byKey.get(slice.slice_key) ?? []), slice]);
  const before = [...latest(slices)].map(([key, line]) => [line, publishedUnder(line, byKey.get(key) ?? [])] as const);
  const known = before.filter(([line, earlier]) => earlier !== null || isOfPublished(line.failure));
  return new Map(known.map(([line, earlier]) => [line.slice_key, earlier]));
}

/** How most slices are named: a person may give one a name of its own. */
export function gridOf(keys: Iterable<string>): Grid {
  const all = [...keys];
  const are = (pattern: RegExp) => all.filter((key) => instantOf(key, pattern) !== null).length > all.length / 2;
  return are(DAY) ? "days" : are(HOUR) ? "hours" : "names";
}

/** The cells that stand in the grid, and those with names of their own. */
export function splitByGrid(cells: Cell[], grid: Grid): [dated: Cell[], named: Cell[]] {
  const isDated = ({ key }: Cell) => grid !== "names" && instantOf(key, grid === "days" ? DAY : HOUR) !== null;
  return [cells.filter(isDated), cells.filter((cell) => !isDated(cell))];
}

/**
 * The slices that the schedule should have, and that nobody has made.
 *
 * @param areAll  whether all runs of slices are loaded: else a run before them may have made one.
 */
export function missingKeys(dates: DateWithoutRun[], slices: SliceLine[], areAll: boolean): string[] {
  const known = latest(slices);
  const oldest = slices.at(-1);
  // The day more is for dates that are written by another clock.
  const since = areAll ? -Infinity : Date.parse(oldest?.ended ?? oldest?.started ?? "") + DAY_MS;
  const isMissing = (one: DateWithoutRun) =>
    !one.archived && !known.has(one.slice_key) && Date.parse(one.date) >= since;
  return dates.filter(isMissing).map((one) => one.slice_key);
}

/**
 * The runs that have not come to their slice, by its key, where no other run has it.
 *
 * @param runs  the newest first.
 */
export function slicesToCome(slices: SliceLine[], runs: RunWithoutSlice[]): Map<string, RunWithoutSlice> {
  const known = latest(slices);
  const found = new Map<string, RunWithoutSlice>();
  for (const run of runs) {
    const key = run.slice_key;
    if (key !== null && !known.has(key) && !found.has(key)) found.set(key, run);
  }
  return found;
}

/** From when to when Airflow's backfill makes the runs of these slices and of all between them. */
export function backfillRange(dates: DateWithoutRun[], keys: string[]): [Date, Date] | null {
  const wanted = new Set(keys);
  const instants = dates.filter((one) => wanted.has(one.slice_key)).map((one) => Date.parse(one.date));
  return instants.length > 0 ? [new Date(Math.min(...instants)), new Date(Math.max(...instants))] : null;
}

/** Slices with names of their own, in the order of these. */
export function namesOf(cells: Cell[]): Cell[] {
  return [...cells].sort((a, b) => byName(a.key, b.key));
}

/** Each slice that there is, is missing, or is to come. */
export function cellsOf(slices: Map<string, SliceLine>, missing: string[], toCome: Map<string, RunWithoutSlice>): Cell[] {
  return [
    ...[...slices].map(([key, slice]) => ({ key, slice })),
    ...missing.map((key) => ({ key, slice: null })),
    ...[...toCome].map(([key, run]) => ({ key, slice: null, run })),
  ];
}

/** Months of days, or days of hours, the newest first. */
export function blocksOf(dated: Cell[], grid: Grid): Block[] {
  const pattern = grid === "days" ? DAY : HOUR;
  const cells = new Map(dated.map((cell) => [instantOf(cell.key, pattern) as number, cell]));
  const starts = new Set([...cells.keys()].map((instant) => (grid === "days" ? monthOf(instant) : dayOf(instant))));
  return [...starts]
    .sort((a, b) => b - a)
    .map((start) => (grid === "days" ? monthBlock(start, cells) : dayBlock(start, cells)));
}

function monthBlock(start: number, cells: Map<number, Cell>): Block {
  const date = new Date(start);
  const end = Date.UTC(date.getUTCFullYear(), date.getUTCMonth() + 1, 1);
  const days = Array.from({ length: (end - start) / DAY_MS }, (_, i) => cells.get(start + i * DAY_MS) ?? null);
  const title = date.toLocaleDateString("en-US", { month: "long", year: "numeric", timeZone: "UTC" });
  return { title, lead: (date.getUTCDay() + 6) % 7, cells: days };
}

function dayBlock(start: number, cells: Map<number, Cell>): Block {
  const hours = Array.from({ length: 24 }, (_, i) => cells.get(start + i * HOUR_MS) ?? null);
  return { title: new Date(start).toISOString().slice(0, 10), lead: 0, cells: hours };
}

export function dayNumber(key: string): string {
  return DAY.exec(key)?.[3]?.replace(/^0/, "") ?? key;
}

export function hourNumber(key: string): string {
  return HOUR.exec(key)?.[4] ?? key;
}

function instantOf(key: string, pattern: RegExp): number | null {
  const match = pattern.exec(key);
  if (!match) return null;
  const [year, month, day, hour] = match.slice(1).map(Number) as [number, number, number, number | undefined];
  const instant = Date.UTC(year, month - 1, day, hour ?? 0);
  return new Date(instant).getUTCDate() === day && (hour ?? 0) < 24 ? instant : null;
}

function monthOf(instant: number): number {
  const date = new Date(instant);
  return Date.UTC(date.getUTCFullYear(), date.getUTCMonth(), 1);
}

function dayOf(instant: number): number {
  return Math.floor(instant / DAY_MS) * DAY_MS;
}

export function byName(a: string, b: string): number {
  return a.localeCompare(b, "en", { numeric: true });
}
