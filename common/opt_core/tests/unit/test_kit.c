/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "activation/kit.h"

#define TRIGGERS "\"triggers\":[\"pkg.mod\",\"_a.B9\"]"
#define LEVERS                                                                                                         \
  "\"levers\":[{\"name\":\"triattn\",\"family\":\"triattn\",\"modes\":{\"exact\":\"record\",\"fast\":\"require\"},"    \
  "\"instances\":3,\"help\":\"h\"},{\"name\":\"mem\",\"modes\":{\"big\":\"require\"}}]"
#define TOP "\"schema\":1,\"engine\":\"an_engine2\",\"variable\":\"AN_ENGINE_OPT\",\"version\":\"0.1.0rc1+x-y\","
static const char good[] = "{" TOP TRIGGERS "," LEVERS "}";

static void test_a_good_table(void **state) {
  (void)state;
  oc_kit *kit = NULL;
  oc_err err = {0};
  if (oc_kit_parse(good, sizeof good - 1, &kit, &err) != OC_OK) fail_msg("%s", err.detail);
  assert_string_equal(oc_kit_engine(kit), "an_engine2");
  assert_string_equal(oc_kit_variable(kit), "AN_ENGINE_OPT");
  assert_string_equal(oc_kit_version(kit), "0.1.0rc1+x-y");
  assert_int_equal(oc_kit_trigger_count(kit), 2);
  assert_string_equal(oc_kit_trigger(kit, 0), "pkg.mod");
  assert_string_equal(oc_kit_trigger(kit, 1), "_a.B9");
  assert_string_equal(oc_kit_trigger(kit, 2), "");
  assert_string_equal(oc_kit_trigger(kit, -1), "");
  assert_int_equal(oc_kit_lever_count(kit), 2);
  assert_string_equal(oc_kit_lever_name(kit, 1), "mem");
  assert_string_equal(oc_kit_lever_name(kit, 2), "");
  assert_string_equal(oc_kit_lever_family(kit, 0), "triattn");
  assert_string_equal(oc_kit_lever_family(kit, 1), "");
  assert_int_equal(oc_kit_lever_policy(kit, 0, OC_MODE_EXACT), OC_POLICY_RECORD);
  assert_int_equal(oc_kit_lever_policy(kit, 0, OC_MODE_FAST), OC_POLICY_REQUIRE);
  assert_int_equal(oc_kit_lever_policy(kit, 0, OC_MODE_BIG), OC_POLICY_ABSENT);
  assert_int_equal(oc_kit_lever_policy(kit, 0, OC_MODE_OFF), OC_POLICY_ABSENT);
  assert_int_equal(oc_kit_lever_policy(kit, 1, OC_MODE_BIG), OC_POLICY_REQUIRE);
  assert_int_equal(oc_kit_lever_policy(kit, 9, OC_MODE_BIG), OC_POLICY_ABSENT);
  assert_int_equal(oc_kit_lever_policy(kit, 0, (oc_mode)77), OC_POLICY_ABSENT);
  assert_int_equal(oc_kit_lever_find(kit, "mem"), 1);
  assert_int_equal(oc_kit_lever_find(kit, "me"), -1);
  assert_int_equal(oc_kit_lever_find(kit, NULL), -1);
  assert_int_equal(oc__kit_lever_instances(kit, 0), 3);
  assert_int_equal(oc__kit_lever_instances(kit, 1), 0);
  oc_kit_free(kit);
  oc_kit_free(NULL);
}

