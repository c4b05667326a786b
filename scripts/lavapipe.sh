#!/usr/bin/env bash
# Tests of WebGPU on lavapipe, Mesa's GPU of software. Unlike SwiftShader it has matrices of subgroups. Dawn refuses that of
# Debian 12, so this one is sid's, in a root of its own (600 MB, a minute). Needs root, debootstrap, `npm ci` and a network.
#
#   [SKEIN_SLOW=1] scripts/lavapipe.sh [argument of vitest …]     without any: golden vectors, the demo model
#   LAVAPIPE_ROOT=/var/lib/lavapipe scripts/lavapipe.sh …         keeps the root there for the next time
set -euo pipefail
repository=$(realpath "$(dirname "$0")/..")
root=${LAVAPIPE_ROOT:-$(mktemp -d)}
[ -n "${LAVAPIPE_ROOT:-}" ] || trap 'rm -rf --one-file-system "$root"' EXIT
if [ ! -e "$root/usr/share/vulkan/icd.d/lvp_icd.json" ]; then
  debootstrap --variant=minbase --include=mesa-vulkan-drivers,libvulkan1 sid "$root" http://deb.debian.org/debian >&2
fi
cp "$(readlink -f "$(command -v node)")" "$root/usr/local/bin/node"
mkdir -p "$root$repository"
[ $# -gt 0 ] || set -- test/model/golden.test.ts test/backend/webgpu.test.ts -t 'webgpu bf16|an engine on it'
# Mounts end with the shell that made them.
ROOT=$root REPOSITORY=$repository VK_DRIVER_FILES=/usr/share/vulkan/icd.d/lvp_icd.json unshare --mount bash -euc '
  mount --bind "$REPOSITORY" "$ROOT$REPOSITORY"
  mount --rbind /dev "$ROOT/dev"
  mount -t proc proc "$ROOT/proc" 2>/dev/null || mount --rbind /proc "$ROOT/proc"
  exec chroot "$ROOT" bash -euc "cd \"\$0\" && exec node node_modules/vitest/vitest.mjs run \"\$@\"" "$REPOSITORY" "$@"' bash "$@"
