# SPDX-License-Identifier: Apache-2.0
"""One thin adapter a lever: where the engine keeps the operation, and how its parameters map to opt_core's descriptor."""

MODULE = "transformers.models.esm.modeling_esmfold"
ENGINE = ("transformers", ">=5.17,<6")
