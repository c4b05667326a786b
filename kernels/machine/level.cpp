// The best level of the kernels that this machine can run: 0 baseline, 1 avx2, 2 avx512 (with VNNI and BF16).
// A library of its own, compiled for any machine, so that it can be asked before one of a level is loaded. It asks the
// processor itself: __builtin_cpu_supports needs a library that not every compiler brings.
#include <stdint.h>

#if defined(__x86_64__)
#include <cpuid.h>

namespace {

struct Cpu {
  uint32_t ecx1, ebx7, ecx7, eax7_1;
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
    const uint32_t sub_leaves = a;
    if (sub_leaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) cpu.eax7_1 = a;
  }
  return cpu;
}

bool has(uint32_t bits, uint32_t wanted) { return (bits & wanted) == wanted; }

int32_t level() {
  const Cpu cpu = ask();
  const bool avx2 = (cpu.saved & 0x6) == 0x6 && has(cpu.ecx1, 1u << 12 | 1u << 28 | 1u << 29) &&
                    has(cpu.ebx7, 1u << 5);  // FMA, AVX, F16C; AVX2
  const bool avx512 = avx2 && (cpu.saved & 0xe6) == 0xe6 &&
                      has(cpu.ebx7, 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) &&
                      has(cpu.ecx7, 1u << 11) && has(cpu.eax7_1, 1u << 5);  // F, DQ, BW, VL; VNNI; BF16
  return avx512 ? 2 : avx2 ? 1 : 0;
}

}  // namespace
#else
static int32_t level() { return 0; }
#endif

#if defined(_WIN32)
#define SK_API __declspec(dllexport)
#else
#define SK_API __attribute__((visibility("default")))
#endif

extern "C" SK_API int32_t sk_machine_level(void) { return level(); }
