import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { repeat, unlessSame } from "../src/repeat";

describe("repeat", () => {
  const page = Object.assign(new EventTarget(), { hidden: false });
  beforeEach(() => {
    vi.useFakeTimers();
    vi.stubGlobal("document", page);
    page.hidden = false;
  });
  afterEach(() => {
    vi.useRealTimers();
    vi.unstubAllGlobals();
  });
  const show = (isShown: boolean) => {
    page.hidden = !isShown;
    page.dispatchEvent(new Event("visibilitychange"));
  };

  it("never asks a slow server twice at a time", async () => {
    let asked = 0;
    let answer = () => {};
    const stop = repeat(() => new Promise<void>((resolve) => { asked += 1; answer = resolve; }), () => 5_000);
    await vi.advanceTimersByTimeAsync(60_000);
    expect(asked).toBe(1);
    answer();
    await vi.advanceTimersByTimeAsync(4_999);
    expect(asked).toBe(1);
    await vi.advanceTimersByTimeAsync(1);
    expect(asked).toBe(2);
    stop();
  });
  it("asks for nothing in a hidden tab, and at once when it is seen again", async () => {
    const load = vi.fn(() => Promise.resolve());
    const stop = repeat(load, () => 5_000);
    show(false);
    await vi.advanceTimersByTimeAsync(3_600_000);
    expect(load).toHaveBeenCalledTimes(1);
    show(true);
    await vi.advanceTimersByTimeAsync(5_000);
    expect(load).toHaveBeenCalledTimes(3);
    stop();
  });
  it("ends when there is no pause, or when it is stopped, also in a hidden tab", async () => {
    const once = vi.fn(() => Promise.resolve());
    repeat(once, () => null);
    const stopped = vi.fn(() => Promise.resolve());
    const stop = repeat(stopped, () => 5_000);
    show(false);
    await vi.advanceTimersByTimeAsync(60_000);
    stop();
    show(true);
    await vi.advanceTimersByTimeAsync(60_000);
    expect([once, stopped].map((load) => load.mock.calls.length)).toEqual([1, 1]);
  });
});

describe("unlessSame", () => {
  it("keeps what there was, and takes what is new", () => {
    const old = { rows: [1, 2] };
    expect(unlessSame(old, { rows: [1, 2] })).toBe(old);
    expect(unlessSame(old, { rows: [1, 3] })).toEqual({ rows: [1, 3] });
  });
});
