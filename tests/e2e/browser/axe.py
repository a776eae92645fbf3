"""axe-core, which finds faults of accessibility. It is under the MPL: fetched for the tests, never shipped.

``python -m tests.e2e.browser.axe`` fetches it: by npm, or, where that is missing, an older one out of a wheel.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from playwright.sync_api import Page

VERSION = "4.14.1"
HOME = Path(__file__).resolve().parents[3] / ".e2e"
SCRIPT = HOME / f"axe-{VERSION}.min.js"
# Django's own, unchanged: its label is a picture, which is no visible label.
NOT_OURS = ("#changelist-search",)
TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


def fetch() -> Path:
    """Return its script; from a package index if it is not there yet."""
    if SCRIPT.exists():
        return SCRIPT
    with tempfile.TemporaryDirectory() as folder:
        if npm := shutil.which("npm"):
            subprocess.run([npm, "pack", "--silent", f"axe-core@{VERSION}"], cwd=folder, check=True)
            (archive,) = Path(folder).glob("*.tgz")
            with tarfile.open(archive) as package:
                member = package.extractfile("package/axe.min.js")
                assert member is not None
                script = member.read()
        else:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
            subprocess.run([*command, "axe-playwright-python"], check=True)
            (archive,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(archive) as wheel:
                (name,) = (name for name in wheel.namelist() if name.endswith("axe.min.js"))
                script = wheel.read(name)
    HOME.mkdir(exist_ok=True)
    SCRIPT.write_bytes(script)
    return SCRIPT


def faults(page: Page, scope: str = "#content-main") -> list[str]:
    """What axe finds below ``scope``, one line for each rule; the admin's own frame has faults that are not ours."""
    # Evaluated, not added as a script tag: the policy of our pages refuses those, as it should.
    page.evaluate(fetch().read_text())
    # Colours that are on their way from one theme to the other are of neither.
    page.evaluate("Promise.all(document.getAnimations().map(one => one.finished))")
    found = page.evaluate(
        """([scope, others, tags]) => axe.run(
            {include: [[scope]], exclude: others.map(other => [other])},
            {runOnly: {type: "tag", values: tags}, resultTypes: ["violations"]},
        )""",
        [scope, list(NOT_OURS), list(TAGS)],
    )
    return [
        f"{rule['id']} ({rule['impact']}): "
        + "; ".join(f"{' '.join(map(str, node['target']))} [{node['html'][:120]}]" for node in rule["nodes"][:4])
        for rule in found["violations"]
    ]


if __name__ == "__main__":
    print(fetch())
