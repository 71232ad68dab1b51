// How far a run is.

import { Box, Progress, Text } from "@chakra-ui/react";

import type { Stored } from "../../api";
import { clock, count, duration, percent, rate } from "../../format";
import { Figure, Figures, Plain, Section } from "../basics";
import { OverTime } from "./OverTime";
import { Workers } from "./Workers";

export function Live({ stored }: { stored: Stored | null }) {
  const progress = stored?.progress;
  if (!progress) return null;
  const [rows, planned] = [progress.rows ?? 0, progress.planned ?? 0];
  const isCounting = rows > 0 || progress.step === "answer";
  return (
    <Section aside={progress.when ? <Text color="fg.muted" fontSize="sm">as of {clock(progress.when)}</Text> : null} title="Progress">
      {progress.phase && !isCounting ? (
        <Text _firstLetter={{ textTransform: "uppercase" }} overflowWrap="anywhere">
          <Plain>{progress.phase}</Plain>
        </Text>
      ) : null}
      {isCounting ? (
        <>
          {planned > 0 ? (
            <Progress.Root aria-label="Rows" max={planned} size="lg" value={Math.min(rows, planned)}>
              <Progress.Track>
                <Progress.Range />
              </Progress.Track>
            </Progress.Root>
          ) : null}
          <Text mt={2}>
            <b>{count(rows)}</b> of <b>{count(planned)}</b> rows{planned ? `, ${percent(rows, planned)}` : ""}
          </Text>
          <Box mt={3}>
            <Figures>
              <Figure name="Speed now" value={rate(progress.recent_rows_per_s ?? progress.rows_per_s, "rows/s")} />
              <Figure name="Time left" value={duration(progress.eta_s)} />
              <Figure name="Failed rows" value={count(progress.failed)} />
              <Figure name="Workers" value={count(progress.workers)} />
            </Figures>
          </Box>
          {progress.history ? <OverTime history={progress.history} /> : null}
          <Workers total={progress.workers ?? 0} workers={progress.per_worker ?? []} />
        </>
      ) : null}
    </Section>
  );
}
