// What the gates said of a slice.

import { Table } from "@chakra-ui/react";

import type { GateVerdict } from "../../api";
import { Plain, Section } from "../basics";

const WORDS: Record<GateVerdict["verdict"], string> = {
  failed: "Failed",
  held: "Left to a person",
  passed: "Passed",
  unknown: "Not known",
  warned: "Warned",
};

export function Gates({ verdicts }: { verdicts: GateVerdict[] | null }) {
  if (!verdicts?.length) return null;
  return (
    <Section title="Gates">
      <Table.ScrollArea aria-label="Gates" role="region" tabIndex={0}>
        <Table.Root size="sm">
          <Table.Header>
            <Table.Row>
              {["Figure", "Value", "Limits", "Slices before", "Said"].map((title) => (
                <Table.ColumnHeader key={title}>{title}</Table.ColumnHeader>
              ))}
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {verdicts.map(({ of, value, min, max, slices, verdict }, index) => (
              <Table.Row key={index}>
                <Table.Cell>
                  <Plain>{of}</Plain>
                </Table.Cell>
                <Table.Cell>{value === null ? none(verdict) : short(value)}</Table.Cell>
                <Table.Cell>{limits(min, max)}</Table.Cell>
                <Table.Cell>{slices ?? ""}</Table.Cell>
                <Table.Cell>{WORDS[verdict]}</Table.Cell>
              </Table.Row>
            ))}
          </Table.Body>
        </Table.Root>
      </Table.ScrollArea>
    </Section>
  );
}

function none(verdict: GateVerdict["verdict"]): string {
  return verdict === "warned" ? "beside a median of 0" : "not known";
}

function limits(min: number | null, max: number | null): string {
  const known = [min === null ? "" : `at least ${short(min)}`, max === null ? "" : `at most ${short(max)}`];
  return known.filter(Boolean).join(", ") || "none";
}

function short(value: number): string {
  return value.toLocaleString("en", { maximumSignificantDigits: 4 });
}
