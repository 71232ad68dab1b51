import { describe, expect, it } from "vitest";

import type { History } from "../src/api";
import { markEvery, overTime, soFar } from "../src/overTime";
import { shortName, visible } from "../src/text";
import { workersShown } from "../src/workers";

const history: History = { span_s: 2, offset_s: -0.5, rows: [3, 8, 0, 5], gpu_busy: [90, null, 70, 40], cpu_busy: null };

describe("over time", () => {
  it("stands on the scale of the phases", () => {
    const { to, isWholeRun, charts } = overTime(history, { queued: 4, engine_start: 6, inference: 7, total: 20 });
    expect([to, isWholeRun]).toEqual([20, true]);
    const [busy, speed] = charts;
    // From the first request, at 10 s, to the last row, at 17 s.
    expect(busy?.points).toEqual([[10, 90], [11.5, null], [13.5, 70], [15.5, 40], [17, 40]]);
    expect(speed?.points).toEqual([[10, 2], [11.5, 4], [13.5, 0], [15.5, 5 / 1.5], [17, 5 / 1.5]]);
  });
  it("leaves the scale of a run that hardly answered", () => {
    const { to, isWholeRun, charts } = overTime(history, { queued: 3600, engine_start: 6, inference: 7, total: 3620 });
    expect([to, isWholeRun, charts[0]?.points[0]]).toEqual([7, false, [0, 90]]);
  });
  it("gives no speed of a moment", () => {
    const { charts } = overTime({ ...history, rows: [0, 0, 0, 6] }, { inference: 5.501 });
    expect(charts[1]?.points.at(-1)?.[1]).toBe(6);
  });
  it("shows CPUs where no GPU was measured, and no span that is still open", () => {
    const { to, charts } = soFar({ ...history, gpu_busy: null, cpu_busy: [1, 2, 3, 4] });
    expect(to).toBe(5.5);
    expect(charts.map(({ title }) => title)).toEqual(["CPUs busy", "Rows per second"]);
    expect(charts[0]?.points).toEqual([[0, 1], [1.5, 2], [3.5, 3], [5.5, 3]]);
    expect(soFar({ ...history, rows: [1] }).charts).toEqual([]);
  });
});

describe("marks of a scale", () => {
  it.each([[0.5, 0.1], [7, 1], [45, 10], [300, 60], [2010, 300], [40_000, 7200], [3_000_000, 432_000]])(
    "of %s s are %s s apart", (to, every) => expect(markEvery(to, 8)).toBe(every),
  );
});

describe("workers", () => {
  it("are the busiest and the idlest, of very many", () => {
    const workers = Array.from({ length: 64 }, (_, i) => ({ name: `w${i}`, rows: 1, busy_share: 1 - i / 64 }));
    const { shown, leftOut } = workersShown(workers, 200);
    expect([shown[0]?.name, shown.at(-1)?.name, shown.length, leftOut]).toEqual(["w0", "w63", 16, 184]);
    expect(workersShown(workers.slice(0, 3), 3)).toEqual({ shown: workers.slice(0, 3), leftOut: 0 });
  });
});

describe("text of others", () => {
  it("shows what turns it around or cannot be seen, and keeps its lines and scripts", () => {
    expect(visible("a\u202eb\u2069\u0000")).toBe("a‹202E›b‹2069›‹0000›");
    expect(visible("line\n\tשלום 👨‍👩‍👧")).toBe("line\n\tשלום 👨‍👩‍👧");
  });
  it("is cut where it only tells things apart", () => expect(shortName("x".repeat(200))).toHaveLength(80));
});
