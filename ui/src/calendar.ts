// Which slices there are and which are missing. Pure.

import type { RunWithoutSlice, SliceLine, State } from "./api";
import { publishedUnder } from "./runs";

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

/** A run that a backfill would make, as Airflow's API answers it. */
export interface PlannedRun {
  logical_date: string | null;
  partition_key?: string | null;
}

const DAY = /^(\d{4})-?(\d{2})-?(\d{2})$/;
const HOUR = /^(\d{4})-?(\d{2})-?(\d{2})[T _-](\d{2})(?::?00){0,2}Z?$/;
const DAY_MS = 86_400_000;
const HOUR_MS = 3_600_000;
/** On the mean; no step of whole hours is as long. */
const MONTH_MS = 30.4375 * DAY_MS;
/** Of slices that are further apart, the year of one was mistyped, or it stands for all time. */
const APART_MS = 1_000 * DAY_MS;
/** From so many days on, a weekday, or an hour of the day, that never had a slice is not expected to have one. */
const WEEKDAYS_SHOW = 21;
const HOURS_SHOW = 3;

/** What a run's slices of the same name, of a task that is mapped over tables, are shown as: the first of these. */
const URGENCY: State[] = ["failed", "running", "queued", "quarantined", "published", "empty"];

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
  return latest(slices.filter(({ outcome }) => outcome !== null));
}

/** The run whose version of each slice is published although a later run published none. */
export function publishedBefore(slices: SliceLine[]): Map<string, SliceLine> {
  const byKey = new Map<string, SliceLine[]>();
  for (const slice of slices) byKey.set(slice.slice_key, [...(byKey.get(slice.slice_key) ?? []), slice]);
  const before = [...latest(slices)].map(([key, line]) => [key, publishedUnder(line, byKey.get(key) ?? [])] as const);
  return new Map(before.filter((one): one is [string, SliceLine] => one[1] !== null));
}

/** How most slices are named: a person may give one a name of its own. */
export function gridOf(keys: Iterable<string>): Grid {
  const all = [...keys];
  const are = (pattern: RegExp) => all.filter((key) => instantOf(key, pattern) !== null).length > all.length / 2;
  return are(DAY) ? "days" : are(HOUR) ? "hours" : "names";
}

/** The slices that stand in the grid, and those with names of their own. */
export function splitByGrid(
  slices: Map<string, SliceLine>,
  grid: Grid,
): [dated: Map<string, SliceLine>, named: Map<string, SliceLine>] {
  const isDated = (key: string) => grid !== "names" && instantOf(key, grid === "days" ? DAY : HOUR) !== null;
  const parts = [true, false].map((wanted) => new Map([...slices].filter(([key]) => isDated(key) === wanted)));
  return parts as [Map<string, SliceLine>, Map<string, SliceLine>];
}

/**
 * The keys from the first to the last that have no slice, by the rhythm of those that have.
 *
 * @param end  an instant up to which there should be slices, as keys name instants; see `expectedUntil`.
 */
export function missingKeys(slices: Map<string, SliceLine>, grid: Grid, end: number | null = null): string[] {
  const like = slices.keys().next().value;
  if (grid === "names" || like === undefined) return [];
  const [pattern, unit] = grid === "days" ? [DAY, DAY_MS] : [HOUR, HOUR_MS];
  const known = new Set([...slices.keys()].map((key) => instantOf(key, pattern) as number));
  const instants = [...known].sort((a, b) => a - b);
  const step = usualStep(instants) ?? unit;
  const gaps = partsOf(instants).flatMap((part) => gapsIn(part, step, end, zoneOf(slices)));
  return gaps.map((gap) => keyLike(like, gap));
}

/**
 * The runs that have not come to their slice, by the key that it would have, where no other run has it.
 *
 * @param runs  the newest first.
 */
export function slicesToCome(
  slices: Map<string, SliceLine>,
  grid: Grid,
  runs: RunWithoutSlice[],
): Map<string, RunWithoutSlice> {
  const found = new Map<string, RunWithoutSlice>();
  if (grid === "names") return found;
  // Without slices of dated runs, a run's date does not tell its slice: a task may be mapped over days.
  const areOfDates = leadsOf(slices, grid).length > 0;
  const pattern = grid === "days" ? DAY : HOUR;
  const known = new Set([...slices.keys()].map((key) => instantOf(key, pattern)));
  for (const run of runs) {
    if (!run.partition_key && !areOfDates) continue;
    const key = keyOfRun(slices, grid, { logical_date: run.run_date, partition_key: run.partition_key });
    const instant = instantOf(key, pattern);
    if (instant !== null && !known.has(instant) && !found.has(key)) found.set(key, run);
  }
  return found;
}

