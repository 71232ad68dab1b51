import { afterEach, describe, expect, it, vi } from "vitest";

import { compareSlices, compareVersions } from "../src/compare";
import { compact, cost, duration, money, percent, rate, span, time } from "../src/format";
import { heldPhases, phasesOf } from "../src/phases";
import { pathOf, routeOf, taskInstancePath } from "../src/route";
import { colorsOf, LOOKS, ORDER } from "../src/states";
import { labelShares, measured, trendsOf } from "../src/trends";
import { slice } from "./calendar.test";

const counts = (planned: number, quarantined = 0) => ({ planned, succeeded: planned - quarantined, quarantined });

describe("numbers", () => {
  it.each([[3.14159, "3.1 s"], [95, "95 s"], [600, "10 min"], [150, "2.5 min"], [9000, "2 h 30 min"], [null, "–"]])(
    "%s seconds read %s", (seconds, text) => expect(duration(seconds)).toBe(text),
  );
  it("gives shares and rates few digits", () => {
    expect([percent(1, 5000), percent(7, 100), percent(93, 100), percent(1, 0)]).toEqual(["< 0.1%", "7.0%", "93%", "–"]);
    expect([compact(0.125), compact(6200), compact(150_300)]).toEqual(["0.125", "6.2K", "150K"]);
    expect([rate(1234.5, "rows/s"), rate(3.456, "rows/s")]).toEqual(["1,235 rows/s", "3.5 rows/s"]);
  });
  it("charges GPU hours, in any currency", () => {
    expect(cost({ cost: null, gpu_seconds: 7200 }, 2.5)).toBe(5);
    expect(cost({ cost: 8, gpu_seconds: 7200 }, 2.5)).toBe(8);
    expect(cost({ cost: null, gpu_seconds: null }, 2.5)).toBeNull();
    expect([money(5, "EUR"), money(5, "credits")]).toEqual(["€5.00", "5.00 credits"]);
  });
});

describe("times", () => {
  afterEach(() => vi.unstubAllGlobals());
  it("say of what has not begun nothing else", () => {
    const at = "2026-01-01T00:00:00Z";
    expect([span(null, null), span(null, at), span(at, null), span(at, at)]).toEqual([
      "not started", "not started", `since ${time(at)}`, `${time(at)} – ${time(at)}`,
    ]);
  });
  const shown = (kept: string | null) => {
    vi.stubGlobal("localStorage", { getItem: (key: string) => (key === "timezone" ? kept : null) });
    return time("2026-01-31T20:00:00Z");
  };
  it("are in the timezone that Airflow's UI shows", () => {
    expect(shown('"Asia/Taipei"')).toMatch(/Feb.* 4:00/);
    expect(shown('"UTC"')).toMatch(/Jan.* 8:00/);
  });
  it.each([null, "{", "5", '"Nowhere/Never"'])("are the browser's for %j", (kept) => {
    expect(shown(kept)).toBe(
      new Date("2026-01-31T20:00:00Z").toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" }),
    );
  });
});

describe("route", () => {
  it("survives names with slashes, colons and signs", () => {
    const route = { dag: "a/b", task: "g.t", run: "scheduled__2026-01-01T00:00:00+00:00", map: 3 };
    expect(routeOf(`/airflow${pathOf(route)}`)).toEqual(route);
    expect(routeOf(pathOf({ dag: "d", task: "t" }))).toEqual({ dag: "d", task: "t" });
    expect(routeOf("/plugin/ray-llm")).toEqual({});
    expect(routeOf("/plugin/ray-llm/dags/%E0%A4%A")).toEqual({});
    expect(taskInstancePath("d", "t", "r+1", 2)).toBe("/dags/d/runs/r%2B1/tasks/t/mapped/2");
  });
});

describe("phasesOf", () => {
  it("adds up to the total", () => {
    const seconds = { queued: 4, engine_start: 20, inference: 30, publish: 1, total: 60 };
    const phases = phasesOf(seconds, { load: 6, compile: 0, warm_up: 2, worker_imports: 7 });
    expect(phases.reduce((sum, phase) => sum + phase.seconds, 0)).toBeCloseTo(60);
    expect(phases.find((phase) => phase.name === "Rest of the engine's start")?.seconds).toBeCloseTo(5);
  });
  it("does not split what does not add up", () => {
    expect(phasesOf({ engine_start: 5 }, { load: 9 }).map((phase) => [phase.name, phase.seconds])).toEqual([
      ["Rest of the engine's start", 5],
    ]);
  });
});

describe("heldPhases", () => {
  it("are those of a slice's own cluster, in their order", () => {
    const held = { total: 30, in_use: 10, inference: 12, image: 8, publish: 0, other: 10 };
    expect(heldPhases(held).map((phase) => [phase.name, phase.seconds])).toEqual([
      ["Image", 8], ["Inference", 12], ["Checks, waiting and end", 10],
    ]);
  });
});

