/* SPDX-License-Identifier: Apache-2.0 */
/* Where operands lie: the class's device, operands in two places, members of another place. The driver is fake_cuda.c,
 * whose devices are sm_90, 121, 86, 80, 90, 90, 90, 75; no memory of a device is touched here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "devices/place.h"
#include "fake_cuda.h"
#include "opt_core/opt_core.h"

static float memory[4][64];
static oc_err err;

static oc_view view_of(int which, int32_t device, int32_t rank, const int64_t *shape) {
  oc_view view = oc_view_dense(memory[which], OC_F32, rank, shape);
  view.device = device;
  return view;
}

static int before(void **state) {
  (void)state;
  memset(&err, 0, sizeof err);
  return 0;
}

static void expect(oc_status got, oc_status want, const char *text) {
  char line[256];
  assert_int_equal(got, want);
  oc_err_text(&err, line, sizeof line);
  if (want != OC_OK) assert_string_equal(line, text);
  memset(&err, 0, sizeof err);
}

static oc_ln ln_on(int32_t x, int32_t y) {
  static const int64_t shape[] = {2, 8};
  return (oc_ln){.x = view_of(0, x, 2, shape), .y = view_of(1, y, 2, shape)};
}

static void expect_class(int32_t device, const char *want) {
  oc_class cls;
  const oc_ln call = ln_on(device, device);
  expect(oc_ln_class(&call, OC_TIER_FAST, &cls, &err), OC_OK, "");
  assert_string_equal(cls.device, want);
}

static void test_class_device(void **state) {
  (void)state;
  char host[24];
  oc_isa isa;
  assert_int_equal(oc_cpu_isa(&isa, NULL), OC_OK);
  snprintf(host, sizeof host, "cpu-%s", oc_isa_word(isa));
  expect_class(OC_DEVICE_HOST, host);
  expect_class(OC_DEVICE_CUDA(0), "sm_90a");
  expect_class(OC_DEVICE_CUDA(1), "sm_121");
  expect_class(OC_DEVICE_CUDA(2), "sm_86");
  expect_class(OC_DEVICE_CUDA(3), "sm_80");
  oc_class cls;
  oc_ln call = ln_on(OC_DEVICE_CUDA(8), OC_DEVICE_CUDA(8));
  expect(oc_ln_class(&call, OC_TIER_FAST, &cls, &err), OC_REFUSED, "no_device:8 devices, asked for ordinal 8");
  call = ln_on(-2, -2);
  expect(oc_ln_class(&call, OC_TIER_FAST, &cls, &err), OC_BAD_ARG, "bad_arg:x: device -2 is below 0");
  assert_int_equal(oc_view_cuda_ordinal(&call.x), -3);
  assert_int_equal(OC_DEVICE_CUDA(3), 4);
}

static void test_host_call_asks_no_driver(void **state) {
  (void)state;
  oc_class cls;
  const oc_ln call = ln_on(OC_DEVICE_HOST, OC_DEVICE_HOST);
  const oc_choice choice = {.member = oc_member_find(OC_FAMILY_LN, "reference", OC_ISA_GENERIC)};
  const oc_exec exec = {.threads = 1};
  fake_reset();
  expect(oc_ln_class(&call, OC_TIER_FAST, &cls, &err), OC_OK, "");
  expect(oc_ln_serve(&call, &choice, &exec, &err), OC_OK, "");
  assert_int_equal(fake_calls(NULL), 0);
}

/* ---- two places ------------------------------------------------------------------------------------------------- */

