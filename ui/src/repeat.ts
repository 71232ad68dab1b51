// What a page asks for again and again.

/** What there was, if nothing is new: what is drawn, such as a chart whose legend a person set, then stays. */
export function unlessSame<T>(old: T, now: T): T {
  return JSON.stringify(old) === JSON.stringify(now) ? old : now;
}

/**
 * Loads at once and then, `pauseMs` after each answer, again: a slow server is never asked twice at a time, and
 * nobody's hidden tab asks for hours. It ends when `pauseMs` is null, or with the call of what is returned.
 */
export function repeat(load: () => Promise<unknown>, pauseMs: () => number | null): () => void {
  let isOver = false;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const again = () => {
    document.removeEventListener("visibilitychange", again);
    if (document.hidden) document.addEventListener("visibilitychange", again);
    else void run();
  };
  const run = async () => {
    await load();
    const pause = pauseMs();
    if (!isOver && pause !== null) timer = setTimeout(again, pause);
  };
  void run();
  return () => {
    isOver = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", again);
  };
}