/* Each fault is named with its place. */
static void test_faults(void **state) {
  (void)state;
#define LEVER(body) "{" TOP TRIGGERS ",\"levers\":[" body "]}"
  static const struct {
    const char *json, *said;
  } bad[] = {
      {"", "line 1 column 0: '[' or '{' expected near end of file"},
      {"[]", "table: not an object"},
      {"{}", "schema: 0, this core reads 1"},
      {"{\"schema\":1.0}", "schema: 0, this core reads 1"},
      {"{\"schema\":2}", "schema: 2, this core reads 1"},
      {"{\"schema\":1,\"extra\":0}", "table: unknown key `extra`"},
      {"{\"schema\":1}", "engine: a string is missing"},
      {"{\"schema\":1,\"engine\":7}", "engine: a string is missing"},
      {"{\"schema\":1,\"engine\":\"\"}", "engine: `` is not 1 to 48 bytes of the accepted letters"},
      {"{\"schema\":1,\"engine\":\"Big\"}", "engine: `Big` is not 1 to 48 bytes of the accepted letters"},
      {"{\"schema\":1,\"engine\":\"a b\\n\"}", "engine: `a\\x20b\\x0A` is not 1 to 48 bytes of the accepted letters"},
      {"{\"schema\":1,\"engine\":\"e\",\"variable\":\"E\"}", "variable: `E` is not <WORD>_OPT"},
      {"{\"schema\":1,\"engine\":\"e\",\"variable\":\"_OPT\"}", "variable: `_OPT` is not <WORD>_OPT"},
      {"{\"schema\":1,\"engine\":\"e\",\"variable\":\"MODEL_OPT\"}", "variable: `MODEL_OPT` is not <WORD>_OPT"},
      {"{\"schema\":1,\"engine\":\"e\",\"variable\":\"E_OPT\",\"version\":\"v1\"}",
       "version: does not start with a digit"},
      {"{" TOP LEVERS "}", "triggers: 0 module names, the limits are 1 and 256"},
      {"{" TOP "\"triggers\":\"a\"," LEVERS "}", "triggers: 0 module names, the limits are 1 and 256"},
      {"{" TOP "\"triggers\":[\"a\",3]," LEVERS "}", "triggers[1]: `` is no dotted module name"},
      {"{" TOP "\"triggers\":[\"a..b\"]," LEVERS "}", "triggers[0]: `a..b` is no dotted module name"},
      {"{" TOP "\"triggers\":[\"9a\"]," LEVERS "}", "triggers[0]: `9a` is no dotted module name"},
      {"{" TOP "\"triggers\":[\"a.\"]," LEVERS "}", "triggers[0]: `a.` is no dotted module name"},
      {"{" TOP "\"triggers\":[\"a\",\"b\",\"a\"]," LEVERS "}", "triggers[2]: `a` is there twice"},
      {"{" TOP TRIGGERS "}", "levers: 0 levers, the limits are 1 and 64"},
      {LEVER("3"), "levers[0]: not an object"},
      {LEVER("{}"), "levers[0].name: a string is missing"},
      {LEVER("{\"name\":\"a\",\"mode\":{}}"), "levers[0]: unknown key `mode`"},
      {LEVER("{\"name\":\"a-b\"}"), "levers[0].name: `a-b` is not 1 to 48 bytes of the accepted letters"},
      {LEVER("{\"name\":\"a\"}"), "levers[0].modes: an object with a mode is missing"},
      {LEVER("{\"name\":\"a\",\"modes\":{}}"), "levers[0].modes: an object with a mode is missing"},
      {LEVER("{\"name\":\"a\",\"modes\":{\"off\":\"record\"}}"), "levers[0].modes: `off` is not exact, fast or big"},
      {LEVER("{\"name\":\"a\",\"modes\":{\"fast\":\"maybe\"}}"),
       "levers[0].modes.fast: `maybe` is not record or require"},
      {LEVER("{\"name\":\"a\",\"modes\":{\"fast\":1}}"), "levers[0].modes.fast: `` is not record or require"},
      {LEVER("{\"name\":\"a\",\"family\":\"nope\",\"modes\":{\"fast\":\"record\"}}"),
       "levers[0].family: `nope` is no family of this core"},
      {LEVER("{\"name\":\"a\",\"instances\":-1,\"modes\":{\"fast\":\"record\"}}"),
       "levers[0].instances: not a whole number from 0 on"},
      {LEVER("{\"name\":\"a\",\"instances\":\"1\",\"modes\":{\"fast\":\"record\"}}"),
       "levers[0].instances: not a whole number from 0 on"},
      {LEVER("{\"name\":\"a\",\"help\":1,\"modes\":{\"fast\":\"record\"}}"), "levers[0].help: not a string"},
      {LEVER("{\"name\":\"a\",\"modes\":{\"fast\":\"record\"}},{\"name\":\"a\",\"modes\":{\"fast\":\"record\"}}"),
       "levers[1].name: `a` is there twice"}};
  int cases = 0;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++, cases++) {
    oc_kit *kit = (oc_kit *)&cases;
    oc_err err = {0};
    assert_int_equal(oc_kit_parse(bad[i].json, strlen(bad[i].json), &kit, &err), OC_REFUSED);
    assert_int_equal(err.reason, OC_REASON_KIT_TABLE);
    assert_string_equal(err.detail, bad[i].said);
    assert_ptr_equal(kit, &cases); /* not written */
  }
  assert_int_equal(cases, 37);
}

