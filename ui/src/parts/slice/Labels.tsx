// How many rows of a slice have each label.

import { Text } from "@chakra-ui/react";

import { count, percent } from "../../format";
import { Bars } from "../Bars";
import { Section } from "../basics";

const SHOWN = 20;

export function Labels({ labels, rows }: { labels: Record<string, number> | null; rows: number }) {
  const sorted = Object.entries(labels ?? {}).sort((a, b) => b[1] - a[1]);
  const most = sorted[0]?.[1];
  if (most === undefined) return null;
  const bars = sorted.slice(0, SHOWN).map(([name, n]) => {
    return { name, share: n / most, words: `${count(n)} (${percent(n, rows)})` };
  });
  return (
    <Section title="Labels">
      <Bars bars={bars} />
      {sorted.length > SHOWN ? (
        <Text color="fg.muted" fontSize="sm" mt={2}>
          and {sorted.length - SHOWN} more labels
        </Text>
      ) : null}
    </Section>
  );
}