function gapsIn(instants: number[], step: number, end: number | null, timezone: string | null): number[] {
  const last = instants.at(-1) as number;
  const isExpected = rhythmOf(instants, step, timezone);
  const isEndNear = end !== null && end > last && end - last <= APART_MS;
  const gaps: number[] = [];
  for (const [i, start] of instants.entries()) {
    const stop = instants[i + 1] ?? (isEndNear ? end : last);
    const between: number[] = [];
    let instant = stepFrom(start, step);
    for (; instant < stop; instant = stepFrom(instant, step)) between.push(instant);
    // Where no number of steps leads from one slice to the next, one of them is out of the rhythm.
    if (instant !== stop && start !== last) continue;
    gaps.push(...between.filter(isExpected));
  }
  return gaps;
}

/** Splits instants where they are so far apart that nothing is expected between them. */
function partsOf(instants: number[]): number[][] {
  const parts: number[][] = [];
  for (const instant of instants) {
    const part = parts.at(-1);
    if (part && instant - (part.at(-1) as number) <= APART_MS) part.push(instant);
    else parts.push([instant]);
  }
  return parts;
}

function stepFrom(instant: number, step: number): number {
  if (step % MONTH_MS !== 0) return instant + step;
  const date = new Date(instant);
  return date.setUTCMonth(date.getUTCMonth() + step / MONTH_MS);
}

/** Whether a slice is expected at an instant that steps lead to. */
function rhythmOf(instants: number[], step: number, timezone: string | null): (instant: number) => boolean {
  const span = (instants.at(-1) as number) - (instants[0] as number);
  const weekdays = new Set(instants.map((instant) => new Date(instant).getUTCDay()));
  const hours = new Set(instants.map((instant) => new Date(instant).getUTCHours()));
  const anyWeekday = step > DAY_MS || span < WEEKDAYS_SHOW * DAY_MS;
  const anyHour = step >= DAY_MS || span < HOURS_SHOW * DAY_MS;
  return (instant) => {
    const date = new Date(instant);
    return (
      (anyWeekday || weekdays.has(date.getUTCDay())) &&
      (anyHour || hours.has(date.getUTCHours())) &&
      (step >= DAY_MS || isOnClock(instant, timezone))
    );
  };
}

/** False for the hour that is left out when clocks are put forward. */
function isOnClock(instant: number, timezone: string | null): boolean {
  return [-DAY_MS, DAY_MS].some((near) => {
    const offset = clockAt(instant + near, timezone);
    return clockAt(instant - offset, timezone) === offset;
  });
}

/**
 * Those of the missing keys that no run can have that is not loaded: a slice has no run before its day.
 *
 * @param slices  the newest runs, the newest first.
 */
export function surelyMissing(missing: string[], grid: Grid, slices: SliceLine[]): string[] {
  const oldest = slices.at(-1);
  const since = Date.parse(oldest?.ended ?? oldest?.started ?? "");
  return missing.filter((key) => (instantOf(key, grid === "days" ? DAY : HOUR) as number) >= since + DAY_MS);
}

/**
 * The start of the schedule's next interval as keys name instants: in the DAG's timezone. A schedule may begin in
 * months: what is still to come is not missing.
 */
export function expectedUntil(
  slices: Map<string, SliceLine>,
  grid: Grid,
  nextStart: string | null,
  now: number,
): number | null {
  if (grid === "names" || nextStart === null) return null;
  return Math.min(namedBy(slices, grid, Date.parse(nextStart)), now + clockAt(now, zoneOf(slices)));
}

/**
 * From when to when Airflow's backfill makes the runs of these keys and of all between them.
 *
 * @param isPartitioned  whether Airflow itself takes the dates for those of the schedule's timezone.
 */
export function backfillRange(
  slices: Map<string, SliceLine>,
  grid: Grid,
  keys: string[],
  isPartitioned = false,
): [Date, Date] | null {
  const [pattern, unit] = grid === "days" ? [DAY, DAY_MS] : [HOUR, HOUR_MS];
  const named = keys.map((key) => instantOf(key, pattern)).filter((instant) => instant !== null);
  if (grid === "names" || named.length === 0) return null;
  const [first, last] = [Math.min(...named), Math.max(...named)];
  const timezone = zoneOf(slices);
  const [early, late] = [leadNear(slices, grid, first), leadNear(slices, grid, last)];
  if (early === null || late === null) {
    const clock = isPartitioned ? null : timezone;
    return [new Date(instantAt(first, clock)), new Date(instantAt(last + unit - 1000, clock))];
  }
  // The start is exact: of a schedule by a timedelta, Airflow's runs are steps from there.
  return [new Date(instantAt(first - early, timezone)), new Date(instantAt(last - late, timezone) + unit / 4)];
}

/** The key of a run that Airflow would make. */
export function keyOfRun(slices: Map<string, SliceLine>, grid: Grid, run: PlannedRun): string {
  if (run.partition_key) return run.partition_key;
  const like = slices.keys().next().value;
  if (grid === "names" || like === undefined || !run.logical_date) return run.logical_date ?? "";
  return keyLike(like, namedBy(slices, grid, Date.parse(run.logical_date)));
}

