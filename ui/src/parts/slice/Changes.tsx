// A table of what is different.

import { Box, Table } from "@chakra-ui/react";

import type { Change } from "../../compare";
import { count, duration, rate, UNKNOWN } from "../../format";
import { NAME } from "../../text";
import { Plain } from "../basics";

export function Changes({ changes, titles }: { changes: Change[]; titles: [string, string] }) {
  return (
    <Box overflowX="auto" tabIndex={0}>
      <Table.Root size="sm" width="auto">
        <Table.Header>
          <Table.Row>
            <Table.ColumnHeader>Figure</Table.ColumnHeader>
            {[...titles, "Change"].map((title) => (
              <Table.ColumnHeader key={title} maxWidth="14rem" overflowWrap="anywhere" textAlign="end">
                <Plain most={NAME}>{title}</Plain>
              </Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {changes.map((change) => (
            <Table.Row key={change.name}>
              <Table.Cell maxWidth="24rem" minWidth="8rem" overflowWrap="anywhere">
                <Plain most={NAME}>{change.name}</Plain>
              </Table.Cell>
              {[written(change.before, change.unit), written(change.after, change.unit), difference(change)].map(
                (text, i) => (
                  <Table.Cell fontVariantNumeric="tabular-nums" key={i} textAlign="end">
                    {text}
                  </Table.Cell>
                ),
              )}
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Box>
  );
}

function written(value: number | null, unit: Change["unit"]): string {
  if (value === null) return UNKNOWN;
  if (unit === "%") return `${value.toFixed(1)}%`;
  if (unit === "s") return duration(value);
  return unit === "" ? count(value) : rate(value, unit);
}

function difference({ before, after, unit }: Change): string {
  if (before === null || after === null || written(before, unit) === written(after, unit)) return UNKNOWN;
  const sign = after > before ? "+" : "−";
  const size = Math.abs(after - before);
  return sign + (unit === "%" ? `${size.toFixed(1)} points` : written(size, unit));
}