static void test_two_places(void **state) {
  (void)state;
  oc_class cls;
  oc_ln call = ln_on(OC_DEVICE_CUDA(0), OC_DEVICE_HOST);
  expect(oc_ln_class(&call, OC_TIER_FAST, &cls, &err), OC_BAD_ARG, "bad_arg:y: on cpu, x is on cuda:0");
  call = ln_on(OC_DEVICE_HOST, OC_DEVICE_CUDA(1));
  expect(oc_ln_class(&call, OC_TIER_FAST, &cls, &err), OC_BAD_ARG, "bad_arg:y: on cuda:1, x is on cpu");
  call = ln_on(OC_DEVICE_CUDA(1), OC_DEVICE_CUDA(2));
  expect(oc_ln_class(&call, OC_TIER_FAST, &cls, &err), OC_BAD_ARG, "bad_arg:y: on cuda:2, x is on cuda:1");
  call = ln_on(OC_DEVICE_CUDA(1), OC_DEVICE_CUDA(1));
  call.norm.weight = view_of(2, OC_DEVICE_HOST, 1, (const int64_t[]){8});
  expect(oc_ln_class(&call, OC_TIER_FAST, &cls, &err), OC_BAD_ARG, "bad_arg:norm.weight: on cpu, x is on cuda:1");
}

/* Every view of a descriptor, one after the other, on another device: refused, and named. The descriptors are made of
 * views of ones, all sizes 1 or as small as the family takes. */
typedef oc_status classify(const void *call, oc_class *out);
#define CLASSIFY(family)                                                                                               \
  static oc_status family##_class(const void *call, oc_class *out) {                                                   \
    return oc_##family##_class(call, OC_TIER_FAST, out, &err);                                                         \
  }
CLASSIFY(ln)
CLASSIFY(trimul)
CLASSIFY(triattn)
CLASSIFY(triattn_module)
CLASSIFY(transition)
CLASSIFY(apb)

/* main: the view that the others are compared with. */
static void check_views(classify *class_of, void *call, const oc_view *main, oc_view *const *views) {
  oc_class cls;
  for (int i = 0; views[i]; i++) views[i]->device = OC_DEVICE_CUDA(0);
  expect(class_of(call, &cls), OC_OK, "");
  assert_string_equal(cls.device, "sm_90a");
  for (int i = 0; views[i]; i++) {
    if (views[i] == main) continue;
    views[i]->device = OC_DEVICE_CUDA(5);
    assert_int_equal(class_of(call, &cls), OC_BAD_ARG);
    assert_non_null(strstr(err.detail, ": on cuda:5, "));
    assert_non_null(strstr(err.detail, " is on cuda:0"));
    memset(&err, 0, sizeof err);
    views[i]->device = OC_DEVICE_CUDA(0);
  }
}

static oc_view one(int which, int32_t rank) {
  static const int64_t ones[OC_MAX_RANK] = {1, 1, 1, 1, 1, 1};
  return view_of(which, OC_DEVICE_HOST, rank, ones);
}

static oc_linear linear(void) { return (oc_linear){one(1, 2), one(1, 1)}; }

#define VIEWS(...) ((oc_view *const[]){__VA_ARGS__, NULL})

