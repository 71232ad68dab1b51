// Where a run's seconds went, and those of its GPUs, as bars from the start to the end.

import { Box, Flex, HStack, Text } from "@chakra-ui/react";

import { duration } from "../../format";
import { heldPhases, type Phase, phasesOf } from "../../phases";

export function Phases({ seconds, start }: { seconds: Record<string, number>; start?: Record<string, number | null> | null }) {
  const phases = phasesOf(seconds, start ?? null);
  if (phases.length === 0) return <Text color="fg.muted">No times were measured.</Text>;
  return <Bar phases={phases} />;
}

export function GpusHeld({ held }: { held: Record<string, number> | null }) {
  if (!held?.total) return null;
  const idle = 1 - (held.in_use ?? 0) / held.total;
  return (
    <Box mt={6}>
      <Text mb={2}>
        GPUs of the slice's own cluster: held for <b>{duration(held.total)}</b>, <b>{Math.round(100 * idle)}%</b> of it idle
      </Text>
      <Bar phases={heldPhases(held)} />
    </Box>
  );
}

function Bar({ phases }: { phases: Phase[] }) {
  return (
    <>
      <Flex borderRadius="sm" height="30px" overflow="hidden" width="100%">
        {phases.map((phase) => (
          <Box bg={phase.color} flexBasis={0} flexGrow={phase.seconds} key={phase.name} minWidth="2px" title={words(phase)} />
        ))}
      </Flex>
      <HStack as="ul" gap={5} listStyleType="none" mt={3} wrap="wrap">
        {phases.map((phase) => (
          <HStack as="li" fontSize="sm" gap={2} key={phase.name}>
            <Box bg={phase.color} borderRadius="2px" height="12px" width="12px" />
            <span>
              {phase.name} <b>{duration(phase.seconds)}</b>
            </span>
          </HStack>
        ))}
      </HStack>
    </>
  );
}

function words(phase: Phase): string {
  return `${phase.name}: ${duration(phase.seconds)}`;
}