/** What the key of a run of this date names. */
function namedBy(slices: Map<string, SliceLine>, grid: Grid, date: number): number {
  const unit = grid === "days" ? DAY_MS : HOUR_MS;
  const local = date + clockAt(date, zoneOf(slices));
  const lead = leadNear(slices, grid, local);
  return unit * (lead === null ? Math.floor(local / unit) : Math.round((local + lead) / unit));
}

/** The schedule's timezone, as the newest slice has it. */
function zoneOf(slices: Map<string, SliceLine>): string | null {
  return slices.values().next().value?.timezone ?? null;
}

/** What a timezone's clock is ahead of UTC; nothing where this browser does not know the timezone. */
function clockAt(instant: number, timezone: string | null): number {
  const clock = clockOf(timezone ?? "UTC")?.format(instant);
  return clock === undefined ? 0 : Date.parse(`${clock.replace(" ", "T")}Z`) - Math.floor(instant / 1000) * 1000;
}

/** Made once: it takes longer than to read a clock a hundred times. */
const clocks = new Map<string, Intl.DateTimeFormat | undefined>();

function clockOf(timeZone: string): Intl.DateTimeFormat | undefined {
  if (!clocks.has(timeZone)) {
    try {
      clocks.set(timeZone, new Intl.DateTimeFormat("sv-SE", { timeZone, dateStyle: "short", timeStyle: "medium" }));
    } catch {
      clocks.set(timeZone, undefined);
    }
  }
  return clocks.get(timeZone);
}

/** The instant at which a timezone's clock shows this. */
function instantAt(local: number, timezone: string | null): number {
  return local - clockAt(local - clockAt(local, timezone), timezone);
}

/** What a run's date, by the schedule's clock, lacks to the one that its slice's key names: of the nearest such slice. */
function leadNear(slices: Map<string, SliceLine>, grid: Grid, local: number): number | null {
  let nearest: Lead | null = null;
  for (const lead of leadsOf(slices, grid)) {
    if (nearest === null || Math.abs(lead.own - local) < Math.abs(nearest.own - local)) nearest = lead;
  }
  return nearest && nearest.named - nearest.own;
}

/** A run's date by the schedule's clock, and what its slice's key names. */
interface Lead {
  own: number;
  named: number;
}

/** Made once for some slices: to read a clock takes its time, and each of a thousand runs asks for all of them. */
const leads = new WeakMap<Map<string, SliceLine>, Lead[]>();

function leadsOf(slices: Map<string, SliceLine>, grid: Grid): Lead[] {
  const known = leads.get(slices);
  if (known) return known;
  const timezone = zoneOf(slices);
  const found = [...slices.values()].flatMap(({ slice_key, run_date }) => {
    const named = instantOf(slice_key, grid === "days" ? DAY : HOUR);
    const date = Date.parse(run_date ?? "");
    return named === null || Number.isNaN(date) ? [] : [{ own: date + clockAt(date, timezone), named }];
  });
  leads.set(slices, found);
  return found;
}

/** Slices with names of their own, in the order of these. */
export function namesOf(named: Map<string, SliceLine>): Cell[] {
  return [...named.keys()].sort(byName).map((key) => ({ key, slice: named.get(key) ?? null }));
}

/** Months of days, or days of hours, the newest first. */
export function blocksOf(
  slices: Map<string, SliceLine>,
  grid: Grid,
  missing: string[],
  toCome: Map<string, RunWithoutSlice> = new Map(),
): Block[] {
  const pattern = grid === "days" ? DAY : HOUR;
  const cells = new Map<number, Cell>();
  for (const [key, slice] of slices) cells.set(instantOf(key, pattern) as number, { key, slice });
  for (const key of missing) {
    cells.set(instantOf(key, pattern) as number, { key, slice: null });
  }
  for (const [key, run] of toCome) cells.set(instantOf(key, pattern) as number, { key, slice: null, run });
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

/** Writes an instant as another key is written: its digits change, and nothing else. */
function keyLike(key: string, instant: number): string {
  const iso = new Date(instant).toISOString();
  let digits = (iso.slice(0, 10) + iso.slice(11, 13)).replaceAll("-", "");
  return key.replace(/\d/g, (old) => {
    const digit = digits.slice(0, 1);
    digits = digits.slice(1);
    return digit || old;
  });
}

/** The most frequent step, once it was seen twice: two days apart may be every second day, or a gap. */
function usualStep(instants: number[]): number | null {
  const times = new Map<number, number>();
  for (let i = 1; i < instants.length; i++) {
    const step = stepBetween(instants[i - 1] as number, instants[i] as number);
    times.set(step, (times.get(step) ?? 0) + 1);
  }
  const [most] = [...times].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  return most !== undefined && most[1] > 1 ? most[0] : null;
}

/** Months between the same days of them, which differ in length. */
function stepBetween(early: number, late: number): number {
  const [from, to] = [new Date(early), new Date(late)];
  const months = 12 * (to.getUTCFullYear() - from.getUTCFullYear()) + to.getUTCMonth() - from.getUTCMonth();
  return stepFrom(early, months * MONTH_MS) === late && months > 0 ? months * MONTH_MS : late - early;
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
