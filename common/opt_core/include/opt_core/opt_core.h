/* SPDX-License-Identifier: Apache-2.0 */
/* Everything public, families included. */
#ifndef OPT_CORE_H
#define OPT_CORE_H
#include "opt_core/activation.h"
#include "opt_core/apb.h"
#include "opt_core/compare.h"
#include "opt_core/cuda.h"
#include "opt_core/device.h"
#include "opt_core/ln.h"
#include "opt_core/mem.h"
#include "opt_core/provider.h"
#include "opt_core/record.h"
#include "opt_core/status.h"
#include "opt_core/tensor.h"
#include "opt_core/transition.h"
#include "opt_core/triattn.h"
#include "opt_core/trimul.h"
#include "opt_core/version.h"
#endif
