#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu_run.sh STEP...  What is done on a machine with a GPU that has torch, pytest and nothing of ours: installs the wheel that tools/gpu_carry.sh made and runs
# the steps in the order given. A step that fails does not stop the next ones; each writes $OUT/<step>.log (all in $OUT/logs.tar.xz at the end),
# and a table of all comes last.
#   env        the device, the stack, what was installed        smoke      each row once against float64, a few seconds
#   quick      the short form of the ladder                      tests      the whole ladder and the other GPU tests
#   sanitize   memcheck, racecheck, initcheck                    mutants    carried cubins with a fault each
#   bench      every size and peer, results in $OUT              bench-quick  a few sizes, no peer that tunes itself
#   ncu        counters of our kernels at N = 1024               cubins     compiles the cubins here, when the wheel has none (1 to 3 minutes)
# OUT (default build/gpu_run); FAMILY (all), ROWS, SIZES, BENCH (more arguments, --no-peers) for the benches; PYTEST; STEP_SECONDS (limit of a step, 420).
set -uo pipefail
cd "$(dirname "$0")/.." || exit
OUT=${OUT:-build/gpu_run}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
site=${SITE:-/tmp/site}
commit=${COMMIT:-$(cat build/carry/commit 2>/dev/null || true)}
export PYTHONPATH=$site:${PYTHONPATH:-} PYTHONUNBUFFERED=1

install() { # once for each wheel: a warm machine keeps it
  local wheel
  wheel=$(ls build/carry/opt_core-*.whl) || return 1
  if [ "$(sha256sum "$wheel" | cut -c1-64)" != "$(cat "$site/.opt_core" 2>/dev/null)" ]; then
    rm -rf "$site"/opt_core*
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" "$wheel" || return 1
    sha256sum "$wheel" | cut -c1-64 >"$site/.opt_core"
  fi
  if [ -d build/carry-peers ] && [ ! -e "$site/.peers" ]; then
    for archive in build/carry-peers/*.tar.xz; do tar xJf "$archive" -C "$site" & done
    wait
    touch "$site/.peers"
  fi
}
env_() {
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,power.draw,temperature.gpu --format=csv,noheader
  python3 - <<'P'
import torch
from opt_core import _core
print("torch", torch.__version__, "cuda", torch.version.cuda, torch.cuda.get_device_name())
print("facts", _core.cuda_facts(0))
for family in ("triattn", "triattn_module"):
    print(family, [(m["row"], m["name"], m["device"]) for m in _core.members(family)])
P
  find "$site/opt_core/lib" -name '*.cubin' -exec ls -l {} +
}
cubins() { find "$site/opt_core/lib" -name '*.cubin' | grep -q . || python3 common/opt_core/build_prebuilt.py --dev --out "$site/opt_core/lib/opt_core/cubin" --cache /tmp/cubin_cache; }
smoke() {
  python3 - <<'P'
import sys
sys.path.insert(0, "common/opt_core/tests/gpu")
import ladder
red = 0


def attempt(rung, case, row):
    """A refusal of what the row is not made for is a right answer; one of what it has to serve is red, and the rung says so."""
    global red
    tally = ladder.Tally()
    try:
        rung(case, row, "cuda", tally)
    except Exception as failure:
        red += 1
        said = f"RED {type(failure).__name__}: {str(failure)[:300]}"
    else:
        words = [*tally.refused, *tally.outside]
        said = f"refused by name: {words[0]}" if words else " ".join(["holds", *(f"{r:.2f} of the stock form's error" for r in tally.ratios)])
    print(f"{row:16} {rung.__name__:12} {str(case):36} {said}", flush=True)


for row in ladder.rows_here("triattn", "cuda"):
    for text in ("n=64,i=64", "n=256,i=64,lse=1,gate=1", "n=100,bias=bf16,mask=none", "n=130,dtype=f16", "n=130,dtype=f32", "n=130,dtype=f32,tf32=1", "n=130,d=64",
                 "n=130,layout=ending,out=ending", "n=257,data=outlier_far"):
        attempt(ladder.bound, ladder.parse(ladder.Case, text), row)
for row in ladder.rows_here("triattn_module", "cuda"):
    for text in ("n=64", "n=130,ending=1,biased=1", "n=130,dtype=f32", "n=257"):
        attempt(ladder.module_bound, ladder.parse(ladder.ModuleCase, text), row)
sys.exit(red != 0)
P
}
quick() { python3 -m pytest -q -m quick -p no:cacheprovider --durations=6 common/opt_core/tests/gpu/test_triattn_cuda.py ${PYTEST:-}; }
tests() { python3 -m pytest -q -rs -p no:cacheprovider --durations=10 common/opt_core/tests/gpu ${PYTEST:-}; }
sanitize() { tools/sanitize_gpu.sh python3 33 130; }
mutants() { python3 tools/mutants_gpu.py --run build/carry/mutants; }
bench_() { python3 bench/bench.py --device cuda --family "${FAMILY:-all}" --results "$OUT" --commit "$commit" --rows "${ROWS:-}" --sizes "${SIZES:-}" ${BENCH:-} "$@"; }
ncu_() {
  ncu --clock-control none --set full --kernel-name-base function -k 'regex:^oc_' -c 6 python3 - <<'P'
import torch
from opt_core.kernels.triattn import triattn
q, k, v = (torch.randn(1, 1024, 1024, 4, 32, device="cuda").bfloat16() for _ in range(3))
bias, mask = torch.randn(1, 4, 1024, 1024, device="cuda"), torch.rand(1, 1024, 1024, device="cuda") > 0.05
with torch.no_grad():
    for row in ("triattn_native", "cuda_sm90a"):
        triattn(q, k, v, bias, mask, scale=32**-0.5, mask_kind="zero", row=row)
torch.cuda.synchronize()
P
}
export OUT site commit
export -f env_ cubins smoke quick tests sanitize mutants bench_ ncu_

install >"$OUT/install.log" 2>&1 || { tail -20 "$OUT/install.log"; echo "[gpu_run] the wheel of build/carry could not be installed"; exit 1; }
status=0
summary=()
for step in "$@"; do
  case $step in
  env) call=env_ ;; bench) call=bench_ ;; bench-quick) call="bench_ --quick" ;; ncu) call=ncu_ ;;
  cubins | smoke | quick | tests | sanitize | mutants) call=$step ;;
  *) echo "[gpu_run] no step $step"; status=2; continue ;;
  esac
  echo "== $step"
  began=$SECONDS
  timeout "${STEP_SECONDS:-420}" bash -c "$call" 2>&1 | tee "$OUT/$step.log"
  code=${PIPESTATUS[0]}
  [ "$code" = 0 ] || status=1
  summary+=("$(printf '%-12s status %-4s %4d s   %s' "$step" "$code" $((SECONDS - began)) "$(tail -1 "$OUT/$step.log" | cut -c1-110)")")
done
echo "== steps"
printf '%s\n' "${summary[@]}" | tee "$OUT/steps.txt"
(cd "$OUT" && tar cJf logs.tar.xz ./*.log && rm -f ./*.log) # one file instead of many
exit $status