static void test_broken_text(void **state) {
  (void)state;
  oc_kit *kit;
  int cases = 0;
  for (size_t bytes = 0; bytes < sizeof good - 1; bytes++, cases++) /* every prefix */
    assert_int_equal(oc_kit_parse(good, bytes, &kit, NULL), OC_REFUSED);
  assert_int_equal(cases, sizeof good - 1);
  static const char twice[] = "{\"schema\":1,\"schema\":1}", zero[] = "{\"schema\":1,\"engine\":\"a\\u0000b\"}",
                    raw[] = "{\"a\xFF\":1}";
  assert_int_equal(oc_kit_parse(twice, sizeof twice - 1, &kit, NULL), OC_REFUSED);
  assert_int_equal(oc_kit_parse(zero, sizeof zero - 1, &kit, NULL), OC_REFUSED);
  oc_err err = {0};
  assert_int_equal(oc_kit_parse(raw, sizeof raw - 1, &kit, &err), OC_REFUSED);
  for (const char *c = err.detail; *c; c++) assert_in_range(*c, 0x20, 0x7e);
  char *deep = malloc(200000);
  memset(deep, '[', 200000);
  assert_int_equal(oc_kit_parse(deep, 200000, &kit, NULL), OC_REFUSED);
  free(deep);
  oc_err large = {0};
  assert_int_equal(oc_kit_parse(good, OC__KIT_JSON_MAX + 1, &kit, &large), OC_REFUSED); /* refused before it is read */
  assert_non_null(strstr(large.detail, "1048576"));
  assert_int_equal(oc_kit_parse(NULL, 0, &kit, NULL), OC_BAD_ARG);
  assert_int_equal(oc_kit_parse(good, sizeof good - 1, NULL, NULL), OC_BAD_ARG);
}

static void test_lever_count_limit(void **state) {
  (void)state;
  for (int count = 64; count <= 65; count++) {
    char *json = malloc(65 * 64 + 512), *to = json;
    to += sprintf(to, "{" TOP TRIGGERS ",\"levers\":[");
    for (int i = 0; i < count; i++)
      to += sprintf(to, "%s{\"name\":\"l%d\",\"modes\":{\"fast\":\"record\"}}", i ? "," : "", i);
    to += sprintf(to, "]}");
    oc_kit *kit;
    oc_err err = {0};
    oc_status status = oc_kit_parse(json, (size_t)(to - json), &kit, &err);
    assert_int_equal(status, count == 64 ? OC_OK : OC_REFUSED);
    if (status == OC_OK) {
      assert_int_equal(oc_kit_lever_find(kit, "l63"), 63);
      oc_kit_free(kit);
    }
    free(json);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_good_table), cmocka_unit_test(test_faults),
                                     cmocka_unit_test(test_broken_text), cmocka_unit_test(test_lever_count_limit)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
