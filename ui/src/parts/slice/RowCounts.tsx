// How many rows of a slice have each label, or failed for each reason.

import { Text } from "@chakra-ui/react";

import { count, percent } from "../../format";
import { Bars } from "../Bars";
import { Section } from "../basics";

const SHOWN = 20;

interface Props {
  title: string;
  /** What is counted, in the plural. */
  names: string;
  counts: Record<string, number> | null;
  /** Of which the counts are shares. */
  rows: number;
}

export function RowCounts({ title, names, counts, rows }: Props) {
  const sorted = Object.entries(counts ?? {}).sort((a, b) => b[1] - a[1]);
  if (sorted.length === 0) return null;
  const bars = sorted.slice(0, SHOWN).map(([name, n]) => {
    return { name, share: rows ? Math.min(n / rows, 1) : 0, words: `${count(n)} (${percent(n, rows)})` };
  });
  return (
    <Section title={title}>
      <Bars bars={bars} />
      {sorted.length > SHOWN ? (
        <Text color="fg.muted" fontSize="sm" mt={2}>
          and {sorted.length - SHOWN} more {names}
        </Text>
      ) : null}
    </Section>
  );
}
