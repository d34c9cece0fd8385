# SPDX-License-Identifier: Apache-2.0
from . import _core_gate


def start():
    _core_gate.boot("TOYENGINE_OPT", ("toyengine.layers",), "toy_opt.kit:enable")
