/* SPDX-License-Identifier: Apache-2.0 */
/* Every folder's cuda_modules.inc: the lists of kernels that its CUDA members may launch. A line OC_CUDA_MODULE(module)
 * names oc__<folder>_<module>_kernels. */
#include "devices/cuda/cuda.h"
#include "opt_core/activation.h"
#include "opt_core/cuda.h"

#define JOIN_(a, b, c, d, e) a##b##c##d##e
#define JOIN(a, b, c, d, e) JOIN_(a, b, c, d, e)
#define KERNELS(module) JOIN(oc__, FOLDER, _, module, _kernels)

typedef const oc__cuda_kernel *const kernel_list[];

#define OC_CUDA_MODULE(module) extern kernel_list KERNELS(module);
#define FOLDER ln
#include "ln/cuda_modules.inc"
#undef FOLDER
#define FOLDER trimul
#include "trimul/cuda_modules.inc"
#undef FOLDER
#define FOLDER triattn
#include "triattn/cuda_modules.inc"
#undef FOLDER
#define FOLDER transition
#include "transition/cuda_modules.inc"
#undef FOLDER
#define FOLDER apb
#include "apb/cuda_modules.inc"
#undef FOLDER
#undef OC_CUDA_MODULE

#define OC_CUDA_MODULE(module) KERNELS(module),
#define FOLDER ln
static const oc__cuda_kernel *const *const ln_modules[] = {
#include "ln/cuda_modules.inc"
    NULL};
#undef FOLDER
#define FOLDER trimul
static const oc__cuda_kernel *const *const trimul_modules[] = {
#include "trimul/cuda_modules.inc"
    NULL};
#undef FOLDER
#define FOLDER triattn
static const oc__cuda_kernel *const *const triattn_modules[] = {
#include "triattn/cuda_modules.inc"
    NULL};
#undef FOLDER
#define FOLDER transition
static const oc__cuda_kernel *const *const transition_modules[] = {
#include "transition/cuda_modules.inc"
    NULL};
#undef FOLDER
#define FOLDER apb
static const oc__cuda_kernel *const *const apb_modules[] = {
#include "apb/cuda_modules.inc"
    NULL};
#undef FOLDER
#undef OC_CUDA_MODULE

static const oc__cuda_kernel *const *const *const modules_of[OC_FAMILY_COUNT] = {
    [OC_FAMILY_LN] = ln_modules,
    [OC_FAMILY_TRIMUL] = trimul_modules,
    [OC_FAMILY_TRIATTN] = triattn_modules,
    [OC_FAMILY_TRIATTN_MODULE] = triattn_modules,
    [OC_FAMILY_TRANSITION] = transition_modules,
    [OC_FAMILY_APB] = apb_modules,
};

static oc_status prepare_module(int device, int sm, const oc__cuda_kernel *const *kernels, oc_err *err) {
  oc__cuda_function function;
  for (; *kernels; kernels++)
    if (oc_gate_arch(sm, (*kernels)->arch, NULL) == OC_OK)
      OC_TRY(oc__cuda_kernel_find(device, NULL, *kernels, &function, err));
  return OC_OK;
}

oc_status oc_cuda_prepare(int device, oc_family family, oc_err *err) {
  const oc__cuda_limits *limits;
  if ((int)family < 0 || family >= OC_FAMILY_COUNT)
    return OC_FAIL(err, BAD_ARG, 0, "family %d is outside 0..%d", (int)family, OC_FAMILY_COUNT - 1);
  if (!*modules_of[family]) return OC_OK;
  OC_TRY(oc__cuda_limits_of(device, &limits, err));
  for (const oc__cuda_kernel *const *const *module = modules_of[family]; *module; module++)
    OC_TRY(prepare_module(device, limits->sm, *module, err));
  return OC_OK;
}
