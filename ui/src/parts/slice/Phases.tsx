// Where a run's seconds went, as one bar from its start to its end.

import { Box, Flex, HStack, Text } from "@chakra-ui/react";

import { duration } from "../../format";
import { type Phase, phasesOf } from "../../phases";

export function Phases({ seconds, start }: { seconds: Record<string, number>; start?: Record<string, number | null> | null }) {
  const phases = phasesOf(seconds, start ?? null);
  const total = phases.reduce((sum, phase) => sum + phase.seconds, 0);
  if (total <= 0) return <Text color="fg.muted">No times were measured.</Text>;
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
