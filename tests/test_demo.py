# SPDX-License-Identifier: Apache-2.0
"""The demo at its smallest: one block, one repeat. Ends with the table and an HTML page that stands alone."""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_demo(tmp_path):
    done = subprocess.run([sys.executable, ROOT / "tools/demo.py", "--out", tmp_path / "demo", "--blocks", "1", "--repeats", "1"], cwd=ROOT,
                          capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if re.match(r"(ubiquitin|lysozyme|gfp) ", line)]
    assert len(rows) == 9
    verdicts = {(r[0], r[2]): r[7] for r in rows}
    assert all(verdicts[name, "exact"] == "equal" and verdicts[name, "fast"] == "within" for name in ("ubiquitin", "lysozyme", "gfp")), verdicts
    page = Path(re.search(r"report: (\S+)", done.stdout).group(1)).read_text()
    assert page.count("<tr>") == 10 and "<svg" in page and not re.search(r"(src|href)=", page)
