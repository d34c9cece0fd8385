# SPDX-License-Identifier: Apache-2.0
import os


def start():
    if os.environ.get("TOYENGINE_OPT", "").strip() in ("", "0", "off"):
        return
    from . import _core_gate

    _core_gate.boot("TOYENGINE_OPT", ("toyengine.layers",), "toy_opt.kit:enable")
