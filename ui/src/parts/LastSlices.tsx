// The last slices of a task as a strip: one square each, the latest at the right.

import { Box, Flex } from "@chakra-ui/react";
import { Link as RouterLink } from "react-router-dom";

import type { SliceMark } from "../api";
import { runPath } from "../route";
import { LOOKS } from "../states";
import { shortName } from "../text";

export function LastSlices({ dag, task, marks }: { dag: string; task: string; marks: SliceMark[] }) {
  return (
    <Flex aria-label="Last slices" as="ol" gap="2px" listStyleType="none" maxWidth="100%" wrap="wrap">
      {marks.map((mark) => (
        <li key={mark.slice_key ?? mark.run_id}>
          <Square mark={mark} to={mark.run_id === null ? null : runPath(dag, task, mark)} />
        </li>
      ))}
    </Flex>
  );
}

function Square({ mark: { slice_key, run_id, state }, to }: { mark: SliceMark; to: string | null }) {
  const words = `${shortName(slice_key ?? run_id ?? "")}: ${LOOKS[state].words}`;
  const look = {
    "aria-label": words,
    bg: state === "missing" ? undefined : `${LOOKS[state].palette}.solid`,
    borderColor: "fg.muted",
    borderRadius: "2px",
    borderStyle: "dashed",
    borderWidth: state === "missing" ? "1px" : 0,
    // What failed can be told from the others without its colour.
    height: state === "failed" ? "24px" : state === "published" || state === "quarantined" ? "18px" : "12px",
    mt: state === "failed" ? 0 : state === "published" || state === "quarantined" ? "6px" : "12px",
    title: words,
    width: "12px",
  } as const;
  return to === null ? <Box {...look} role="img" /> : <Box {...look} asChild display="block"><RouterLink to={to} /></Box>;
}
