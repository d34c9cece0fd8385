# SPDX-License-Identifier: Apache-2.0
import os


def pytest_configure(config):
    config.addinivalue_line("markers", "quick: the short form of the ladder, under a minute on a GPU (also OC_TEST_QUICK=1)")
    if config.getoption("markexpr", "") == "quick":
        os.environ["OC_TEST_QUICK"] = "1"
