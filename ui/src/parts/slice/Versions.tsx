// The versions of a slice, and what changed from one to another.

import { Text } from "@chakra-ui/react";
import { useState } from "react";

import type { Version } from "../../api";
import { compareVersions } from "../../compare";
import { count } from "../../format";
import { Section } from "../basics";
import { Changes } from "./Changes";
import { Choice } from "../Choice";

export function Versions({ versions }: { versions: Version[] }) {
  const [chosen, setChosen] = useState<string | null>(null);
  const [newest, ...older] = versions;
  const base = older.find(({ number }) => String(number) === chosen) ?? older[0];
  if (newest === undefined) return null;
  if (base === undefined) {
    return (
      <Section title="Versions">
        <Text fontSize="sm">
          Version {newest.number} is the only one, with {count(newest.counts.succeeded)} rows.
        </Text>
      </Section>
    );
  }
  const notes = [
    base.model !== newest.model && `Model: ${base.model ?? "?"} → ${newest.model ?? "?"}.`,
    base.fingerprint !== newest.fingerprint && "The configuration changed (model, prompt, sampling or code).",
  ].filter((note) => note !== false);
  const choice = (
    <Choice
      label={`Compare version ${newest.number} with`}
      onChoose={setChosen}
      options={older.map(({ number }) => [String(number), `version ${number}`])}
      value={String(base.number)}
    />
  );
  return (
    <Section aside={choice} title="Versions">
      {notes.map((note) => (
        <Text fontSize="sm" key={note} mb={2}>
          {note}
        </Text>
      ))}
      <Changes
        changes={compareVersions(base, newest)}
        titles={[`Version ${base.number}`, `Version ${newest.number}`]}
      />
    </Section>
  );
}
