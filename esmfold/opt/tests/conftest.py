# SPDX-License-Identifier: Apache-2.0
"""One run of examples/fold.py a mode and session."""
import pytest
from folding import fold


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """runs("fast") -> the run of that mode over all three sequences, two blocks; "float64" is stock in double."""
    made = {}

    def get(mode):
        if mode not in made:
            out = tmp_path_factory.mktemp(mode)
            extra = ["--dtype", "float64"] if mode == "float64" else []
            made[mode] = fold(out, "--blocks", "2", *extra, ESMFOLD_OPT=None if mode in ("stock", "float64") else mode)
        return made[mode]

    return get