describe("trends", () => {
  const slices = measured([
    slice("2026-01-02", { counts: counts(200, 10), labels: { a: 150, b: 40 }, gpu_seconds: 3600 }),
    slice("2026-01-01", { counts: counts(100), labels: { a: 100 }, gpu_seconds: 1800 }),
    slice("2026-01-03", { outcome: null }),
  ]);
  const series = (title: string, price: number | null = null) =>
    trendsOf(slices, price, "EUR").find((trend) => trend.title === title)?.series.map((one) => one.values);

  it("go from the oldest slice to the newest, and leave out what has no figures", () => {
    expect(series("Rows")).toEqual([[100, 190], [0, 10]]);
    expect(series("Rows with problems")?.[0]).toEqual([0, 5]);
  });
  it("show answers that repeated themselves where there are any", () => {
    const names = (degenerate: number) => {
      const line = slice("a", { counts: { ...counts(100, 4), degenerate } });
      const [trend] = trendsOf([line], null, "EUR").filter(({ title }) => title === "Rows with problems");
      return trend?.series.map(({ name, values }) => [name, ...values]);
    };
    expect(names(0)).toEqual([["In quarantine", 4], ["Truncated", 0]]);
    expect(names(3)).toEqual([["In quarantine", 4], ["Truncated", 0], ["Degenerate", 3]]);
  });
  it("show costs where a price is set", () => {
    expect(series("Cost of GPUs")).toBeUndefined();
    expect(series("Cost of GPUs", 2)).toEqual([[1, 2]]);
    const known = slices.map((line, i) => (i ? { ...line, cost: 7 } : line));
    const costs = (price: number | null) => trendsOf(known, price, "EUR").find((trend) => trend.title === "Cost of GPUs")?.series[0]?.values;
    expect([costs(null), costs(2)]).toEqual([[null, 7], [1, 7]]);
  });
  it("show what GPUs did in the run itself, of a slice that an earlier run began", () => {
    const resumed = slice("a", {
      counts: { ...counts(100), resumed: 90 }, tokens: { input: 9000, output: 1000 }, tokens_per_s: 50,
      seconds: { engine_start: 30, inference: 20 }, gpu_seconds: 100,
    });
    const [trend] = trendsOf([resumed], null, "EUR").filter(({ title }) => title === "Tokens per GPU and second");
    expect(trend?.series[0]?.values).toEqual([10]);
  });
  it("show labels as shares of 100%", () => {
    const shares = labelShares(slices);
    expect(shares.map((one) => one.name)).toEqual(["a", "b"]);
    expect((shares[0]?.values[1] ?? 0) + (shares[1]?.values[1] ?? 0)).toBeCloseTo(100);
  });
  it("put the rarest labels together", () => {
    const labels = Object.fromEntries(Array.from({ length: 30 }, (_, i) => [`label ${i}`, 30 - i]));
    const shares = labelShares([slice("x", { labels })]);
    expect(shares.at(-1)?.name).toBe("21 others");
    expect(shares.reduce((sum, one) => sum + (one.values[0] ?? 0), 0)).toBeCloseTo(100);
  });
});

describe("side by side", () => {
  const version = (labels: Record<string, number> | null, bad = 1) => ({ counts: counts(100, bad), labels });

  it("names counts first, then the labels whose share changed most", () => {
    const changes = compareVersions(version({ a: 50, b: 49 }), version({ a: 20, b: 48, c: 31 }));
    expect(changes.map((change) => change.name)).toEqual([
      "Answered rows", "Rows in quarantine", "Label c", "Label a", "Label b",
    ]);
    expect(changes[2]?.before).toBe(0);
    expect(changes[2]?.after).toBeCloseTo(31.3, 1);
  });
  it("counts answers that were cut, and those that repeated themselves, where there are any", () => {
    const cut = (truncated: number, degenerate: number): { counts: Record<string, number>; labels: null } => {
      return { counts: { ...counts(100, 5), truncated, degenerate }, labels: null };
    };
    const names = (degenerate: number) => compareVersions(cut(1, 0), cut(2, degenerate)).map(({ name }) => name);
    expect(names(0)).toEqual(["Answered rows", "Rows in quarantine", "Truncated answers"]);
    expect(names(4)).toEqual(["Answered rows", "Rows in quarantine", "Truncated answers", "Degenerate answers"]);
  });
  it("knows nothing of labels that were not counted, or that a report leaves out", () => {
    const many = Object.fromEntries(Array.from({ length: 50 }, (_, i) => [`label ${i}`, 50 - i]));
    const before = (labels: Record<string, number> | null) =>
      compareVersions(version(labels), version({ rare: 1 })).find((change) => change.name === "Label rare")?.before;
    expect([before(null), before(many), before({ a: 1 })]).toEqual([null, null, 0]);
  });
  it("takes labels for labels, whatever they are called", () => {
    const named = JSON.parse('{"constructor": 33, "__proto__": 66}') as Record<string, number>;
    const changes = compareVersions(version({ a: 99 }), version(named));
    expect(changes.slice(2).map(({ before, after }) => [before, after && Math.round(after)])).toEqual([
      [100, 0], [0, 67], [0, 33],
    ]);
    const shares = labelShares([slice("x", { labels: { a: 1 } }), slice("y", { labels: named })]);
    expect(shares.map(({ values }) => Math.round(values[0] ?? NaN))).toEqual([0, 0, 100]);
  });
  it("leaves out what neither slice has", () => {
    const [one, other] = [slice("a", { counts: counts(10), rows_per_s: 5 }), slice("b", { counts: counts(20) })];
    expect(compareSlices(one, other).map(({ name, before, after }) => [name, before, after])).toEqual([
      ["Answered rows", 10, 20], ["Speed", 5, null],
    ]);
  });
});

describe("states", () => {
  it("each have a colour and a mark of their own", () => {
    const looks = ORDER.map((state) => LOOKS[state]);
    expect(new Set(looks.map((look) => look.mark)).size).toBe(looks.length);
    expect(new Set(ORDER.map((state) => JSON.stringify(colorsOf(state)))).size).toBe(looks.length);
  });
});
