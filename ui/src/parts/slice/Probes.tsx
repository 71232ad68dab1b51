// What was learnt of the answers by asking more: golden rows, rows that were asked twice, a second model.

import { Text } from "@chakra-ui/react";

import type { GoldenFigures, JudgeFigures, RepeatFigures, SliceLine } from "../../api";
import { count } from "../../format";
import { Plain, Section } from "../basics";

const MOST = 5;

export function Probes({ line }: { line: SliceLine }) {
  const { golden, judge, repeat } = line;
  if (!golden && !judge && !repeat) return null;
  return (
    <Section title="How right the answers are">
      {golden ? <Golden figures={golden} /> : null}
      {judge ? <Judge figures={judge} /> : null}
      {repeat ? <Repeat figures={repeat} /> : null}
    </Section>
  );
}

function Golden({ figures }: { figures: GoldenFigures }) {
  const { accuracy, before, calibration_error, confusion, correct, high, low, lowest, rows } = figures;
  return (
    <>
      <Text>
        {`${count(correct)} of ${count(rows)} golden rows are right: ${interval(accuracy, low, high)}`}
        {since(before)}
        {lowest === null ? "" : `; ${share(lowest)} beside answers of an earlier run`}
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
    </>
  );
}

function Judge({ figures }: { figures: JudgeFigures }) {
  const { approved, before, failed, high, low, model, rows } = figures;
  return (
    <Text>
      <Plain most={60}>{model}</Plain> agrees with {count(approved)} of {count(rows - failed)} answers
      {figures.share === null ? "" : `: ${interval(figures.share, low, high)}`}
      {since(before)}
      {failed ? `; it did not judge ${count(failed)}` : ""}
    </Text>
  );
}

function Repeat({ figures }: { figures: RepeatFigures }) {
  const { differing, high, low, rows } = figures;
  return (
    <Text>
      {count(differing)} of {count(rows)} rows that were asked twice have another answer:{" "}
      {interval(figures.share, low, high)}
    </Text>
  );
}

function since(before: number | null): string {
  return before === null ? "" : `, ${share(before)} in the slice before`;
}

function interval(value: number, low: number, high: number): string {
  return `${share(value)} (${share(low)} to ${share(high)})`;
}

function share(value: number): string {
  return `${(100 * value).toFixed(1)}%`;
}
