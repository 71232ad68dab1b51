// @vitest-environment jsdom
// How well golden rows were answered, in words.

import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { cleanup, render, screen } from "@testing-library/react";
import { afterEach, expect, it } from "vitest";

import { Golden } from "../src/parts/slice/Golden";

afterEach(cleanup);

it("says how many are right, how sure that is, and what is taken for what", () => {
  const confusion = [
    { expected: "Retail", answered: "Finance", rows: 9 },
    { expected: "Energy", answered: null, rows: 1 },
  ];
  const figures = {
    rows: 100, correct: 90, accuracy: 0.9, low: 0.8256, high: 0.9448, confusion, calibration_error: 0.0412, before: 0.93,
  };
  render(
    <ChakraProvider value={defaultSystem}>
      <Golden figures={figures} />
    </ChakraProvider>,
  );
  const text = screen.getByRole("heading", { name: "Golden rows" }).closest("section")?.textContent;
  expect(text).toContain("90 of 100 are right: 90.0% (82.6% to 94.5%), 93.0% in the slice before; probabilities are off by 4.1%");
  expect(text).toContain("Most often wrong: Retail answered as Finance (9); Energy failed (1)");
});