static void test_every_view(void **state) {
  (void)state;
  const oc_norm norm = {.weight = one(1, 1), .bias = one(1, 1), .eps = 1e-5f};
  oc_ln ln = {.x = one(0, 2), .y = one(2, 2), .norm = norm};
  check_views(ln_class, &ln, &ln.x, VIEWS(&ln.x, &ln.y, &ln.norm.weight, &ln.norm.bias));

  oc_triattn a = {.q = one(0, 5),
                  .k = one(0, 5),
                  .v = one(0, 5),
                  .bias = one(0, 4),
                  .mask = one(0, 3),
                  .gate = one(0, 5),
                  .out = one(2, 5),
                  .lse = one(3, 4),
                  .scale = 1,
                  .mask_kind = OC_MASK_ADD};
  check_views(triattn_class, &a, &a.q, VIEWS(&a.q, &a.k, &a.v, &a.bias, &a.mask, &a.gate, &a.out, &a.lse));

  oc_apb p = {.q = one(0, 4),
              .k = one(0, 4),
              .v = one(0, 4),
              .bias = one(0, 4),
              .mask = one(0, 2),
              .gate = one(0, 4),
              .out = one(2, 4),
              .scale = 1,
              .mask_kind = OC_MASK_ADD};
  check_views(apb_class, &p, &p.q, VIEWS(&p.q, &p.k, &p.v, &p.bias, &p.mask, &p.gate, &p.out));

  oc_transition t = {.x = one(0, 2),
                     .y = one(2, 2),
                     .mask = one(0, 1),
                     .residual = one(0, 2),
                     .norm = norm,
                     .up = linear(),
                     .gate = linear(),
                     .down = linear()};
  check_views(transition_class, &t, &t.x,
              VIEWS(&t.x, &t.y, &t.mask, &t.residual, &t.norm.weight, &t.norm.bias, &t.up.weight, &t.up.bias,
                    &t.gate.weight, &t.gate.bias, &t.down.weight, &t.down.bias));

  oc_triattn_module m = {.x = one(0, 4),
                         .y = one(2, 4),
                         .mask = one(0, 3),
                         .residual = one(0, 4),
                         .norm = norm,
                         .to_q = linear(),
                         .to_k = linear(),
                         .to_v = linear(),
                         .to_bias = linear(),
                         .to_gate = linear(),
                         .out_proj = linear(),
                         .heads = 1,
                         .scale = 1,
                         .mask_kind = OC_MASK_ZERO};
  check_views(triattn_module_class, &m, &m.x,
              VIEWS(&m.x, &m.y, &m.mask, &m.residual, &m.norm.weight, &m.norm.bias, &m.to_q.weight, &m.to_q.bias,
                    &m.to_k.weight, &m.to_k.bias, &m.to_v.weight, &m.to_v.bias, &m.to_bias.weight, &m.to_bias.bias,
                    &m.to_gate.weight, &m.to_gate.bias, &m.out_proj.weight, &m.out_proj.bias));

  oc_trimul u = {.x = one(0, 4),
                 .y = one(2, 4),
                 .mask = one(0, 3),
                 .residual = one(0, 4),
                 .norm_in = norm,
                 .norm_out = norm,
                 .a_proj = linear(),
                 .a_gate = linear(),
                 .b_proj = linear(),
                 .b_gate = linear(),
                 .out_proj = linear(),
                 .out_gate = linear(),
                 .right_scale = 1};
  check_views(trimul_class, &u, &u.x,
              VIEWS(&u.x, &u.y, &u.mask, &u.residual, &u.norm_in.weight, &u.norm_in.bias, &u.norm_out.weight,
                    &u.norm_out.bias, &u.a_proj.weight, &u.a_proj.bias, &u.a_gate.weight, &u.a_gate.bias,
                    &u.b_proj.weight, &u.b_proj.bias, &u.b_gate.weight, &u.b_gate.bias, &u.out_proj.weight,
                    &u.out_proj.bias, &u.out_gate.weight, &u.out_gate.bias));
}

/* ---- members ---------------------------------------------------------------------------------------------------- */

static void test_member_elsewhere(void **state) {
  (void)state;
  const oc_choice choice = {.member = oc_member_find(OC_FAMILY_LN, "reference", OC_ISA_GENERIC)};
  const oc_exec exec = {.threads = 1, .device = OC_DEVICE_CUDA(0)};
  oc_ln call = ln_on(OC_DEVICE_CUDA(0), OC_DEVICE_CUDA(0));
  expect(oc_ln_serve(&call, &choice, &exec, &err), OC_REFUSED,
         "no_device:x is a cuda:0 tensor, the row's device is cpu");
  call = ln_on(OC_DEVICE_HOST, OC_DEVICE_HOST);
  expect(oc_ln_serve(&call, &choice, &exec, &err), OC_BAD_ARG, "bad_arg:exec: device cuda:0, x is on cpu");
}

