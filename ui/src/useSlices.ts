import { useEffect, useMemo, useState } from "react";

import { ApiError, call, paths, type DatesWithoutRun, type RunWithoutSlice, type SliceLine, type SlicesPage } from "./api";
import { repeat, unlessSame } from "./repeat";

const LIMIT = 400;
const REFRESH_MS = 15_000;
const SOON_MS = 2_000;
const NONE: RunWithoutSlice[] = [];
const UNASKED: DatesWithoutRun = { dates: [], total: 0, is_pending: true, note: null };

export interface Slices {
  slices: SliceLine[] | null;
  total: number;
  withoutSlice: RunWithoutSlice[];
  unreadable: number;
  withoutRun: DatesWithoutRun;
  error: ApiError | null;
  loadMore: () => void;
}

/** A task's runs of slices, the newest first: a page at once, others when asked for. */
export function useSlices(dag: string, task: string): Slices {
  const [wanted, setWanted] = useState(1);
  const [pages, setPages] = useState<SlicesPage[]>([]);
  const [error, setError] = useState<ApiError | null>(null);
  useEffect(() => {
    let isCurrent = true;
    let isPending = false;
    // All of them, as each new run moves one from a page to the next.
    const load = () =>
      Promise.all(
        Array.from({ length: wanted }, (_, page) => call<SlicesPage>(paths.slices(dag, task, page * LIMIT, LIMIT))),
      ).then(
        (answers) => {
          if (!isCurrent) return;
          isPending = answers[0]?.without_run.is_pending ?? false;
          setPages((old) => unlessSame(old, answers));
          setError(null);
        },
        (e: unknown) => isCurrent && setError(e instanceof ApiError ? e : new ApiError(0, String(e))),
      );
    const stop = repeat(load, () => (isPending ? SOON_MS : REFRESH_MS));
    return () => {
      isCurrent = false;
      stop();
    };
  }, [dag, task, wanted]);
  const slices = useMemo(() => (pages.length > 0 ? pages.flatMap((page) => page.slices) : null), [pages]);
  return {
    slices,
    total: pages[0]?.total ?? 0,
    withoutSlice: pages[0]?.without_slice ?? NONE,
    unreadable: pages.reduce((sum, page) => sum + page.unreadable, 0),
    withoutRun: pages[0]?.without_run ?? UNASKED,
    error,
    loadMore: () => setWanted(pages.length + 1),
  };
}
