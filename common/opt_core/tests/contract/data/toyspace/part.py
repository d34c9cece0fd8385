# SPDX-License-Identifier: Apache-2.0
class Part:
    def forward(self, x):
        return "stock", x + 1
