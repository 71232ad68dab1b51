// @vitest-environment jsdom
// The dialog about one missing day, in a document without a browser.

import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { cleanup, render, screen } from "@testing-library/react";
import { afterEach, expect, it, vi } from "vitest";

import { FillGaps } from "../src/parts/task/FillGaps";

/** A busy machine takes its time. */
const BUSY_MS = 60_000;
const DAYS = ["2026-01-03", "2026-01-04"];

afterEach(() => {
  cleanup();
  vi.unstubAllGlobals();
});

it("leaves the button behind the dialog of one day as it was", async () => {
  const planned = { backfills: [{ logical_date: `${DAYS[0]}T00:00:00Z` }] };
  vi.stubGlobal("fetch", () => Promise.resolve(new Response(JSON.stringify(planned))));
  const dates = DAYS.map((day) => ({ slice_key: day, date: `${day}T00:00:00Z`, archived: false }));
  const gaps = (asked: string[] | null) => (
    <ChakraProvider value={defaultSystem}>
      <FillGaps asked={asked} dag="d" dates={dates} isPaused={false} missing={DAYS} onAsk={() => undefined} settings={null} slices={new Map()} task="t" tasks={["t"]} />
    </ChakraProvider>
  );
  const { rerender } = render(gaps(null));
  const button = screen.getByRole("button", { name: "Fill 2 missing" });
  rerender(gaps([DAYS[0]!]));
  await screen.findByText(/Starts a backfill/, {}, { timeout: BUSY_MS });
  expect(screen.getByRole("dialog", { name: "Fill 1 missing" })).toBeDefined();
  expect(button.textContent).toBe("Fill 2 missing");
}, BUSY_MS);
