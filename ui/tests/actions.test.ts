import { describe, expect, it } from "vitest";

import { actionsFor, backfillOf, lacking } from "../src/actions";
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
  it("needs the DAG's Params", () => {
    const [retry] = actionsFor(slice("a", { counts }));
    expect(retry && lacking(retry, { slice: {} })).toEqual(["retry_quarantined"]);
    expect(retry && lacking(retry, { slice: {}, retry_quarantined: {}, other: {} })).toEqual([]);
  });
});

describe("backfillOf", () => {
  it("spans the gap", () => {
    expect(backfillOf("d", ["20260102", "20260104"])).toMatchObject({
      dag_id: "d", from_date: "2026-01-02T00:00:00Z", to_date: "2026-01-04T23:59:59Z", reprocess_behavior: "none",
    });
    expect(backfillOf("d", [])).toBeNull();
    expect(backfillOf("d", ["germany"])).toBeNull();
  });
});
