# SPDX-License-Identifier: Apache-2.0
"""On a machine with a GPU: the code of docs/torch.md, in order, as one program."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no NVIDIA GPU on this machine", allow_module_level=True)

PAGE = Path(__file__).resolve().parents[4] / "docs/torch.md"


@pytest.mark.skipif(torch.cuda.get_device_capability()[0] not in (8, 9), reason="no CUDA member is built for this GPU")
def test_the_code_of_the_torch_page():
    program = "".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
