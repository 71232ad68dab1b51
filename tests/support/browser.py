"""A headless browser, by which a test is a person at Airflow's UI.

`python -m tests.support.browser` installs one where this is a matter of a package: for root, on Debian.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import Page, sync_playwright

if TYPE_CHECKING:
    from tests.support.airflow_processes import Airflow

#: What systems call it; Debian's package of the first has least with it.
_PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """The browser's program: one on PATH, else the one that `playwright install chromium` got."""
    if found := next(filter(None, map(shutil.which, _PROGRAMS)), None):
        return found
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if os.path.exists(own) else None


@contextmanager
def logged_in(airflow: Airflow, program: str) -> Iterator[Page]:
    """A page of somebody who logged in to Airflow's UI."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--disable-gpu"])
        try:
            page = browser.new_page(base_url=airflow.url, locale="en-US")
            page.set_default_timeout(180_000)
            page.goto("/")
            page.get_by_label("Username").fill(airflow.user)
            page.get_by_label("Password").fill(airflow.password)
            page.get_by_role("button", name="Sign in").click()
            page.get_by_role("link", name="Dags").first.wait_for()
            yield page
        finally:
            browser.close()


def trigger(page: Page, dag_id: str, **params: str) -> None:
    """Open a DAG's trigger form, fill in its Params and submit it."""
    page.goto(f"/dags/{dag_id}")
    page.get_by_role("button", name="Trigger Dag").click()
    form = page.get_by_role("dialog")
    for name, value in params.items():
        form.locator(f"#element_{name}").fill(value)
    form.get_by_test_id("trigger-dag-submit").click()
    form.wait_for(state="hidden")


def install() -> None:
    if chromium() or os.getuid() != 0 or not Path("/etc/debian_version").exists():
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    print(f"Installing {_PROGRAMS[0]} (once)", flush=True)
    get = ["apt-get", "-qq", "-o=Dpkg::Use-Pty=0"]
    for command in ([*get, "update"], [*get, "install", "--yes", "--no-install-recommends", _PROGRAMS[0]]):
        # Without a browser a test is skipped and says so: no reason to run none.
        if subprocess.run(command, env=environment, stdout=subprocess.DEVNULL).returncode:
            return


if __name__ == "__main__":
    install()
