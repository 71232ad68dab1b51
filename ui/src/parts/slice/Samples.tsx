// Some published rows, or some of those in quarantine with their reasons. Cells are shown as text.

import { Box, Button, HStack, Table } from "@chakra-ui/react";
import { useState } from "react";

import type { Sample } from "../../api";
import { useData } from "../../useData";
import { NAME, visible } from "../../text";
import { Note, Plain, Problem, Section, Waiting } from "../basics";

type Kind = "published" | "quarantined";
/** Characters of a cell that is not broken. */
const WORD = 24;
/** What says why a row failed comes first, and which row it was, last. */
const REASONS = ["__error_type", "__error"];

/** @param isHeld  whether its rows wait for a person, and are not published. */
export function Samples({ path, quarantined, isHeld }: { path: string; quarantined: number; isHeld: boolean }) {
  const kinds: [Kind, string][] = [
    ["published", isHeld ? "Staged rows" : "Published rows"],
    ["quarantined", "Rows in quarantine"],
  ];
  const [kind, setKind] = useState<Kind | null>(null);
  const { value, error } = useData<Sample>(kind === null ? null : `${path}/samples/${kind}`);
  return (
    <Section title="Sample of rows">
      <HStack gap={2} wrap="wrap">
        {kinds.map(([name, words]) =>
          name === "published" || quarantined > 0 ? (
            <Button
              aria-pressed={kind === name}
              key={name}
              onClick={() => setKind(name)}
              size="sm"
              variant={kind === name ? "solid" : "outline"}
            >
              {words}
            </Button>
          ) : null,
        )}
      </HStack>
      {error ? <Problem error={error} /> : kind !== null && value === null ? <Waiting /> : null}
      {value?.note ? <Note>{value.note}</Note> : null}
      {value && !value.note ? <Rows sample={value} /> : null}
    </Section>
  );
}

function Rows({ sample }: { sample: Sample }) {
  const order = sample.columns
    .map((name, i) => ({ name, i, rank: REASONS.includes(name) ? 0 : name.startsWith("__") ? 2 : 1 }))
    .sort((a, b) => a.rank - b.rank || a.i - b.i);
  return (
    <Box maxHeight="28rem" mt={3} overflow="auto" tabIndex={0}>
      <Table.Root size="sm" stickyHeader variant="outline">
        <Table.Header>
          <Table.Row>
            {order.map(({ name }) => (
              <Table.ColumnHeader key={name}>
                <Plain most={NAME}>{name.replace(/^__/, "")}</Plain>
              </Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {sample.rows.map((row, n) => (
            <Table.Row key={n}>
              {order.map(({ name, i }) => (
                <Table.Cell key={name} verticalAlign="top">
                  <Cell text={row[i] ?? null} />
                </Table.Cell>
              ))}
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Box>
  );
}

function Cell({ text }: { text: string | null }) {
  return text === null ? (
    <Box as="span" color="fg.muted" fontStyle="italic">
      null
    </Box>
  ) : (
    <Box as="bdi" display="block" maxHeight="8rem" maxWidth="28rem" minWidth={text.length < WORD ? "max-content" : "8rem"} overflow="auto" overflowWrap="anywhere" whiteSpace="pre-wrap">
      {visible(text)}
    </Box>
  );
}
