/* SPDX-License-Identifier: Apache-2.0 */
/* What a parsed kit holds. Immutable after oc_kit_parse, so any thread may read it. */
#ifndef OC_ACTIVATION_KIT_H
#define OC_ACTIVATION_KIT_H
#include "opt_core/activation.h"

enum { OC__KIT_LEVERS_MAX = 64, OC__KIT_TRIGGERS_MAX = 256, OC__KIT_WORD_MAX = 48, OC__KIT_JSON_MAX = 1 << 20 };

typedef struct oc__lever {
  char *name, *family;
  int64_t instances; /* fewest objects that an active lever must have patched; 0: not checked */
  oc_policy policy[OC_MODE_COUNT];
} oc__lever;

struct oc_kit {
  char *engine, *variable, *version;
  int trigger_count, lever_count;
  char **trigger;
  oc__lever *lever;
};

int64_t oc__kit_lever_instances(const oc_kit *kit, int lever);
#endif
