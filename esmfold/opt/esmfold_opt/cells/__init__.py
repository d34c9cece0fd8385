# SPDX-License-Identifier: Apache-2.0
"""One thin adapter a lever: where the engine keeps the operation, and how its parameters map to opt_core's descriptor."""

MODULE = "transformers.models.esm.modeling_esmfold"
ENGINE = ("transformers", ">=5.17,<6")


def refuse_unbatched(x, mask):
    """Refused shape unless x is [B, I, J, C] and the mask, where there is one, [B, I, J]. The engine takes any [*, I, J, C]."""
    if x.dim() != 4 or not (mask is None or mask.shape == x.shape[:3]):
        from opt_core import Refused

        raise Refused("shape", f"rank {x.dim()}" if x.dim() != 4 else f"mask {tuple(mask.shape)} for {tuple(x.shape)}")
