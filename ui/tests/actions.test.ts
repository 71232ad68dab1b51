import { describe, expect, it } from "vitest";

import { actionsFor, lacking, usualCost } from "../src/actions";
import { slice } from "./calendar.test";

const names = (...given: Parameters<typeof slice>) => actionsFor(slice(...given)).map((action) => action.name);
const counts = { planned: 100, succeeded: 88, quarantined: 12 };

describe("actionsFor", () => {
  it("offers what helps", () => {
    expect(names("a", { counts: { planned: 100, succeeded: 100 } })).toEqual(["Answer all rows again"]);
    expect(names("a", { counts })).toEqual(["Answer quarantined rows again", "Answer all rows again"]);
    expect(names("a", { state: "failed", published_version: null })).toEqual(["Run again", "Accept its quarantine"]);
  });
  it("leaves running slices and trials alone", () => {
    expect(names("a", { state: "running" })).toEqual([]);
    expect(names("a", { trial: "first-10" })).toEqual([]);
  });
  it("says how much will be asked again, and sets the slice", () => {
    const [retry] = actionsFor(slice("2026-01-31", { counts }));
    expect(retry?.words).toContain("12 rows in quarantine");
    expect(retry?.words).toContain("88 answered rows stay");
    expect(retry?.conf).toEqual({ slice: "2026-01-31", retry_quarantined: true });
  });
  it("runs with what the slice's run was configured with, such as its model", () => {
    const conf = { slice: "2026-01-01", last_slice: "2026-01-31", max_rows: null, model: "large", force: true, max_quarantine: 0.2 };
    const of = (more: Parameters<typeof slice>[1]) => actionsFor(slice("2026-01-05", more), null, conf).map((action) => action.conf);
    expect(of({ counts })).toEqual([
      { slice: "2026-01-05", model: "large", max_quarantine: 0.2, retry_quarantined: true },
      { slice: "2026-01-05", model: "large", max_quarantine: 0.2, force: true },
    ]);
    expect(of({ state: "failed", published_version: null })).toEqual([
      { slice: "2026-01-05", model: "large", max_quarantine: 0.2, force: true },
      { slice: "2026-01-05", model: "large", max_quarantine: 1, force: true },
    ]);
  });
  it("says what it cost before", () => {
    const known = { counts, tokens: { input: 1_500_000, output: 200_000 }, gpu_seconds: 7200 };
    const priced = { show_samples: false, gpu_hour_price: 2.5, currency: "USD" };
    const words = (more: typeof priced | null) => actionsFor(slice("a", known), more).at(-1)?.words;
    expect(words(null)).toContain("The last time it took 1.7M tokens.");
    expect(words(priced)).toContain("The last time it took 1.7M tokens and GPUs for $5.00.");
    expect(actionsFor(slice("a", { counts })).at(-1)?.words).not.toContain("last time");
    const cheap = slice("b", { ...known, tokens: {}, gpu_seconds: 3600 });
    expect(usualCost([slice("a", known), cheap], priced)).toBe("1.7M tokens and GPUs for $3.75");
    // A run that had most rows already says nothing of what all of them cost.
    const resumed = slice("c", { ...known, counts: { ...counts, resumed: 90 }, gpu_seconds: 60 });
    expect(usualCost([resumed], priced)).toBe("1.7M tokens");
    expect(usualCost([slice("a", known), resumed], priced)).toBe("1.7M tokens and GPUs for $5.00");
  });
  it("needs the DAG's Params", () => {
    const [retry] = actionsFor(slice("a", { counts }));
    expect(retry && lacking(retry, { slice: {} })).toEqual(["retry_quarantined"]);
    expect(retry && lacking(retry, { slice: {}, retry_quarantined: {}, other: {} })).toEqual([]);
  });
});

