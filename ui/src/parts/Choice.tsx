// A list to choose one of.

import { HStack, NativeSelect, Text } from "@chakra-ui/react";

import { shortName } from "../text";

interface Props {
  label: string;
  /** Values, and how they read. */
  options: [string, string][];
  value: string;
  onChoose: (value: string) => void;
}

export function Choice({ label, options, value, onChoose }: Props) {
  return (
    <HStack fontSize="sm" maxWidth="100%" wrap="wrap">
      <Text>{label}</Text>
      <NativeSelect.Root size="sm" maxWidth="100%" width="11rem">
        <NativeSelect.Field aria-label={label} onChange={(event) => onChoose(event.target.value)} value={value}>
          {options.map(([name, words]) => (
            <option key={name} value={name}>
              {shortName(words)}
            </option>
          ))}
        </NativeSelect.Field>
        <NativeSelect.Indicator />
      </NativeSelect.Root>
    </HStack>
  );
}