static void test_cuda_member(void **state) {
  (void)state;
  const oc_member hopper = {.row = "r", .name = "m", .device = "sm_90a"}, ampere = {.device = "sm_80"};
  oc_exec exec = {.device = OC_DEVICE_CUDA(0)};
  oc_view x = one(0, 1);
  expect(oc__place_serve(&hopper, &exec, &x, "x", &err), OC_REFUSED,
         "no_device:x is a cpu tensor, the row's device is sm_90a");
  x.device = OC_DEVICE_CUDA(0);
  expect(oc__place_serve(&hopper, &exec, &x, "x", &err), OC_OK, "");
  expect(oc__place_serve(&ampere, &exec, &x, "x", &err), OC_REFUSED, "arch:sm_90!=sm_80");
  x.device = OC_DEVICE_CUDA(2);
  expect(oc__place_serve(&ampere, &exec, &x, "x", &err), OC_BAD_ARG, "bad_arg:exec: device cuda:0, x is on cuda:2");
  exec.device = x.device;
  expect(oc__place_serve(&ampere, &exec, &x, "x", &err), OC_OK, "");
  expect(oc__place_serve(&hopper, &exec, &x, "x", &err), OC_REFUSED, "arch:sm_86!=sm_90a");
}

static void test_planes_are_made_on_the_host(void **state) {
  (void)state;
  oc_view gate = one(0, 3), proj = one(1, 3), out = one(2, 3);
  gate.device = proj.device = out.device = OC_DEVICE_CUDA(0);
  expect(oc_trimul_gate_planes(&gate, &proj, NULL, &out, 1, &err), OC_REFUSED,
         "no_device:out is a cuda:0 tensor, the planes are made on the cpu");
  out.device = OC_DEVICE_HOST;
  expect(oc_trimul_gate_planes(&gate, &proj, NULL, &out, 1, &err), OC_BAD_ARG,
         "bad_arg:gate: on cuda:0, out is on cpu");
}

/* The word tf32 belongs to f32 operands; others are not rounded further. */
static void test_tf32_word(void **state) {
  (void)state;
  oc_class cls;
  oc_triattn a = {
      .q = one(0, 5), .k = one(0, 5), .v = one(0, 5), .out = one(2, 5), .lse = one(3, 4), .scale = 1, .tf32 = 1};
  expect(oc_triattn_class(&a, OC_TIER_FAST, &cls, &err), OC_OK, "");
  assert_string_equal(cls.form, "lse+tf32");
  a.q.dtype = a.k.dtype = a.v.dtype = a.out.dtype = OC_BF16;
  expect(oc_triattn_class(&a, OC_TIER_FAST, &cls, &err), OC_OK, "");
  assert_string_equal(cls.form, "lse");
  oc_triattn_module m = {.x = one(0, 4),
                         .y = one(2, 4),
                         .residual = one(0, 4),
                         .to_q = {.weight = one(1, 2)},
                         .to_k = {.weight = one(1, 2)},
                         .to_v = {.weight = one(1, 2)},
                         .to_bias = {.weight = one(1, 2)},
                         .out_proj = {.weight = one(1, 2)},
                         .heads = 1,
                         .scale = 1,
                         .bias_untransposed_end = 1,
                         .tf32 = 1};
  expect(oc_triattn_module_class(&m, OC_TIER_FAST, &cls, &err), OC_OK, "");
  assert_string_equal(cls.form, "residual+tf32+untransposed");
}

#define CASE(name) cmocka_unit_test_setup(name, before)

int main(void) {
  const struct CMUnitTest tests[] = {CASE(test_class_device),
                                     CASE(test_host_call_asks_no_driver),
                                     CASE(test_two_places),
                                     CASE(test_every_view),
                                     CASE(test_member_elsewhere),
                                     CASE(test_cuda_member),
                                     CASE(test_planes_are_made_on_the_host),
                                     CASE(test_tf32_word)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
