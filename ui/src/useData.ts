import { useEffect, useState } from "react";

import { ApiError, call } from "./api";
import { repeat, unlessSame } from "./repeat";

export interface Data<T> {
  value: T | null;
  error: ApiError | null;
}

/** Milliseconds until JSON is fetched again, also by what it was; null: it is not. */
type Refresh<T> = number | null | ((value: T) => number | null);

/**
 * Fetches JSON, and again while `refresh` says so. A failed refresh keeps what was there.
 *
 * @param ask  what fetches, the same each time.
 */
export function useData<T>(path: string | null, refresh: Refresh<T> = null, ask: (path: string) => Promise<T> = call): Data<T> {
  const [data, setData] = useState<Data<T> & { path: string | null }>({ path, value: null, error: null });
  useEffect(() => {
    if (path === null) return undefined;
    let isCurrent = true;
    let last: T | null = null;
    const load = () =>
      ask(path).then(
        (value) => {
          last = value;
          if (isCurrent) setData((old) => unlessSame(old, { path, value, error: null }));
        },
        (error: unknown) => {
          const known = error instanceof ApiError ? error : new ApiError(0, String(error));
          if (isCurrent) setData((old) => ({ path, value: old.path === path ? old.value : null, error: known }));
        },
      );
    const stop = repeat(load, () => (typeof refresh !== "function" ? refresh : last === null ? null : refresh(last)));
    return () => {
      isCurrent = false;
      stop();
    };
  }, [ask, path, refresh]);
  return data.path === path ? data : { value: null, error: null };
}
