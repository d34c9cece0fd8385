# SPDX-License-Identifier: Apache-2.0


def where():
    print(__file__)
