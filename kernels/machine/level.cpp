// The best level of the kernels that this machine can run. x86-64: 0 baseline, 1 avx2, 2 avx512 (with VNNI and BF16),
// 3 amx. arm64: 0 baseline, 1 dotprod, 2 i8mm.
// A library of its own, compiled for any machine, so that it can be asked before one of a level is loaded. It asks the
// processor itself: __builtin_cpu_supports needs a library that not every compiler brings.
#include <stdint.h>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#endif

namespace {

struct Cpu {
  uint32_t ecx1, ebx7, ecx7, edx7, eax7_1;
  /* Registers that the operating system saves. */
  uint64_t saved;
};

Cpu ask() {
  Cpu cpu{};
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return cpu;
  cpu.ecx1 = c;
  const bool has_xgetbv = c & (1u << 27);
  if (has_xgetbv) {
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    cpu.saved = (uint64_t{high} << 32) | low;
  }
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    cpu.ebx7 = b;
    cpu.ecx7 = c;
    cpu.edx7 = d;
    const uint32_t sub_leaves = a;
    if (sub_leaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) cpu.eax7_1 = a;
  }
  return cpu;
}

bool has(uint32_t bits, uint32_t wanted) { return (bits & wanted) == wanted; }

#if defined(__linux__)
/* The kernel gives tile registers to a process that asks for them, and to the threads that it starts. */
bool may_use_tiles() {
  const long kAsk = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
}

__attribute__((target("amx-tile,amx-bf16"))) void multiply_tiles(const uint16_t (&a)[16][32],
                                                                 const uint16_t (&b)[16][32],
                                                                 float (&c)[16][16]) {
  struct alignas(64) {
    uint8_t palette = 1, reserved[15] = {};
    uint16_t bytes[16] = {64, 64, 64};
    uint8_t rows[16] = {16, 16, 16};
  } config;
  const int64_t stride = 64;
  __asm__ volatile(
      "ldtilecfg %0\n\ttileloadd (%1,%4,1), %%tmm0\n\ttileloadd (%2,%4,1), %%tmm1\n\t"
      "tileloadd (%3,%4,1), %%tmm2\n\ttdpbf16ps %%tmm2, %%tmm1, %%tmm0\n\t"
      "tilestored %%tmm0, (%1,%4,1)\n\ttilerelease"
      ::"m"(config), "r"(c), "r"(a), "r"(b), "r"(stride)
      : "memory");
}

float widen(uint16_t h) {
  const uint32_t bits = uint32_t{h} << 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

/* Whether tiles add in the order of kernels/cpu/amx.h. Few tokens are multiplied without them, and must get the same
   bits. */
bool adds_as_known() {
  uint16_t a[16][32], b[16][32];
  float found[16][16], wanted[16][16];
  uint32_t random = 1;
  const auto draw = [&] {
    random = random * 1664525 + 1013904223;
    return static_cast<uint16_t>((random >> 16 & 0x807f) | (123 + (random >> 8) % 8) << 7);
  };
  for (auto& row : a) for (uint16_t& x : row) x = draw();
  for (auto& row : b) for (uint16_t& x : row) x = draw();
  for (int m = 0; m < 16; m++) {
    for (int n = 0; n < 16; n++) {
      float sums[2] = {0, 0};
      for (int k = 0; k < 32; k++)
        sums[k % 2] = std::fma(widen(a[m][k]), widen(b[k / 2][n * 2 + k % 2]), sums[k % 2]);
      found[m][n] = widen(draw());
      wanted[m][n] = found[m][n] + (sums[0] + sums[1]);
    }
  }
  multiply_tiles(a, b, found);
  return memcmp(found, wanted, sizeof found) == 0;
}

bool has_tiles(const Cpu& cpu) {
  return (cpu.saved & 0x60000) == 0x60000 &&
         has(cpu.edx7, 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25) &&  // BF16, FP16, TILE, INT8
         may_use_tiles() && adds_as_known();
}
#else
bool has_tiles(const Cpu&) { return false; }
#endif

int32_t level() {
  const Cpu cpu = ask();
  const bool avx2 = (cpu.saved & 0x6) == 0x6 && has(cpu.ecx1, 1u << 12 | 1u << 28 | 1u << 29) &&
                    has(cpu.ebx7, 1u << 5);  // FMA, AVX, F16C; AVX2
  const bool avx512 = avx2 && (cpu.saved & 0xe6) == 0xe6 &&
                      has(cpu.ebx7, 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) &&
                      has(cpu.ecx7, 1u << 11) && has(cpu.eax7_1, 1u << 5);  // F, DQ, BW, VL; VNNI; BF16
  return avx512 ? (has_tiles(cpu) ? 3 : 2) : avx2 ? 1 : 0;
}

}  // namespace
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

static int32_t level() {
  // HWCAP_ASIMDDP, HWCAP2_I8MM; old headers lack the second.
  const bool dotprod = getauxval(AT_HWCAP) & (1ul << 20), i8mm = getauxval(AT_HWCAP2) & (1ul << 13);
  return dotprod ? (i8mm ? 2 : 1) : 0;
}
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>

static bool has(const char* feature) {
  int32_t value = 0;
  size_t bytes = sizeof value;
  return sysctlbyname(feature, &value, &bytes, nullptr, 0) == 0 && value != 0;
}

static int32_t level() {
  const bool dotprod = has("hw.optional.arm.FEAT_DotProd");
  return dotprod ? (has("hw.optional.arm.FEAT_I8MM") ? 2 : 1) : 0;
}
#else
static int32_t level() { return 0; }
#endif

#if defined(_WIN32)
#define SK_API __declspec(dllexport)
#else
#define SK_API __attribute__((visibility("default")))
#endif

extern "C" SK_API int32_t sk_machine_level(void) { return level(); }
