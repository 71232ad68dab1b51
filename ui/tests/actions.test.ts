import { describe, expect, it } from "vitest";

import { actionsFor, clearOf, lacking, usualCost } from "../src/actions";
import type { FailureLine, Reason } from "../src/api";
import { changeFirst, countWords, markedWords, placeWords, sentenceOf, upstreamWords } from "../src/failure";
import { slice } from "./calendar.test";

const names = (...given: Parameters<typeof slice>) => actionsFor(slice(...given)).map((action) => action.name);
const failure = (kind: string, sentence = "", code = ""): FailureLine => ({ kind, sentence, code, advice: [], place: {}, counts: {}, row_texts: [] });
const TOO_MANY = failure("input", "57 of 195 rows failed", "too_many_failed");
const first = (of: FailureLine | null) => changeFirst({ failure: of, upstream: null });
const counts = { planned: 100, succeeded: 88, quarantined: 12 };

describe("actionsFor", () => {
  it("offers what helps", () => {
    expect(names("a", { counts: { planned: 100, succeeded: 100 } })).toEqual(["Answer all rows again"]);
    expect(names("a", { counts })).toEqual(["Answer quarantined rows again", "Answer all rows again"]);
    expect(names("a", { state: "failed", published_version: null })).toEqual(["Run again"]);
  });
  it("accepts a quarantine only where the failure is too much of it", () => {
    const failed = (of: FailureLine) => names("a", { state: "failed", published_version: null, failure: of });
    expect(failed(TOO_MANY)).toEqual(["Answer failed rows again", "Accept its quarantine", "Run again after the change"]);
    expect(failed(failure("gpu_memory"))).toEqual(["Run again"]);
    expect(failed(failure("input", "no column 'quality.max_quarantine'"))).toEqual(["Run again after the change"]);
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
  it("runs with what the slice's run was configured with, such as its model, but with no other action's Params", () => {
    const conf = { slice: "2026-01-01", last_slice: "2026-01-31", max_rows: null, model: "large", force: true, max_quarantine: 0.2 };
    const of = (more: Parameters<typeof slice>[1]) => actionsFor(slice("2026-01-05", more), null, conf).map((action) => action.conf);
    expect(of({ counts })).toEqual([
      { slice: "2026-01-05", model: "large", retry_quarantined: true },
      { slice: "2026-01-05", model: "large", force: true },
    ]);
    expect(of({ state: "failed", published_version: null, failure: TOO_MANY })).toEqual([
      { slice: "2026-01-05", model: "large", retry_quarantined: true },
      { slice: "2026-01-05", model: "large", max_quarantine: 1, force: true },
      { slice: "2026-01-05", model: "large", max_quarantine: 0.2, force: true },
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
    // The run's own price counts, also where the page has none.
    expect(usualCost([slice("a", { ...known, cost: 8 })], priced)).toBe("1.7M tokens and GPUs for $8.00");
    expect(usualCost([slice("a", { ...known, cost: 8 })], null)).toContain("GPUs for 8.00");
  });
  it("needs the DAG's Params", () => {
    const [retry] = actionsFor(slice("a", { counts }));
    expect(retry && lacking(retry, { slice: {} })).toEqual(["retry_quarantined"]);
    expect(retry && lacking(retry, { slice: {}, retry_quarantined: {}, other: {} })).toEqual([]);
  });
});

describe("a failure", () => {
  it.each(["input", "model", "cluster", "connection"])("of kind %s needs a change before a rerun", (kind) => {
    expect(first(failure(kind))).toContain("first: a run of the same fails again");
  });
  it("of a kind that a rerun may fix needs none; of too many rows, there is a choice", () => {
    expect([failure("engine"), failure("of-2030"), null].map(first)).toEqual([null, null, null]);
    expect(first(TOO_MANY)).toContain("or accept that they are missing");
  });
  it("of one's own code, and of tasks before it, needs a change", () => {
    const ofCode = { ...failure("transient"), frames: ["at f.py:1 in f: raise"] };
    expect(first(ofCode)).toContain("your own code");
    expect(changeFirst({ failure: null, upstream: [] })).toContain("the tasks before it succeed first");
    expect(upstreamWords([{ task_id: "a", map_index: -1 }, { task_id: "b", map_index: 0 }])).toBe("did not run, because a, b failed");
    expect(upstreamWords([])).toBe("did not run, because a task before it failed");
  });
  it("is a person's mark, where nothing else ended the run", () => {
    const marked = (found: FailureLine | null, by: string | null = "eve"): Reason => ({ failure: found as Reason["failure"], is_marked: true, marked_by: by });
    const stopped = { ...failure("stopped"), counts: { planned: 195, finished: 1065 } };
    expect(markedWords(null, marked(stopped))).toBe("eve marked this run as failed. Its 1,065 finished rows are kept.");
    expect(markedWords(stopped, marked(null, null))).toBe("Somebody marked this run as failed. Its 1,065 finished rows are kept.");
    expect(markedWords(null, marked(null))).toBe("eve marked this run as failed.");
    for (const other of [marked(failure("engine")), { ...marked(null), is_marked: false }, null]) expect(markedWords(null, other)).toBe(null);
  });
  it.each([
    ["the engine died", "The engine died."],
    ["torch.OutOfMemoryError: no memory", "torch.OutOfMemoryError: no memory."],
    ["row 7 is wrong ...", "Row 7 is wrong ..."],
    ["3 rows failed", "3 rows failed."],
  ])("reads %j as a sentence", (text, shown) => expect(sentenceOf(text)).toBe(shown));
  it("says where and how far", () => {
    expect(placeWords({ column: "age", row: 1234, file: "s3://in/a.csv" })).toBe("s3://in/a.csv, row 1,234, column age");
    expect(placeWords({})).toBe("");
  });
  it("counts each planned row once", () => {
    const words = (planned: number, finished: number, failed?: number) => countWords({ planned, finished, ...(failed === undefined ? {} : { failed }) });
    expect(words(1950, 65, 3)).toBe("1,950 planned = 62 answered + 3 failed + 1,885 left");
    expect(words(195, 0)).toBe("195 planned = 0 answered + 195 left");
    expect(words(195, 195, 57)).toBe("195 planned = 138 answered + 57 failed");
    expect(countWords({ planned: 195, finished: 65, failed: 3, invalid_output: 2 })).toBe("195 planned = 62 answered + 3 failed (2 invalid output) + 130 left");
    expect(words(1014, 128, 481)).toBe("");
    expect(countWords({})).toBe("");
  });
});

describe("clearOf", () => {
  it("clears this task instance and nothing else", () => {
    const all = { include_upstream: false, include_downstream: false, include_past: false, include_future: false };
    expect(clearOf("ask", slice("a"))).toMatchObject({ ...all, dry_run: false, dag_run_id: "r-a", task_ids: ["ask"] });
    expect(clearOf("ask", slice("a", { map_index: 3 }))).toMatchObject({ task_ids: [["ask", 3]] });
  });
});
