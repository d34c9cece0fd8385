/* SPDX-License-Identifier: Apache-2.0 */
/* A kit table of any bytes is refused or holds what its header promises; the words of the environment go through too.
 */
#include "opt_core/activation.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_kit(const oc_kit *kit) {
  if (oc_kit_lever_count(kit) < 1 || oc_kit_trigger_count(kit) < 1) abort();
  for (int i = 0; i < oc_kit_lever_count(kit); i++) {
    int modes = 0;
    for (int mode = 0; mode < OC_MODE_COUNT; mode++)
      modes += oc_kit_lever_policy(kit, i, (oc_mode)mode) != OC_POLICY_ABSENT;
    if (!modes || oc_kit_lever_find(kit, oc_kit_lever_name(kit, i)) != i) abort();
    if (oc_levers_off_check(kit, oc_kit_lever_name(kit, i), NULL) != OC_OK) abort();
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  oc_err err = {0};
  oc_kit *kit = NULL;
  if (oc_kit_parse((const char *)data, bytes, &kit, &err) == OC_OK)
    check_kit(kit);
  else if (err.status != OC_REFUSED || err.reason != OC_REASON_KIT_TABLE || kit)
    abort();
  char *word = malloc(bytes + 10);
  if (!word) return 0;
  memcpy(word, "OPT_CORE_", 9);
  memcpy(word + 9, data, bytes);
  word[bytes + 9] = '\0';
  oc_mode mode;
  char *environment[] = {word, NULL};
  (void)oc_mode_parse(word + 9, &mode, NULL);
  (void)oc_environment_check(environment, NULL);
  (void)oc_gate_pin("p", word + 9, word + 9, NULL);
  if (kit && oc_levers_off_check(kit, word + 9, NULL) == OC_OK)
    for (int i = 0; i < oc_kit_lever_count(kit); i++)
      (void)oc_levers_off_has(word + 9, oc_kit_lever_name(kit, i), "cpu");
  free(word);
  oc_kit_free(kit);
  return 0;
}
