// How many rows whose right answers are known were answered right.

import { Text } from "@chakra-ui/react";

import type { GoldenFigures } from "../../api";
import { count } from "../../format";
import { Plain, Section } from "../basics";

const MOST = 5;

export function Golden({ figures }: { figures: GoldenFigures | null }) {
  if (!figures) return null;
  const { accuracy, before, calibration_error, confusion, correct, high, low, rows } = figures;
  return (
    <Section title="Golden rows">
      <Text>
        {count(correct)} of {count(rows)} are right: {share(accuracy)} ({share(low)} to {share(high)})
        {before === null ? "" : `, ${share(before)} in the slice before`}
        {calibration_error === null ? "" : `; probabilities are off by ${share(calibration_error)}`}
      </Text>
      {confusion?.length ? (
        <Text color="fg.muted" fontSize="sm">
          Most often wrong:{" "}
          {confusion.slice(0, MOST).map((one, index) => (
            <span key={index}>
              {index ? "; " : ""}
              <Plain most={40}>{one.expected}</Plain>{" "}
              {one.answered === null ? "failed" : <>answered as <Plain most={40}>{one.answered}</Plain></>}
              {` (${count(one.rows)})`}
            </span>
          ))}
        </Text>
      ) : null}
    </Section>
  );
}

function share(value: number): string {
  return `${(100 * value).toFixed(1)}%`;
}
