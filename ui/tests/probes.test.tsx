// @vitest-environment jsdom
// How right the answers are, in words.

import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { cleanup, render, screen } from "@testing-library/react";
import { afterEach, expect, it } from "vitest";

import type { SliceLine } from "../src/api";
import { Probes } from "../src/parts/slice/Probes";
import { slice } from "./calendar.test";

afterEach(cleanup);

function text(more: Partial<SliceLine>): string | null | undefined {
  render(
    <ChakraProvider value={defaultSystem}>
      <Probes line={slice("2026-01-31", more)} />
    </ChakraProvider>,
  );
  return screen.queryByRole("heading", { name: "How right the answers are" })?.closest("section")?.textContent;
}

it("says how many golden rows are right, how sure that is, and what is taken for what", () => {
  const confusion = [
    { expected: "Retail", answered: "Finance", rows: 9 },
    { expected: "Energy", answered: null, rows: 1 },
  ];
  const golden = {
    rows: 100, correct: 90, accuracy: 0.9, low: 0.8256, high: 0.9448, confusion, calibration_error: 0.0412, before: 0.93, lowest: null,
  };
  const said = text({ golden });
  expect(said).toContain("90 of 100 golden rows are right: 90.0% (82.6% to 94.5%), 93.0% in the slice before; probabilities are off by 4.1%");
  expect(said).toContain("Most often wrong: Retail answered as Finance (9); Energy failed (1)");
  cleanup();
  expect(text({ golden: { ...golden, lowest: 0.25 } })).toContain("93.0% in the slice before; 25.0% beside answers of an earlier run");
});

it("says how many answers a second model agrees with, and which it did not judge", () => {
  const judge = { model: "m/judge", rows: 30, approved: 24, failed: 3, share: 24 / 27, low: 0.7194, high: 0.9615, before: null };
  expect(text({ judge })).toContain("m/judge agrees with 24 of 27 answers: 88.9% (71.9% to 96.2%); it did not judge 3");
});

it("says of a judge that said nothing only that", () => {
  const judge = { model: "m", rows: 2, approved: 0, failed: 2, share: null, low: 0, high: 1, before: 0.5 };
  expect(text({ judge })).toContain("m agrees with 0 of 0 answers, 50.0% in the slice before; it did not judge 2");
});

it("says how many answers are others the second time, and nothing where nothing was asked", () => {
  expect(text({ repeat: { rows: 200, differing: 3, share: 0.015, low: 0.0051, high: 0.0432 } }))
    .toContain("3 of 200 rows that were asked twice have another answer: 1.5% (0.5% to 4.3%)");
  cleanup();
  expect(text({})).toBeUndefined();
});
