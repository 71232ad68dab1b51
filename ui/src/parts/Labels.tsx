// How many rows of a slice have each label.

import { Box, Grid, Text } from "@chakra-ui/react";
import { Fragment } from "react";

import { count, percent } from "../format";
import { Section } from "./basics";

const SHOWN = 20;

export function Labels({ labels, rows }: { labels: Record<string, number> | null; rows: number }) {
  const sorted = Object.entries(labels ?? {}).sort((a, b) => b[1] - a[1]);
  const most = sorted[0]?.[1];
  if (most === undefined) return null;
  return (
    <Section title="Labels">
      <Grid alignItems="center" columnGap={3} fontSize="sm" rowGap={1} templateColumns="minmax(5rem, max-content) 1fr max-content">
        {sorted.slice(0, SHOWN).map(([label, n]) => (
          <Fragment key={label}>
            <Text maxWidth="16rem" truncate>
              <bdi title={label}>{label}</bdi>
            </Text>
            <Box bg="#0072B2" borderRadius="2px" height="14px" width={`${(100 * n) / most}%`} />
            <Text fontVariantNumeric="tabular-nums" textAlign="end">
              {count(n)} ({percent(n, rows)})
            </Text>
          </Fragment>
        ))}
      </Grid>
      {sorted.length > SHOWN ? (
        <Text color="fg.muted" fontSize="sm" mt={2}>
          and {sorted.length - SHOWN} more labels
        </Text>
      ) : null}
    </Section>
  );
}
