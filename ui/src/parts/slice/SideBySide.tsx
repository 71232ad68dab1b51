// A slice beside another one of its task.

import { useMemo, useState } from "react";

import { paths, type SliceLine, type SlicesPage } from "../../api";
import { byName, latestWithFigures } from "../../calendar";
import { compareSlices } from "../../compare";
import { measured } from "../../trends";
import { useData } from "../../useData";
import { Section } from "../basics";
import { Changes } from "./Changes";
import { Choice } from "../Choice";

const LIMIT = 100;

export function SideBySide({ dag, task, line }: { dag: string; task: string; line: SliceLine }) {
  const { value } = useData<SlicesPage>(paths.slices(dag, task, 0, LIMIT));
  const [chosen, setChosen] = useState<string | null>(null);
  const others = useMemo(
    () => measured(latestWithFigures(value?.slices ?? []).values()).filter(({ slice_key }) => slice_key !== line.slice_key),
    [value, line.slice_key],
  );
  // By default the one before it.
  const before = others.filter(({ slice_key }) => byName(slice_key, line.slice_key) < 0).at(-1) ?? others.at(-1);
  const base = others.find(({ slice_key }) => slice_key === chosen) ?? before;
  if (!line.outcome || base === undefined) return null;
  const choice = (
    <Choice
      label="Compare with"
      onChoose={setChosen}
      options={others.map(({ slice_key }): [string, string] => [slice_key, slice_key]).reverse()}
      value={base.slice_key}
    />
  );
  return (
    <Section aside={choice} title="Side by side">
      <Changes changes={compareSlices(base, line)} titles={[base.slice_key, line.slice_key]} />
    </Section>
  );
}
