// The versions of a slice, and what changed from one to another.

import { Box, HStack, NativeSelect, Table, Text } from "@chakra-ui/react";
import { useState } from "react";

import type { Version } from "../api";
import { count } from "../format";
import { diffOf } from "../versions";
import { Section } from "./basics";

export function Versions({ versions }: { versions: Version[] }) {
  const newest = versions[0];
  const [before, setBefore] = useState<number | null>(null);
  const base = versions.find((version) => version.number === before) ?? versions[1];
  if (newest === undefined) return null;
  return (
    <Section
      aside={
        base ? (
          <HStack fontSize="sm">
            <Text whiteSpace="nowrap">Compare version {newest.number} with</Text>
            <NativeSelect.Root size="sm" width="9rem">
              <NativeSelect.Field
                aria-label="Version to compare with"
                onChange={(event) => setBefore(Number(event.target.value))}
                value={base.number}
              >
                {versions.slice(1).map(({ number }) => (
                  <option key={number} value={number}>
                    version {number}
                  </option>
                ))}
              </NativeSelect.Field>
              <NativeSelect.Indicator />
            </NativeSelect.Root>
          </HStack>
        ) : null
      }
      title="Versions"
    >
      {base ? (
        <Diff base={base} newest={newest} />
      ) : (
        <Text fontSize="sm">
          Version {newest.number} is the only one, with {count(newest.counts.succeeded)} rows.
        </Text>
      )}
    </Section>
  );
}

function Diff({ base, newest }: { base: Version; newest: Version }) {
  const notes = [
    base.model !== newest.model && `Model: ${base.model ?? "?"} → ${newest.model ?? "?"}.`,
    base.fingerprint !== newest.fingerprint && "The configuration changed (model, prompt, sampling or code).",
  ].filter(Boolean);
  return (
    <>
      {notes.map((note) => (
        <Text fontSize="sm" key={String(note)} mb={2}>
          {note}
        </Text>
      ))}
      <Box overflowX="auto">
        <Table.Root size="sm" width="auto">
          <Table.Header>
            <Table.Row>
              <Table.ColumnHeader />
              <Table.ColumnHeader textAlign="end">Version {base.number}</Table.ColumnHeader>
              <Table.ColumnHeader textAlign="end">Version {newest.number}</Table.ColumnHeader>
              <Table.ColumnHeader textAlign="end">Change</Table.ColumnHeader>
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {diffOf(base, newest).map(({ name, before, after }) => (
              <Table.Row key={name}>
                <Table.Cell>
                  <bdi>{name}</bdi>
                </Table.Cell>
                <Table.Cell textAlign="end">{count(before)}</Table.Cell>
                <Table.Cell textAlign="end">{count(after)}</Table.Cell>
                <Table.Cell textAlign="end">{signed(after - before)}</Table.Cell>
              </Table.Row>
            ))}
          </Table.Body>
        </Table.Root>
      </Box>
    </>
  );
}

function signed(change: number): string {
  return change === 0 ? "–" : `${change > 0 ? "+" : "−"}${count(Math.abs(change))}`;
}
