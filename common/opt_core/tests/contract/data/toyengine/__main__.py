# SPDX-License-Identifier: Apache-2.0
from toyengine.model import main

main()
